//! Taking a name from its holder: the holder learns of it, the next is granted, fences rise.

use std::sync::Arc;

use leasehold::engine::Eviction;
use leasehold::{Holder, LeaseState, LostCause, Mode, Name, Released, UnlessHeld};

use super::Can;
use super::harness::{Harness, LONG};
use super::support::{Outcome, Waiter, line, soon, until};
use crate::PartVerbs;

super::cases! {
    evicted_holder_is_lost_and_the_next_is_granted: evict,
    evicted_holder_learns_of_its_loss_when_nobody_waits: evict,
    eviction_of_a_free_name_finds_nobody: evict,
    eviction_leaves_the_waiters_in_line: evict & fifo,
    eviction_takes_all_readers: evict & shared,
    evicted_lease_is_not_given_back_by_its_old_holder: evict,
    repeated_order_to_evict_leaves_the_next_claim_alone: evict,
    eviction_of_one_reader_leaves_the_other: evict & shared,
    eviction_of_one_permit_lets_one_waiter_in: evict & permits,
}

async fn evicted_holder_is_lost_and_the_next_is_granted(lab: Arc<dyn Harness>) -> Outcome {
    let name = "evict:next";
    let [one, two, admin] = lab.clients().await?;
    let lease = one.mutex(name).ttl(lab.steady()).lock().await?;
    let mut waiter = Waiter::queue(&admin, name, two.request(name).ttl(LONG), 0).await?;
    assert_eq!(admin.admin().force_release(name, "stuck").await?, [one.holder().clone()]);
    let next = waiter.granted().await?;
    assert!(next.fence() > lease.fence());
    let cause = soon("the loss", lease.lost()).await?;
    // Where a lease ends with its session, its holder may hear of that before the next has it.
    let is_early = cause == LostCause::Removed && !Can::of_engine(&lab.engine().await?).detach;
    let is_told = matches!(cause, LostCause::Evicted { .. });
    let is_taken = cause == LostCause::TakenBy(two.holder().clone());
    assert!(is_early || is_told || is_taken, "{cause:?}");
    assert_eq!(lease.state(), LeaseState::Lost);
    assert_eq!(lease.release().await?, Released::TakenBy(two.holder().clone()));
    assert!(next.is_held());
    assert_eq!(next.release().await?, Released::Released);
    Ok(())
}

async fn evicted_holder_learns_of_its_loss_when_nobody_waits(lab: Arc<dyn Harness>) -> Outcome {
    let name = "evict:nobody";
    let [one, admin] = lab.clients().await?;
    let lease = one.mutex(name).ttl(lab.steady()).lock().await?;
    admin.admin().force_release(name, "stuck").await?;
    assert!(admin.line(name).await?.is_none());
    let cause = soon("the loss", lease.lost()).await?;
    assert!(matches!(cause, LostCause::Removed | LostCause::Evicted { .. }), "{cause:?}");
    until("the loss to be counted", async || Ok(one.stats().lost == 1)).await?;
    assert_eq!(one.stats().expired, 0, "it was taken");
    assert_eq!(lease.release().await?, Released::AlreadyExpired);
    Ok(())
}

async fn eviction_of_a_free_name_finds_nobody(lab: Arc<dyn Harness>) -> Outcome {
    let client = lab.client().await?;
    assert!(client.admin().force_release("evict:free", "nothing").await?.is_empty());
    assert!(client.line("evict:free").await?.is_none());
    assert!(client.mutex("evict:free").try_lock().await.unless_held()?.is_some());
    Ok(())
}

