//! Taking a name from its holder: the holder finds out, the next is granted, fences rise.

use std::sync::Arc;

use leasehold::{LeaseState, LostCause, Mode, Released};

use super::harness::{Harness, LONG};
use super::support::{Outcome, Waiter, line, soon, until};

super::cases! {
    evicted_holder_is_lost_and_the_next_is_granted: evict,
    evicted_holder_is_told_when_nobody_waits: evict,
    eviction_of_a_free_name_finds_nobody: evict,
    eviction_leaves_the_waiters_in_line: evict & fifo,
    eviction_takes_all_readers: evict & shared,
    evicted_lease_is_not_given_back_by_its_old_holder: evict,
}

async fn evicted_holder_is_lost_and_the_next_is_granted(lab: Arc<dyn Harness>) -> Outcome {
    let name = "evict:next";
    let [one, two, admin] = lab.clients().await?;
    let lease = one.mutex(name).ttl(lab.steady()).lock().await?;
    let mut waiter = Waiter::queue(&admin, name, two.claim(name).ttl(LONG), 0).await?;
    assert_eq!(admin.force_release(name, "stuck").await?, [one.holder().clone()]);
    let next = waiter.granted().await?;
    assert!(next.fence() > lease.fence());
    let cause = soon("the loss", lease.lost()).await?;
    assert_eq!(cause, LostCause::TakenBy(two.holder().clone()));
    assert_eq!(lease.state(), LeaseState::Lost);
    assert_eq!(lease.release().await?, Released::TakenBy(two.holder().clone()));
    assert!(next.is_held());
    assert_eq!(next.release().await?, Released::Released);
    Ok(())
}

async fn evicted_holder_is_told_when_nobody_waits(lab: Arc<dyn Harness>) -> Outcome {
    let name = "evict:nobody";
    let [one, admin] = lab.clients().await?;
    let lease = one.mutex(name).ttl(lab.steady()).lock().await?;
    admin.force_release(name, "stuck").await?;
    assert!(admin.show(name).await?.is_none());
    assert_eq!(soon("the loss", lease.lost()).await?, LostCause::Removed);
    until("the loss to be counted", async || Ok(one.stats().lost == 1)).await?;
    assert_eq!(one.stats().expired, 0, "it was taken");
    assert_eq!(lease.release().await?, Released::AlreadyExpired);
    Ok(())
}

async fn eviction_of_a_free_name_finds_nobody(lab: Arc<dyn Harness>) -> Outcome {
    let client = lab.client().await?;
    assert!(client.force_release("evict:free", "nothing").await?.is_empty());
    assert!(client.show("evict:free").await?.is_none());
    assert!(client.mutex("evict:free").try_lock().await?.is_some());
    Ok(())
}

async fn eviction_leaves_the_waiters_in_line(lab: Arc<dyn Harness>) -> Outcome {
    let name = "evict:line";
    let [one, two, three] = lab.clients().await?;
    let lease = one.mutex(name).ttl(LONG).lock().await?;
    let mut first = Waiter::queue(&one, name, two.claim(name).ttl(LONG), 0).await?;
    let mut second = Waiter::queue(&one, name, three.claim(name).ttl(LONG), 1).await?;
    one.force_release(name, "stuck").await?;
    let next = first.granted().await?;
    assert!(second.is_waiting());
    assert_eq!(line(&one, name).await?.waiting.len(), 1);
    drop(next);
    second.served().await?;
    drop(lease);
    Ok(())
}

async fn eviction_takes_all_readers(lab: Arc<dyn Harness>) -> Outcome {
    let name = "evict:readers";
    let [one, two, writer] = lab.clients().await?;
    let readers = [
        one.claim(name).mode(Mode::Shared).ttl(LONG).acquire().await?,
        two.claim(name).mode(Mode::Shared).ttl(LONG).acquire().await?,
    ];
    let mut waiter = Waiter::queue(&one, name, writer.claim(name).ttl(LONG), 0).await?;
    let evicted = writer.force_release(name, "stuck").await?;
    assert_eq!(evicted, [one.holder().clone(), two.holder().clone()]);
    let lease = waiter.granted().await?;
    assert!(readers.iter().all(|reader| reader.fence() < lease.fence()));
    Ok(())
}

async fn evicted_lease_is_not_given_back_by_its_old_holder(lab: Arc<dyn Harness>) -> Outcome {
    let name = "evict:old";
    let [one, two] = lab.clients().await?;
    let lease = one.mutex(name).ttl(LONG).lock().await?;
    two.force_release(name, "stuck").await?;
    let next = two.mutex(name).ttl(LONG).try_lock().await?.expect("it was taken");
    assert_eq!(lease.release().await?, Released::TakenBy(two.holder().clone()));
    assert_eq!(line(&one, name).await?.held[0].fence, next.fence());
    assert_eq!(next.release().await?, Released::Released);
    Ok(())
}
