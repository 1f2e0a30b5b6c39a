//! Promises of the types, reports to observers, and retries.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::FutureExt;
use leasehold::claim::{Holder, HolderId};
use leasehold::engine::Engine;
use leasehold::error::{Config, Invalid, Kind, UnreachableReason};
use leasehold::layer::chaos::{Trouble, Verb};
use leasehold::layer::retry::RetryPolicy;
use leasehold::observe::{Measure, Observer};
use leasehold::{
    Client, Error, Handle, Lease, LockOptions, LostCause, Mode, Mutex as Lock, Name, Request,
    UnlessHeld,
};

use crate::support::{Hooks, LONG, on_every_store, soon, until, until_waiting};

/// Compiles only for types that threads may share. It has a result, so that no call can be left
/// out.
fn shared<T: Send + Sync + 'static>() -> usize {
    size_of::<T>()
}

fn shared_and_cloned<T: Send + Sync + Clone + 'static>() -> usize {
    size_of::<T>()
}

#[test]
fn types_cross_threads() {
    let sizes = [
        shared::<Lease>(),
        shared::<Error>(),
        shared::<Arc<dyn Engine>>(),
        shared::<leasehold::blocking::Lease>(),
        shared_and_cloned::<Client>(),
        shared_and_cloned::<Lock>(),
        shared_and_cloned::<Request>(),
        shared_and_cloned::<Handle>(),
        shared_and_cloned::<leasehold::blocking::Client>(),
    ];
    assert!(sizes.iter().all(|size| *size > 0));
}

#[test]
fn futures_can_be_spawned() {
    on_every_store(async |store| {
        let client = store.client();
        let lock = client.mutex("spawned");
        let lease = tokio::spawn(async move { lock.lock().await }).await.expect("no panic");
        let lease = lease.expect("a lease");
        let extended = tokio::spawn(async move { lease.extend(LONG).await.map(|()| lease) });
        let lease = extended.await.expect("no panic").expect("extended");
        tokio::spawn(lease.release()).await.expect("no panic").expect("released");
        let worker = client.clone();
        let work =
            tokio::spawn(async move { worker.with("spawned", async |lease| lease.fence()).await });
        assert!(work.await.expect("no panic").expect("a lease") > 0);
        tokio::spawn(async move { client.close().await }).await.expect("no panic").expect("closed");
    });
}

#[test]
fn engine_is_usable_as_an_object() {
    on_every_store(async |store| {
        let engine: Arc<dyn Engine> = store.engine();
        assert!(!engine.info().engine.is_empty());
        assert!(engine.renew(&[]).await.expect("an answer").is_empty());
        let text = format!("{engine:?}");
        assert!(!text.is_empty());
    });
}