async fn eviction_leaves_the_waiters_in_line(lab: Arc<dyn Harness>) -> Outcome {
    let name = "evict:line";
    let [one, two, three] = lab.clients().await?;
    let lease = one.mutex(name).ttl(LONG).lock().await?;
    let mut first = Waiter::queue(&one, name, two.request(name).ttl(LONG), 0).await?;
    let mut second = Waiter::queue(&one, name, three.request(name).ttl(LONG), 1).await?;
    one.admin().force_release(name, "stuck").await?;
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
        one.request(name).mode(Mode::Shared).ttl(LONG).acquire().await?,
        two.request(name).mode(Mode::Shared).ttl(LONG).acquire().await?,
    ];
    let mut waiter = Waiter::queue(&one, name, writer.request(name).ttl(LONG), 0).await?;
    let evicted = writer.admin().force_release(name, "stuck").await?;
    assert_eq!(evicted, [one.holder().clone(), two.holder().clone()]);
    let lease = waiter.granted().await?;
    assert!(readers.iter().all(|reader| reader.fence() < lease.fence()));
    Ok(())
}

async fn evicted_lease_is_not_given_back_by_its_old_holder(lab: Arc<dyn Harness>) -> Outcome {
    let name = "evict:old";
    let [one, two] = lab.clients().await?;
    let lease = one.mutex(name).ttl(LONG).lock().await?;
    two.admin().force_release(name, "stuck").await?;
    let next = two.mutex(name).ttl(LONG).try_lock().await.unless_held()?.expect("it was taken");
    assert_eq!(lease.release().await?, Released::TakenBy(two.holder().clone()));
    assert_eq!(line(&one, name).await?.held[0].fence, next.fence());
    assert_eq!(next.release().await?, Released::Released);
    Ok(())
}

async fn repeated_order_to_evict_leaves_the_next_claim_alone(lab: Arc<dyn Harness>) -> Outcome {
    let name = "evict:again";
    let [one, two] = lab.clients().await?;
    let lease = one.mutex(name).ttl(LONG).lock().await?;
    let mut waiter = Waiter::queue(&one, name, two.request(name).ttl(LONG), 0).await?;
    let order = Eviction {
        name: Name::new(name)?,
        fences: vec![lease.fence().into()],
        unreadable: false,
        by: Holder::fresh(),
        reason: "stuck".into(),
    };
    let engine = lab.engine().await?;
    assert_eq!(engine.evict(&order).await?, [one.holder().clone()]);
    let next = waiter.granted().await?;
    assert!(engine.evict(&order).await?.is_empty());
    assert_eq!(line(&one, name).await?.held[0].fence, next.fence());
    assert_eq!(next.release().await?, Released::Released);
    Ok(())
}

async fn eviction_of_one_reader_leaves_the_other(lab: Arc<dyn Harness>) -> Outcome {
    let name = "evict:reader";
    let [one, two] = lab.clients().await?;
    let first = one.request(name).mode(Mode::Shared).ttl(LONG).acquire().await?;
    let second = two.request(name).mode(Mode::Shared).ttl(LONG).acquire().await?;
    let evicted = two.admin().force_release_fences(name, &[first.fence()], "stuck").await?;
    assert_eq!(evicted, [one.holder().clone()]);
    let held = line(&two, name).await?.held;
    assert_eq!(held.iter().map(|claim| claim.fence).collect::<Vec<_>>(), [second.fence()]);
    assert_eq!(second.release().await?, Released::Released);
    Ok(())
}

async fn eviction_of_one_permit_lets_one_waiter_in(lab: Arc<dyn Harness>) -> Outcome {
    let name = "evict:permit";
    let permit = Mode::Permits { take: 1, of: 2 };
    let [one, two, three, four] = lab.clients().await?;
    let _first = one.request(name).mode(permit).ttl(LONG).acquire().await?;
    let second = two.request(name).mode(permit).ttl(LONG).acquire().await?;
    let mut next = Waiter::queue(&one, name, three.request(name).mode(permit).ttl(LONG), 0).await?;
    let last = Waiter::queue(&one, name, four.request(name).mode(permit).ttl(LONG), 1).await?;
    let evicted = one.admin().force_release_fences(name, &[second.fence()], "stuck").await?;
    assert_eq!(evicted, [two.holder().clone()]);
    let next = next.granted().await?;
    assert_eq!(line(&one, name).await?.held.len(), 2);
    assert!(last.is_waiting());
    assert_eq!(next.release().await?, Released::Released);
    Ok(())
}
