//! Permits out of a limit: never more than there are, and all callers agree on the limit.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use leasehold::claim::Standing;
use leasehold::error::Kind;
use leasehold::{Client, Error, Mode, Released, Request, UnlessHeld};

use super::harness::{Harness, LONG};
use super::support::{Outcome, Waiter, claim, line, soon, until};

super::cases! {
    never_more_permits_than_the_limit: permits,
    permits_are_refused_beyond_the_limit: permits,
    large_request_is_not_overtaken_by_small_ones: permits & fifo,
    release_grants_everybody_who_fits_now: permits & fifo,
    other_limit_is_refused_and_changes_nothing: permits,
    lock_and_permits_do_not_mix: permits,
    other_limit_is_taken_once_nobody_is_in_line: permits,
    permits_of_an_expired_holder_come_back: permits & ttl_per_claim,
    permit_released_twice_is_freed_once: permits,
}

fn permits(client: &Client, name: &str, take: u32, of: u32) -> Request {
    client.request(name).mode(Mode::Permits { take, of }).ttl(LONG)
}

async fn never_more_permits_than_the_limit(lab: Arc<dyn Harness>) -> Outcome {
    let (taken, most) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let mut contenders = Vec::new();
    for index in 0..6 {
        let client = lab.client().await?;
        let (taken, most) = (Arc::clone(&taken), Arc::clone(&most));
        contenders.push(tokio::spawn(async move {
            for round in 0..12 {
                let take = 1 + (index + round) % 3;
                let lease = permits(&client, "permits:limit", take, 3).acquire().await?;
                let now = taken.fetch_add(take, Ordering::SeqCst) + take;
                most.fetch_max(now, Ordering::SeqCst);
                tokio::task::yield_now().await;
                taken.fetch_sub(take, Ordering::SeqCst);
                lease.release().await?;
            }
            client.close().await
        }));
    }
    for contender in contenders {
        soon("a contender's last lease", contender).await???;
    }
    let most = most.load(Ordering::SeqCst);
    assert!((1..=3).contains(&most), "{most} of 3 permits were out at once");
    Ok(())
}

async fn permits_are_refused_beyond_the_limit(lab: Arc<dyn Harness>) -> Outcome {
    let name = "permits:refused";
    let [one, two] = lab.clients().await?;
    let first = permits(&one, name, 2, 3).acquire().await?;
    assert!(permits(&two, name, 2, 3).try_acquire().await.unless_held()?.is_none());
    let second = permits(&two, name, 1, 3).try_acquire().await.unless_held()?.expect("one is left");
    assert!(permits(&two, name, 1, 3).try_acquire().await.unless_held()?.is_none());
    assert!(second.fence() > first.fence());
    first.release().await?;
    assert!(permits(&one, name, 2, 3).try_acquire().await.unless_held()?.is_some());
    Ok(())
}

async fn large_request_is_not_overtaken_by_small_ones(lab: Arc<dyn Harness>) -> Outcome {
    let name = "permits:large";
    let [one, two, three] = lab.clients().await?;
    let first = permits(&one, name, 2, 4).acquire().await?;
    let second = permits(&one, name, 1, 4).acquire().await?;
    let mut large = Waiter::queue(&one, name, permits(&two, name, 3, 4), 0).await?;
    let mut small = Waiter::queue(&one, name, permits(&three, name, 1, 4), 1).await?;
    assert!(
        permits(&three, name, 1, 4).try_acquire().await.unless_held()?.is_none(),
        "others wait"
    );
    second.release().await?;
    assert!(large.is_waiting() && small.is_waiting(), "two are free, three are wanted");
    first.release().await?;
    let large = large.granted().await?;
    let small = small.granted().await?;
    assert!(small.fence() > large.fence() && large.is_held());
    Ok(())
}

async fn release_grants_everybody_who_fits_now(lab: Arc<dyn Harness>) -> Outcome {
    let name = "permits:several";
    let [one, two] = lab.clients().await?;
    let all = permits(&one, name, 4, 4).acquire().await?;
    let mut waiters = Vec::new();
    for index in 0..3 {
        waiters.push(Waiter::queue(&one, name, permits(&two, name, 2, 4), index).await?);
    }
    all.release().await?;
    let first = waiters[0].granted().await?;
    let second = waiters[1].granted().await?;
    assert!(waiters[2].is_waiting());
    first.release().await?;
    waiters[2].served().await?;
    assert!(second.is_held());
    Ok(())
}

