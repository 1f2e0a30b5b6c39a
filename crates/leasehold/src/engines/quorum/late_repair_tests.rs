//! A repair that a node carries out after the lease was given back.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::{self, BoxStream, StreamExt};
use tokio::sync::Semaphore;

use super::{GiveWay, Marker, Node, NodeView, Passport, Quorum, Reply, Seat, Settings};
use crate::engine::{Engine, Eviction, Finding, HolderMessage, Query, Wake};
use crate::error::Result;
use crate::rule::claim::{Claim, ClaimKey, Holder, Mode, Note, Released, Renewal, Standing, Token};
use crate::rule::name::Name;

const TTL: Duration = Duration::from_secs(300);

/// How long the test waits for an event.
const EVENT_MAX: Duration = Duration::from_secs(20);

/// A node in memory for one claim. It gives every tenure the vote 1, and carries out repairs when
/// the test lets it.
#[derive(Debug)]
struct LateNode {
    held: Mutex<Option<Token>>,
    marker: Mutex<Option<Marker>>,
    repairs_begun: Semaphore,
    repairs_allowed: Semaphore,
    leaves: AtomicUsize,
}

impl LateNode {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            held: Mutex::default(),
            marker: Mutex::default(),
            repairs_begun: Semaphore::new(0),
            repairs_allowed: Semaphore::new(0),
            leaves: AtomicUsize::new(0),
        })
    }

    fn held(&self) -> Option<Token> {
        *self.held.lock().expect("no panic")
    }

    fn reply(&self, token: &Token) -> Reply {
        let seat = if self.held() == Some(*token) {
            Seat::Holds { vote: 1, remaining: TTL }
        } else {
            Seat::Out { ahead: 0, retry_in: Duration::ZERO, by: None }
        };
        Reply { seat, time: 1 }
    }

    fn take(&self, token: Token) -> Reply {
        self.held.lock().expect("no panic").get_or_insert(token);
        self.reply(&token)
    }
}

#[async_trait]
impl Node for LateNode {
    fn address(&self) -> &str {
        "a node of this test"
    }

    fn expect(&self, _token: Token) {}

    fn forget(&self, _token: &Token) {}

    async fn bell(&self, _token: &Token) -> Wake {
        std::future::pending().await
    }

    async fn enter(&self, claim: &Claim, _owner: &Token, _rank: u64, _hint: u64) -> Result<Reply> {
        Ok(self.take(claim.key.token))
    }

    async fn raise(&self, key: &ClaimKey, _fence: u64, _ttl: Duration) -> Result<Reply> {
        Ok(self.reply(&key.token))
    }

    async fn give_way(&self, key: &ClaimKey, _order: &GiveWay) -> Result<Reply> {
        Ok(self.reply(&key.token))
    }

    async fn keep(&self, renewals: &[Renewal]) -> Result<Vec<Reply>> {
        Ok(renewals.iter().map(|renewal| self.reply(&renewal.key.token)).collect())
    }

    async fn repair(&self, claim: &Claim, _: &Token, _rank: u64, _fence: u64) -> Result<Reply> {
        self.repairs_begun.add_permits(1);
        self.repairs_allowed.acquire().await.expect("it is open").forget();
        Ok(self.take(claim.key.token))
    }

    async fn leave(&self, keys: &[ClaimKey], _hint: u64) -> Result<Vec<Released>> {
        self.leaves.fetch_add(1, Ordering::SeqCst);
        let mut held = self.held.lock().expect("no panic");
        let leave = |key: &ClaimKey| match held.take_if(|token| *token == key.token) {
            Some(_) => Released::Released,
            None => Released::AlreadyExpired,
        };
        Ok(keys.iter().map(leave).collect())
    }

    async fn keep_closed(&self, _: &ClaimKey, _stay: Duration, _new: &Token) -> Result<Released> {
        Ok(Released::AlreadyExpired)
    }

    async fn evict(&self, _order: &Eviction, _hint: u64) -> Result<Option<Holder>> {
        Ok(None)
    }

    async fn send(&self, _message: &HolderMessage) -> Result<()> {
        Ok(())
    }

    async fn listen(&self) -> Result<BoxStream<'static, HolderMessage>> {
        Ok(stream::pending().boxed())
    }

    async fn view(&self, _query: &Query, _limit: usize) -> Result<Vec<NodeView>> {
        Ok(Vec::new())
    }

    async fn passport(&self) -> Result<Passport> {
        let marker = self.marker.lock().expect("no panic").clone();
        Ok(Passport { time: 1, run_id: "run".into(), durable: true, marker })
    }

    async fn ceiling(&self) -> Result<u64> {
        Ok(0)
    }

    async fn admit(&self, _passport: &Passport, marker: &Marker, _floor: u64) -> Result<bool> {
        *self.marker.lock().expect("no panic") = Some(marker.clone());
        Ok(true)
    }

    async fn examine(&self) -> Result<Vec<Finding>> {
        Ok(Vec::new())
    }

    async fn strangers(&self) -> Option<Finding> {
        None
    }

    async fn began_to_evict(&self) -> Result<Option<String>> {
        Ok(None)
    }

    fn close(&self) {}
}

fn claim() -> Claim {
    Claim {
        key: ClaimKey { name: Name::new("report").expect("a name"), token: Token::random() },
        mode: Mode::Exclusive,
        holder: Holder::fresh(),
        note: Note::default(),
        ttl: TTL,
        patience: TTL,
        join: true,
    }
}

#[tokio::test]
async fn repair_that_comes_after_the_release_leaves_nothing_at_the_node() {
    let nodes = [(); 3].map(|()| LateNode::new());
    let settings = Settings {
        store: "nodes of this test".into(),
        ttl_max: TTL,
        node_timeout: TTL,
        look_every: TTL,
    };
    let shared = nodes.iter().map(|node| Arc::clone(node) as Arc<dyn Node>).collect();
    let engine = Quorum::of_nodes(shared, settings).await.expect("a set of nodes");
    let claim = claim();
    let standing = engine.claim(&claim).await.expect("an answer");
    assert!(matches!(standing, Standing::Held { .. }), "{standing:?}");

    let forgetful = &nodes[2];
    *forgetful.held.lock().expect("no panic") = None;
    let renewal = Renewal { key: claim.key.clone(), ttl: TTL, patience: TTL };
    let standings = engine.renew(&[renewal]).await.expect("an answer");
    assert!(matches!(standings[..], [Ok(Standing::Held { .. })]), "{standings:?}");
    forgetful.repairs_begun.acquire().await.expect("it is open").forget();

    let released = engine.release(std::slice::from_ref(&claim.key)).await.expect("an answer");
    assert_eq!(released, [Released::Released]);
    forgetful.repairs_allowed.add_permits(1);
    let left = async {
        while forgetful.leaves.load(Ordering::SeqCst) < 2 || forgetful.held().is_some() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(EVENT_MAX, left).await.expect("the repair is taken back");
}
