//! Lines whose parts do not agree: a script was stopped in the middle, or an administrator deleted
//! a key.
//!
//! The next script that opens such a line repairs it. These tests break lines by hand, and check
//! three facts. The name is granted again, with a greater fence, and never to two claims.

use std::cell::Cell;
use std::time::{Duration, Instant};

use leasehold::Mode;
use leasehold::claim::{Claim, Released, Standing};
use leasehold::engine::{Administer, Engine, Query, Wake};
use leasehold::redis::Redis;
use leasehold_testkit::{Clock, Server, servers};

use crate::support::*;

const LOCK: &str = "lock:report";
const LINE: &str = "leasehold:line:lock:report";
const ORDER: &str = "leasehold:order:lock:report";
const EXPIRY: &str = "leasehold:expiry:lock:report";
const COMPANIONS: [&str; 3] = [LINE, ORDER, EXPIRY];

const PERMITS: Mode = Mode::Permits { take: 1, of: 3 };

fn report(mode: Mode) -> Claim {
    claim("report", mode)
}

/// The claim's token as the store writes it.
fn token(claim: &Claim) -> String {
    claim.key.token.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The answer to a renewal of a claim.
async fn renewed(engine: &Redis, claim: &Claim) -> Standing {
    let answers = engine.renew(&[renewal(claim)]).await.expect("an answer");
    answers.into_iter().next().expect("one answer").expect("a standing")
}

async fn is_held(engine: &Redis, claim: &Claim) -> bool {
    matches!(renewed(engine, claim).await, Standing::Held { .. })
}

async fn is_queued(engine: &Redis, claim: &Claim) -> bool {
    matches!(renewed(engine, claim).await, Standing::Queued { .. })
}

async fn released(engine: &Redis, claim: &Claim) {
    let released = engine.release(std::slice::from_ref(&claim.key)).await.expect("an answer");
    assert_eq!(released, [Released::Released]);
}

/// Waits for a claim's bell; the result is its fence.
async fn rung(engine: &Redis, claim: &Claim) -> u64 {
    match soon("a bell", engine.wait(&claim.key)).await.expect("an answer") {
        Wake::Holds { fence, .. } => fence,
        other => panic!("{other:?}"),
    }
}

/// An exclusive claim that holds a line, with no other claim in it; and its fence.
async fn last_of_a_line(engine: &Redis) -> (Claim, u64) {
    let (first, last) = (report(Mode::Exclusive), report(Mode::Exclusive));
    held(engine, &first).await;
    queued(engine, &last).await;
    released(engine, &first).await;
    let fence = rung(engine, &last).await;
    (last, fence)
}

/// Removes a claim from the keys of its line, and leaves the numbers of the line as they are. A
/// release that its server stopped in the middle does the same.
fn take_out(server: &Server, claim: &Claim) {
    let token = token(claim);
    let places = told(server, &["ZRANGE", ORDER, "0", "-1"]);
    let place = places.lines().find(|place| place.contains(&token)).expect("it is in line");
    told(server, &["ZREM", ORDER, place]);
    told(server, &["ZREM", EXPIRY, &token]);
    told(server, &["HDEL", LINE, &token, &format!("g:{token}")]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claim_holds_a_name_whose_last_release_was_stopped_in_the_middle() {
    let server = server().await;
    let engine = engine(server.url()).await;
    let mut last_fence = 0;
    for mode in [Mode::Exclusive, Mode::Shared, PERMITS] {
        for (join, lock_is_left) in [(true, true), (true, false), (false, true), (false, false)] {
            let (last, fence) = last_of_a_line(&engine).await;
            assert!(fence > last_fence);
            take_out(&server, &last);
            assert_eq!(told(&server, &["EXISTS", ORDER, EXPIRY]), "0");
            assert_eq!(told(&server, &["HGET", LINE, "n"]), "1");
            if !lock_is_left {
                told(&server, &["DEL", LOCK]);
            }
            let next = Claim { join, ..report(mode) };
            last_fence = held(&engine, &next).await;
            assert!(last_fence > fence);
            let all = if let Mode::Permits { of, .. } = mode {
                Mode::Permits { take: of, of }
            } else {
                Mode::Exclusive
            };
            let waiting = report(all);
            queued(&engine, &waiting).await;
            released(&engine, &next).await;
            last_fence = rung(&engine, &waiting).await;
            released(&engine, &waiting).await;
            assert_eq!(told(&server, &["KEYS", "*report*"]), "");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_claim_behind_a_holder_that_is_in_no_line_holds_at_its_next_heartbeat() {
    let server = server().await;
    let engine = engine(server.url()).await;
    for lock_is_left in [true, false] {
        let (last, fence) = last_of_a_line(&engine).await;
        let (waiting, behind) = (report(Mode::Exclusive), report(Mode::Exclusive));
        queued(&engine, &waiting).await;
        queued(&engine, &behind).await;
        take_out(&server, &last);
        if !lock_is_left {
            told(&server, &["DEL", LOCK]);
        }
        let Standing::Held { fence: next, .. } = renewed(&engine, &waiting).await else {
            panic!("it is the first in line");
        };
        assert!(next > fence);
        assert!(is_queued(&engine, &behind).await);
        released(&engine, &waiting).await;
        assert!(rung(&engine, &behind).await > next);
        released(&engine, &behind).await;
        assert_eq!(told(&server, &["KEYS", "*report*"]), "");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn count_that_is_too_large_keeps_no_shared_claim_and_no_permit_from_the_others() {
    let server = server().await;
    let engine = engine(server.url()).await;
    let readers = [report(Mode::Shared), report(Mode::Shared)];
    let writer = report(Mode::Exclusive);
    for reader in &readers {
        held(&engine, reader).await;
    }
    queued(&engine, &writer).await;
    told(&server, &["HSET", LINE, "n", "3", "u", "3"]);
    released(&engine, &readers[0]).await;
    assert!(is_queued(&engine, &writer).await, "a reader is left");
    told(&server, &["HSET", LINE, "n", "2", "u", "2"]);
    released(&engine, &readers[1]).await;
    rung(&engine, &writer).await;
    released(&engine, &writer).await;

    let takers = [report(PERMITS), report(PERMITS)];
    let mut fences = Vec::new();
    for taker in &takers {
        fences.push(held(&engine, taker).await);
    }
    told(&server, &["HSET", LINE, "n", "3", "u", "3"]);
    let (third, fourth) = (report(PERMITS), report(PERMITS));
    fences.push(held(&engine, &third).await);
    queued(&engine, &fourth).await;
    released(&engine, &takers[0]).await;
    fences.push(rung(&engine, &fourth).await);
    assert!(fences.is_sorted_by(|one, next| one < next), "{fences:?}");
    for claim in [&takers[1], &third, &fourth] {
        released(&engine, claim).await;
    }
    assert_eq!(told(&server, &["KEYS", "*report*"]), "");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn count_that_is_too_small_lets_no_second_claim_hold() {
    let server = server().await;
    let engine = engine(server.url()).await;
    for (mode, all) in [
        (Mode::Exclusive, Mode::Exclusive),
        (Mode::Shared, Mode::Exclusive),
        (PERMITS, Mode::Permits { take: 3, of: 3 }),
    ] {
        let (first, second) = (report(mode), report(all));
        held(&engine, &first).await;
        if mode != Mode::Exclusive {
            told(&server, &["HSET", LINE, "u", "0"]);
        }
        queued(&engine, &second).await;
        told(&server, &["HSET", LINE, "n", "0", "u", "0"]);
        let third = report(all);
        queued(&engine, &third).await;
        assert!(is_queued(&engine, &second).await && is_held(&engine, &first).await);
        released(&engine, &first).await;
        rung(&engine, &second).await;
        assert!(is_queued(&engine, &third).await);
        released(&engine, &second).await;
        rung(&engine, &third).await;
        released(&engine, &third).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claim_that_was_overtaken_by_a_wrong_count_asks_again_and_holds_after_the_others() {
    let server = server().await;
    let engine = engine(server.url()).await;
    let (reader, writer, late) =
        (report(Mode::Shared), report(Mode::Exclusive), report(Mode::Shared));
    held(&engine, &reader).await;
    queued(&engine, &writer).await;
    queued(&engine, &late).await;
    // A count of two while one holds let the next reader in, which then made the count three.
    let granted = format!("g:{}", token(&late));
    told(&server, &["HSET", LINE, "n", "3", "u", "3", &granted, "1"]);
    assert!(is_held(&engine, &late).await);
    let standing = renewed(&engine, &writer).await;
    assert!(matches!(standing, Standing::Out { .. }), "{standing:?}");
    queued(&engine, &writer).await;
    released(&engine, &reader).await;
    assert!(is_queued(&engine, &writer).await, "a reader is left");
    released(&engine, &late).await;
    rung(&engine, &writer).await;
    released(&engine, &writer).await;
    assert_eq!(told(&server, &["KEYS", "*report*"]), "");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holder_and_line_outlive_the_loss_of_the_order_and_of_the_ends() {
    let server = server().await;
    let engine = engine(server.url()).await;
    for mode in [Mode::Exclusive, Mode::Shared, PERMITS] {
        let all = if mode == PERMITS { Mode::Permits { take: 3, of: 3 } } else { Mode::Exclusive };
        for key in [ORDER, EXPIRY] {
            let (first, second, third) = (report(mode), report(all), report(all));
            let fence = held(&engine, &first).await;
            queued(&engine, &second).await;
            // Each of these verbs is the first to find the line broken.
            told(&server, &["DEL", key]);
            engine.inspect(&Query::all()).await.expect("the others are shown");
            let tried = engine.claim(&Claim { join: false, ..report(all) }).await;
            assert!(matches!(tried, Ok(Standing::Out { ahead: 2, .. })), "{key}: {tried:?}");
            told(&server, &["DEL", key]);
            assert!(is_held(&engine, &first).await, "{key}");
            told(&server, &["DEL", key]);
            assert!(is_queued(&engine, &second).await, "{key}");
            told(&server, &["DEL", key]);
            queued(&engine, &third).await;
            told(&server, &["DEL", key]);
            released(&engine, &first).await;
            let next = rung(&engine, &second).await;
            assert!(next > fence, "{key}");
            assert!(is_queued(&engine, &third).await, "{key}");
            told(&server, &["DEL", key]);
            released(&engine, &second).await;
            assert!(rung(&engine, &third).await > next, "{key}");
            released(&engine, &third).await;
            assert_eq!(told(&server, &["KEYS", "*report*"]), "", "{key}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn loss_of_any_companion_grants_the_name_again_and_not_before_the_lease_is_over() {
    const TTL: Duration = Duration::from_secs(1);
    let server = server().await;
    let engine = engine(server.url()).await;
    for mode in [Mode::Exclusive, Mode::Shared, PERMITS] {
        let all = if mode == PERMITS { Mode::Permits { take: 3, of: 3 } } else { Mode::Exclusive };
        for key in COMPANIONS {
            for waits in [true, false] {
                let asked = Instant::now();
                let first = Claim { ttl: TTL, ..report(mode) };
                let fence = held(&engine, &first).await;
                if waits {
                    let dead = Claim { patience: TTL, ..report(all) };
                    queued(&engine, &dead).await;
                }
                told(&server, &["DEL", key]);
                // Its client died: it sends no heartbeat any more.
                let next = report(all);
                let granted = Cell::new(0);
                until("a grant", async || {
                    let standing = engine.claim(&next).await.expect("an answer");
                    if let Standing::Held { fence, .. } = standing {
                        granted.set(fence);
                    }
                    granted.get() > 0
                })
                .await;
                assert!(asked.elapsed() >= TTL, "{key} {mode:?}: two hold");
                assert!(granted.get() > fence, "{key} {mode:?}");
                released(&engine, &next).await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_whose_ends_are_unknown_lapse_all_the_same() {
    let clock = Clock::new().expect("a clock that can be moved");
    let server = servers::Redis::new().clock(&clock).start().await.expect("a server starts");
    clock.freeze();
    let engine = engine(server.url()).await;
    let first = Claim { ttl: Duration::from_secs(60), ..report(Mode::Shared) };
    let (dead, next) = (report(Mode::Exclusive), report(Mode::Exclusive));
    held(&engine, &first).await;
    queued(&engine, &dead).await;
    told(&server, &["DEL", EXPIRY]);
    queued(&engine, &next).await;
    clock.advance(Duration::from_secs(59));
    let standing = renewed(&engine, &next).await;
    assert!(matches!(standing, Standing::Queued { ahead: 1, .. }), "the dead waiter: {standing:?}");
    clock.advance(Duration::from_secs(2));
    assert!(is_held(&engine, &next).await);
    released(&engine, &next).await;
    assert_eq!(told(&server, &["KEYS", "*report*"]), "");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn line_that_cannot_be_read_is_named_and_hides_no_other_line() {
    let server = server().await;
    let engine = engine(server.url()).await;
    let one = client(server.url()).await;
    let (before, behind) = (claim("a", Mode::Exclusive), claim("z", Mode::Exclusive));
    held(&engine, &before).await;
    held(&engine, &behind).await;
    let alone: [&[&str]; 4] = [
        &["SET", LINE, ""],
        &["SET", LINE, "00112233445566778899aabbccddeeff\nnonsense"],
        &["RPUSH", LINE, "x"],
        &["SET", ORDER, "x"],
    ];
    let in_line: [&[&str]; 5] = [
        &["HDEL", LINE, "cap"],
        &["HSET", LINE, "cap", "many"],
        &["SET", ORDER, "x"],
        &["SET", EXPIRY, "x"],
        &["SET", LINE, ""],
    ];
    let cases = alone.iter().map(|how| (how, false)).chain(in_line.iter().map(|how| (how, true)));
    let mut last_fence = 0;
    for (how, with_a_line) in cases {
        let first = report(Mode::Exclusive);
        let fence = held(&engine, &first).await;
        assert!(fence > last_fence, "{how:?}");
        if with_a_line {
            queued(&engine, &report(Mode::Exclusive)).await;
        }
        if how[0] != "HDEL" && how[0] != "HSET" {
            told(&server, &["DEL", how[1]]);
        }
        told(&server, how);
        let page = engine.inspect(&Query::all()).await.expect("the others are shown");
        let names: Vec<&str> = page.lines.iter().map(|line| line.name.as_str()).collect();
        assert_eq!(names, ["a", "z"], "{how:?}");
        assert_eq!(page.broken.len(), 1, "{how:?}");
        assert_eq!(page.broken[0].name.as_str(), "report", "{how:?}");
        assert_eq!(engine.totals().await.expect("an answer").active, 2, "{how:?}");
        let error = one.line("report").await.expect_err("it cannot be read").to_string();
        assert!(error.contains("`report`") && error.contains("force-release"), "{error}");
        let findings = one.admin().examine().await.expect("an answer");
        assert!(about(&findings, "record").found.contains("`report`"), "{how:?}");
        // An order by fences takes nothing that it does not name. What is empty may go.
        let keys = told(&server, &["KEYS", "*report*"]);
        let taken = one.admin().force_release_fences("report", &[], "a test").await;
        assert!(taken.is_err() || taken.is_ok_and(|taken| taken.is_empty()), "{how:?}");
        let left = told(&server, &["KEYS", "*report*"]);
        assert!(left == keys || how[2].is_empty(), "{how:?}: {left}");
        // Where the server says why, the words say what helps.
        let asked = report(Mode::Exclusive);
        let joined = engine.claim(&asked).await;
        if let Err(error) = &joined {
            let told = error.to_string();
            let raw = told.contains("WRONGTYPE") || told.contains("script");
            assert!(!raw || told.contains("see `leasehold doctor`"), "{how:?}: {told}");
        }
        one.admin().force_release("report", "a test").await.expect("any name can be cleared");
        if joined.is_ok() {
            engine.release(&[asked.key]).await.expect("an answer");
        }
        assert_eq!(told(&server, &["KEYS", "*report*"]), "", "{how:?}");
        let next = report(Mode::Exclusive);
        last_fence = held(&engine, &next).await;
        assert!(last_fence > fence, "{how:?}");
        released(&engine, &next).await;
        let findings = one.admin().examine().await.expect("an answer");
        assert!(findings.iter().all(|finding| finding.subject != "record"), "{how:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn place_that_is_nobodys_keeps_no_name_from_being_cleared() {
    let server = server().await;
    let engine = engine(server.url()).await;
    let one = client(server.url()).await;
    held(&engine, &report(Mode::Exclusive)).await;
    queued(&engine, &report(Mode::Exclusive)).await;
    told(&server, &["ZADD", ORDER, "0", "z"]);
    engine.inspect(&Query::all()).await.expect("it is shown");
    one.admin().force_release("report", "a test").await.expect("any name can be cleared");
    one.admin().force_release("report", "a test").await.expect("any name can be cleared");
    assert_eq!(told(&server, &["KEYS", "*report*"]), "");
}
