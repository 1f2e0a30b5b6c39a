//! Handles: a lease as text, which another client adopts.

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::claim::{Amended, Claim, Mode, Note, Renewal, Standing};
use leasehold::engine::{Engine, Query};
use leasehold::error::Config;
use leasehold::memory::Memory;
use leasehold::{Client, Error, Handle, Lease, LeaseState, LockOptions, Released, UnlessHeld};

use super::Can;
use super::harness::Harness;
use super::support::{Failure, Outcome, Waiter, claim, line, renewal, soon, until, until_free};
use crate::{Direction, PartVerbs};

super::cases! {
    handle_is_taken_up_by_another_client: detach,
    adopted_lease_is_renewed: detach,
    stale_handle_is_refused_and_names_who_has_it: detach,
    handle_of_another_store_is_refused: detach,
    check_tells_how_long_and_does_not_extend: detach,
    renewal_by_handle_never_shortens_a_lease: detach & ttl_per_claim,
    renewal_by_an_old_handle_keeps_what_its_lease_was_extended_to: detach & ttl_per_claim,
    renewal_by_an_old_handle_keeps_what_a_reader_was_extended_to: detach & ttl_per_claim & shared,
    first_client_keeps_what_another_one_prolonged: detach & ttl_per_claim,
    late_renewal_keeps_what_a_later_one_prolonged: detach & ttl_per_claim => proxied,
    detached_lease_lives_until_its_ttl: detach & ttl_per_claim,
    lease_released_by_its_handle_is_lost_to_its_owner: detach,
    lease_detached_after_a_wait_has_its_whole_ttl: detach & ttl_per_claim,
    handle_is_stale_while_its_name_stays_closed: detach & ttl_per_claim,
    closed_name_is_shown_with_its_last_holder: detach & ttl_per_claim,
    closed_lease_is_found_by_no_verb: detach & ttl_per_claim,
    order_to_close_that_comes_late_leaves_the_next_lease_alone: detach & ttl_per_claim,
    waiter_is_granted_when_a_closed_name_opens: detach & ttl_per_claim,
}

/// A ttl that is far shorter than that of the lease.
const BRIEF: Duration = Duration::from_secs(1);

/// How much less a store may show than is left: etcd counts whole seconds.
const SHOWN_WITHIN: Duration = Duration::from_millis(1_500);

/// How far the ends of a claim at the nodes of a quorum may be apart.
const NODES_APART: Duration = Duration::from_millis(100);

async fn handle_is_taken_up_by_another_client(lab: Arc<dyn Harness>) -> Outcome {
    let (name, long) = ("handle:adopt", lab.long().await?);
    let [one, two, three] = lab.clients().await?;
    let lease = one.mutex(name).ttl(long).note("kept").lock().await?;
    let fence = lease.fence();
    let text = lease.detach().await?.to_string();
    assert_eq!(one.stats().active, 0);
    soon("the close", one.close()).await??;
    let handle: Handle = text.parse()?;
    assert_eq!((handle.name().as_str(), handle.fence(), handle.ttl()), (name, fence, long));
    assert_eq!(handle.holder(), one.holder());
    let lease = two.adopt(&handle).await?;
    assert_eq!((lease.fence(), lease.state()), (fence, LeaseState::Held));
    assert!(three.mutex(name).try_lock().await.unless_held()?.is_none());
    assert_eq!(line(&three, name).await?.held[0].note.as_str(), "kept");
    assert_eq!(lease.release().await?, Released::Released);
    assert!(three.mutex(name).try_lock().await.unless_held()?.is_some());
    Ok(())
}

async fn adopted_lease_is_renewed(lab: Arc<dyn Harness>) -> Outcome {
    let [one, two] = lab.clients().await?;
    let handle = one.mutex("handle:renewed").ttl(lab.steady()).lock().await?.detach().await?;
    let lease = two.adopt(&handle).await?;
    let before = lease.deadline();
    until("a renewal", async || Ok(lease.deadline() > before)).await?;
    assert_eq!(lease.state(), LeaseState::Held);
    assert_eq!(lease.release().await?, Released::Released);
    Ok(())
}

