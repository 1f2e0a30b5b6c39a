//! The requests of each verb, counted by the server: by their kind, and proposals.
//!
//! The tests ask the engine directly, because a client's keeper sends requests by itself. The
//! numbers are those of docs/decisions/0035-exchanges.md.

use std::time::Duration;

use leasehold::claim::{Claim, ClaimKey, Holder, Note, Renewal, Standing, Token};
use leasehold::engine::{
    Administer as _, Amend as _, Engine as _, Eviction, Query, Wake, Watch as _,
};
use leasehold::etcd::Etcd;
use leasehold::{Mode, Name, Released};
use leasehold_testkit::{Proxy, Server};

use super::support::*;

/// Different from the patience of a lease, so that a waiter is on a lease of its own. Far beyond
/// each test.
const PATIENCE: Duration = Duration::from_secs(120);
const WATCHES: &str = "etcd_debugging_mvcc_watcher_total";

async fn engine(url: &str) -> Etcd {
    Etcd::open(url).await.expect("a connection")
}

fn name(text: &str) -> Name {
    Name::new(text).expect("a good name")
}

fn claim(text: &str, join: bool) -> Claim {
    let key = ClaimKey { name: name(text), token: Token::random() };
    let (holder, note, mode) = (Holder::fresh(), Note::default(), Mode::Exclusive);
    Claim { key, mode, holder, note, ttl: LONG, patience: PATIENCE, join }
}

async fn hold(engine: &Etcd, claim: &Claim) -> u64 {
    match engine.claim(claim).await.expect("an answer") {
        Standing::Held { fence, .. } => fence,
        other => panic!("{other:?}"),
    }
}

async fn queue(engine: &Etcd, claim: &Claim) {
    let standing = engine.claim(claim).await.expect("an answer");
    assert!(matches!(standing, Standing::Queued { .. }), "{standing:?}");
}

async fn release(engine: &Etcd, claim: &Claim) {
    let released = engine.release(std::slice::from_ref(&claim.key)).await.expect("an answer");
    assert_eq!(released, [Released::Released]);
}

async fn granted(engine: &Etcd, claim: &Claim) {
    let wake = soon("a grant", engine.wait(&claim.key)).await.expect("an answer");
    assert!(matches!(wake, Wake::Holds { .. }), "{wake:?}");
}

/// The standings of all claims after one renewal.
async fn renew(engine: &Etcd, claims: &[Claim]) -> Vec<Standing> {
    let one = |claim: &Claim| {
        let Claim { key, ttl, patience, .. } = claim.clone();
        Renewal { key, ttl, patience }
    };
    let renewals: Vec<Renewal> = claims.iter().map(one).collect();
    let renewed = engine.renew(&renewals).await.expect("an answer");
    renewed.into_iter().map(|standing| standing.expect("an answer")).collect()
}

fn are_held(standings: &[Standing]) -> bool {
    standings.iter().all(|standing| matches!(standing, Standing::Held { .. }))
}

/// Claims on `count` names.
async fn hold_many(engine: &Etcd, count: usize, ttl: Duration) -> Vec<Claim> {
    let mut claims = Vec::with_capacity(count);
    for index in 0..count {
        let claim = Claim { ttl, ..claim(&format!("many:{index}"), false) };
        hold(engine, &claim).await;
        claims.push(claim);
    }
    claims
}