async fn other_limit_is_refused_and_changes_nothing(lab: Arc<dyn Harness>) -> Outcome {
    let name = "permits:mismatch";
    let [one, two] = lab.clients().await?;
    let lease = permits(&one, name, 1, 4).acquire().await?;
    for of in [3, 5] {
        match permits(&two, name, 1, of).acquire().await {
            Err(Error::Mismatch { in_force, asked, .. }) => {
                assert_eq!(in_force, Kind::Permits { of: 4 });
                assert_eq!(asked, Kind::Permits { of });
            }
            other => panic!("another limit came to {other:?}"),
        }
    }
    let seen = line(&one, name).await?;
    assert_eq!((seen.held.len(), seen.waiting.len()), (1, 0));
    assert_eq!(seen.kind, Kind::Permits { of: 4 });
    assert!(permits(&two, name, 3, 4).try_acquire().await.unless_held()?.is_some());
    assert!(lease.is_held());
    Ok(())
}

async fn lock_and_permits_do_not_mix(lab: Arc<dyn Harness>) -> Outcome {
    let [one, two] = lab.clients().await?;
    let lease = permits(&one, "permits:mix", 1, 4).acquire().await?;
    let asked = two.mutex("permits:mix").try_lock().await.unless_held();
    assert!(matches!(asked, Err(Error::Mismatch { asked: Kind::Lock, .. })), "{asked:?}");
    let lock = one.mutex("permits:lock").ttl(LONG).lock().await?;
    let asked = permits(&two, "permits:lock", 1, 1).try_acquire().await.unless_held();
    assert!(matches!(asked, Err(Error::Mismatch { in_force: Kind::Lock, .. })), "{asked:?}");
    assert!(lease.is_held() && lock.is_held());
    Ok(())
}

async fn other_limit_is_taken_once_nobody_is_in_line(lab: Arc<dyn Harness>) -> Outcome {
    let name = "permits:later";
    let client = lab.client().await?;
    let lease = permits(&client, name, 1, 4).acquire().await?;
    let fence = lease.fence();
    lease.release().await?;
    let lease =
        permits(&client, name, 2, 2).try_acquire().await.unless_held()?.expect("nobody is in line");
    assert!(lease.fence() > fence);
    lease.release().await?;
    assert!(client.mutex(name).try_lock().await.unless_held()?.is_some());
    Ok(())
}

async fn permits_of_an_expired_holder_come_back(lab: Arc<dyn Harness>) -> Outcome {
    let name = "permits:expired";
    let [one, two] = lab.clients().await?;
    let engine = lab.engine().await?;
    let dead = claim(name, Mode::Permits { take: 2, of: 3 }, lab.brief())?;
    assert!(matches!(engine.claim(&dead).await?, Standing::Held { .. }));
    let one_left = permits(&one, name, 1, 3).acquire().await?;
    let back = soon("the permits", permits(&two, name, 2, 3).acquire()).await??;
    assert!(one_left.is_held() && back.is_held());
    assert!(permits(&two, name, 1, 3).try_acquire().await.unless_held()?.is_none());
    Ok(())
}

async fn permit_released_twice_is_freed_once(lab: Arc<dyn Harness>) -> Outcome {
    let name = "permits:twice";
    let client = lab.client().await?;
    let engine = lab.engine().await?;
    let mode = Mode::Permits { take: 1, of: 2 };
    let (one, two) = (claim(name, mode, LONG)?, claim(name, mode, LONG)?);
    for asked in [&one, &two] {
        assert!(matches!(engine.claim(asked).await?, Standing::Held { .. }));
    }
    let keys = [one.key];
    assert_eq!(engine.release(&keys).await?, [Released::Released]);
    assert_ne!(engine.release(&keys).await?, [Released::Released]);
    let lease =
        permits(&client, name, 1, 2).try_acquire().await.unless_held()?.expect("one came back");
    assert_ne!(engine.release(&keys).await?, [Released::Released]);
    assert!(
        permits(&client, name, 1, 2).try_acquire().await.unless_held()?.is_none(),
        "and not two"
    );
    until("both leases still there", async || {
        Ok(client.line(name).await?.is_some_and(|line| line.held.len() == 2))
    })
    .await?;
    lease.release().await?;
    engine.release(&[two.key]).await?;
    Ok(())
}