async fn stale_handle_is_refused_and_names_who_has_it(lab: Arc<dyn Harness>) -> Outcome {
    let name = "handle:stale";
    let [one, two] = lab.clients().await?;
    let lease = one.mutex(name).ttl(lab.long().await?).lock().await?;
    let handle = lease.handle();
    lease.release().await?;
    let adopted = two.adopt(&handle).await;
    assert!(matches!(adopted, Err(Error::Stale { by: None, .. })), "{adopted:?}");
    assert_eq!(two.check(&handle).await?, None);
    let next = two.mutex(name).ttl(lab.long().await?).lock().await?;
    match one.adopt(&handle).await {
        Err(Error::Stale { by: Some(by), .. }) => assert_eq!(by, *two.holder()),
        other => panic!("a stale handle came to {other:?}"),
    }
    assert_eq!(one.check(&handle).await?, None);
    assert!(next.is_held());
    assert_eq!(next.release().await?, Released::Released);
    Ok(())
}

async fn handle_of_another_store_is_refused(lab: Arc<dyn Harness>) -> Outcome {
    let client = lab.client().await?;
    let elsewhere = Memory::new().client()?;
    let lease = elsewhere.mutex("handle:elsewhere").lock().await?;
    let adopted = client.adopt(&lease.handle()).await;
    assert!(matches!(adopted, Err(Error::Config(Config::OtherStore))), "{adopted:?}");
    let checked = client.check(&lease.handle()).await;
    assert!(matches!(checked, Err(Error::Config(Config::OtherStore))), "{checked:?}");
    Ok(())
}

async fn check_tells_how_long_and_does_not_extend(lab: Arc<dyn Harness>) -> Outcome {
    let long = lab.long().await?;
    let [one, two] = lab.clients().await?;
    let lease =
        one.mutex("handle:check").ttl(long).options(LockOptions::new().renew(false)).lock().await?;
    let handle = lease.handle();
    let first = two.check(&handle).await?.expect("it is held");
    assert!(first <= long && first > long / 2, "{first:?}");
    // The nodes of a quorum got it one after the other, and different nodes may answer each time.
    until("time to pass in the store", async || {
        let later = two.check(&handle).await?.expect("it is held");
        assert!(later <= first + NODES_APART, "{later:?} after {first:?}");
        Ok(later + NODES_APART < first)
    })
    .await?;
    assert_eq!(lease.release().await?, Released::Released);
    assert_eq!(two.check(&handle).await?, None);
    Ok(())
}

async fn renewal_by_handle_never_shortens_a_lease(lab: Arc<dyn Harness>) -> Outcome {
    let [one, two] = lab.clients().await?;
    let long = lab.long().await?;
    let lease = one.mutex("handle:shorter").ttl(long).lock().await?;
    let handle = lease.handle();
    two.adopt_with(&handle, BRIEF).await?.detach().await?;
    let left = two.check(&handle).await?.expect("it is held");
    assert!(left > long / 2, "{left:?}");
    assert_eq!(lease.release().await?, Released::Released);
    Ok(())
}

async fn renewal_by_an_old_handle_keeps_what_its_lease_was_extended_to(
    lab: Arc<dyn Harness>,
) -> Outcome {
    let [one, two] = lab.clients().await?;
    let (long, steady) = (lab.long().await?, lab.steady());
    let lease = one.mutex("handle:alone").ttl(steady).lock().await?;
    keeps_what_it_was_extended_to(&*lab, &two, &lease).await?;
    assert_eq!(lease.release().await?, Released::Released);
    let name = "handle:in_line";
    let lease = one.mutex(name).ttl(steady).lock().await?;
    let mut waiter = Waiter::queue(&one, name, two.request(name).ttl(long), 0).await?;
    keeps_what_it_was_extended_to(&*lab, &two, &lease).await?;
    assert_eq!(lease.release().await?, Released::Released);
    waiter.served().await
}

