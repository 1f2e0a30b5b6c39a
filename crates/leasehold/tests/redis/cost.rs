//! The cost of verbs for the server: exchanges, commands, and keys that stay. Counted, never timed.

use std::ops::Range;
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::stream::{self, StreamExt};
use leasehold::claim::{Amended, Claim, ClaimKey, Note, Standing, Token};
use leasehold::engine::{Amend, ClaimMany, Convert, Engine, Resize};
use leasehold::redis::Redis;
use leasehold::{Holder, Mode, Name};
use leasehold_testkit::{Server, servers};

use crate::support::*;

/// An engine that waits long enough for large answers on a busy machine.
async fn patient(server: &Server) -> Redis {
    engine(format!("{}?timeout_ms=60000", server.url())).await
}

/// The number of commands that a server ran, in scripts too.
fn work(server: &Server) -> u64 {
    let stats = told(server, &["INFO", "commandstats"]);
    let counts = stats.lines().filter(|line| !line.starts_with("cmdstat_info"));
    let counts = counts.filter_map(|line| line.split("calls=").nth(1)?.split(',').next());
    counts.map(|count| count.parse::<u64>().expect("a count")).sum()
}

/// Exchanges with clients: commands that did not come from a script.
fn exchanges(server: &Server) -> u64 {
    let stats = told(server, &["INFO", "stats"]);
    let line = stats.lines().find_map(|line| line.strip_prefix("total_reads_processed:"));
    line.expect("a count").trim().parse().expect("a count")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_verb_is_one_script_call() {
    let server = server().await;
    let engine = patient(&server).await;
    let warm = claim("warm-up", Mode::Exclusive);
    held(&engine, &warm).await;
    engine.renew(&[renewal(&warm)]).await.expect("an answer");
    engine.release(std::slice::from_ref(&warm.key)).await.expect("an answer");
    let count = async |verb: &str, made: &mut dyn FnMut() -> u64| {
        assert_eq!(made(), 1, "{verb}");
    };
    let mut before = script_calls(&server);
    let mut since = || {
        let now = script_calls(&server);
        now - std::mem::replace(&mut before, now)
    };
    let (one, two) = (claim("report", Mode::Exclusive), claim("report", Mode::Exclusive));
    held(&engine, &one).await;
    count("claim", &mut since).await;
    queued(&engine, &two).await;
    count("join", &mut since).await;
    engine.renew(&[renewal(&one)]).await.expect("an answer");
    count("renew", &mut since).await;
    engine.release(&[one.key]).await.expect("an answer");
    count("release", &mut since).await;
    soon("a bell", engine.wait(&two.key)).await.expect("an answer");
    assert_eq!(since(), 0, "wait");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changing_a_claim_or_a_limit_is_one_script_call() {
    let server = server().await;
    let engine = patient(&server).await;
    let (lock, permits) =
        (claim("l", Mode::Exclusive), claim("p", Mode::Permits { take: 1, of: 2 }));
    held(&engine, &lock).await;
    held(&engine, &permits).await;
    // A server that does not know a script needs its text the first time.
    let round = async || {
        for mode in [Mode::Shared, Mode::Exclusive] {
            let amended = engine.set_mode(&lock.key, mode).await.expect("an answer");
            assert_eq!(amended, Amended::Done);
        }
        let note = Note::new("new").expect("a note");
        let amended = engine.set_note(&lock.key, &note).await.expect("an answer");
        assert_eq!(amended, Amended::Done);
        let (name, by) = (permits.key.name.clone(), Holder::fresh());
        engine.resize(&Resize { name, of: 3, by }).await.expect("an answer");
    };
    round().await;
    let before = script_calls(&server);
    round().await;
    assert_eq!(script_calls(&server) - before, 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_claims_of_a_client_are_renewed_and_released_in_one_exchange() {
    const NAMES: usize = 200;
    let server = server().await;
    let engine = patient(&server).await;
    let mut claims = Vec::new();
    for number in 0..NAMES {
        let mode = [Mode::Exclusive, Mode::Shared, Mode::Permits { take: 1, of: 3 }][number % 3];
        let claim = claim(&format!("name {number}"), mode);
        held(&engine, &claim).await;
        claims.push(claim);
    }
    let waiting = claim("name 0", Mode::Exclusive);
    queued(&engine, &waiting).await;
    claims.push(waiting);
    let renewals: Vec<_> = claims.iter().map(renewal).collect();
    let keys: Vec<ClaimKey> = claims.iter().map(|claim| claim.key.clone()).collect();
    engine.renew(&renewals).await.expect("an answer");
    let before = (exchanges(&server), script_calls(&server));
    engine.renew(&renewals).await.expect("an answer");
    let after = (exchanges(&server), script_calls(&server));
    assert_eq!(after.1 - before.1, NAMES as u64 + 1);
    // The server may need a few reads for one long request. Three of them are this test's own
    // questions.
    assert!(after.0 - before.0 <= 12, "{} reads", after.0 - before.0);
    // The server does not know this script yet: one call brings it along for all.
    let before = exchanges(&server);
    engine.release(&keys).await.expect("an answer");
    assert!(exchanges(&server) - before <= 12, "{} reads", exchanges(&server) - before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keeper_renews_everything_together() {
    const NAMES: usize = 60;
    let server = server().await;
    let one = client(server.url()).await;
    let mut leases = Vec::new();
    for number in 0..NAMES {
        let mutex = one.mutex(format!("name {number}")).ttl(Duration::from_secs(3));
        leases.push(mutex.lock().await.expect("free"));
    }
    until_renewed(&leases[NAMES - 1]).await;
    let before = (exchanges(&server), script_calls(&server));
    until_renewed(&leases[NAMES - 1]).await;
    let after = (exchanges(&server), script_calls(&server));
    let renewed = after.1 - before.1;
    assert!((1..=2 * NAMES as u64).contains(&renewed), "{renewed} renewals");
    // A few more than one: leases are not all due at the same instant, and the client sends its
    // counts.
    assert!(after.0 - before.0 <= 20, "{} reads for {renewed} renewals", after.0 - before.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_is_sent_all_renewals_at_once_and_redirects_none() {
    const NAMES: usize = 300;
    let group = servers::Redis::new().start_cluster().await.expect("a cluster starts");
    let engine = engine(group.url()).await;
    let mut claims = Vec::new();
    for number in 0..NAMES {
        let claim = claim(&format!("name {number}"), Mode::Exclusive);
        held(&engine, &claim).await;
        claims.push(claim);
    }
    let renewals: Vec<_> = claims.iter().map(renewal).collect();
    engine.renew(&renewals).await.expect("an answer");
    let sum = || group.servers().iter().map(script_calls).sum::<u64>();
    let reads = || group.servers().iter().map(exchanges).collect::<Vec<u64>>();
    let (before, read) = (sum(), reads());
    engine.renew(&renewals).await.expect("an answer");
    let read: Vec<u64> = reads().iter().zip(read).map(|(now, before)| now - before).collect();
    assert_eq!(sum() - before, NAMES as u64, "a call for each name, which is in a slot of its own");
    // The driver writes those for one node together, as far as the machine lets it gather them. If
    // one waited for the answer to another, each would be a read of its own.
    assert!(read.iter().all(|reads| *reads <= 34), "{read:?} reads for 100 names each");
    for server in group.servers() {
        let errors = told(server, &["INFO", "errorstats"]);
        assert!(!errors.contains("MOVED") && !errors.contains("CROSSSLOT"), "{errors}");
    }
}

/// Script calls for each lease that was handed on, with `waiters` waiters at a time.
async fn calls_per_cycle(waiters: usize) -> f64 {
    const CYCLES: usize = 200;
    let server = server().await;
    let one = client(server.url()).await;
    let lease = one.mutex("report").ttl(LONG).lock().await.expect("free");
    let total = waiters + CYCLES;
    let mut tasks = tokio::task::JoinSet::new();
    let (ended, mut ends) = tokio::sync::mpsc::channel::<()>(total);
    for _ in 0..waiters {
        let (request, ended) = (one.request("report").ttl(LONG), ended.clone());
        // Each joins the end of the line again as often as its share of the cycles.
        let rounds = CYCLES / waiters + 1;
        tasks.spawn(async move {
            for _ in 0..rounds {
                let lease = request.acquire().await.expect("a grant");
                lease.release().await.expect("an answer");
                ended.send(()).await.expect("the test counts");
            }
        });
    }
    until_waiting(&one, "report", waiters).await;
    let before = script_calls(&server);
    lease.release().await.expect("an answer");
    let mut cycles = 0;
    drop(ended);
    while soon("a cycle", ends.recv()).await.is_some() {
        cycles += 1;
    }
    while let Some(task) = tasks.join_next().await {
        task.expect("no panic");
    }
    (script_calls(&server) - before) as f64 / f64::from(cycles)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn contended_cycle_is_three_commands_at_most_at_any_number_of_waiters() {
    for waiters in [2, 16, 64] {
        let calls = calls_per_cycle(waiters).await;
        assert!(calls <= 3.0, "{calls} with {waiters} waiters");
    }
}

/// Puts `count` more waiting claims into the line of a name.
async fn lengthen(engine: &Redis, name: &str, count: usize) {
    let claims = stream::iter(0..count).map(|_| async {
        let standing = engine.claim(&claim(name, Mode::Exclusive)).await.expect("an answer");
        assert!(matches!(standing, Standing::Queued { .. }), "{standing:?}");
    });
    claims.buffer_unordered(200).collect::<Vec<()>>().await;
}

/// Commands in the scripts of join, renew, try and release, with the present waiters.
async fn work_at(server: &Server, engine: &Redis, name: &str) -> [u64; 5] {
    let lease = claim(name, Mode::Exclusive);
    let mut counts = [0; 5];
    let mut before = work(server);
    let mut note = |place: usize| {
        let now = work(server);
        counts[place] = now - std::mem::replace(&mut before, now);
    };
    queued(engine, &lease).await;
    note(0);
    engine.renew(&[renewal(&lease)]).await.expect("an answer");
    note(1);
    engine.claim(&lease).await.expect("an answer");
    note(2);
    let passer_by = Claim { join: false, ..claim(name, Mode::Exclusive) };
    engine.claim(&passer_by).await.expect("an answer");
    note(3);
    engine.release(&[lease.key]).await.expect("an answer");
    note(4);
    counts
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scripts_do_not_work_harder_on_a_long_line() {
    let server = server().await;
    let engine = patient(&server).await;
    let holder = claim("report", Mode::Exclusive);
    held(&engine, &holder).await;
    lengthen(&engine, "report", 20).await;
    // Once for the connections and scripts, once to count.
    work_at(&server, &engine, "report").await;
    let short = work_at(&server, &engine, "report").await;
    lengthen(&engine, "report", 9_900 - 20).await;
    let long = work_at(&server, &engine, "report").await;
    assert_eq!(short, long);
    let before = work(&server);
    engine.release(std::slice::from_ref(&holder.key)).await.expect("an answer");
    let hand_off = work(&server) - before;
    assert!(hand_off <= 40, "{hand_off} commands to hand a lock on");
}

/// How many commands a verb's script runs, without the call itself.
async fn commands<T>(server: &Server, verb: impl Future<Output = T>) -> u64 {
    let before = work(server);
    verb.await;
    work(server) - before - 1
}

/// Counts the commands of these verbs in one line:
///
/// - a second claim of the mode, and a claim that waits behind both;
/// - a renewal of the first and of the second;
/// - a try;
/// - a release of the first, of the second and of the last.
async fn commands_in_a_line(server: &Server, engine: &Redis, mode: Mode) -> [u64; 8] {
    let name = format!("{mode:?}");
    let (first, second) = (claim(&name, mode), claim(&name, mode));
    let third = if mode == Mode::Shared { Mode::Exclusive } else { mode };
    let third = claim(&name, third);
    held(engine, &first).await;
    let passer_by = Claim { join: false, ..claim(&name, mode) };
    [
        commands(server, engine.claim(&second)).await,
        commands(server, engine.claim(&third)).await,
        commands(server, engine.renew(&[renewal(&first)])).await,
        commands(server, engine.renew(&[renewal(&second)])).await,
        commands(server, engine.claim(&passer_by)).await,
        commands(server, engine.release(&[first.key])).await,
        commands(server, engine.release(&[second.key])).await,
        commands(server, engine.release(&[third.key])).await,
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scripts_run_no_more_commands_than_they_need() {
    let server = server().await;
    let engine = patient(&server).await;
    let permits = Mode::Permits { take: 1, of: 2 };
    for mode in [Mode::Exclusive, Mode::Shared, permits] {
        // Once for connections and scripts.
        commands_in_a_line(&server, &engine, mode).await;
    }
    let one = claim("alone", Mode::Exclusive);
    let claims = commands(&server, engine.claim(&one)).await;
    let renews = commands(&server, engine.renew(&[renewal(&one)])).await;
    let passer_by = Claim { join: false, ..claim("alone", Mode::Exclusive) };
    let tries = commands(&server, engine.claim(&passer_by)).await;
    let releases = commands(&server, engine.release(std::slice::from_ref(&one.key))).await;
    let reader = claim("alone", Mode::Shared);
    let reads = commands(&server, engine.claim(&reader)).await;
    let leaves = commands(&server, engine.release(&[reader.key])).await;
    // Claim, renewal, try and release of a lone lease; claim and release of a reader.
    let alone = [claims, renews, tries, releases, reads, leaves];
    let mut lines = Vec::new();
    for mode in [Mode::Exclusive, Mode::Shared, permits] {
        lines.push(commands_in_a_line(&server, &engine, mode).await);
    }
    assert_eq!(alone, [5, 5, 4, 3, 15, 12]);
    assert_eq!(lines[0], [20, 12, 10, 11, 11, 12, 12, 13], "exclusive");
    assert_eq!(lines[1], [14, 16, 11, 11, 10, 12, 17, 13], "shared");
    assert_eq!(lines[2], [14, 14, 11, 11, 10, 17, 11, 12], "permits");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn line_of_ten_thousand_is_full_and_says_so() {
    let server = server().await;
    let engine = patient(&server).await;
    held(&engine, &claim("report", Mode::Exclusive)).await;
    lengthen(&engine, "report", 9_999).await;
    let error = engine.claim(&claim("report", Mode::Exclusive)).await.expect_err("full");
    assert!(matches!(error, leasehold::Error::Limit { limit: 10_000, .. }), "{error:?}");
    let page = engine.inspect(&leasehold::engine::Query::all()).await.expect("an answer");
    assert_eq!(page.lines[0].waiting.len(), 9_999);
}

/// Takes names that are used only once, and gives them back: each with a claim of its own, or many
/// in one exchange.
async fn use_once(engine: Redis, names: Range<usize>, together: bool) {
    const AT_ONCE: usize = 500;
    let model = Claim { join: false, ..claim("one-off", Mode::Exclusive) };
    for first in names.clone().step_by(AT_ONCE) {
        let claim = |number: usize| {
            let name = Name::new(format!("one-off {number}")).expect("a name");
            let shared = number.is_multiple_of(10) && !together;
            let mode = if shared { Mode::Shared } else { Mode::Exclusive };
            Claim { key: ClaimKey { name, token: Token::random() }, mode, ..model.clone() }
        };
        let claims: Vec<Claim> = (first..names.end.min(first + AT_ONCE)).map(claim).collect();
        if together {
            engine.claim_all(&claims).await.expect("an answer").expect("all are free");
        } else {
            join_all(claims.iter().map(|claim| held(&engine, claim))).await;
        }
        let keys: Vec<ClaimKey> = claims.into_iter().map(|claim| claim.key).collect();
        engine.release(&keys).await.expect("an answer");
    }
}

/// One exchange claims many of them, which makes the same keys with less work. The names with a
/// claim of their own suffice to use every one of the 4,096 counters.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_thousand_one_off_names_leave_nothing_but_a_bounded_number_of_counters() {
    let server = server().await;
    let engine = patient(&server).await;
    let before = key_count(&server);
    let alone = tokio::spawn(use_once(engine.clone(), 0..40_000, false));
    let together = tokio::spawn(use_once(engine.clone(), 40_000..200_000, true));
    alone.await.expect("no panic");
    together.await.expect("no panic");
    let left = key_count(&server) - before;
    assert!(left <= 4_096, "{left} keys are left");
    let counters = told(&server, &["KEYS", "leasehold:fence:*"]).lines().count() as u64;
    assert_eq!(counters, left, "only counters are left");
}
