//! Fences on Redis: exact beyond the numbers that Lua counts exactly, and never the same twice.

use std::time::Duration;

use leasehold::claim::{Claim, Standing};
use leasehold::engine::{Engine, Query};
use leasehold::{LockOptions, Mode};
use leasehold_testkit::Server;

use crate::support::*;

/// All counters of fences on a server.
fn counters(server: &Server) -> Vec<String> {
    told(server, &["KEYS", "leasehold:fence:*"]).lines().map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fences_above_2_to_the_53_are_exact_and_rise_by_one() {
    let server = server().await;
    let engine = engine(server.url()).await;
    let first = claim("report", Mode::Exclusive);
    held(&engine, &first).await;
    engine.release(std::slice::from_ref(&first.key)).await.expect("an answer");
    let [counter] = &counters(&server)[..] else { panic!("one counter for one name") };
    // The last one has one more digit than the clock, and one more than a double can distinguish.
    for start in [(1_u64 << 53) - 1, (1 << 53) + 1, (1 << 60) + 7, i64::MAX as u64 - 20] {
        told(&server, &["SET", counter, &start.to_string()]);
        let (one, two) = (claim("report", Mode::Exclusive), claim("report", Mode::Exclusive));
        let (three, other) = (claim("report", Mode::Exclusive), claim("report", Mode::Shared));
        assert_eq!(held(&engine, &one).await, start + 1);
        for waiting in [&two, &three, &other] {
            queued(&engine, waiting).await;
        }
        let line = engine.inspect(&Query::all()).await.expect("an answer").lines.remove(0);
        let seen: Vec<u64> =
            line.held.iter().chain(&line.waiting).map(|it| it.fence.as_u64()).collect();
        assert_eq!(seen, [start + 1, start + 2, start + 3, start + 4]);
        for (claim, fence) in [(one, 1), (two, 2), (three, 3), (other, 4)] {
            // A claim, a renewal and a repeated question all give it.
            let answers = engine.renew(&[renewal(&claim)]).await.expect("an answer");
            let again = engine.claim(&claim).await.expect("an answer");
            for standing in [answers[0].as_ref().expect("an answer"), &again] {
                assert!(
                    matches!(standing, Standing::Held { fence: now, .. } if *now == start + fence),
                    "{standing:?}, not {}",
                    start + fence
                );
            }
            engine.release(&[claim.key]).await.expect("an answer");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bell_carries_fences_above_2_to_the_53_exactly() {
    let server = server().await;
    let (one, two) = (client(server.url()).await, client(server.url()).await);
    one.mutex("report").lock().await.expect("free").release().await.expect("an answer");
    let start = (1_u64 << 53) + 1;
    told(&server, &["SET", &counters(&server)[0], &start.to_string()]);
    let lease = one.mutex("report").ttl(LONG).lock().await.expect("free");
    let waiter = Waiter::queue(&one, &two, "report", 0).await;
    lease.release().await.expect("an answer");
    assert_eq!(waiter.granted().await.fence(), start + 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fences_rise_across_release_expiry_flush_and_restart() {
    let server = server().await;
    let one = client(server.url()).await;
    let mut last = 0;
    let mut rises = async |what: &str| {
        let mutex = one
            .mutex("report")
            .ttl(Duration::from_millis(100))
            .options(LockOptions::new().renew(false));
        let lease = soon("a grant", mutex.lock()).await.expect("a grant");
        assert!(lease.fence() > last, "after {what}: {} after {last}", lease.fence());
        last = lease.fence().as_u64();
        lease
    };
    rises("nothing").await.release().await.expect("an answer");
    let lease = rises("a release").await;
    soon("the end", lease.lost()).await;
    let _still_there = rises("an expiry").await;
    told(&server, &["FLUSHALL"]);
    rises("a flush").await.release().await.expect("an answer");
    told(&server, &["FLUSHALL"]);
    server.restart().await.expect("it restarts");
    rises("a restart").await.release().await.expect("an answer");
    for counter in counters(&server) {
        told(&server, &["DEL", &counter]);
    }
    let lease = rises("the loss of its counter").await;
    assert!(lease.is_held());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fences_are_microseconds_of_the_servers_clock_while_it_runs() {
    let server = server().await;
    let engine = engine(server.url()).await;
    let now = || {
        let time = told(&server, &["TIME"]);
        let (seconds, micros) = time.split_once('\n').expect("two numbers");
        let number = |text: &str| text.parse::<u64>().expect("a number");
        number(seconds) * 1_000_000 + number(micros)
    };
    for round in 0..50 {
        let before = now();
        let claim = Claim { join: false, ..claim(&format!("name {round}"), Mode::Exclusive) };
        let fence = held(&engine, &claim).await;
        assert!(before <= fence && fence <= now(), "{fence}");
    }
}
