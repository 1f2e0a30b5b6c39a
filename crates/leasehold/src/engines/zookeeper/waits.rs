//! A client's waiting claims: whom each has to outlive, and what their going means.
//!
//! An exclusive claim watches the one before it; a shared one the nearest that is not shared;
//! permits watch all before them, because any may leave enough. A claim that held and was given
//! back is written before it is deleted, which only its own session may do: that tells whoever
//! watches it that nobody is left before it. Any other departure is looked into.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use crate::engine::Wake;
use crate::error::Result;
use crate::rule::claim::{ClaimKey, Mode};
use crate::rule::name::Name;

use super::Inner;
use super::book::{Record, Stay};
use super::lock;
use super::nodes::{Entry, Ours, holds};
use super::session::{Session, home};
use super::wire::{Change, Request, code};

/// Claims that one claim watches at most; what goes on among the others is seen by heartbeats.
const WATCHED_MAX: usize = 64;
/// How often a line that changes is read again before its claim asks anew.
const ROUNDS_MAX: usize = 16;

/// A waiting claim.
#[derive(Debug, Clone)]
pub(super) struct Wait {
    pub(super) stay: Stay,
    pub(super) name: Name,
    pub(super) session: Arc<Session>,
    pub(super) ours: Ours,
    pub(super) place: Place,
}

/// Where a waiting claim is in its line.
#[derive(Debug, Clone)]
pub(super) struct Place {
    pub(super) mode: Mode,
    pub(super) fence: u64,
    /// Those before it, as far as is known.
    pub(super) ahead: Vec<Entry>,
    /// The paths whose going it hears of.
    pub(super) watched: Vec<String>,
    /// Whether the ensemble keeps it for its patience since it was last asked about.
    pub(super) kept: bool,
}

/// How a waiting claim stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stands {
    Behind,
    Holds,
    Gone,
}

#[derive(Debug, Default)]
pub(super) struct Waits {
    waits: Mutex<HashMap<ClaimKey, Wait>>,
}

/// What is to be done about a claim after an event.
enum Then {
    Nothing,
    Ring(u64),
    Look,
}

impl Waits {
    pub(super) fn enter(&self, wait: Wait) {
        lock(&self.waits).insert(wait.stay.key.clone(), wait);
    }

    /// A claim does not wait any more, whatever its stay was.
    pub(super) fn forget(&self, key: &ClaimKey) {
        lock(&self.waits).remove(key);
    }

    /// A stay of a claim is over.
    pub(super) fn end(&self, stay: &Stay) {
        let mut waits = lock(&self.waits);
        if waits.get(&stay.key).is_some_and(|wait| wait.stay == *stay) {
            waits.remove(&stay.key);
        }
    }

    pub(super) fn get(&self, stay: &Stay) -> Option<Wait> {
        lock(&self.waits).get(&stay.key).filter(|wait| wait.stay == *stay).cloned()
    }

    pub(super) fn change(&self, stay: &Stay, change: impl FnOnce(&mut Wait)) {
        if let Some(wait) = lock(&self.waits).get_mut(&stay.key)
            && wait.stay == *stay
        {
            change(wait);
        }
    }

    /// A connection broke, and with it what was watched. Returns the claims that this concerns.
    fn unwatched(&self, session: i64) -> Vec<Stay> {
        let mut waits = lock(&self.waits);
        let concerned = waits.values_mut().filter(|wait| wait.ours.session == session);
        concerned
            .map(|wait| {
                wait.place.watched.clear();
                wait.stay.clone()
            })
            .collect()
    }

    fn heard(&self, change: Change, path: &str) -> Vec<(Stay, Then)> {
        let mut waits = lock(&self.waits);
        let hit = |wait: &&mut Wait| wait.place.watched.iter().any(|watched| watched == path);
        let hits = waits.values_mut().filter(hit);
        hits.map(|wait| (wait.stay.clone(), wait.place.hear(change, path))).collect()
    }
}

