//! The primitives with exact time, lost answers, and blocked threads: on memory only.
//!
//! The conformance suite tests what every engine must do.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use leasehold::clock::{Clock, Moment, VirtualClock};
#[cfg(feature = "json")]
use leasehold::error::Invalid;
use leasehold::layer::chaos::{Chaos, Trouble, Verb};
use leasehold::memory::Memory;
use leasehold::{Client, Error, LockOptions, LostCause, Mode, Outcome, RunState, Unit, UnlessHeld};

const MINUTE: Duration = Duration::from_secs(60);
const LONG: Duration = Duration::from_secs(300);

/// Looks at a fact until it is true.
async fn until(what: &str, fact: impl AsyncFn() -> bool) {
    let looking = async {
        while !fact().await {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let found = tokio::time::timeout(Duration::from_secs(30), looking).await;
    assert!(found.is_ok(), "waited for {what}");
}

async fn waiting(client: &Client, name: &str) -> usize {
    client.line(name).await.expect("an answer").map_or(0, |line| line.waiting.len())
}

async fn held(client: &Client, name: &str) -> usize {
    client.line(name).await.expect("an answer").map_or(0, |line| line.held.len())
}

/// Waits until a unit was taken at this instant of the virtual clock, and not before.
async fn taken(times: &Arc<std::sync::Mutex<Vec<Moment>>>, count: usize) -> Vec<Moment> {
    until("a unit", async || times.lock().expect("nobody panics").len() >= count).await;
    times.lock().expect("nobody panics").clone()
}

#[tokio::test]
async fn no_window_of_the_store_s_clock_has_more_units_than_the_rate() {
    let (memory, clock) = Memory::virtual_time();
    let chaos = Chaos::default();
    let builder = Client::builder().clock(Arc::new(clock.clone()));
    let client = builder.engine(chaos.trouble(memory)).expect("a client");
    let limiter = client.rate_limiter("mails", 3, MINUTE);
    let times = Arc::new(std::sync::Mutex::new(Vec::new()));
    let (told, now) = (Arc::clone(&times), clock.clone());
    let taker = tokio::spawn(async move {
        for _ in 0..9 {
            limiter.acquire().await?;
            told.lock().expect("nobody panics").push(now.now());
        }
        Ok::<(), Error>(())
    });
    for round in 1..=2 {
        assert_eq!(taken(&times, 3 * round).await.len(), 3 * round);
        until("a waiting unit", async || waiting(&client, "mails").await == 1).await;
        // The limiter gives no unit a moment before the first unit is a minute old.
        advance_in_steps(&clock, &chaos, MINUTE - Duration::from_millis(1)).await;
        assert_eq!(times.lock().expect("nobody panics").len(), 3 * round);
        clock.advance(Duration::from_millis(1));
    }
    taken(&times, 9).await;
    taker.await.expect("no panic").expect("units");
    let times = times.lock().expect("nobody panics").clone();
    for (first, fourth) in times.iter().zip(&times[3..]) {
        assert!(fourth.since(*first) >= MINUTE, "{first:?} {fourth:?}");
    }
}

/// Moves the clock on while a claim waits. The keeper sends a heartbeat at least each second. The
/// test awaits each of them, so that the claim keeps its place however slow the machine is.
async fn advance_in_steps(clock: &VirtualClock, chaos: &Chaos, span: Duration) {
    let step = Duration::from_secs(1);
    let mut left = span;
    while left >= step {
        let before = chaos.calls(Verb::Renew);
        clock.advance(step);
        left -= step;
        until("a heartbeat", async || chaos.calls(Verb::Renew) > before).await;
    }
    clock.advance(left);
}

#[tokio::test]
async fn the_next_unit_is_due_when_the_first_one_lapses() {
    let (memory, clock) = Memory::virtual_time();
    let client = memory.client().expect("a client");
    let limiter = client.rate_limiter("mails", 2, MINUTE);
    assert_eq!(limiter.try_acquire().await.expect("an answer"), Unit::Taken);
    clock.advance(Duration::from_secs(20));
    assert_eq!(limiter.try_acquire().await.expect("an answer"), Unit::Taken);
    clock.advance(Duration::from_secs(15));
    let due = limiter.try_acquire().await.expect("an answer");
    assert_eq!(due, Unit::DueIn(Duration::from_secs(25)));
    clock.advance(Duration::from_secs(25));
    assert_eq!(limiter.try_acquire().await.expect("an answer"), Unit::Taken);
    let due = limiter.try_acquire().await.expect("an answer");
    assert_eq!(due, Unit::DueIn(Duration::from_secs(20)));
    // Neither dropping nor closing gives a unit back.
    client.close().await.expect("closed");
    assert_eq!(held(&memory.client().expect("a client"), "mails").await, 2);
}

#[tokio::test]
async fn a_period_counts_from_the_start_of_a_run_on_the_store_s_clock() {
    let (memory, clock) = Memory::virtual_time();
    let client = memory.client().expect("a client");
    let job = client.once("job", MINUTE);
    let run = job.start().await.expect("an answer").expect("nobody ran");
    clock.advance(Duration::from_secs(10));
    run.end(Some("broken".into())).await.expect("told");
    let last = job.last().await.expect("an answer").expect("remembered");
    let took = Duration::from_secs(10);
    assert_eq!(last.state, RunState::Failed { took, why: "broken".into() });
    assert_eq!((last.started, last.next_in), (took, MINUTE - took));
    clock.advance(MINUTE - took - Duration::from_millis(1));
    assert!(job.start().await.expect("an answer").is_err(), "a millisecond is left");
    clock.advance(Duration::from_millis(1));
    let ran = job.run(async |_| Ok::<(), String>(())).await.expect("an answer");
    assert!(matches!(ran, Outcome::Ran(Ok(()))));
}

#[tokio::test]
async fn a_run_that_takes_too_long_is_stopped_and_counts_as_failed() {
    let (memory, clock) = Memory::virtual_time();
    let client = memory.client().expect("a client");
    let job = client.once("job", MINUTE * 60).max_run(MINUTE / 4);
    let begun = AtomicU32::new(0);
    let running = job.run(async |_| {
        begun.store(1, Ordering::SeqCst);
        std::future::pending::<Result<(), String>>().await
    });
    let waiting = async {
        until("a run", async || begun.load(Ordering::SeqCst) == 1).await;
        clock.advance(MINUTE / 4);
    };
    let (ran, ()) = tokio::join!(running, waiting);
    assert!(matches!(ran, Err(Error::Lost { cause: LostCause::HoldAtMost, .. })), "{ran:?}");
    let last = job.last().await.expect("an answer").expect("remembered");
    assert!(matches!(last.state, RunState::Failed { .. }), "{last:?}");
    assert!(last.next_in > MINUTE * 59, "{last:?}");
}

#[tokio::test]
async fn no_step_of_work_begins_after_the_lease_s_end_although_nobody_noticed() {
    let (memory, clock) = Memory::virtual_time();
    let client = memory.client().expect("a client");
    let election = client.election("office").ttl(MINUTE);
    // Renewals do not reach the store, like those of a paused process.
    memory.pause(client.holder());
    let (steps, terms) = (AtomicU32::new(0), AtomicU32::new(0));
    let (poke, clock) = (tokio::sync::Notify::new(), &clock);
    let leading = election.run_while_leader("here", async |leadership| {
        if terms.fetch_add(1, Ordering::SeqCst) == 0 {
            poke.notified().await;
            steps.fetch_add(1, Ordering::SeqCst);
        }
        leadership.term()
    });
    let pausing = async {
        until("a term", async || terms.load(Ordering::SeqCst) == 1).await;
        // The work becomes ready at the moment in which the lease ends.
        clock.advance(MINUTE);
        poke.notify_one();
        memory.resume(client.holder());
    };
    let (term, ()) = tokio::join!(leading, pausing);
    assert!(term.expect("a second term") > 1);
    assert_eq!(steps.load(Ordering::SeqCst), 0, "the first leader did nothing more");
}

#[tokio::test]
async fn f116_a_thousand_waiters_and_one_release_wake_one() {
    let memory = Memory::new();
    let chaos = Chaos::default();
    let client = Client::builder().engine(chaos.trouble(memory.clone())).expect("a client");
    let holder = memory.client().expect("a client");
    let lease = holder.mutex("herd").ttl(LONG).lock().await.expect("granted");
    let mut waiters = tokio::task::JoinSet::new();
    let next = Arc::new(tokio::sync::Semaphore::new(0));
    for _ in 0..1_000 {
        let (client, next) = (client.clone(), Arc::clone(&next));
        waiters.spawn(async move {
            let lease = client.mutex("herd").ttl(LONG).lock().await?;
            let _turn = next.acquire().await.expect("never closed");
            lease.release().await
        });
    }
    until("a thousand waiters", async || waiting(&holder, "herd").await == 1_000).await;
    let before = chaos.calls(Verb::Claim);
    lease.release().await.expect("released");
    until("the next holder", async || waiting(&holder, "herd").await == 999).await;
    let asked = chaos.calls(Verb::Claim) - before;
    assert!(asked <= 2, "{asked} asked after one release");
    next.add_permits(1_000);
    while let Some(served) = waiters.join_next().await {
        served.expect("no panic").expect("served");
    }
}

#[tokio::test]
async fn an_amendment_whose_answer_is_lost_is_made_once_and_a_refused_one_not_at_all() {
    let memory = Memory::new();
    let chaos = Chaos::default();
    let client = Client::builder().engine(chaos.trouble(memory.clone())).expect("a client");
    let lock = client.rwlock("catalogue").ttl(LONG);
    chaos.next(Verb::Amend, Trouble::LoseAnswer, 2);
    let reader = lock.write().await.expect("granted").downgrade().await.expect("asked again");
    assert_eq!(held(&client, "catalogue").await, 1);
    assert_eq!(chaos.calls(Verb::Amend), 3);
    reader.release().await.expect("an answer");
    let reader = lock.read().await.expect("granted");
    chaos.next(Verb::Amend, Trouble::Refuse, 100);
    let failed = reader.try_upgrade().await;
    assert!(matches!(failed, Err(Error::Unreachable { .. })), "{failed:?}");
    chaos.heal();
    until("the lease is given back", async || held(&client, "catalogue").await == 0).await;
}

#[tokio::test]
async fn a_dropped_downgrade_gives_the_lease_back() {
    let chaos = Chaos::default();
    let client = Client::builder().engine(chaos.trouble(Memory::new())).expect("a client");
    for trouble in [Trouble::Hang, Trouble::HangAfter] {
        let writer = client.rwlock("catalogue").ttl(LONG).write().await.expect("granted");
        chaos.next(Verb::Amend, trouble, 1);
        let hanging = tokio::spawn(writer.downgrade());
        chaos.hanging(1).await;
        hanging.abort();
        until("the lease is given back", async || held(&client, "catalogue").await == 0).await;
        chaos.heal();
    }
}

#[tokio::test]
async fn observers_hear_of_a_leader_that_died_without_a_word() {
    let (memory, clock) = Memory::virtual_time();
    let client = memory.client().expect("a client");
    let mut leaders = client.election("office").observe().await.expect("a stream");
    assert_eq!(leaders.next().await.expect("endless").expect("read"), None);
    let dead = memory.client().expect("a client");
    memory.pause(dead.holder());
    let leadership = dead.election("office").ttl(MINUTE).campaign("a").await.expect("elected");
    let leader = leaders.next().await.expect("endless").expect("read").expect("a leader");
    assert_eq!((leader.term, leader.payload.as_str()), (leadership.term(), "a"));
    let next = tokio::spawn(async move { leaders.next().await });
    // The clock goes on until the observer looks again; no other client touches the line.
    for _ in 0..12 {
        clock.advance(Duration::from_secs(6));
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
    let next = tokio::time::timeout(Duration::from_secs(30), next).await.expect("in time");
    assert_eq!(next.expect("no panic").expect("endless").expect("read"), None);
    assert!(!leadership.is_held());
}

#[test]
fn threads_have_the_same_primitives() {
    let client = leasehold::blocking::connect("memory:threads").expect("a client");
    let lock = client.rwlock("catalogue");
    let reader = lock.write().expect("granted").downgrade().expect("it reads");
    let other = lock.try_read().unless_held().expect("an answer").expect("readers share");
    let reader = reader.try_upgrade().expect("an answer").expect_err("two read");
    other.release().expect("released");
    let writer = reader.try_upgrade().expect("an answer").expect("it is alone");
    assert!(lock.read_within(Duration::from_millis(1)).unless_held().expect("an answer").is_none());
    let stolen = client.steal("catalogue", "repair").expect("stolen");
    assert!(stolen.fence() > writer.fence());
    stolen.release().expect("released");
    writer.release().expect("an answer");

    let permits = client.semaphore("uploads", 2);
    let two = permits.acquire_many(2).expect("granted");
    assert!(permits.try_acquire().unless_held().expect("an answer").is_none());
    two.set_note("all of them").expect("noted");
    two.release().expect("released");

    let election = client.election("office");
    let mut leaders = election.observe().expect("a stream");
    assert_eq!(leaders.next().expect("endless").expect("read"), None);
    let leadership = election.campaign("a").expect("elected");
    leadership.proclaim("b").expect("told");
    let leader = leaders.find_map(|leader| leader.expect("read")).expect("endless");
    assert_eq!(leader.term, leadership.term());
    leadership.resign().expect("resigned");

    let limiter = client.rate_limiter("mails", 1, MINUTE);
    limiter.acquire().expect("a unit");
    assert!(matches!(limiter.try_acquire().expect("an answer"), Unit::DueIn(_)));

    let once = client.once("job", MINUTE);
    let ran = once.run(|_| Err::<(), _>("broken")).expect("an answer");
    assert!(matches!(ran, Outcome::Ran(Err("broken"))));
    let last = once.last().expect("an answer").expect("remembered");
    assert!(matches!(last.state, RunState::Failed { .. }));
    client.close().expect("closed");
}

#[tokio::test]
async fn a_limit_or_mode_that_cannot_be_is_an_error_before_anything_is_sent() {
    let chaos = Chaos::default();
    let client = Client::builder().engine(chaos.trouble(Memory::new())).expect("a client");
    for mode in [Mode::Permits { take: 0, of: 1 }, Mode::Permits { take: 2, of: 1 }] {
        assert!(matches!(client.request("n").mode(mode).acquire().await, Err(Error::Invalid(_))));
    }
    assert!(matches!(client.semaphore("n", 0).acquire().await, Err(Error::Invalid(_))));
    assert!(matches!(client.rate_limiter("n", 0, MINUTE).acquire().await, Err(Error::Invalid(_))));
    assert!(matches!(client.rwlock("").read().await, Err(Error::Invalid(_))));
    assert!(matches!(client.election("").leader().await, Err(Error::Invalid(_))));
    assert!(matches!(client.election("").observe().await, Err(Error::Invalid(_))));
    assert!(matches!(client.once("", MINUTE).last().await, Err(Error::Invalid(_))));
    assert!(matches!(client.admin().resize("n", 0).await, Err(Error::Invalid(_))));
    assert_eq!(chaos.calls(Verb::Claim), 0);
}

#[tokio::test]
async fn debug_of_what_users_keep_is_short() {
    let client = Memory::new().client().expect("a client");
    let lease = client.mutex("n").lock().await.expect("granted");
    let shown = [
        format!("{client:?}"),
        format!("{:?}", client.mutex("n")),
        format!("{:?}", client.semaphore("n", 3)),
        format!("{:?}", client.rwlock("n")),
        format!("{:?}", client.once("n", MINUTE)),
        format!("{:?}", client.rate_limiter("n", 3, MINUTE)),
        format!("{:?}", client.election("n")),
        format!("{lease:?}"),
    ];
    for text in shown {
        assert!(text.len() < 500, "{} bytes: {text}", text.len());
    }
}

#[tokio::test]
async fn lease_tells_why_its_last_renewal_failed() {
    let memory = Memory::new();
    let client = Client::builder().retry(leasehold::layer::retry::RetryPolicy::OFF);
    let client = client.engine(memory.clone()).expect("a client");
    let lease = client.mutex("n").ttl(Duration::from_millis(500)).lock().await.expect("granted");
    assert!(lease.last_failure().is_none());
    memory.fail_next_renewal(lease.name());
    until("a failure", async || lease.last_failure().is_some()).await;
    let failure = lease.last_failure().expect("it was seen");
    assert!(failure.to_string().contains("the test said that this renewal fails"), "{failure}");
    until("a renewal", async || lease.last_failure().is_none()).await;
    assert!(lease.is_held());
}

#[tokio::test]
async fn options_of_one_value_serve_every_primitive() {
    let (memory, clock) = Memory::virtual_time();
    let client = memory.client().expect("a client");
    let options = LockOptions::new().ttl(MINUTE).note("all").renew(false);
    let mutex = client.mutex("mutex").options(options.clone());
    let lease = mutex.note("mine").lock().await.expect("free");
    let permit = client.semaphore("permits", 2).options(options.clone());
    let permit = permit.acquire().await.expect("free");
    let reader = client.rwlock("shared").options(options.clone()).read().await.expect("free");
    let both = client.mutexes(["a", "b"]).options(options.clone()).lock().await.expect("free");
    let leader = client.election("led").options(options).campaign("here").await.expect("free");
    let notes =
        [("mutex", "mine"), ("permits", "all"), ("shared", "all"), ("a", "all"), ("led", "here")];
    for (name, note) in notes {
        let line = client.line(name).await.expect("an answer").expect("a line");
        assert_eq!(line.held[0].note.text(), note, "{name}");
    }
    clock.advance(MINUTE);
    let held = [lease.is_held(), permit.is_held(), reader.is_held(), leader.is_held()];
    assert_eq!((held, both.are_held()), ([false; 4], false), "nothing renewed them");
}

#[tokio::test]
async fn locks_that_others_share_are_not_reentrant() {
    let client = Memory::new().client().expect("a client");
    let options = LockOptions::new().reentrant();
    let lock = client.rwlock("n").options(options.clone());
    assert!(matches!(lock.read().await, Err(Error::Invalid(_))));
    assert!(matches!(lock.write().await, Err(Error::Invalid(_))));
    let semaphore = client.semaphore("n", 2).options(options);
    assert!(matches!(semaphore.acquire().await, Err(Error::Invalid(_))));
    assert!(client.line("n").await.expect("an answer").is_none());
}

#[cfg(feature = "json")]
#[tokio::test]
async fn note_may_be_json() {
    let client = Memory::new().client().expect("a client");
    let note = async || {
        let line = client.line("n").await.expect("an answer").expect("a line");
        line.held[0].note.as_str().to_owned()
    };
    let options = LockOptions::new().note_json(&["nightly", "42"]).expect("JSON");
    let lease = client.mutex("n").options(options).lock().await.expect("free");
    assert_eq!(note().await, r#"["nightly","42"]"#);
    lease.set_note_json(&std::collections::BTreeMap::from([("order", 42)])).await.expect("set");
    assert_eq!(note().await, r#"{"order":42}"#);
    let no_text = std::collections::BTreeMap::from([([1], 2)]);
    let refused = LockOptions::new().note_json(&no_text);
    assert!(matches!(refused, Err(Error::Invalid(Invalid::NoteNotJson { .. }))));
}

#[tokio::test]
async fn lease_is_safe_until_an_instant_within_its_ttl() {
    let client = Memory::new().client().expect("a client");
    let before = Instant::now();
    let lease = client.mutex("n").ttl(LONG).lock().await.expect("free");
    let safe_until = lease.safe_until();
    assert!(before < safe_until && safe_until <= Instant::now() + LONG);
    client.admin().force_release("n", "a test").await.expect("an answer");
    assert!(lease.extend(LONG).await.is_err());
    assert!(lease.safe_until() <= Instant::now(), "it is lost");
}
