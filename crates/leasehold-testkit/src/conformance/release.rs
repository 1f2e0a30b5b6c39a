//! Giving back: the result of a release, who may do it, and that drop and close do it too.

use std::sync::Arc;

use leasehold::claim::{ClaimKey, Mode, Standing, Token};
use leasehold::{Error, LeaseState, LockOptions, Name, Released, UnlessHeld};

use super::harness::{Harness, LONG};
use super::support::{Outcome, Waiter, claim, line, renewal, soon, until_free, until_waiting};

super::cases! {
    release_says_released,
    release_after_expiry_says_so: ttl_per_claim,
    release_after_expiry_names_the_next_holder: ttl_per_claim,
    second_release_changes_nothing,
    release_with_a_wrong_token_changes_nothing,
    renewal_with_a_wrong_token_changes_nothing,
    token_of_one_name_opens_no_other,
    several_claims_are_released_in_one_exchange,
    dropped_lease_is_released,
    dropped_client_releases_nothing_it_still_holds,
    close_releases_what_is_held_and_what_waits,
    closed_client_refuses_claims,
    with_releases_after_the_work,
    with_stops_the_work_when_the_lease_is_lost: ttl_per_claim,
}

async fn release_says_released(lab: Arc<dyn Harness>) -> Outcome {
    let client = lab.client().await?;
    let lease = client.mutex("release:plain").ttl(LONG).lock().await?;
    assert_eq!(client.stats().active, 1);
    assert_eq!(lease.release().await?, Released::Released);
    assert_eq!((client.stats().active, client.stats().released), (0, 1));
    assert!(client.line("release:plain").await?.is_none());
    Ok(())
}

async fn release_after_expiry_says_so(lab: Arc<dyn Harness>) -> Outcome {
    let client = lab.client().await?;
    let lease = client
        .mutex("release:late")
        .ttl(lab.brief())
        .options(LockOptions::new().renew(false))
        .lock()
        .await?;
    soon("the loss", lease.lost()).await?;
    until_free(&client, "release:late").await?;
    assert_eq!(lease.release().await?, Released::AlreadyExpired);
    Ok(())
}

async fn release_after_expiry_names_the_next_holder(lab: Arc<dyn Harness>) -> Outcome {
    let name = "release:taken";
    let [one, two] = lab.clients().await?;
    let lease =
        one.mutex(name).ttl(lab.brief()).options(LockOptions::new().renew(false)).lock().await?;
    let next = soon("a grant", two.mutex(name).ttl(LONG).lock()).await??;
    assert_eq!(lease.state(), LeaseState::Lost);
    assert_eq!(lease.release().await?, Released::TakenBy(two.holder().clone()));
    assert!(next.is_held());
    assert_eq!(next.release().await?, Released::Released);
    Ok(())
}

async fn second_release_changes_nothing(lab: Arc<dyn Harness>) -> Outcome {
    let name = "release:second";
    let (client, engine) = (lab.client().await?, lab.engine().await?);
    let asked = claim(name, Mode::Exclusive, LONG)?;
    assert!(matches!(engine.claim(&asked).await?, Standing::Held { .. }));
    let keys = [asked.key];
    assert_eq!(engine.release(&keys).await?, [Released::Released]);
    assert_eq!(engine.release(&keys).await?, [Released::AlreadyExpired]);
    let next = client.mutex(name).ttl(LONG).try_lock().await.unless_held()?.expect("it is free");
    assert_eq!(engine.release(&keys).await?, [Released::TakenBy(client.holder().clone())]);
    assert_eq!(line(&client, name).await?.held[0].fence, next.fence());
    assert_eq!(next.release().await?, Released::Released);
    Ok(())
}

async fn release_with_a_wrong_token_changes_nothing(lab: Arc<dyn Harness>) -> Outcome {
    let name = "release:wrong";
    let (client, engine) = (lab.client().await?, lab.engine().await?);
    let lease = client.mutex(name).ttl(LONG).lock().await?;
    let waiter = Waiter::queue(&client, name, client.request(name).ttl(LONG), 0).await?;
    let wrong = ClaimKey { name: Name::new(name)?, token: Token::random() };
    assert_eq!(engine.release(&[wrong]).await?, [Released::TakenBy(client.holder().clone())]);
    let seen = line(&client, name).await?;
    assert_eq!((seen.held.len(), seen.waiting.len()), (1, 1));
    assert!(waiter.is_waiting());
    drop(waiter);
    assert_eq!(lease.release().await?, Released::Released);
    Ok(())
}

async fn renewal_with_a_wrong_token_changes_nothing(lab: Arc<dyn Harness>) -> Outcome {
    let name = "release:wrong-renewal";
    let (client, engine) = (lab.client().await?, lab.engine().await?);
    let lease = client.mutex(name).ttl(LONG).lock().await?;
    let stranger = claim(name, Mode::Exclusive, LONG * 2)?;
    let answers = engine.renew(&[renewal(&stranger)]).await?;
    let [Ok(Standing::Out { by: Some(by), .. })] = answers.as_slice() else {
        panic!("renewed to {answers:?}");
    };
    assert_eq!(by, client.holder());
    let seen = line(&client, name).await?;
    assert!(seen.held[0].remaining <= LONG, "{seen:?}");
    assert_eq!(lease.release().await?, Released::Released);
    Ok(())
}