impl Place {
    fn hear(&mut self, change: Change, path: &str) -> Then {
        // A watch tells once.
        self.watched.retain(|watched| watched != path);
        let node = path.rsplit('/').next().unwrap_or(path);
        let at = self.ahead.iter().position(|entry| entry.node == node);
        let written = change == Change::Written;
        match at.map(|at| (at, &self.ahead[at])) {
            Some((at, entry)) if written && entry.ours.is_some() => {
                // It held and was given back. If it was alone, so is whoever comes after it.
                let first = if entry.mode == Mode::Exclusive { 0 } else { at };
                self.ahead.drain(first..=at);
            }
            Some((at, _)) if change == Change::Deleted => {
                self.ahead.remove(at);
            }
            _ => return Then::Look,
        }
        if holds(self.ahead.iter().map(|entry| entry.mode), self.mode) {
            return Then::Ring(if self.kept { self.fence } else { 0 });
        }
        if self.watched.is_empty() { Then::Look } else { Then::Nothing }
    }
}

/// Those whose going could make a claim hold, the nearest first.
fn in_the_way(mode: Mode, ahead: &[Entry]) -> Vec<&Entry> {
    let mut nearest = ahead.iter().rev();
    match mode {
        Mode::Permits { .. } => nearest.take(WATCHED_MAX).collect(),
        Mode::Shared => nearest.find(|entry| entry.mode != Mode::Shared).into_iter().collect(),
        _ => nearest.next().into_iter().collect(),
    }
}

/// Something happened to a node that is watched.
pub(super) fn heard(inner: &Inner, change: Change, path: &str) {
    for (stay, then) in inner.waits.heard(change, path) {
        match then {
            Then::Nothing => {}
            Then::Ring(fence) => ring(inner, &stay, fence),
            Then::Look => {
                let (Ok(home), me) = (home(), inner.me.clone()) else { continue };
                home.spawn(async move {
                    if let Some(inner) = me.upgrade() {
                        look(&inner, &stay).await;
                    }
                });
            }
        }
    }
}

/// A session is connected again, or over: those who wait on it ask how they stand.
pub(super) fn back(inner: &Inner, session: i64) {
    for stay in inner.waits.unwatched(session) {
        ring(inner, &stay, 0);
    }
}

/// A claim was found to hold: its waiter starts, or asks if it is not sure for how long.
pub(super) fn ring_held(inner: &Inner, stay: &Stay) {
    if let Some(Wait { place: Place { kept, fence, .. }, .. }) = inner.waits.get(stay) {
        ring(inner, stay, if kept { fence } else { 0 });
    }
}

/// Tells a waiter that its claim holds with `fence`; 0 that it should ask. A claim whose record is
/// gone, or whose nodes are being deleted, holds nothing: its waiter asks.
fn ring(inner: &Inner, stay: &Stay, fence: u64) {
    let held = |record: &mut Record| (record.held, record.seen) = (true, false);
    let wake = match fence > 0 && inner.book.change(stay, held) {
        true => Wake::holds_at(fence),
        false => Wake::Ask,
    };
    inner.bell_registry.ring(&stay.key.token, wake);
}

/// Reads a waiting claim's line again, and rings if it is worth it.
async fn look(inner: &Inner, stay: &Stay) {
    let Some(wait) = inner.waits.get(stay) else { return };
    let standing = match read_again(inner, &wait).await {
        Ok(Stands::Behind) => stand(inner, stay).await,
        other => other,
    };
    match standing {
        Ok(Stands::Behind) => {}
        Ok(Stands::Holds) => ring_held(inner, stay),
        Ok(Stands::Gone) => ring(inner, stay, 0),
        Err(error) => {
            tracing::debug!(%error, "a waiting claim could not look at its line");
            ring(inner, stay, 0);
        }
    }
}

/// Reads the line again.
async fn read_again(inner: &Inner, wait: &Wait) -> Result<Stands> {
    let lineup = inner.read_line(&wait.session, &wait.name).await?;
    let Some(at) = lineup.place(wait.ours) else { return Ok(Stands::Gone) };
    let ahead = lineup.entries[..at].to_vec();
    let holds = holds(ahead.iter().map(|entry| entry.mode), wait.place.mode);
    inner.waits.change(&wait.stay, |wait| wait.place.ahead = ahead);
    Ok(if holds { Stands::Holds } else { Stands::Behind })
}

