//! Raising fences above all earlier ones, as after a restore. No claim in line changes.

use std::sync::Arc;

use futures_util::StreamExt as _;
use leasehold::engine::{Bumped, EventKind, Query};
use leasehold::{Client, Fence, Name, Released};

use super::harness::{Harness, LONG};
use super::support::{Failure, Outcome, Waiter, line, soon};

super::cases! {
    f129_bump_does_no_harm,
    f129_fences_rise_across_a_bump: epochs,
    f129_fences_rise_above_one_that_was_seen: epochs,
    f129_lease_held_across_a_bump_keeps_its_fence: epochs,
    f129_waiter_that_joined_before_a_bump_is_granted_before_those_after: epochs & fifo,
    f129_clients_agree_on_fences_after_a_bump: epochs & fifo,
    f129_lease_taken_after_a_bump_is_adopted_with_its_fence: epochs & detach,
    f129_watcher_sees_the_fences_after_a_bump: epochs & watch,
}

/// Bumps the epoch, and returns where fences go on from.
async fn bump(client: &Client, above: Option<Fence>) -> Result<Fence, Failure> {
    match client.admin().bump_epoch(above).await? {
        Bumped::Raised { before, from } => {
            assert!(before < from, "{before} < {from}");
            Ok(from)
        }
        other => Err(Failure::new(format!("nothing was raised: {other:?}"))),
    }
}

async fn f129_bump_does_no_harm(lab: Arc<dyn Harness>) -> Outcome {
    let [one, two] = lab.clients().await?;
    let mut last = Fence::from(0);
    for _ in 0..3 {
        let lease = one.mutex("epoch:harm").ttl(LONG).lock().await?;
        assert!(lease.fence() > last, "{} after {last}", lease.fence());
        last = lease.fence();
        let bumped = two.admin().bump_epoch(None).await?;
        assert_eq!(
            matches!(bumped, Bumped::Raised { .. }),
            two.parts().raise_fences.is_some(),
            "{bumped:?}"
        );
        assert!(lease.is_held());
        assert_eq!(lease.release().await?, Released::Released);
    }
    Ok(())
}

async fn f129_fences_rise_across_a_bump(lab: Arc<dyn Harness>) -> Outcome {
    let [one, two] = lab.clients().await?;
    let mut last = Fence::from(0);
    for round in 0..6 {
        let (by, other) = if round % 2 == 0 { (&one, &two) } else { (&two, &one) };
        let from = bump(by, None).await?;
        assert!(from > last, "{from} after {last}");
        last = Fence::from(from.as_u64() - 1);
        // For the client that bumped and for one that has not heard of it; on one name and on
        // another.
        for (client, name) in [(other, "epoch:a"), (by, "epoch:a"), (other, "epoch:b")] {
            let lease = client.mutex(name).lock().await?;
            assert!(lease.fence() > last, "{} after {last}", lease.fence());
            last = lease.fence();
            assert_eq!(lease.release().await?, Released::Released);
        }
    }
    Ok(())
}

async fn f129_fences_rise_above_one_that_was_seen(lab: Arc<dyn Harness>) -> Outcome {
    let [one, two] = lab.clients().await?;
    let seen = Fence::from(bump(&one, None).await?.as_u64() + 3_000_000_000);
    let from = bump(&one, Some(seen)).await?;
    assert!(from > seen, "{from} > {seen}");
    assert!(two.mutex("epoch:above").lock().await?.fence() >= from);
    assert!(bump(&two, None).await? > from);
    assert!(one.admin().bump_epoch(Some(Fence::from(u64::MAX))).await.is_err());
    Ok(())
}

async fn f129_lease_held_across_a_bump_keeps_its_fence(lab: Arc<dyn Harness>) -> Outcome {
    let name = "epoch:lease";
    let [one, two] = lab.clients().await?;
    let lease = one.mutex(name).ttl(lab.steady()).lock().await?;
    let fence = lease.fence();
    let from = bump(&two, None).await?;
    lease.extend(lab.steady()).await?;
    assert!(lease.is_held());
    assert_eq!((lease.fence(), line(&two, name).await?.held[0].fence), (fence, fence));
    assert_eq!(lease.release().await?, Released::Released);
    assert!(one.mutex(name).lock().await?.fence() >= from);
    Ok(())
}