/// Waits until the only lease has run for so long that the next renewal must keep it alive.
async fn until_due(server: &Server) {
    let [id] = &lease_ids(server)[..] else { panic!("more than one lease") };
    until("a while of the lease", async || {
        let text = ctl(&endpoint(server), &["lease", "timetolive", id]);
        let numbers = text.split(|letter: char| !letter.is_ascii_digit());
        let mut numbers = numbers.rev().filter_map(|number| number.parse::<u64>().ok());
        let (left, granted) = (numbers.next().expect(&text), numbers.next().expect(&text));
        left + 2 <= granted
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claim_and_release_and_a_refused_try_are_one_request_each() {
    let server = server().await;
    let [one, two] = [engine(server.url()).await, engine(server.url()).await];
    let mut meter = Meter::of(&server);
    for engine in [&one, &two] {
        let first = claim("warm", false);
        hold(engine, &first).await;
        assert_eq!(meter.spent(), "LeaseGrant 1, Txn 1; proposals 2", "the first of its ttl");
        release(engine, &first).await;
        assert_eq!(meter.spent(), "DeleteRange 1; proposals 1");
    }
    for join in [false, true] {
        let lease = claim("free", join);
        hold(&one, &lease).await;
        assert_eq!(meter.spent(), "Txn 1; proposals 1", "joins: {join}");
        for engine in [&one, &two] {
            let refused = engine.claim(&claim("free", false)).await.expect("an answer");
            assert!(matches!(refused, Standing::Out { by: Some(_), .. }), "{refused:?}");
            // The refusing transaction could also have made the claim, so the majority logs it
            // nevertheless.
            assert_eq!(meter.spent(), "Txn 1; proposals 1");
        }
        release(&one, &lease).await;
        assert_eq!(meter.spent(), "DeleteRange 1; proposals 1");
    }
    assert!(claims(&server).is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_and_its_grant_are_no_request_beside_the_claim_and_the_release() {
    let server = server().await;
    let [one, two] = [engine(server.url()).await, engine(server.url()).await];
    for engine in [&one, &two] {
        let first = claim("warm", false);
        hold(engine, &first).await;
        release(engine, &first).await;
    }
    let mut meter = Meter::of(&server);
    for round in 0..3 {
        let (lease, next) = (claim("taken", true), claim("taken", true));
        hold(&one, &lease).await;
        assert_eq!(meter.spent(), "Txn 1; proposals 1");
        queue(&two, &next).await;
        // The first wait needs a lease and a watch, and asks again when it has each.
        let expected = match round {
            0 => "LeaseGrant 1, Txn 3, Watch 1; proposals 4",
            _ => "Txn 1; proposals 1",
        };
        assert_eq!(meter.spent(), expected, "round {round}");
        release(&one, &lease).await;
        granted(&two, &next).await;
        assert_eq!(meter.spent(), "DeleteRange 1; proposals 1", "who waited was not asked for");
        release(&two, &next).await;
        assert_eq!(meter.spent(), "DeleteRange 1; proposals 1");
    }
    assert!(claims(&server).is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_hundred_leases_are_renewed_with_six_requests_and_given_back_with_ten() {
    let server = server().await;
    let one = engine(server.url()).await;
    // Its lease has a second to spare; after that second the client keeps it alive.
    let leases = hold_many(&one, 300, Duration::from_secs(30)).await;
    until_due(&server).await;
    let mut meter = Meter::of(&server);
    assert!(are_held(&renew(&one, &leases[..100]).await));
    assert_eq!(meter.spent(), "LeaseKeepAlive 1, Txn 2; proposals 0", "one for each 64");
    until_due(&server).await;
    meter.spent();
    assert!(are_held(&renew(&one, &leases).await));
    // From here on the client watches which of so many claims go.
    assert_eq!(meter.spent(), "LeaseKeepAlive 1, Txn 5, Watch 1; proposals 0");
    let page = one.inspect(&Query::name(name("many:7"))).await.expect("a page");
    assert_eq!(page.lines.len(), 1);
    assert_eq!(meter.spent(), "LeaseTimeToLive 1, Txn 1; proposals 0");
    let page = one.inspect(&Query::all()).await.expect("a page");
    assert_eq!(page.lines.len(), 300);
    assert_eq!(meter.spent(), "LeaseTimeToLive 1, Range 1, Txn 5; proposals 0");
    let keys: Vec<ClaimKey> = leases.iter().map(|lease| lease.key.clone()).collect();
    let released = one.release(&keys).await.expect("an answer");
    assert!(released.iter().all(|released| *released == Released::Released));
    assert_eq!(meter.spent(), "Txn 10; proposals 10", "one for each 32");
    assert!(claims(&server).is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f94_each_of_many_leases_is_looked_at_with_every_fourth_renewal() {
    let server = server().await;
    let proxy = Proxy::start(server.address()).await.expect("a proxy");
    let one = engine(&format!("etcd://{}", proxy.address())).await;
    let leases = hold_many(&one, 129, LONG).await;
    let mut meter = Meter::of(&server);
    for round in 0..9 {
        assert!(are_held(&renew(&one, &leases).await));
        let expected = match round {
            0 => "Txn 3, Watch 1; proposals 0",
            4 | 8 => "Txn 3; proposals 0",
            _ => "; proposals 0",
        };
        assert_eq!(meter.spent(), expected, "renewal {round}");
    }
    // One claim goes while the client has no watch.
    proxy.refuse_new().await.expect("refused");
    proxy.reset_all();
    until("no watch", async || metric(&server, WATCHES) == 0).await;
    ctl(&endpoint(&server), &["del", "many:77/", "--prefix"]);
    proxy.accept_new().await.expect("accepted");
    until("a watch", async || metric(&server, WATCHES) == 1).await;
    for renewal in 1..=4 {
        let standings = renew(&one, &leases).await;
        let is_lost = matches!(standings[77], Standing::Out { .. });
        assert_eq!(is_lost, renewal == 4, "renewal {renewal}: {:?}", standings[77]);
        assert!(are_held(&standings[..77]) && are_held(&standings[78..]));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f94_one_of_many_leases_that_is_heard_to_go_is_lost_at_the_next_renewal() {
    let server = server().await;
    let [one, two] = [engine(server.url()).await, engine(server.url()).await];
    let leases = hold_many(&one, 129, LONG).await;
    let (lease, next) = (claim("told", true), claim("told", true));
    hold(&two, &lease).await;
    queue(&one, &next).await;
    // The first renewal looked at all claims, so now only an event makes the client look at one.
    assert!(are_held(&renew(&one, &leases).await));
    ctl(&endpoint(&server), &["del", "many:77/", "--prefix"]);
    // The client hears of events in the order in which they happen.
    release(&two, &lease).await;
    granted(&one, &next).await;
    let standings = renew(&one, &leases).await;
    assert!(matches!(standings[77], Standing::Out { .. }), "{:?}", standings[77]);
    assert!(are_held(&standings[..77]) && are_held(&standings[78..]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_note_and_a_watch_are_as_many_requests_as_is_said() {
    let server = server().await;
    let [one, two] = [engine(server.url()).await, engine(server.url()).await];
    let lease = claim("noted", true);
    hold(&one, &lease).await;
    let mut meter = Meter::of(&server);
    let note = Note::new("another").expect("a good note");
    one.set_note(&lease.key, &note).await.expect("an answer");
    assert_eq!(meter.spent(), "Range 2, Txn 1; proposals 1");
    let events = two.watch(&Query::all()).await.expect("a watch");
    assert_eq!(meter.spent(), "LeaseGrant 1, Range 2, Txn 1, Watch 1; proposals 2");
    drop(events);
}

/// The lease of a living client may have thousands of claims: no client asks for them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_asks_for_the_claims_on_a_lease_only_if_its_owner_is_gone() {
    let server = server().await;
    let [one, two] = [engine(server.url()).await, engine(server.url()).await];
    let [given, taken, left, last] = ["given", "taken", "left", "last"].map(|it| claim(it, true));
    hold(&one, &given).await;
    let fences = vec![hold(&one, &taken).await];
    hold(&one, &left).await;
    hold(&one, &last).await;
    let own = lease_ids(&server);
    let mut meter = Meter::of(&server);
    release(&two, &given).await;
    assert_eq!(meter.spent(), "Range 1, Txn 2; proposals 1", "by its handle");
    let (name, by) = (name("taken"), Holder::fresh());
    let order = Eviction { name, fences, unreadable: false, by, reason: "stuck".into() };
    assert_eq!(two.evict(&order).await.expect("an answer").len(), 1);
    let expected = "Range 2, Txn 2; proposals 1";
    assert_eq!(meter.spent(), expected, "what fences count from is read, the first time");
    assert_eq!(lease_ids(&server), own);
    one.close().await.expect("an answer");
    meter.spent();
    release(&two, &left).await;
    assert_eq!(meter.spent(), "LeaseTimeToLive 1, Range 1, Txn 2; proposals 1", "there is one yet");
    release(&two, &last).await;
    let expected = "LeaseRevoke 1, LeaseTimeToLive 1, Range 2, Txn 2; proposals 2";
    assert_eq!(meter.spent(), expected);
    until_empty(&server).await;
}