/// Sees to it that a claim hears of those whose going could make it hold.
pub(super) async fn stand(inner: &Inner, stay: &Stay) -> Result<Stands> {
    for _ in 0..ROUNDS_MAX {
        let Some(wait) = inner.waits.get(stay) else { return Ok(Stands::Gone) };
        let line = inner.layout.line(&wait.name);
        let Place { mode, ahead, watched, .. } = &wait.place;
        let nodes = in_the_way(*mode, ahead).into_iter();
        let paths = nodes.map(|entry| format!("{line}/{}", entry.node));
        let unheard: Vec<String> = paths.filter(|path| !watched.contains(path)).collect();
        if unheard.is_empty() {
            return Ok(Stands::Behind);
        }
        // Said before it is asked: what happens may be heard before the answer is read.
        inner.waits.change(stay, |wait| wait.place.watched.extend(unheard.iter().cloned()));
        let mut sent = Vec::with_capacity(unheard.len());
        for path in &unheard {
            let request = Request::Exists { path: path.clone(), watch: true };
            sent.push(wait.session.send(request).await?);
        }
        let mut gone = Vec::new();
        for (path, sent) in unheard.into_iter().zip(sent) {
            match sent.answer().await?.code {
                code::OK => {}
                code::NO_NODE => gone.push(path),
                error => return Err(inner.refusal(error)),
            }
        }
        if gone.is_empty() {
            return Ok(Stands::Behind);
        }
        inner.waits.change(stay, |wait| {
            wait.place.watched.retain(|path| !gone.contains(path));
        });
        match read_again(inner, &wait).await? {
            Stands::Behind => {}
            stands => return Ok(stands),
        }
    }
    Err(inner.busy())
}

#[cfg(test)]
mod tests {
    use std::sync::Weak;
    use std::time::Duration;

    use super::super::ZooKeeper;
    use super::super::leave::expire;
    use super::super::nodes::lineup;
    use super::*;
    use crate::engine::Engine as _;
    use crate::rule::claim::{Claim, Holder, Note, Renewal, Standing, Token, Ttl};

    #[tokio::test]
    async fn f89_f110_departure_without_an_event_is_found_by_the_first_heartbeat() {
        let server = leasehold_testkit::Zookeeper::new().start().await.expect("a server");
        let holds = ZooKeeper::open(server.url()).await.expect("a connection");
        let waits = ZooKeeper::open(server.url()).await.expect("a connection");
        let (first, second) = (claim("deaf"), claim("deaf"));
        assert!(matches!(holds.claim(&first).await, Ok(Standing::Held { .. })));
        assert!(matches!(waits.claim(&second).await, Ok(Standing::Queued { .. })));
        // From here on no event is heard, although the connection is well.
        waits.inner.pool.listen(Weak::<Inner>::new());
        let heartbeat =
            Renewal { key: second.key.clone(), ttl: second.ttl, patience: second.patience };
        let standing = waits.renew(std::slice::from_ref(&heartbeat)).await.expect("an answer");
        assert!(matches!(standing[..], [Ok(Standing::Queued { ahead: 1, .. })]), "{standing:?}");
        holds.release(&[first.key]).await.expect("an answer");
        let standing = waits.renew(&[heartbeat]).await.expect("an answer");
        assert!(matches!(standing[..], [Ok(Standing::Held { .. })]), "{standing:?}");
        // Whoever waits hears of it without asking.
        let woken = waits.wait(&second.key).await.expect("a bell");
        assert!(matches!(woken, Wake::Holds { .. }), "{woken:?}");
    }

    async fn two_clients(server: &leasehold_testkit::Server) -> (ZooKeeper, ZooKeeper) {
        let holds = ZooKeeper::open(server.url()).await.expect("a connection");
        let waits = ZooKeeper::open(server.url()).await.expect("a connection");
        (holds, waits)
    }