async fn renewal_by_an_old_handle_keeps_what_a_reader_was_extended_to(
    lab: Arc<dyn Harness>,
) -> Outcome {
    let [one, two] = lab.clients().await?;
    let lease = one.rwlock("handle:reader").ttl(lab.steady()).read().await?;
    keeps_what_it_was_extended_to(&*lab, &two, &lease).await?;
    assert_eq!(lease.release().await?, Released::Released);
    Ok(())
}

/// A handle has the ttl of its making, and its owner may count on a longer one since.
async fn keeps_what_it_was_extended_to(
    lab: &dyn Harness,
    other: &Client,
    lease: &Lease,
) -> Outcome {
    let (old, long) = (lease.handle(), lab.long().await?);
    lease.extend(long).await?;
    let kept = async |by: &str| {
        let left = other.check(&old).await?.expect("it is held");
        assert!(left > long / 2, "after {by}: {left:?}");
        Ok::<(), Failure>(())
    };
    other.renew(&old).await?;
    kept("renew").await?;
    other.adopt(&old).await?.detach().await?;
    kept("adopt").await?;
    other.adopt_at_most(&old, lab.brief()).await?.detach().await?;
    kept("adopt_at_most").await?;
    assert_eq!(lease.state(), LeaseState::Held);
    Ok(())
}

/// A claim that two clients renew: the one that made it, and another one that has its token.
struct Shared {
    first: Arc<dyn Engine>,
    other: Arc<dyn Engine>,
    claim: Claim,
    brief: Duration,
    long: Duration,
}

impl Shared {
    /// `far` is where the first client asks.
    async fn new(
        lab: &dyn Harness,
        far: &dyn Harness,
        name: &str,
    ) -> std::result::Result<Self, Failure> {
        let (first, other) = (far.engine().await?, lab.engine().await?);
        let (brief, long) = (lab.steady(), lab.long().await?);
        let claim = claim(name, Mode::Exclusive, brief)?;
        let standing = first.claim(&claim).await?;
        assert!(matches!(standing, Standing::Held { .. }), "{standing:?}");
        Ok(Self { first, other, claim, brief, long })
    }

    fn renewal(&self, ttl: Duration) -> Renewal {
        Renewal { ttl, ..renewal(&self.claim) }
    }

    /// The other client asks for a long time; returns until when it may count on the claim. Where a
    /// claim lasts as long as a session of the first client, that is not all of it.
    async fn prolong(&self) -> std::result::Result<Instant, Failure> {
        let sent = Instant::now();
        let renewed = renewed(&*self.other, self.renewal(self.long)).await?;
        let Standing::Held { remaining, .. } = renewed else { panic!("{renewed:?}") };
        let until = sent + remaining;
        self.lasts(until).await?;
        Ok(until)
    }

    async fn lasts(&self, until: Instant) -> Outcome {
        let lines = self.other.inspect(&Query::name(self.claim.key.name.clone())).await?.lines;
        let held = lines.first().and_then(|line| line.held.first());
        let end = held.map(|claim| Instant::now() + claim.remaining + SHOWN_WITHIN);
        assert!(end >= Some(until), "{:?} too early", end.map(|end| until - end));
        Ok(())
    }

    async fn end(self) -> Outcome {
        self.other.release(std::slice::from_ref(&self.claim.key)).await?;
        Ok(())
    }
}

/// Renews until the store answers.
async fn renewed(engine: &dyn Engine, renewal: Renewal) -> Result<Standing, Failure> {
    loop {
        match engine.renew(std::slice::from_ref(&renewal)).await.map(|mut all| all.remove(0)) {
            Err(error) | Ok(Err(error)) if error.is_transient() => {}
            answer => return Ok(answer??),
        }
    }
}

async fn first_client_keeps_what_another_one_prolonged(lab: Arc<dyn Harness>) -> Outcome {
    let shared = Shared::new(&*lab, &*lab, "handle:prolonged").await?;
    let until = shared.prolong().await?;
    for ttl in [shared.brief, shared.brief * 2] {
        let standing = soon("an answer", renewed(&*shared.first, shared.renewal(ttl))).await??;
        assert!(matches!(standing, Standing::Held { .. }), "{standing:?}");
        shared.lasts(until).await?;
    }
    shared.end().await
}

