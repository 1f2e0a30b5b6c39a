//! At most one run in each period over all clients, and an outcome that others read.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use leasehold::claim::{Note, Standing};
use leasehold::error::{Invalid, Kind};
use leasehold::{Client, Error, LastRun, Mode, Once, Outcome as Ran, RunState};

use super::harness::Harness;
use super::support::{Failure, Outcome, claim, soon, until, until_free};

super::cases! {
    many_ask_and_one_runs: amend & detach & evict,
    outcome_of_a_run_is_read_by_others: amend & detach & evict,
    run_that_goes_on_is_seen: amend & detach & evict,
    failed_run_counts_unless_it_is_to_be_tried_again: amend & detach & evict,
    run_that_was_dropped_is_none: amend & detach & evict,
    run_that_died_is_taken_over: amend & detach & evict & ttl_per_claim,
    next_period_begins_a_period_after_the_start: amend & detach & evict & ttl_per_claim,
    run_longer_than_its_period_is_alone: amend & detach & evict & ttl_per_claim,
    periods_that_cannot_be_are_refused: amend & detach & evict,
    period_of_a_year_is_kept_or_refused: amend & detach & evict,
    run_is_made_again_in_the_same_period: amend & detach & evict,
    name_in_use_as_a_lock_is_refused_and_not_skipped: amend & detach & evict & shared,
}

type Case<T> = std::result::Result<T, Failure>;

async fn well(once: &Once) -> Case<Ran<(), String>> {
    Ok(soon("a run", once.run(async |_| Ok(()))).await??)
}

async fn skipped(once: &Once) -> Case<LastRun> {
    match well(once).await? {
        Ran::Skipped { last } => Ok(last.expect("it is remembered")),
        ran => panic!("a second run: {ran:?}"),
    }
}

/// Removes the record of a run, so that the case leaves nothing.
async fn clear(client: &Client, name: &str) -> Outcome {
    client.admin().force_release(name, "the case is over").await?;
    until_free(client, name).await
}

async fn many_ask_and_one_runs(lab: Arc<dyn Harness>) -> Outcome {
    let (name, long) = ("once:many", lab.long().await?);
    let runs = Arc::new(AtomicU32::new(0));
    let mut asking = Vec::new();
    for _ in 0..6 {
        let (client, runs) = (lab.client().await?, Arc::clone(&runs));
        asking.push(tokio::spawn(async move {
            let work = async |_: &leasehold::Lease| {
                runs.fetch_add(1, Ordering::SeqCst);
                Ok::<(), String>(())
            };
            let ran = client.once(name, long).run(work).await?;
            client.close().await?;
            Ok::<_, Error>(matches!(ran, Ran::Ran(_)))
        }));
    }
    let mut ran = 0;
    for asked in asking {
        ran += u32::from(soon("an answer", asked).await???);
    }
    assert_eq!((ran, runs.load(Ordering::SeqCst)), (1, 1));
    clear(&lab.client().await?, name).await
}

async fn outcome_of_a_run_is_read_by_others(lab: Arc<dyn Harness>) -> Outcome {
    let (name, long) = ("once:outcome", lab.long().await?);
    let [one, two] = lab.clients().await?;
    let there = two.once(name, long);
    assert_eq!(there.last().await?, None);
    let fence = match one.once(name, long).run(async |lease| Ok::<_, String>(lease.fence())).await?
    {
        Ran::Ran(Ok(fence)) => fence,
        other => panic!("{other:?}"),
    };
    let last = skipped(&there).await?;
    assert_eq!((last.fence, &last.by), (fence, one.holder()));
    assert!(matches!(last.state, RunState::Done { .. }), "{last:?}");
    assert!(last.next_in <= long + Duration::from_secs(15) && last.next_in > long / 2);
    assert_eq!(there.last().await?.map(|last| last.fence), Some(fence));
    clear(&two, name).await
}

async fn run_that_goes_on_is_seen(lab: Arc<dyn Harness>) -> Outcome {
    let (name, long) = ("once:running", lab.long().await?);
    let [one, two] = lab.clients().await?;
    let run = one.once(name, long).start().await?.expect("nobody ran");
    let last = skipped(&two.once(name, long)).await?;
    assert_eq!((last.state, &last.by), (RunState::Running, one.holder()));
    run.end(Some("no \"luck\"\n".into())).await?;
    let last = skipped(&two.once(name, long)).await?;
    let RunState::Failed { why, .. } = last.state else { panic!("it failed: {last:?}") };
    assert_eq!(why, "no \"luck\"\n");
    clear(&two, name).await
}

async fn failed_run_counts_unless_it_is_to_be_tried_again(lab: Arc<dyn Harness>) -> Outcome {
    let (name, long) = ("once:failed", lab.long().await?);
    let [one, two] = lab.clients().await?;
    let again = one.once(name, long).retry_failed();
    for _ in 0..2 {
        let ran = again.run(async |_| Err::<(), _>("not this time")).await?;
        assert!(matches!(ran, Ran::Ran(Err("not this time"))));
    }
    let ran = two.once(name, long).run(async |_| Err::<(), _>("never")).await?;
    assert!(matches!(ran, Ran::Ran(Err("never"))));
    assert!(matches!(skipped(&again).await?.state, RunState::Failed { .. }));
    clear(&two, name).await
}

async fn run_that_was_dropped_is_none(lab: Arc<dyn Harness>) -> Outcome {
    let (name, long) = ("once:dropped", lab.long().await?);
    let [one, two] = lab.clients().await?;
    let there = two.once(name, long);
    let running = tokio::spawn(async move {
        let work = async |_: &leasehold::Lease| std::future::pending::<Result<(), String>>().await;
        one.once(name, long).run(work).await
    });
    until("a run", async || Ok(there.last().await?.is_some())).await?;
    running.abort();
    until_free(&two, name).await?;
    assert!(matches!(well(&there).await?, Ran::Ran(Ok(()))));
    clear(&two, name).await
}