async fn token_of_one_name_opens_no_other(lab: Arc<dyn Harness>) -> Outcome {
    let engine = lab.engine().await?;
    let one = claim("release:one", Mode::Exclusive, LONG)?;
    let two = claim("release:two", Mode::Exclusive, LONG)?;
    for asked in [&one, &two] {
        assert!(matches!(engine.claim(asked).await?, Standing::Held { .. }));
    }
    let crossed = ClaimKey { name: two.key.name.clone(), token: one.key.token };
    assert_eq!(engine.release(&[crossed]).await?, [Released::TakenBy(two.holder.clone())]);
    let both = [one.key, two.key];
    assert_eq!(engine.release(&both).await?, [Released::Released, Released::Released]);
    Ok(())
}

async fn several_claims_are_released_in_one_exchange(lab: Arc<dyn Harness>) -> Outcome {
    let engine = lab.engine().await?;
    let mut keys = Vec::new();
    for index in 0..5 {
        let asked = claim(&format!("release:batch:{index}"), Mode::Exclusive, LONG)?;
        assert!(matches!(engine.claim(&asked).await?, Standing::Held { .. }));
        keys.push(asked.key);
    }
    engine.release(&keys[2..3]).await?;
    let mut expected = vec![Released::Released; 5];
    expected[2] = Released::AlreadyExpired;
    assert_eq!(engine.release(&keys).await?, expected, "an answer for each, in order");
    assert!(engine.release(&[]).await?.is_empty());
    assert!(engine.renew(&[]).await?.is_empty());
    Ok(())
}

async fn dropped_lease_is_released(lab: Arc<dyn Harness>) -> Outcome {
    let name = "release:dropped";
    let [one, two] = lab.clients().await?;
    let lease = one.mutex(name).ttl(LONG).lock().await?;
    let fence = lease.fence();
    let mut waiter = Waiter::queue(&two, name, two.request(name).ttl(LONG), 0).await?;
    drop(lease);
    let next = waiter.granted().await?;
    assert!(next.fence() > fence);
    drop((next, two));
    until_free(&one, name).await?;
    assert_eq!(one.stats().released, 1);
    Ok(())
}

async fn dropped_client_releases_nothing_it_still_holds(lab: Arc<dyn Harness>) -> Outcome {
    let name = "release:dropped-client";
    let [one, two] = lab.clients().await?;
    let lease = one.mutex(name).ttl(lab.steady()).lock().await?;
    drop(one);
    let before = lease.deadline();
    super::support::until("a renewal", async || Ok(lease.deadline() > before)).await?;
    assert!(
        two.mutex(name).try_lock().await.unless_held()?.is_none(),
        "a lease keeps its client alive"
    );
    assert_eq!(lease.release().await?, Released::Released);
    Ok(())
}

async fn close_releases_what_is_held_and_what_waits(lab: Arc<dyn Harness>) -> Outcome {
    let [one, two] = lab.clients().await?;
    let held = one.mutex("release:close:held").ttl(LONG).lock().await?;
    let other = two.mutex("release:close:waited").ttl(LONG).lock().await?;
    let request = one.request("release:close:waited").ttl(LONG);
    let waiter = Waiter::queue(&two, "release:close:waited", request, 0).await?;
    soon("the close", one.close()).await??;
    assert!(two.line("release:close:held").await?.is_none(), "the store knows");
    assert_eq!(line(&two, "release:close:waited").await?.waiting.len(), 0);
    assert_eq!(held.state(), LeaseState::Lost);
    assert_eq!(soon("the loss", held.lost()).await?, leasehold::LostCause::Closed);
    assert!(matches!(waiter.ended().await?, Err(Error::Closed)));
    assert!(other.is_held());
    Ok(())
}

async fn closed_client_refuses_claims(lab: Arc<dyn Harness>) -> Outcome {
    let [one, two] = lab.clients().await?;
    soon("the close", one.close()).await??;
    assert!(matches!(one.mutex("release:closed").lock().await, Err(Error::Closed)));
    assert!(matches!(
        one.mutex("release:closed").try_lock().await.unless_held(),
        Err(Error::Closed)
    ));
    assert!(two.line("release:closed").await?.is_none());
    soon("a second close", one.close()).await??;
    assert!(two.mutex("release:closed").try_lock().await.unless_held()?.is_some(), "others go on");
    Ok(())
}

async fn with_releases_after_the_work(lab: Arc<dyn Harness>) -> Outcome {
    let name = "release:with";
    let [one, two] = lab.clients().await?;
    let fence = one
        .with(name, async |lease| {
            assert!(two.mutex(name).try_lock().await.unless_held().expect("an answer").is_none());
            lease.fence()
        })
        .await?;
    assert!(two.mutex(name).try_lock().await.unless_held()?.expect("it is free").fence() > fence);
    Ok(())
}

async fn with_stops_the_work_when_the_lease_is_lost(lab: Arc<dyn Harness>) -> Outcome {
    let name = "release:with-lost";
    let [one, two] = lab.clients().await?;
    let mutex = one.mutex(name).ttl(lab.brief()).options(LockOptions::new().renew(false));
    let worked = mutex.with(async |_| std::future::pending::<()>().await);
    let worked = soon("the end of the work", worked).await?;
    assert!(matches!(worked, Err(Error::Lost { .. })), "{worked:?}");
    until_waiting(&two, name, 0).await?;
    until_free(&two, name).await
}