/// The first client's renewal is held back until the other client has prolonged the claim.
async fn late_renewal_keeps_what_a_later_one_prolonged(lab: Arc<dyn Harness>) -> Outcome {
    let network = lab.proxied().expect("the case applies").await?;
    let shared = Shared::new(&*lab, &*network.lab, "handle:late").await?;
    network.block(Direction::ToServer);
    let (first, renewal) = (Arc::clone(&shared.first), shared.renewal(shared.brief * 2));
    let late = tokio::spawn(async move { renewed(&*first, renewal).await });
    network.until_request_held().await?;
    let until = shared.prolong().await?;
    network.pass().await?;
    let standing = soon("an answer", late).await???;
    assert!(matches!(standing, Standing::Held { .. }), "{standing:?}");
    shared.lasts(until).await?;
    shared.end().await
}

async fn detached_lease_lives_until_its_ttl(lab: Arc<dyn Harness>) -> Outcome {
    let name = "handle:detached";
    let [one, two] = lab.clients().await?;
    let handle = one.mutex(name).ttl(lab.steady()).lock().await?.detach().await?;
    assert!(two.mutex(name).try_lock().await.unless_held()?.is_none());
    assert!(two.check(&handle).await?.is_some());
    let next = soon("the end of its ttl", two.mutex(name).ttl(lab.long().await?).lock()).await??;
    assert!(next.fence() > handle.fence());
    assert!(matches!(one.adopt(&handle).await, Err(Error::Stale { .. })));
    Ok(())
}

async fn lease_released_by_its_handle_is_lost_to_its_owner(lab: Arc<dyn Harness>) -> Outcome {
    let name = "handle:owner";
    let [one, two] = lab.clients().await?;
    let lease = one.mutex(name).ttl(lab.steady()).lock().await?;
    let adopted = two.adopt(&lease.handle()).await?;
    assert_eq!(adopted.release().await?, Released::Released);
    soon("the loss", lease.lost()).await?;
    assert_eq!(lease.state(), LeaseState::Lost);
    assert_ne!(lease.release().await?, Released::Released);
    until_free(&one, name).await
}

async fn lease_detached_after_a_wait_has_its_whole_ttl(lab: Arc<dyn Harness>) -> Outcome {
    let (name, long) = ("handle:waited", lab.long().await?);
    let [one, two] = lab.clients().await?;
    let lease = one.mutex(name).ttl(long).lock().await?;
    let mut waiter = Waiter::queue(&one, name, two.request(name).ttl(long), 0).await?;
    lease.release().await?;
    let handle = waiter.granted().await?.detach().await?;
    let left = one.check(&handle).await?.expect("it is held");
    assert!(left > long / 2, "{left:?}");
    assert_eq!(one.adopt(&handle).await?.release().await?, Released::Released);
    Ok(())
}

async fn handle_is_stale_while_its_name_stays_closed(lab: Arc<dyn Harness>) -> Outcome {
    let (name, long) = ("handle:closed", lab.long().await?);
    let [one, two] = lab.clients().await?;
    let span = lab.steady() * 2;
    let handle = one.mutex(name).ttl(long).lock().await?.detach().await?;
    let begun = Instant::now();
    assert_eq!(two.release_keeping(&handle, span).await?, Released::Released);
    assert_eq!(one.check(&handle).await?, None);
    let adopted = one.adopt(&handle).await;
    assert!(matches!(adopted, Err(Error::Stale { .. })), "{adopted:?}");
    for client in [&one, &two] {
        assert_ne!(client.release(&handle).await?, Released::Released);
        assert_ne!(client.release_keeping(&handle, long).await?, Released::Released);
    }
    assert!(
        two.mutex(name).try_lock().await.unless_held()?.is_none(),
        "open after {:?}",
        begun.elapsed()
    );
    let next = soon("the end of the span", two.mutex(name).ttl(long).lock()).await??;
    assert!(begun.elapsed() >= span, "open after {:?}", begun.elapsed());
    assert!(next.fence() > handle.fence());
    assert_eq!(next.release().await?, Released::Released);
    Ok(())
}

