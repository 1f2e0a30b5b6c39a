//! Locks of other libraries on the same keys, with the real packages. Each side excludes the other,
//! waits for it, and never takes away the other's lock.

use std::sync::Arc;
use std::time::Duration;

use leasehold::{Client, LockOptions, Mode, Released, UnlessHeld};
use leasehold_testkit::{Peer, PeerKind, Server};
use rslock::LockManager;

use crate::support::*;

const NAME: &str = "report";
/// No lock ends by itself in a test by default.
const THEIR_LONG: Duration = Duration::from_secs(60);
/// How long the other library waits.
const WAIT: Duration = Duration::from_secs(20);

/// Compares and deletes, as all these libraries do.
const DELETE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";

/// A lock of another library.
enum Other {
    Package(Box<Peer>),
    Rslock { manager: LockManager, lock: Option<rslock::Lock> },
    ByHand { server: Arc<Server>, token: u32 },
}

impl Other {
    async fn package(kind: PeerKind, server: &Server) -> Other {
        Other::Package(Box::new(Peer::spawn(kind, &[server.url()]).await.expect("a peer starts")))
    }

    fn rslock(server: &Server) -> Other {
        let mut manager = LockManager::new(vec![server.url()]);
        manager.set_retry(1, Duration::from_millis(1));
        Other::Rslock { manager, lock: None }
    }

    fn by_hand(server: &Arc<Server>) -> Other {
        Other::ByHand { server: Arc::clone(server), token: 0 }
    }

    /// The part of its key before the name.
    fn prefix(&self) -> String {
        match self {
            Other::Package(peer) => peer.key(""),
            _ => String::new(),
        }
    }

    async fn try_lock(&mut self, ttl: Duration) -> bool {
        match self {
            Other::Package(peer) => peer.try_lock(NAME, ttl).await.expect("an answer"),
            Other::Rslock { manager, lock } => {
                *lock = manager.lock(NAME, ttl).await.ok();
                lock.is_some()
            }
            Other::ByHand { server, token } => {
                *token += 1;
                let (value, ttl) = (format!("by hand {token}"), ttl.as_millis().to_string());
                !told(server, &["SET", NAME, &value, "NX", "PX", &ttl]).is_empty()
            }
        }
    }