async fn f129_waiter_that_joined_before_a_bump_is_granted_before_those_after(
    lab: Arc<dyn Harness>,
) -> Outcome {
    let name = "epoch:waiter";
    let [one, two, three] = lab.clients().await?;
    let lease = one.mutex(name).ttl(LONG).lock().await?;
    let mut before = Waiter::queue(&three, name, two.request(name).ttl(LONG), 0).await?;
    let from = bump(&three, None).await?;
    let mut after = Waiter::queue(&one, name, three.request(name).ttl(LONG), 1).await?;
    let mut last = lease.fence();
    assert_eq!(lease.release().await?, Released::Released);
    let lease = before.granted().await?;
    assert!(last < lease.fence() && lease.fence() < from, "{last} {} {from}", lease.fence());
    assert!(after.is_waiting());
    last = lease.fence();
    assert_eq!(lease.release().await?, Released::Released);
    let lease = after.granted().await?;
    assert!(last < lease.fence() && lease.fence() >= from, "{last} {} {from}", lease.fence());
    Ok(())
}

async fn f129_clients_agree_on_fences_after_a_bump(lab: Arc<dyn Harness>) -> Outcome {
    let name = "epoch:agree";
    let [one, two, three] = lab.clients().await?;
    let from = bump(&three, None).await?;
    let lease = one.mutex(name).ttl(LONG).lock().await?;
    let mut waiter = Waiter::queue(&three, name, two.request(name).ttl(LONG), 0).await?;
    let mut waiting = Vec::new();
    for client in [&one, &two, &three, &lab.client().await?] {
        let line = line(client, name).await?;
        assert_eq!(line.held[0].fence, lease.fence());
        waiting.push(line.waiting[0].fence);
    }
    assert!(lease.fence() >= from);
    lease.release().await?;
    let next = waiter.granted().await?;
    assert!(waiting.iter().all(|fence| *fence == next.fence()), "{waiting:?} {}", next.fence());
    Ok(())
}

async fn f129_lease_taken_after_a_bump_is_adopted_with_its_fence(lab: Arc<dyn Harness>) -> Outcome {
    let long = lab.long().await?;
    let [one, two] = lab.clients().await?;
    // The client that adopts it knows the store as it was before.
    two.mutex("epoch:adopt").lock().await?.release().await?;
    let from = bump(&one, None).await?;
    let lease = one.mutex("epoch:adopt").ttl(long).lock().await?;
    let (fence, handle) = (lease.fence(), lease.detach().await?);
    assert!(fence >= from);
    assert!(two.check(&handle).await?.is_some());
    let lease = two.adopt(&handle).await?;
    assert_eq!(lease.fence(), fence);
    assert_eq!(lease.release().await?, Released::Released);
    Ok(())
}

async fn f129_watcher_sees_the_fences_after_a_bump(lab: Arc<dyn Harness>) -> Outcome {
    let name = "epoch:watch";
    let [one, two, three] = lab.clients().await?;
    let before = one.mutex(name).ttl(LONG).lock().await?;
    let mut events = three.admin().watch(&Query::name(Name::new(name)?)).await?;
    bump(&two, None).await?;
    let mut told = async |kind: EventKind, fence: Fence| -> Outcome {
        let event = soon("an event", events.next()).await?;
        let event = event.ok_or_else(|| Failure::new("the events ended"))??;
        assert_eq!((event.kind, event.fence), (kind, fence));
        Ok(())
    };
    let fence = before.fence();
    before.release().await?;
    told(EventKind::Released, fence).await?;
    let after = one.mutex(name).ttl(LONG).lock().await?;
    let fence = after.fence();
    told(EventKind::Granted, fence).await?;
    after.release().await?;
    told(EventKind::Released, fence).await
}
