//! Watching: the events of a name, reported in the order in which they happen.

use std::sync::Arc;

use futures_util::stream::{BoxStream, StreamExt};
use leasehold::claim::{Holder, Mode, Standing};
use leasehold::engine::{Event, EventKind, Query};
use leasehold::{Fence, Name, Result, UnlessHeld};

use super::harness::{Harness, LONG};
use super::support::{Failure, Outcome, Waiter, claim, soon};

super::cases! {
    watch_tells_a_claims_life_in_order: watch,
    watch_tells_of_expiry_and_who_is_next: watch & ttl_per_claim,
    watch_tells_of_eviction_and_why: watch & evict,
    watch_tells_of_waiters_that_leave: watch,
    watch_by_name_tells_of_no_other: watch,
    watch_by_prefix_and_holder_tell_of_their_own: watch,
}

pub(super) type Events = BoxStream<'static, Result<Event>>;

async fn next(events: &mut Events) -> std::result::Result<Event, Failure> {
    match soon("an event", events.next()).await? {
        Some(event) => Ok(event?),
        None => Err(Failure::new("the watch ended")),
    }
}

pub(super) async fn expect(
    events: &mut Events,
    kind: EventKind,
    holder: &Holder,
    fence: impl Into<Fence>,
) -> Outcome {
    let event = next(events).await?;
    assert_eq!(
        (&event.kind, &event.holder, event.fence),
        (&kind, holder, fence.into()),
        "{event:?}"
    );
    Ok(())
}

async fn watch_tells_a_claims_life_in_order(lab: Arc<dyn Harness>) -> Outcome {
    let name = "watch:life";
    let [one, two, three] = lab.clients().await?;
    let mut events = three.admin().watch(&Query::name(Name::new(name)?)).await?;
    let lease = one.mutex(name).ttl(LONG).lock().await?;
    expect(&mut events, EventKind::Granted, one.holder(), lease.fence()).await?;
    let mut waiter = Waiter::queue(&three, name, two.request(name).ttl(LONG), 0).await?;
    let queued = next(&mut events).await?;
    assert_eq!((&queued.kind, &queued.holder), (&EventKind::Queued, two.holder()));
    assert_eq!(queued.name.as_str(), name);
    let fence = lease.fence();
    lease.release().await?;
    let lease = waiter.granted().await?;
    expect(&mut events, EventKind::Released, one.holder(), fence).await?;
    expect(&mut events, EventKind::Granted, two.holder(), lease.fence()).await?;
    assert_eq!(queued.fence, lease.fence(), "a claim has one number all its life");
    let fence = lease.fence();
    drop(lease);
    expect(&mut events, EventKind::Released, two.holder(), fence).await
}

async fn watch_tells_of_expiry_and_who_is_next(lab: Arc<dyn Harness>) -> Outcome {
    let name = "watch:expiry";
    let (client, engine) = (lab.client().await?, lab.engine().await?);
    let mut events = client.admin().watch(&Query::name(Name::new(name)?)).await?;
    let dead = claim(name, Mode::Exclusive, lab.steady())?;
    let Standing::Held { fence, .. } = engine.claim(&dead).await? else { panic!("free") };
    expect(&mut events, EventKind::Granted, &dead.holder, fence).await?;
    let mut waiter = Waiter::queue(&client, name, client.request(name).ttl(LONG), 0).await?;
    assert_eq!(next(&mut events).await?.kind, EventKind::Queued);
    let lease = waiter.granted().await?;
    expect(&mut events, EventKind::Expired, &dead.holder, fence).await?;
    expect(&mut events, EventKind::Granted, client.holder(), lease.fence()).await
}

async fn watch_tells_of_eviction_and_why(lab: Arc<dyn Harness>) -> Outcome {
    let name = "watch:eviction";
    let [one, two] = lab.clients().await?;
    let lease = one.mutex(name).ttl(LONG).lock().await?;
    let mut waiter = Waiter::queue(&one, name, two.request(name).ttl(LONG), 0).await?;
    let mut events = two.admin().watch(&Query::name(Name::new(name)?)).await?;
    two.admin().force_release(name, "stuck since noon").await?;
    let reason = "stuck since noon".to_owned();
    expect(&mut events, EventKind::Evicted { reason }, one.holder(), lease.fence()).await?;
    let next = waiter.granted().await?;
    expect(&mut events, EventKind::Granted, two.holder(), next.fence()).await
}

async fn watch_tells_of_waiters_that_leave(lab: Arc<dyn Harness>) -> Outcome {
    let name = "watch:left";
    let [one, two] = lab.clients().await?;
    let lease = one.mutex(name).ttl(LONG).lock().await?;
    let mut events = one.admin().watch(&Query::name(Name::new(name)?)).await?;
    let waiter = Waiter::queue(&one, name, two.request(name).ttl(LONG), 0).await?;
    let queued = next(&mut events).await?;
    assert_eq!(queued.kind, EventKind::Queued);
    drop(waiter);
    expect(&mut events, EventKind::Left, two.holder(), queued.fence).await?;
    assert!(two.mutex(name).try_lock().await.unless_held()?.is_none());
    let fence = lease.fence();
    lease.release().await?;
    // A refused try is no event.
    expect(&mut events, EventKind::Released, one.holder(), fence).await
}

async fn watch_by_name_tells_of_no_other(lab: Arc<dyn Harness>) -> Outcome {
    let client = lab.client().await?;
    let mut events = client.admin().watch(&Query::name(Name::new("watch:one")?)).await?;
    for name in ["watch:on", "watch:one:more", "WATCH:ONE", "watch:two"] {
        client.mutex(name).lock().await?.release().await?;
    }
    let lease = client.mutex("watch:one").ttl(LONG).lock().await?;
    expect(&mut events, EventKind::Granted, client.holder(), lease.fence()).await
}

async fn watch_by_prefix_and_holder_tell_of_their_own(lab: Arc<dyn Harness>) -> Outcome {
    let [one, two] = lab.clients().await?;
    let mut by_prefix = one.admin().watch(&Query::prefix("watch:p:")).await?;
    let mut by_holder = one.admin().watch(&Query::holder(two.holder().id())).await?;
    one.mutex("watch:q").lock().await?.release().await?;
    let first = one.mutex("watch:p:1").ttl(LONG).lock().await?;
    // Events of different names have no order: in some stores they come from different servers.
    expect(&mut by_prefix, EventKind::Granted, one.holder(), first.fence()).await?;
    let second = two.mutex("watch:p:2").ttl(LONG).lock().await?;
    expect(&mut by_prefix, EventKind::Granted, two.holder(), second.fence()).await?;
    expect(&mut by_holder, EventKind::Granted, two.holder(), second.fence()).await
}