    /// Waits as the library does.
    async fn lock(&mut self, ttl: Duration) -> bool {
        if let Other::Package(peer) = self {
            return peer.lock(NAME, ttl, WAIT).await.expect("an answer");
        }
        let begun = std::time::Instant::now();
        while begun.elapsed() < WAIT {
            if self.try_lock(ttl).await {
                return true;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        false
    }

    /// Gives it back; whether the other library still had it.
    async fn release(&mut self) -> bool {
        match self {
            Other::Package(peer) => peer.release(NAME).await.expect("an answer"),
            Other::Rslock { manager, lock } => {
                let lock = lock.take().expect("it was taken");
                let owned = manager.is_freed(&lock).await.is_ok_and(|freed| !freed);
                manager.unlock(&lock).await;
                owned
            }
            Other::ByHand { server, token } => {
                told(server, &["EVAL", DELETE, "1", NAME, &format!("by hand {token}")]) == "1"
            }
        }
    }
}

/// Both sides of one key.
struct Table {
    ours: Client,
    theirs: Other,
    server: Arc<Server>,
    key: String,
}

impl Table {
    async fn new(server: Arc<Server>, theirs: Other) -> Table {
        let prefix = theirs.prefix();
        let ours = client(format!("{}?prefix={prefix}", server.url())).await;
        Table { ours, theirs, server, key: format!("{prefix}{NAME}") }
    }

    fn value(&self) -> String {
        told(&self.server, &["GET", &self.key])
    }

    async fn ours_keeps_theirs_out(&mut self) {
        for mode in [Mode::Exclusive, Mode::Shared, Mode::Permits { take: 1, of: 2 }] {
            let request = self.ours.request(NAME).mode(mode).ttl(LONG);
            let lease = request.acquire().await.expect("free");
            let token = self.value();
            assert!(!self.theirs.try_lock(THEIR_LONG).await, "{mode:?}");
            assert_eq!(self.value(), token);
            lease.release().await.expect("an answer");
            // Some check again only when their own ttl has passed.
            let theirs = &mut self.theirs;
            let waiting = async { theirs.lock(Duration::from_secs(2)).await };
            assert!(soon("their turn", waiting).await, "{mode:?}");
            assert!(self.theirs.release().await, "{mode:?}");
        }
    }

    async fn theirs_waits_for_ours(&mut self) {
        let lease = self.ours.mutex(NAME).ttl(LONG).lock().await.expect("free");
        {
            let mut waiting = std::pin::pin!(self.theirs.lock(Duration::from_secs(2)));
            let early = tokio::time::timeout(Duration::from_millis(300), &mut waiting).await;
            assert!(early.is_err(), "they did not wait");
            assert!(lease.is_held());
            lease.release().await.expect("an answer");
            assert!(soon("their turn", waiting).await);
        }
        assert!(self.theirs.release().await);
    }

    async fn ours_waits_for_their_release(&mut self) {
        assert!(self.theirs.try_lock(THEIR_LONG).await);
        let value = self.value();
        assert!(self.ours.mutex(NAME).try_lock().await.unless_held().expect("an answer").is_none());
        let (first, second) = (
            Waiter::queue(&self.ours, &self.ours, NAME, 0).await,
            Waiter::queue(&self.ours, &self.ours, NAME, 1).await,
        );
        assert_eq!(self.value(), value, "ours touched theirs");
        assert!(self.theirs.release().await);
        let lease = first.granted().await;
        assert!(second.is_waiting() && !self.theirs.try_lock(THEIR_LONG).await);
        lease.release().await.expect("an answer");
        let lease = second.granted().await;
        assert!(!self.theirs.try_lock(THEIR_LONG).await);
        lease.release().await.expect("an answer");
    }

    async fn ours_follows_when_theirs_expires(&mut self) {
        assert!(self.theirs.try_lock(Duration::from_secs(1)).await);
        let lease = soon("our turn", self.ours.mutex(NAME).ttl(LONG).lock()).await.expect("ours");
        let token = self.value();
        assert!(!self.theirs.release().await, "it was theirs no more");
        assert_eq!(self.value(), token, "theirs deleted ours");
        assert!(lease.is_held());
        assert_eq!(lease.release().await.expect("an answer"), Released::Released);
    }

    async fn theirs_follows_when_ours_expires(&mut self) {
        let mutex = self
            .ours
            .mutex(NAME)
            .ttl(Duration::from_millis(100))
            .options(LockOptions::new().renew(false));
        let lease = mutex.lock().await.expect("free");
        soon("their turn", async {
            while !self.theirs.try_lock(THEIR_LONG).await {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await;
        let value = self.value();
        // The lease has ended for its holder; a late release finds a lock of another library.
        let released = self.ours.release(&lease.handle()).await.expect("an answer");
        assert!(matches!(released, Released::TakenBy(_)), "{released:?}");
        assert_eq!(self.value(), value, "ours deleted theirs");
        assert!(self.theirs.release().await);
        assert!(self.ours.mutex(NAME).try_lock().await.unless_held().expect("an answer").is_some());
    }

    async fn everything(mut self) {
        self.ours_keeps_theirs_out().await;
        self.theirs_waits_for_ours().await;
        self.ours_waits_for_their_release().await;
        self.ours_follows_when_theirs_expires().await;
        self.theirs_follows_when_ours_expires().await;
        until_free(&self.ours, NAME).await;
    }
}

async fn with_package(kind: PeerKind) {
    let server = Arc::new(server().await);
    let theirs = Other::package(kind, &server).await;
    Table::new(server, theirs).await.everything().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_py_and_we_exclude_each_other() {
    with_package(PeerKind::RedisPy).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_py_asyncio_and_we_exclude_each_other() {
    with_package(PeerKind::RedisPyAsyncio).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn python_redis_lock_and_we_exclude_each_other() {
    with_package(PeerKind::PythonRedisLock).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_redlock_and_we_exclude_each_other() {
    with_package(PeerKind::Redlock).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_semaphore_and_we_exclude_each_other() {
    with_package(PeerKind::RedisSemaphore).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rslock_and_we_exclude_each_other() {
    let server = Arc::new(server().await);
    let theirs = Other::rslock(&server);
    Table::new(server, theirs).await.everything().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn set_nx_px_by_hand_and_we_exclude_each_other() {
    let server = Arc::new(server().await);
    let theirs = Other::by_hand(&server);
    Table::new(server, theirs).await.everything().await;
}