/// Writes down the kinds of measures, and checks each measure as far as it can.
#[derive(Debug, Clone, Default)]
struct Diary(Arc<Mutex<BTreeMap<&'static str, usize>>>);

impl Observer for Diary {
    fn observe(&self, measure: &Measure<'_>) {
        let kind = match measure {
            Measure::WaitBegan { name } => named("wait began", name),
            Measure::WaitEnded { name } => named("wait ended", name),
            Measure::WaitDisturbed { name, .. } => named("wait disturbed", name),
            Measure::Granted { name, mode, .. } => {
                assert_eq!(*mode, Mode::Exclusive);
                named("granted", name)
            }
            Measure::Refused { name, .. } => named("refused", name),
            Measure::Released { name, .. } => named("released", name),
            Measure::Renewed { claims, .. } => counted("renewed", *claims),
            Measure::RenewalFailed { claims, error } => {
                assert!(error.is_transient());
                counted("renewal failed", *claims)
            }
            Measure::Lost { name, cause, held } => {
                assert_eq!(**cause, LostCause::Unreachable);
                assert!(!held.is_zero());
                named("lost", name)
            }
            other => panic!("a new measure: {other:?}"),
        };
        *self.0.lock().expect("nobody panics here").entry(kind).or_default() += 1;
    }
}

fn named(kind: &'static str, name: &Name) -> &'static str {
    assert_eq!(name.as_str(), "measured");
    kind
}

fn counted(kind: &'static str, claims: usize) -> &'static str {
    assert!(claims > 0);
    kind
}

impl Diary {
    fn count(&self, kind: &str) -> usize {
        self.0.lock().expect("nobody panicked").get(kind).copied().unwrap_or(0)
    }
}

#[test]
fn observer_hears_of_grants_refusals_waits_and_releases() {
    on_every_store(async |store| {
        let diary = Diary::default();
        let client = store.client_with(Client::builder().observer(diary.clone()));
        let lease = client.mutex("measured").ttl(LONG).lock().await.expect("a lease");
        assert!(
            client.mutex("measured").try_lock().await.unless_held().expect("an answer").is_none()
        );
        let lock = client.mutex("measured").ttl(LONG);
        let waiter = tokio::spawn(async move { lock.lock().await });
        until_waiting(&client, "measured", 1).await;
        // The store shows the claim a moment before its owner has read the answer.
        until("the wait to be told of", async || diary.count("wait began") == 1).await;
        assert_eq!(diary.count("wait ended"), 0);
        lease.release().await.expect("an answer");
        drop(soon("a grant", waiter).await.expect("no panic").expect("a lease"));
        for (kind, count) in
            [("granted", 2), ("refused", 1), ("wait began", 1), ("wait ended", 1), ("released", 2)]
        {
            assert_eq!(diary.count(kind), count, "{kind}");
        }
        assert_eq!(diary.count("lost"), 0);
    });
}

#[test]
fn observer_hears_of_renewals_failures_and_losses() {
    on_every_store(async |store| {
        let diary = Diary::default();
        let builder = Client::builder().observer(diary.clone()).renew_at_percent(20);
        let (client, chaos) = store.troubled(builder);
        let lock = client.mutex("measured").ttl(Duration::from_secs(2));
        let lease = lock.lock().await.expect("a lease");
        until("a renewal", async || diary.count("renewed") >= 1).await;
        chaos.next(Verb::Renew, Trouble::Refuse, u32::MAX);
        assert_eq!(soon("the loss", lease.lost()).await, LostCause::Unreachable);
        until("the measure of it", async || diary.count("lost") == 1).await;
        assert!(diary.count("renewal failed") >= 1);
        assert_eq!(diary.count("released"), 0);
    });
}

fn retrying(times: usize) -> RetryPolicy {
    let (first, longest) = (Duration::from_millis(1), Duration::from_millis(2));
    RetryPolicy { times, first, longest, within: LONG }
}

#[test]
fn transient_failures_are_tried_again_as_often_as_the_policy_says() {
    on_every_store(async |store| {
        for (times, failures, calls) in [(3, 2, 3), (2, 10, 3), (0, 10, 1), (5, 0, 1)] {
            let (client, chaos) = store.troubled(Client::builder().retry(retrying(times)));
            if failures > 0 {
                chaos.next(Verb::Claim, Trouble::Refuse, failures);
            }
            let asked = client.mutex("retried").ttl(LONG).lock().await;
            assert_eq!(asked.is_ok(), failures as usize <= times, "{asked:?}");
            assert_eq!(chaos.calls(Verb::Claim), calls, "{times} times, {failures} failures");
            if let Err(error) = &asked {
                assert!(error.is_transient(), "{error:?}");
            }
            drop(asked);
            chaos.heal();
            client.close().await.expect("nothing hangs");
        }
    });
}

/// A silent store makes each try take its time, so the number of tries alone is no limit. But only
/// the connection may be silent, and the next one is not.
#[test]
fn a_silent_store_is_tried_twice_and_then_for_as_long_as_the_policy_says() {
    const SILENCE: Duration = Duration::from_millis(200);
    on_every_store(async |store| {
        let calls = Arc::new(Mutex::new(0));
        let counter = Arc::clone(&calls);
        let hooks = Hooks::before(move |verb| {
            let silent = verb == Verb::Claim;
            *counter.lock().expect("nobody panics here") += u32::from(silent);
            async move {
                if !silent {
                    return Ok(());
                }
                tokio::time::sleep(SILENCE).await;
                Err(Error::unreachable("a test", UnreachableReason::NoAnswer, "no answer"))
            }
            .boxed()
        });
        let policy = RetryPolicy { within: SILENCE / 2, ..retrying(8) };
        let client = Client::builder().retry(policy).engine(store.hooked(hooks)).expect("a client");
        let error =
            client.mutex("silent").try_lock().await.unless_held().expect_err("it is silent");
        assert!(error.is_transient(), "{error:?}");
        assert_eq!(*calls.lock().expect("nobody panicked"), 2);
    });
}

#[test]
fn lasting_failures_are_not_tried_again() {
    on_every_store(async |store| {
        for (transient, expected) in [(false, 1), (true, 4)] {
            let calls = Arc::new(Mutex::new(0));
            let counter = Arc::clone(&calls);
            let hooks = Hooks::before(move |verb| {
                let mut answer = Ok(());
                if verb == Verb::Claim {
                    *counter.lock().expect("nobody panics here") += 1;
                    let (store, cause) = ("a test".into(), "it said no".into());
                    answer = Err(Error::Store { store, cause, transient });
                }
                std::future::ready(answer).boxed()
            });
            let builder = Client::builder().retry(retrying(3));
            let client = builder.engine(store.hooked(hooks)).expect("a client");
            let error = client.mutex("lasting").lock().await.expect_err("it said no");
            assert_eq!(error.is_transient(), transient);
            assert_eq!(*calls.lock().expect("nobody panicked"), expected);
        }
    });
}

#[test]
fn errors_say_whether_trying_again_may_help() {
    let name = || Name::new("n").expect("a good name");
    let holder = Holder::known(HolderId(1), "somebody").expect("a good label");
    let text = || "x".to_owned();
    let table = [
        (Error::unreachable("x", UnreachableReason::Other, "x"), true),
        (Error::TaskEnded { store: text() }, true),
        (Error::Unsupported { engine: "x", what: "do it", advice: "use another" }, false),
        (Error::Store { store: text(), cause: text(), transient: true }, true),
        (Error::TooSlow { name: name(), took: LONG }, true),
        (Error::Store { store: text(), cause: text(), transient: false }, false),
        (Error::Replaced { store: text() }, false),
        (Error::Invalid(Invalid::NameEmpty), false),
        (Error::Config(Config::OtherStore), false),
        (Error::Mismatch { name: name(), in_force: Kind::Lock, asked: Kind::Lock }, false),
        (Error::Lost { name: name(), cause: LostCause::Expired }, false),
        (Error::Stale { name: name(), by: Some(holder) }, false),
        (Error::Limit { what: "claims", limit: 1 }, false),
        (Error::Closed, false),
    ];
    for (error, transient) in table {
        assert_eq!(error.is_transient(), transient, "{error:?}");
        let message = error.to_string();
        assert!(!message.is_empty() && !message.ends_with('.'), "{message}");
        assert!(message.starts_with(|first: char| !first.is_uppercase()), "{message}");
    }
}

/// The answer "queued" and the look at the line are two exchanges. Between them it may become this
/// claim's turn.
#[test]
fn a_claim_that_is_granted_before_the_look_at_its_line_is_no_deadlock() {
    on_every_store(async |store| {
        let held = store.client().mutex("n").lock().await.expect("free");
        let held = Arc::new(Mutex::new(Some(held)));
        let hooks = Hooks {
            before: None,
            after: Some(Arc::new(move |verb| {
                let lease = match verb {
                    Verb::Claim => held.lock().expect("no panic").take(),
                    _ => None,
                };
                Box::pin(async move {
                    if let Some(lease) = lease {
                        lease.release().await?;
                    }
                    Ok(())
                })
            })),
        };
        let client = Client::builder().engine(store.hooked(hooks)).expect("a client");
        let waiting = client.request("n").options(LockOptions::new().detect_self_deadlock());
        let lease = tokio::time::timeout(Duration::from_secs(20), waiting.acquire()).await;
        let lease = lease.expect("in time").expect("no deadlock");
        assert!(lease.is_held());
    });
}
