//! Entering again: only on request, counted, and only for the client that holds.

use std::sync::Arc;

use leasehold::{LockOptions, Released, UnlessHeld};

use super::harness::{Harness, LONG, SPAN};
use super::support::{Outcome, Waiter, soon, until_waiting};

super::cases! {
    reentry_is_counted_and_keeps_the_fence,
    reentry_is_not_for_other_clients,
    reentry_ends_with_the_lease: ttl_per_claim,
    dropped_entry_leaves_the_others_in,
    reentrant_try_does_not_wait_behind_its_own_client,
    reentrant_wait_ends_in_time_behind_its_own_client,
}

async fn reentry_is_counted_and_keeps_the_fence(lab: Arc<dyn Harness>) -> Outcome {
    let name = "reentry:counted";
    let [one, two] = lab.clients().await?;
    let mutex = one.mutex(name).ttl(LONG).options(LockOptions::new().reentrant());
    let first = mutex.lock().await?;
    let second = mutex.lock().await?;
    let third = mutex.try_lock().await.unless_held()?.expect("entered again");
    assert_eq!((second.fence(), third.fence()), (first.fence(), first.fence()));
    assert_eq!(first.release().await?, Released::StillEntered);
    assert_eq!(third.release().await?, Released::StillEntered);
    assert!(two.mutex(name).try_lock().await.unless_held()?.is_none());
    assert!(second.is_held());
    assert_eq!(second.release().await?, Released::Released);
    assert!(two.mutex(name).try_lock().await.unless_held()?.is_some());
    Ok(())
}

async fn reentry_is_not_for_other_clients(lab: Arc<dyn Harness>) -> Outcome {
    let name = "reentry:others";
    let [one, two] = lab.clients().await?;
    let lease = one.mutex(name).ttl(LONG).options(LockOptions::new().reentrant()).lock().await?;
    assert!(
        two.mutex(name)
            .options(LockOptions::new().reentrant())
            .try_lock()
            .await
            .unless_held()?
            .is_none()
    );
    assert!(one.mutex(name).try_lock().await.unless_held()?.is_none(), "only if asked");
    let fence = lease.fence();
    lease.release().await?;
    let next = two
        .mutex(name)
        .options(LockOptions::new().reentrant())
        .try_lock()
        .await
        .unless_held()?
        .expect("it is free");
    assert!(next.fence() > fence);
    Ok(())
}

async fn reentry_ends_with_the_lease(lab: Arc<dyn Harness>) -> Outcome {
    let name = "reentry:lost";
    let client = lab.client().await?;
    let mutex = client.mutex(name).options(LockOptions::new().reentrant());
    let first =
        mutex.clone().ttl(lab.brief()).options(LockOptions::new().renew(false)).lock().await?;
    soon("the loss", first.lost()).await?;
    let second = soon("a new lease", mutex.ttl(LONG).lock()).await??;
    assert!(second.fence() > first.fence(), "a lost lease is not entered again");
    assert!(!first.is_held());
    drop(first);
    assert!(second.is_held());
    Ok(())
}

async fn dropped_entry_leaves_the_others_in(lab: Arc<dyn Harness>) -> Outcome {
    let name = "reentry:dropped";
    let [one, two] = lab.clients().await?;
    let mutex = one.mutex(name).ttl(LONG).options(LockOptions::new().reentrant());
    let first = mutex.lock().await?;
    drop(mutex.lock().await?);
    assert!(first.is_held());
    assert!(two.mutex(name).try_lock().await.unless_held()?.is_none());
    Ok(())
}

async fn reentrant_try_does_not_wait_behind_its_own_client(lab: Arc<dyn Harness>) -> Outcome {
    let name = "reentry:try";
    let [one, two] = lab.clients().await?;
    let lease = one.mutex(name).ttl(LONG).lock().await?;
    let request = two.request(name).ttl(LONG).options(LockOptions::new().reentrant());
    let mut waiter = Waiter::queue(&one, name, request, 0).await?;
    let tried = soon(
        "the answer to a try",
        two.mutex(name).options(LockOptions::new().reentrant()).try_lock(),
    )
    .await?
    .unless_held()?;
    assert!(tried.is_none());
    lease.release().await?;
    waiter.served().await?;
    Ok(())
}

async fn reentrant_wait_ends_in_time_behind_its_own_client(lab: Arc<dyn Harness>) -> Outcome {
    let name = "reentry:within";
    let [one, two] = lab.clients().await?;
    let lease = one.mutex(name).ttl(LONG).lock().await?;
    let request = two.request(name).ttl(LONG).options(LockOptions::new().reentrant());
    let mut waiter = Waiter::queue(&one, name, request, 0).await?;
    let mutex = two.mutex(name).ttl(LONG).options(LockOptions::new().reentrant());
    let waited = soon("the end of the wait", mutex.lock_within(SPAN));
    assert!(waited.await?.unless_held()?.is_none());
    until_waiting(&one, name, 1).await?;
    lease.release().await?;
    waiter.served().await?;
    Ok(())
}
