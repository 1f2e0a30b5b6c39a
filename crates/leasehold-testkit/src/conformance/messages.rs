//! Messages to holders: one whose lease is taken hears of it at once. A message alone takes
//! nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use leasehold::engine::{Engine, Eviction, HolderMessage};
use leasehold::layer::chaos::{Trouble, Verb};
use leasehold::{Error, Holder, Lease, LostCause, Mode, Name, Released, Result, UnlessHeld};

use super::Can;
use super::harness::{Harness, LONG};
use super::support::{Outcome, Waiter, line, soon, until};
use crate::PartVerbs;

super::cases! {
    evicted_holder_hears_the_reason_before_its_next_renewal: messages,
    holder_that_is_evicted_at_once_hears_of_it_before_its_next_renewal: messages & across_processes,
    holder_of_an_adopted_lease_hears_that_it_is_evicted: messages & detach,
    holder_whose_name_is_stolen_hears_the_reason_at_once: messages & steal,
    evicted_reader_hears_and_the_other_reader_stays: messages & shared,
    forged_message_costs_no_lease: messages,
    message_about_another_lease_explains_nothing: messages & detach,
    reconnected_holder_looks_at_its_leases: messages & detach => proxied,
    holder_that_is_asked_gives_the_lease_back_in_time: messages,
    holder_that_does_not_answer_a_request_is_evicted_at_its_end: messages,
    holder_hears_although_the_answer_of_a_renewal_crosses_the_message: messages,
}

/// How often a message is sent to find out whether a client listens.
const SEND_EVERY: Duration = Duration::from_millis(50);

/// Counts the renewals of a lease.
#[derive(Debug, Clone, Default)]
struct Renewals(Arc<AtomicUsize>);

impl Renewals {
    fn of(lease: &Lease) -> Self {
        let renewals = Self::default();
        let counter = renewals.clone();
        lease.on_renewed(move |_| {
            counter.0.fetch_add(1, Ordering::SeqCst);
        });
        renewals
    }

    fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

fn eviction(lease: &Lease, fence: impl Into<u64>) -> Eviction {
    Eviction {
        name: lease.name().clone(),
        fences: vec![fence.into()],
        unreadable: false,
        by: Holder::fresh(),
        reason: "forged".into(),
    }
}

fn message(lease: &Lease, fence: impl Into<u64>) -> HolderMessage {
    HolderMessage::of_eviction(&eviction(lease, fence)).remove(0)
}

async fn send(engine: &Arc<dyn Engine>, message: &HolderMessage) -> Result<()> {
    match Arc::clone(engine).parts().messages {
        Some(part) => part.send(message).await,
        None => Ok(()),
    }
}

/// Waits until the client of a lease listens. The lease is renewed only when its client hears
/// something: its ttl is long.
async fn until_heard(lab: &dyn Harness, lease: &Lease) -> Outcome {
    let engine = lab.engine().await?;
    let renewals = Renewals::of(lease);
    let forged = message(lease, lease.fence());
    // Two: the client also renews when it begins to listen.
    until("renewals for messages", async || {
        send(&engine, &forged).await?;
        tokio::time::sleep(SEND_EVERY).await;
        Ok(renewals.count() > 1)
    })
    .await
}

async fn is_told(lab: &dyn Harness, lease: &Lease, by: &str, reason: &str) -> Outcome {
    let cause = soon("the loss", lease.lost()).await?;
    // Where a lease ends with its session, its holder may hear of that before it hears why.
    if cause == LostCause::Removed && !Can::of_engine(&lab.engine().await?).detach {
        return Ok(());
    }
    assert!(matches!(cause, LostCause::Evicted { .. }), "{cause:?}");
    assert_eq!(cause.to_string(), format!("`{by}` force-released it: {reason}"));
    Ok(())
}

async fn evicted_holder_hears_the_reason_before_its_next_renewal(lab: Arc<dyn Harness>) -> Outcome {
    let name = "messages:reason";
    let [one, admin] = lab.clients().await?;
    let lease = one.mutex(name).ttl(LONG).try_lock().await.unless_held()?.expect("it is free");
    until_heard(&*lab, &lease).await?;
    admin.admin().force_release(name, "host db3 is gone").await?;
    is_told(&*lab, &lease, admin.holder().label(), "host db3 is gone").await?;
    until("the loss to be counted", async || Ok(one.stats().lost == 1)).await?;
    // One that was taken after the client began to listen, and one that waited.
    let lease = one.mutex(name).ttl(LONG).lock().await?;
    admin.admin().force_release(name, "again").await?;
    is_told(&*lab, &lease, admin.holder().label(), "again").await
}

/// The client of a new lease does not listen yet.
async fn holder_that_is_evicted_at_once_hears_of_it_before_its_next_renewal(
    lab: Arc<dyn Harness>,
) -> Outcome {
    let (client, operator) = (lab.client().await?, lab.client().await?);
    let lease = client.mutex("messages:new").ttl(LONG).lock().await?;
    operator.admin().force_release("messages:new", "test").await?;
    soon("the loss", lease.lost()).await?;
    Ok(())
}

async fn holder_of_an_adopted_lease_hears_that_it_is_evicted(lab: Arc<dyn Harness>) -> Outcome {
    let name = "messages:adopted";
    let [one, two, admin] = lab.clients().await?;
    let lease = one.mutex(name).ttl(lab.long().await?).lock().await?;
    let handle = lease.detach().await?;
    let lease = two.adopt(&handle).await?;
    until_heard(&*lab, &lease).await?;
    admin.admin().force_release(name, "stuck").await?;
    is_told(&*lab, &lease, admin.holder().label(), "stuck").await
}

async fn holder_whose_name_is_stolen_hears_the_reason_at_once(lab: Arc<dyn Harness>) -> Outcome {
    let name = "messages:stolen";
    let [one, admin] = lab.clients().await?;
    let lease = one.mutex(name).ttl(LONG).lock().await?;
    until_heard(&*lab, &lease).await?;
    let stolen = admin.admin().steal(name, "host db3 is gone").await?;
    is_told(&*lab, &lease, admin.holder().label(), "host db3 is gone").await?;
    assert!(stolen.is_held());
    stolen.release().await?;
    Ok(())
}

async fn evicted_reader_hears_and_the_other_reader_stays(lab: Arc<dyn Harness>) -> Outcome {
    let name = "messages:readers";
    let [one, two, admin] = lab.clients().await?;
    let first = one.request(name).mode(Mode::Shared).ttl(LONG).acquire().await?;
    let second = two.request(name).mode(Mode::Shared).ttl(LONG).acquire().await?;
    until_heard(&*lab, &first).await?;
    until_heard(&*lab, &second).await?;
    admin.admin().force_release_fences(name, &[first.fence()], "stuck").await?;
    is_told(&*lab, &first, admin.holder().label(), "stuck").await?;
    assert!(second.is_held());
    assert_eq!(line(&admin, name).await?.held[0].fence, second.fence());
    second.release().await?;
    Ok(())
}

async fn forged_message_costs_no_lease(lab: Arc<dyn Harness>) -> Outcome {
    let client = lab.client().await?;
    let lease = client.mutex("messages:forged").ttl(LONG).lock().await?;
    // Its messages are forged, and the store answers that the lease holds.
    until_heard(&*lab, &lease).await?;
    assert!(lease.is_held());
    assert_eq!(client.stats().lost, 0);
    lease.release().await?;
    Ok(())
}

async fn message_about_another_lease_explains_nothing(lab: Arc<dyn Harness>) -> Outcome {
    let client = lab.client().await?;
    let lease = client.mutex("messages:fence").ttl(LONG).lock().await?;
    let other = client.mutex("messages:fence:other").ttl(LONG).lock().await?;
    let engine = lab.engine().await?;
    until_heard(&*lab, &other).await?;
    send(&engine, &message(&lease, lease.fence().as_u64() + 1)).await?;
    let mut of_another_name = message(&lease, lease.fence());
    of_another_name.name = Name::new("messages:fence:another")?;
    send(&engine, &of_another_name).await?;
    // Messages arrive in order.
    until_heard(&*lab, &other).await?;
    let order = eviction(&lease, lease.fence());
    engine.evict(&order).await?;
    let lost = lease.extend(LONG).await;
    assert!(matches!(lost, Err(Error::Lost { cause: LostCause::Removed, .. })), "{lost:?}");
    assert!(other.is_held());
    other.release().await?;
    Ok(())
}

async fn reconnected_holder_looks_at_its_leases(lab: Arc<dyn Harness>) -> Outcome {
    let name = "messages:reconnected";
    let far = lab.proxied().expect("the case needs it").await?;
    let (holder, admin) = (far.lab.client().await?, lab.client().await?);
    let lease = holder.mutex(name).ttl(LONG).lock().await?;
    until_heard(&*lab, &lease).await?;
    far.cut().await?;
    // The message goes out while nobody can hear it.
    admin.admin().force_release(name, "stuck").await?;
    far.restore().await?;
    let cause = soon("the loss", lease.lost()).await?;
    assert!(matches!(cause, LostCause::Removed | LostCause::Evicted { .. }), "{cause:?}");
    Ok(())
}

async fn holder_that_is_asked_gives_the_lease_back_in_time(lab: Arc<dyn Harness>) -> Outcome {
    let name = "messages:asked";
    let [one, admin] = lab.clients().await?;
    let lease = one.mutex(name).ttl(LONG).lock().await?;
    let fence = lease.fence();
    let label = admin.holder().label().to_owned();
    let asking = tokio::spawn(async move { admin.admin().revoke(name, LONG, "maintenance").await });
    let asked = soon("the request", lease.revoke_requested()).await?;
    assert_eq!((asked.by.as_str(), asked.reason.as_str()), (label.as_str(), "maintenance"));
    assert!(asked.time_left <= LONG);
    assert!(lease.is_held());
    assert_eq!(lease.release().await?, Released::Released);
    let evicted = soon("the end of the order", asking).await???;
    assert!(evicted.is_empty(), "{evicted:?}");
    let next = one.mutex(name).try_lock().await.unless_held()?.expect("it is free");
    assert!(next.fence() > fence);
    assert_eq!(one.stats().lost, 0);
    Ok(())
}

async fn holder_that_does_not_answer_a_request_is_evicted_at_its_end(
    lab: Arc<dyn Harness>,
) -> Outcome {
    let name = "messages:deaf";
    let [one, two, admin] = lab.clients().await?;
    let lease = one.mutex(name).ttl(LONG).lock().await?;
    let mut waiter = Waiter::queue(&admin, name, two.request(name).ttl(LONG), 0).await?;
    until_heard(&*lab, &lease).await?;
    let within = Duration::from_millis(500);
    let evicted = soon("the order", admin.admin().revoke(name, within, "maintenance")).await??;
    assert_eq!(evicted, [one.holder().clone()]);
    let asked = soon("the request", lease.revoke_requested()).await?;
    assert_eq!(asked.reason, "maintenance");
    is_told(&*lab, &lease, admin.holder().label(), "maintenance").await?;
    let next = waiter.granted().await?;
    assert!(next.fence() > lease.fence());
    Ok(())
}

async fn holder_hears_although_the_answer_of_a_renewal_crosses_the_message(
    lab: Arc<dyn Harness>,
) -> Outcome {
    let name = "messages:cross";
    let admin = lab.client().await?;
    let (one, chaos) = lab.troubled().await?;
    let lease = one.mutex(name).ttl(LONG).lock().await?;
    until_heard(&*lab, &lease).await?;
    // A renewal whose answer is held back says that the lease holds.
    chaos.next(Verb::Renew, Trouble::HangAfter, 1);
    let engine = lab.engine().await?;
    send(&engine, &message(&lease, lease.fence())).await?;
    soon("a renewal", chaos.hanging(1)).await?;
    admin.admin().force_release(name, "stuck").await?;
    // The client has the message when it has one for another lease that was sent later.
    let other = one.mutex("messages:cross:other").ttl(LONG).lock().await?;
    until_heard(&*lab, &other).await?;
    chaos.heal();
    is_told(&*lab, &lease, admin.holder().label(), "stuck").await
}
