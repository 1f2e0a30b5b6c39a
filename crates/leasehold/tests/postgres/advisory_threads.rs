//! Advisory locks whose callers' runtimes are blocked. A caller normally reads its answer itself,
//! but nothing may depend on that.

use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use leasehold::{Client, Lease, Released, connect};
use tokio::sync::{mpsc, oneshot};

use crate::support::{LONG, advisory_on, plain, server, soon, until, until_waiting};

/// A ttl that a client on a busy machine also renews in time.
const BUSY_TTL: Duration = Duration::from_secs(5);

/// A runtime on a thread of its own, which the test can block.
struct Other {
    block: mpsc::Sender<()>,
    is_blocked: std::sync::mpsc::Receiver<()>,
    go_on: Option<SyncSender<()>>,
    thread: JoinHandle<()>,
}

impl Other {
    /// Begins `work`, and sends its result.
    fn begin<T, F>(work: impl FnOnce() -> F + Send + 'static) -> (Self, oneshot::Receiver<T>)
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        let (block, mut told) = mpsc::channel(1);
        let (blocked, is_blocked) = sync_channel(1);
        let (go_on, held) = sync_channel::<()>(1);
        let (done, is_done) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async {
                let work = tokio::spawn(work());
                told.recv().await.expect("it is told to block");
                blocked.send(()).expect("the test waits");
                held.recv().expect_err("nothing is sent");
                drop(done.send(work.await.expect("no panic")));
            });
        });
        (Self { block, is_blocked, go_on: Some(go_on), thread }, is_done)
    }

    async fn block(&self) {
        self.block.send(()).await.expect("it waits to be told");
        self.is_blocked.recv().expect("it blocks");
    }

    fn go_on(mut self) {
        drop(self.go_on.take());
        self.thread.join().expect("no panic");
    }
}

/// A lease that was taken on a runtime which is blocked now.
async fn taken_elsewhere(client: &Client, ttl: Duration) -> (Other, Lease) {
    let (client, (pass_on, taken)) = (client.clone(), oneshot::channel());
    let (other, _done) = Other::begin(move || async move {
        let lease = client.mutex("n").ttl(ttl).lock().await.expect("a lease");
        assert!(pass_on.send(lease).is_ok(), "the test waits");
    });
    let lease = soon("the lease", taken).await.expect("it is taken");
    other.block().await;
    (other, lease)
}

#[tokio::test]
async fn f71_the_end_of_a_session_is_noticed_while_the_runtime_that_took_it_is_blocked() {
    let server = server();
    let url = advisory_on(server);
    let client = connect(&url).await.expect("connected");
    let (other, lease) = taken_elsewhere(&client, LONG).await;
    let raw = plain(&url).await;
    let ended = "SELECT count(pg_terminate_backend(pid)) FROM pg_locks WHERE locktype = 'advisory'
                 AND granted AND database = (SELECT oid FROM pg_database
                 WHERE datname = current_database()) AND pid <> pg_backend_pid()";
    assert!(raw.query_one(ended, &[]).await.expect("ended").get::<_, i64>(0) >= 1);
    // Its ttl is far beyond this wait.
    soon("the loss", lease.lost()).await;
    other.go_on();
}

#[tokio::test]
async fn a_session_serves_others_while_the_runtime_that_took_it_is_blocked() {
    let url = advisory_on(server());
    let client = connect(&url).await.expect("connected");
    let (other, lease) = taken_elsewhere(&client, LONG).await;
    for _ in 0..20 {
        let mine = soon("a grant", client.mutex("m").ttl(LONG).lock()).await.expect("a lease");
        let released = soon("an answer", mine.release()).await.expect("an answer");
        assert_eq!(released, Released::Released);
    }
    let released = soon("an answer", lease.release()).await.expect("an answer");
    assert_eq!(released, Released::Released);
    other.go_on();
}

#[tokio::test]
async fn f05_a_grant_is_known_and_kept_while_the_runtime_that_waits_is_blocked() {
    let url = advisory_on(server());
    let (client, holder) = (connect(&url).await, connect(&url).await);
    let (client, holder) = (client.expect("connected"), holder.expect("connected"));
    let before = holder.mutex("n").ttl(LONG).lock().await.expect("a lease");
    let waiting = client.clone();
    let (other, granted) =
        Other::begin(move || async move { waiting.mutex("n").ttl(BUSY_TTL).lock().await });
    until_waiting(&holder, "n", 1).await;
    let raw = plain(&url).await;
    let which = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND
                 database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    let pid: i32 = raw.query_one(which, &[]).await.expect("it waits").get(0);
    other.block().await;
    let fence = before.fence();
    before.release().await.expect("an answer");
    // After the grant the session sends a heartbeat, which shows that the client read the grant.
    let last = "SELECT query FROM pg_stat_activity WHERE pid = $1";
    until("a heartbeat", async || {
        let row = raw.query_opt(last, &[&pid]).await.expect("an answer");
        let said: String = row.expect("the session lives").get(0);
        said == "SELECT pg_backend_pid()"
    })
    .await;
    other.go_on();
    let lease = soon("the lease", granted).await.expect("it was granted").expect("a lease");
    assert!(lease.is_held() && lease.fence() > fence);
}