async fn run_that_died_is_taken_over(lab: Arc<dyn Harness>) -> Outcome {
    let (name, long) = ("once:died", lab.long().await?);
    let client = lab.client().await?;
    let engine = lab.engine().await?;
    let mut dead = claim(name, Mode::Exclusive, lab.steady())?;
    dead.note = Note::new(r#"{"run":"running"}"#)?;
    assert!(matches!(engine.claim(&dead).await?, Standing::Held { .. }));
    let once = client.once(name, long);
    assert_eq!(skipped(&once).await?.state, RunState::Running);
    until("the dead one's run", async || {
        Ok(matches!(once.run(async |_| Ok::<(), String>(())).await?, Ran::Ran(Ok(()))))
    })
    .await?;
    clear(&client, name).await
}

async fn next_period_begins_a_period_after_the_start(lab: Arc<dyn Harness>) -> Outcome {
    let name = "once:period";
    let every = lab.steady();
    let [one, two] = lab.clients().await?;
    let begun = Instant::now();
    assert!(matches!(well(&one.once(name, every)).await?, Ran::Ran(Ok(()))));
    // The client that ran may be gone; the period goes on without it.
    one.close().await?;
    drop(one);
    let once = two.once(name, every);
    until("the next period", async || {
        Ok(matches!(once.run(async |_| Ok::<(), String>(())).await?, Ran::Ran(Ok(()))))
    })
    .await?;
    assert!(begun.elapsed() >= every, "again after {:?} of {every:?}", begun.elapsed());
    clear(&two, name).await
}

async fn run_longer_than_its_period_is_alone(lab: Arc<dyn Harness>) -> Outcome {
    let name = "once:longer";
    let every = lab.steady();
    let [one, two] = lab.clients().await?;
    let begun = Instant::now();
    let run = one.once(name, every).start().await?.expect("nobody ran");
    let there = two.once(name, every);
    while begun.elapsed() < every * 2 {
        assert_eq!(skipped(&there).await?.state, RunState::Running);
        tokio::time::sleep(every / 20).await;
    }
    run.end(None).await?;
    assert!(matches!(well(&there).await?, Ran::Ran(Ok(()))), "its period was over long ago");
    clear(&two, name).await
}

async fn periods_that_cannot_be_are_refused(lab: Arc<dyn Harness>) -> Outcome {
    let client = lab.client().await?;
    let ask =
        async |every| client.once("once:bad", every).run(async |_| Ok::<(), String>(())).await;
    let short = ask(Duration::from_millis(99)).await;
    assert!(matches!(short, Err(Error::Invalid(Invalid::PeriodTooShort { .. }))), "{short:?}");
    let long = ask(Once::EVERY_MAX + Duration::from_secs(1)).await;
    assert!(matches!(long, Err(Error::Invalid(Invalid::PeriodTooLong { .. }))), "{long:?}");
    assert!(client.line("once:bad").await?.is_none());
    Ok(())
}

async fn period_of_a_year_is_kept_or_refused(lab: Arc<dyn Harness>) -> Outcome {
    let name = "once:year";
    let [one, two] = lab.clients().await?;
    match one.once(name, Once::EVERY_MAX).run(async |_| Ok::<(), String>(())).await {
        // The store names the longest time that it keeps.
        Err(Error::Config(_)) if lab.longest().await?.is_some() => return Ok(()),
        ran => assert!(matches!(ran?, Ran::Ran(Ok(())))),
    }
    let last = skipped(&two.once(name, Once::EVERY_MAX)).await?;
    assert!(matches!(last.state, RunState::Done { .. }), "{last:?}");
    let left = last.next_in + Duration::from_secs(300);
    assert!(left > Once::EVERY_MAX && last.next_in <= Once::EVERY_MAX, "{last:?}");
    clear(&two, name).await
}

async fn run_is_made_again_in_the_same_period(lab: Arc<dyn Harness>) -> Outcome {
    let (name, long) = ("once:again", lab.long().await?);
    let [one, two] = lab.clients().await?;
    assert!(matches!(well(&one.once(name, long)).await?, Ran::Ran(Ok(()))));
    let first = skipped(&two.once(name, long)).await?;
    assert!(matches!(well(&two.once(name, long).again()).await?, Ran::Ran(Ok(()))));
    let second = skipped(&one.once(name, long)).await?;
    assert!(second.fence > first.fence && second.by == *two.holder(), "{second:?}");
    // A run in progress is left alone.
    clear(&two, name).await?;
    let run = one.once(name, long).start().await?.expect("nobody ran");
    assert_eq!(skipped(&two.once(name, long).again()).await?.state, RunState::Running);
    run.end(None).await?;
    clear(&two, name).await
}

async fn name_in_use_as_a_lock_is_refused_and_not_skipped(lab: Arc<dyn Harness>) -> Outcome {
    let (name, long) = ("once:lock", lab.long().await?);
    let [one, two] = lab.clients().await?;
    let once = two.once(name, long);
    for mode in [Mode::Exclusive, Mode::Shared] {
        let lease = one.request(name).mode(mode).acquire().await?;
        let ran = once.run(async |_| Ok::<(), String>(())).await;
        let is_told =
            matches!(ran, Err(Error::Mismatch { in_force: Kind::Lock, asked: Kind::Once, .. }));
        assert!(is_told, "{mode:?}: {ran:?}");
        lease.release().await?;
    }
    assert!(matches!(well(&once).await?, Ran::Ran(Ok(()))));
    clear(&two, name).await
}
