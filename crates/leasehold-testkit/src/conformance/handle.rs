//! Handles: a lease as text, taken up by somebody else.

use std::sync::Arc;
use std::time::Duration;

use leasehold::error::Config;
use leasehold::memory::Memory;
use leasehold::{Error, Handle, LeaseState, Released};

use super::harness::{Harness, LONG};
use super::support::{Outcome, Waiter, line, soon, until, until_free};

super::cases! {
    handle_is_taken_up_by_another_client: detach,
    adopted_lease_is_renewed: detach,
    stale_handle_is_refused_and_names_who_has_it: detach,
    handle_of_another_store_is_refused: detach,
    check_tells_how_long_and_does_not_extend: detach,
    detached_lease_lives_until_its_ttl: detach & ttl_per_claim,
    lease_released_by_its_handle_is_lost_to_its_owner: detach,
    lease_detached_after_a_wait_has_its_whole_ttl: detach & ttl_per_claim,
}

/// How far the ends of a claim at the nodes of a quorum may be apart.
const NODES_APART: Duration = Duration::from_millis(100);

async fn handle_is_taken_up_by_another_client(lab: Arc<dyn Harness>) -> Outcome {
    let name = "handle:adopt";
    let [one, two, three] = lab.clients().await?;
    let lease = one.mutex(name).ttl(LONG).note("kept").lock().await?;
    let fence = lease.fence();
    let text = lease.detach().await?.to_string();
    assert_eq!(one.stats().active, 0);
    soon("the close", one.close()).await??;
    let handle: Handle = text.parse()?;
    assert_eq!((handle.name().as_str(), handle.fence(), handle.ttl()), (name, fence, LONG));
    assert_eq!(handle.holder(), one.holder());
    let lease = two.adopt(&handle).await?;
    assert_eq!((lease.fence(), lease.state()), (fence, LeaseState::Held));
    assert!(three.mutex(name).try_lock().await?.is_none());
    assert_eq!(line(&three, name).await?.held[0].note.as_str(), "kept");
    assert_eq!(lease.release().await?, Released::Released);
    assert!(three.mutex(name).try_lock().await?.is_some());
    Ok(())
}

async fn adopted_lease_is_renewed(lab: Arc<dyn Harness>) -> Outcome {
    let [one, two] = lab.clients().await?;
    let handle = one.mutex("handle:renewed").ttl(lab.steady()).lock().await?.detach().await?;
    let lease = two.adopt(&handle).await?;
    let before = lease.safe_until();
    until("a renewal", async || Ok(lease.safe_until() > before)).await?;
    assert_eq!(lease.state(), LeaseState::Held);
    assert_eq!(lease.release().await?, Released::Released);
    Ok(())
}

async fn stale_handle_is_refused_and_names_who_has_it(lab: Arc<dyn Harness>) -> Outcome {
    let name = "handle:stale";
    let [one, two] = lab.clients().await?;
    let lease = one.mutex(name).ttl(LONG).lock().await?;
    let handle = lease.handle();
    lease.release().await?;
    let adopted = two.adopt(&handle).await;
    assert!(matches!(adopted, Err(Error::Stale { by: None, .. })), "{adopted:?}");
    assert_eq!(two.check(&handle).await?, None);
    let next = two.mutex(name).ttl(LONG).lock().await?;
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
    let [one, two] = lab.clients().await?;
    let lease = one.mutex("handle:check").ttl(LONG).renew(false).lock().await?;
    let handle = lease.handle();
    let first = two.check(&handle).await?.expect("it is held");
    assert!(first <= LONG && first > LONG / 2, "{first:?}");
    // Nodes of a quorum got it one after the other, and other ones may answer each time.
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

async fn detached_lease_lives_until_its_ttl(lab: Arc<dyn Harness>) -> Outcome {
    let name = "handle:detached";
    let [one, two] = lab.clients().await?;
    let handle = one.mutex(name).ttl(lab.steady()).lock().await?.detach().await?;
    assert!(two.mutex(name).try_lock().await?.is_none());
    assert!(two.check(&handle).await?.is_some());
    let next = soon("the end of its ttl", two.mutex(name).ttl(LONG).lock()).await??;
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
    let name = "handle:waited";
    let [one, two] = lab.clients().await?;
    let lease = one.mutex(name).ttl(LONG).lock().await?;
    let mut waiter = Waiter::queue(&one, name, two.claim(name).ttl(LONG), 0).await?;
    lease.release().await?;
    let handle = waiter.granted().await?.detach().await?;
    let left = one.check(&handle).await?.expect("it is held");
    assert!(left > LONG / 2, "{left:?}");
    assert_eq!(one.adopt(&handle).await?.release().await?, Released::Released);
    Ok(())
}