    #[tokio::test]
    async fn sweep_does_not_forget_the_next_stay_of_a_claim() {
        let server = leasehold_testkit::Zookeeper::new().start().await.expect("a server");
        let zk = ZooKeeper::open(server.url()).await.expect("a connection");
        let claim = claim("again");
        assert!(matches!(zk.claim(&claim).await, Ok(Standing::Held { .. })));
        let old = zk.inner.book.get(&claim.key).expect("it was made");
        // Its session ends, and the claim is made on another one, before the sweep gets there.
        old.session.closed().await;
        assert!(matches!(zk.claim(&claim).await, Ok(Standing::Held { .. })));
        let new = zk.inner.book.get(&claim.key).expect("it was made");
        assert_ne!(old.ours, new.ours);
        expire(&zk.inner, old).await.expect("an answer");
        assert!(zk.inner.book.get(&claim.key).is_some(), "nobody knows of the claim any more");
    }

    #[tokio::test]
    async fn claim_that_is_asked_for_again_has_one_place_and_leaves_nothing_behind() {
        let server = leasehold_testkit::Zookeeper::new().start().await.expect("a server");
        let (holds, waits) = two_clients(&server).await;
        let (first, second, third) = (claim("twice"), claim("twice"), claim("twice"));
        assert!(matches!(holds.claim(&first).await, Ok(Standing::Held { .. })));
        assert!(matches!(waits.claim(&second).await, Ok(Standing::Queued { .. })));
        let known = waits.inner.book.get(&second.key).expect("it was made");
        waits.inner.book.remove(&known.stay);
        assert!(matches!(holds.claim(&third).await, Ok(Standing::Queued { .. })));
        assert!(matches!(waits.claim(&second).await, Ok(Standing::Queued { .. })));
        holds.release(&[first.key]).await.expect("an answer");
        let standing = waits.claim(&second).await;
        let Ok(Standing::Held { fence, .. }) = standing else { panic!("{standing:?}") };
        assert_eq!(fence, known.fence, "the fence is that of the place that it holds at");
        waits.release(&[second.key]).await.expect("an answer");
        let standing = holds.claim(&third).await;
        assert!(matches!(standing, Ok(Standing::Held { .. })), "something is left: {standing:?}");
    }

    #[tokio::test]
    async fn sweep_does_not_take_out_a_claim_that_is_asked_for_at_the_same_time() {
        let server = leasehold_testkit::Zookeeper::new().start().await.expect("a server");
        let (holds, waits) = two_clients(&server).await;
        let first = claim("swept");
        assert!(matches!(holds.claim(&first).await, Ok(Standing::Held { .. })));
        for round in 0..10 {
            let second = claim("swept");
            assert!(matches!(waits.claim(&second).await, Ok(Standing::Queued { .. })));
            let record = waits.inner.book.get(&second.key).expect("it was made");
            // Its time was up while the servers could not be reached. Now both go on.
            let (swept, standing) =
                tokio::join!(expire(&waits.inner, record), waits.claim(&second));
            swept.expect("an answer");
            assert!(matches!(standing, Ok(Standing::Queued { .. })), "{standing:?}");
            let query = crate::engine::Query::name(second.key.name.clone());
            let page = holds.inspect(&query).await.expect("an answer");
            let waiting: usize = page.lines.iter().map(|line| line.waiting.len()).sum();
            assert_eq!(waiting, 1, "round {round}: it was told that it is in line");
            waits.release(&[second.key]).await.expect("an answer");
        }
    }

    #[tokio::test]
    async fn claim_that_was_swept_is_not_granted_by_an_event() {
        let server = leasehold_testkit::Zookeeper::new().start().await.expect("a server");
        let (holds, waits) = two_clients(&server).await;
        let (first, second) = (claim("gone"), claim("gone"));
        assert!(matches!(holds.claim(&first).await, Ok(Standing::Held { .. })));
        assert!(matches!(waits.claim(&second).await, Ok(Standing::Queued { .. })));
        let record = waits.inner.book.get(&second.key).expect("it was made");
        expire(&waits.inner, record).await.expect("an answer");
        holds.release(&[first.key]).await.expect("an answer");
        let woken = tokio::time::timeout(Duration::from_secs(1), waits.wait(&second.key)).await;
        assert!(!matches!(woken, Ok(Ok(Wake::Holds { .. }))), "its node is gone: {woken:?}");
    }