async fn closed_name_is_shown_with_its_last_holder(lab: Arc<dyn Harness>) -> Outcome {
    let name = "handle:closed-view";
    let [one, two] = lab.clients().await?;
    let ttl = lab.steady() * 2;
    let handle = one.mutex(name).ttl(ttl).note("done").lock().await?.detach().await?;
    assert!(!line(&two, name).await?.held[0].closed);
    let span = lab.steady();
    assert_eq!(two.release_keeping(&handle, span).await?, Released::Released);
    let seen = line(&two, name).await?;
    let held = &seen.held[0];
    assert!(held.closed && held.remaining <= span, "{held:?}");
    assert_eq!((held.fence, held.holder.label()), (handle.fence(), one.holder().label()));
    assert_eq!((held.note.as_str(), seen.held.len()), ("done", 1));
    until_free(&two, name).await
}

async fn closed_lease_is_found_by_no_verb(lab: Arc<dyn Harness>) -> Outcome {
    let (name, long) = ("handle:closed-verbs", lab.long().await?);
    let (client, engine) = (lab.client().await?, lab.engine().await?);
    let asked = claim(name, Mode::Exclusive, long)?;
    assert!(matches!(engine.claim(&asked).await?, Standing::Held { .. }));
    let span = lab.steady();
    assert_eq!(engine.keep_closed(&asked.key, span).await?, Released::Released);
    let renewed = engine.renew(&[renewal(&asked)]).await?.remove(0)?;
    assert!(matches!(renewed, Standing::Out { .. }), "{renewed:?}");
    if Can::of_engine(&engine).amend {
        let amended = engine.set_note(&asked.key, &Note::new("late")?).await?;
        assert!(matches!(amended, Amended::Out { .. }), "{amended:?}");
    }
    assert_ne!(engine.keep_closed(&asked.key, long).await?, Released::Released);
    assert_ne!(engine.release(std::slice::from_ref(&asked.key)).await?, [Released::Released]);
    let seen = line(&client, name).await?;
    assert!(seen.held[0].remaining <= span && seen.held[0].note.as_str().is_empty(), "{seen:?}");
    until_free(&client, name).await
}

async fn order_to_close_that_comes_late_leaves_the_next_lease_alone(
    lab: Arc<dyn Harness>,
) -> Outcome {
    let (name, long) = ("handle:closed-late", lab.long().await?);
    let (client, engine) = (lab.client().await?, lab.engine().await?);
    let asked = claim(name, Mode::Exclusive, long)?;
    assert!(matches!(engine.claim(&asked).await?, Standing::Held { .. }));
    assert_eq!(engine.keep_closed(&asked.key, lab.brief()).await?, Released::Released);
    let next = soon("the end of its time", client.mutex(name).ttl(long).lock()).await??;
    // As if a copy of the order had been in flight until now.
    assert_ne!(engine.keep_closed(&asked.key, lab.steady()).await?, Released::Released);
    let held = line(&client, name).await?.held.remove(0);
    assert!(!held.closed && held.fence == next.fence(), "{held:?}");
    assert_eq!((next.state(), next.release().await?), (LeaseState::Held, Released::Released));
    Ok(())
}

async fn waiter_is_granted_when_a_closed_name_opens(lab: Arc<dyn Harness>) -> Outcome {
    let name = "handle:closed-waiter";
    let [one, two] = lab.clients().await?;
    let span = lab.steady();
    // It would have ended much later, and the waiter knew that end.
    let half = lab.long().await? / 2;
    let mutex =
        one.mutex(name).ttl(half).options(LockOptions::new().lock_delay(half).hold_at_least(span));
    let begun = Instant::now();
    let lease = mutex.lock().await?;
    let mut waiter = Waiter::queue(&two, name, two.request(name).ttl(lab.long().await?), 0).await?;
    assert_eq!(lease.release().await?, Released::Released);
    let next = waiter.granted().await?;
    assert!(begun.elapsed() >= span, "granted after {:?}", begun.elapsed());
    assert_eq!(next.release().await?, Released::Released);
    Ok(())
}