    #[tokio::test]
    async fn claim_whose_nodes_are_being_deleted_gets_another_place() {
        let server = leasehold_testkit::Zookeeper::new().start().await.expect("a server");
        let (holds, waits) = two_clients(&server).await;
        let (first, second) = (claim("ending"), claim("ending"));
        assert!(matches!(holds.claim(&first).await, Ok(Standing::Held { .. })));
        let Ok(Standing::Queued { place, .. }) = waits.claim(&second).await else { panic!() };
        let record = waits.inner.book.get(&second.key).expect("it was made");
        // The sweep has begun, and its request is not answered.
        assert!(waits.inner.book.end(&record.stay, record.until));
        let heartbeat =
            Renewal { key: second.key.clone(), ttl: second.ttl, patience: second.patience };
        let standing = waits.renew(&[heartbeat]).await.expect("an answer");
        assert!(matches!(standing[..], [Ok(Standing::Out { .. })]), "{standing:?}");
        let Ok(Standing::Queued { place: next, .. }) = waits.claim(&second).await else { panic!() };
        assert_ne!(place, next);
        let query = crate::engine::Query::name(second.key.name.clone());
        let page = holds.inspect(&query).await.expect("an answer");
        let waiting: usize = page.lines.iter().map(|line| line.waiting.len()).sum();
        assert_eq!(waiting, 1, "nothing is left of the place before");
    }

    fn claim(name: &str) -> Claim {
        Claim {
            key: ClaimKey { name: Name::new(name).expect("good"), token: Token::random() },
            mode: Mode::Exclusive,
            holder: Holder::fresh(),
            note: Note::default(),
            ttl: Ttl::DEFAULT.get(),
            patience: Ttl::DEFAULT.patience(),
            join: true,
        }
    }

    fn line(nodes: &[&str]) -> Vec<Entry> {
        lineup(nodes.iter().map(|node| (*node).to_owned()).collect())
    }

    const OURS: &str = "lh-00000000000000000000000000000001-0000000000000001__lock__0000000002";

    #[test]
    fn whom_to_watch_depends_on_the_mode() {
        let ahead = line(&["a__lock__0000000001", "b__rlock__0000000003", OURS]);
        let nodes = |mode| {
            in_the_way(mode, &ahead).into_iter().map(|entry| entry.sequence.0).collect::<Vec<_>>()
        };
        assert_eq!(nodes(Mode::Exclusive), [3]);
        assert_eq!(nodes(Mode::Shared), [2]);
        assert_eq!(nodes(Mode::Permits { take: 1, of: 2 }), [3, 2, 1]);
    }

    fn waiting(mode: Mode, nodes: &[&str], watched: &str) -> Place {
        Place { mode, fence: 9, ahead: line(nodes), watched: vec![watched.into()], kept: true }
    }

    #[test]
    fn who_was_given_back_leaves_nobody_before_it() {
        let mut place = waiting(Mode::Exclusive, &["a__lock__0000000001", OURS], OURS);
        assert!(matches!(place.hear(Change::Written, OURS), Then::Ring(9)));
        let mut place = waiting(Mode::Exclusive, &["a__lock__0000000001", OURS], OURS);
        assert!(matches!(place.hear(Change::Deleted, OURS), Then::Look), "it may have waited");
        let mut place = waiting(Mode::Exclusive, &[OURS], OURS);
        assert!(matches!(place.hear(Change::Deleted, OURS), Then::Ring(9)), "it was alone");
        let mut place = waiting(Mode::Exclusive, &[OURS], OURS);
        place.kept = false;
        assert!(matches!(place.hear(Change::Deleted, OURS), Then::Ring(0)), "to be confirmed");
    }

    #[test]
    fn what_is_written_to_a_strangers_node_says_nothing() {
        let theirs = "a__lock__0000000001";
        let mut place = waiting(Mode::Exclusive, &[theirs], theirs);
        assert!(matches!(place.hear(Change::Written, theirs), Then::Look));
        assert_eq!(place.ahead.len(), 1);
    }
}
