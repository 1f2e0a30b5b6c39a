//! A refused caller learns who has the name, with which note, and how many claims are before it.

use std::sync::Arc;
use std::time::Duration;

use leasehold::error::Held;
use leasehold::{Client, Error, Lease, Mode, TryLockError};

use super::harness::{Harness, LONG, SPAN};
use super::support::{Failure, Outcome, Waiter, soon, until_waiting};

super::cases! {
    refused_try_names_the_holder_and_its_note,
    refused_try_counts_all_claims_in_line: fifo,
    refused_try_shows_a_replaced_note: amend,
    refused_writer_sees_every_reader: shared,
    refused_reader_sees_the_writer: shared,
    refused_claim_for_permits_sees_their_holders: permits,
    refused_try_of_several_names_tells_which_one_is_held,
    wait_that_ended_names_the_holder_and_its_note,
    wait_that_ended_counts_the_claims_before_it: fifo,
    wait_for_several_names_tells_which_one_is_held,
    refusal_becomes_an_error_of_the_library,
}

/// The refusal in an answer that must be one.
fn refused<T>(answer: Result<T, TryLockError>) -> Result<Held, Failure> {
    match answer {
        Ok(_) => Err(Failure::new("granted, although another claim holds")),
        Err(TryLockError::Held(held)) => Ok(*held),
        Err(error) => Err(error.into()),
    }
}

/// Checks that a refusal tells of the one claim of `holder`.
fn assert_names(held: &Held, name: &str, holder: &Client, note: &str) {
    assert_eq!(held.name.as_str(), name);
    let by = held.by.as_ref().map(|by| (by.id(), by.label()));
    assert_eq!(by, Some((holder.holder().id(), holder.holder().label())), "{held:?}");
    assert_eq!((held.note.as_str(), held.claims.len()), (note, 1), "{held:?}");
    let label = holder.holder().label();
    let text = format!("`{name}` is held by `{label}` ({note}); ");
    assert!(held.to_string().starts_with(&text), "{held}");
}

async fn lock(client: &Client, name: &str, note: &str) -> Result<Lease, Error> {
    client.mutex(name).ttl(LONG).note(note).lock().await
}

async fn refused_try_names_the_holder_and_its_note(lab: Arc<dyn Harness>) -> Outcome {
    let name = "refusal:try";
    let [one, two] = lab.clients().await?;
    let lease = lock(&one, name, "settle").await?;
    let held = refused(two.mutex(name).try_lock().await)?;
    assert_names(&held, name, &one, "settle");
    assert_eq!((held.ahead, held.claims[0].fence), (1, lease.fence()));
    // The refused client is the one that holds, too.
    let held = refused(one.mutex(name).try_lock().await)?;
    assert_names(&held, name, &one, "settle");
    lease.release().await?;
    Ok(())
}

async fn refused_try_counts_all_claims_in_line(lab: Arc<dyn Harness>) -> Outcome {
    let name = "refusal:line";
    let [one, two] = lab.clients().await?;
    let lease = lock(&one, name, "settle").await?;
    let request = two.request(name).ttl(LONG).note("waits");
    let mut waiter = Waiter::queue(&one, name, request, 0).await?;
    let held = refused(two.mutex(name).try_lock().await)?;
    assert_names(&held, name, &one, "settle");
    assert_eq!(held.ahead, 2, "the holder and the waiter");
    lease.release().await?;
    waiter.served().await
}

async fn refused_try_shows_a_replaced_note(lab: Arc<dyn Harness>) -> Outcome {
    let name = "refusal:amended";
    let [one, two] = lab.clients().await?;
    let lease = lock(&one, name, "first").await?;
    lease.set_note("second").await?;
    assert_names(&refused(two.mutex(name).try_lock().await)?, name, &one, "second");
    lease.release().await?;
    Ok(())
}

async fn refused_writer_sees_every_reader(lab: Arc<dyn Harness>) -> Outcome {
    let name = "refusal:readers";
    let [one, two] = lab.clients().await?;
    let lock = |client: &Client, note: &str| client.rwlock(name).ttl(LONG).note(note);
    let first = lock(&one, "first").read().await?;
    let second = lock(&two, "second").read().await?;
    let held = refused(two.rwlock(name).try_write().await)?;
    assert_eq!(held.by.as_ref(), Some(one.holder()), "{held:?}");
    assert_eq!((held.note.as_str(), held.ahead), ("first", 2), "{held:?}");
    let notes: Vec<&str> = held.claims.iter().map(|claim| claim.note.as_str()).collect();
    assert_eq!(notes, ["first", "second"]);
    first.release().await?;
    second.release().await?;
    Ok(())
}

async fn refused_reader_sees_the_writer(lab: Arc<dyn Harness>) -> Outcome {
    let name = "refusal:writer";
    let [one, two] = lab.clients().await?;
    let writer = one.rwlock(name).ttl(LONG).note("writes").write().await?;
    assert_names(&refused(two.rwlock(name).try_read().await)?, name, &one, "writes");
    assert_names(&refused(two.rwlock(name).read_within(SPAN).await)?, name, &one, "writes");
    writer.release().await?;
    Ok(())
}

async fn refused_claim_for_permits_sees_their_holders(lab: Arc<dyn Harness>) -> Outcome {
    let name = "refusal:permits";
    let [one, two] = lab.clients().await?;
    let permits = one.semaphore(name, 3).ttl(LONG).note("uploads").acquire_many(2).await?;
    assert_names(
        &refused(two.semaphore(name, 3).try_acquire_many(2).await)?,
        name,
        &one,
        "uploads",
    );
    let waited = two.semaphore(name, 3).acquire_many_within(2, SPAN).await;
    assert_names(&refused(waited)?, name, &one, "uploads");
    permits.release().await?;
    Ok(())
}

async fn refused_try_of_several_names_tells_which_one_is_held(lab: Arc<dyn Harness>) -> Outcome {
    let names = ["refusal:a", "refusal:b", "refusal:c"];
    let [one, two] = lab.clients().await?;
    let lease = lock(&one, names[1], "in between").await?;
    let held = refused(two.mutexes(names).try_lock().await)?;
    assert_names(&held, names[1], &one, "in between");
    lease.release().await?;
    Ok(())
}

async fn wait_that_ended_names_the_holder_and_its_note(lab: Arc<dyn Harness>) -> Outcome {
    let name = "refusal:wait";
    let [one, two] = lab.clients().await?;
    let lease = lock(&one, name, "settle").await?;
    let mutex = two.mutex(name).ttl(LONG);
    let held = refused(soon("the end of the wait", mutex.lock_within(SPAN)).await?)?;
    assert_names(&held, name, &one, "settle");
    assert_eq!(held.ahead, 1);
    assert!(lease.is_held());
    lease.release().await?;
    Ok(())
}

async fn wait_that_ended_counts_the_claims_before_it(lab: Arc<dyn Harness>) -> Outcome {
    let name = "refusal:before";
    let [one, two, three] = lab.clients().await?;
    let lease = lock(&one, name, "settle").await?;
    let mut first = Waiter::queue(&one, name, two.request(name).ttl(LONG), 0).await?;
    let mutex = two.mutex(name).ttl(LONG);
    let waiting = tokio::spawn(async move { mutex.lock_within(SPAN).await });
    until_waiting(&one, name, 2).await?;
    // This one is behind the claim whose time ends.
    let mut last = Waiter::queue(&one, name, three.request(name).ttl(LONG), 2).await?;
    let held = refused(soon("the end of the wait", waiting).await??)?;
    assert_names(&held, name, &one, "settle");
    assert_eq!(held.ahead, 2, "the holder and the first waiter");
    lease.release().await?;
    first.served().await?;
    last.served().await
}

async fn wait_for_several_names_tells_which_one_is_held(lab: Arc<dyn Harness>) -> Outcome {
    let names = ["refusal:x", "refusal:y"];
    let [one, two] = lab.clients().await?;
    let lease = lock(&one, names[1], "in between").await?;
    let many = two.mutexes(names);
    // Long enough for the first answer of a busy store.
    let span = Duration::from_secs(3);
    let held = refused(soon("the end of the wait", many.lock_within(span)).await?)?;
    assert_names(&held, names[1], &one, "in between");
    lease.release().await?;
    Ok(())
}

async fn refusal_becomes_an_error_of_the_library(lab: Arc<dyn Harness>) -> Outcome {
    let name = "refusal:error";
    let [one, two] = lab.clients().await?;
    let lease = lock(&one, name, "settle").await?;
    let asked = async || -> leasehold::Result<Lease> {
        Ok(two.request(name).mode(Mode::Exclusive).try_acquire().await?)
    };
    match asked().await {
        Err(error @ Error::Held(_)) => assert!(error.is_transient(), "{error}"),
        answer => return Err(Failure::new(format!("{answer:?}"))),
    }
    lease.release().await?;
    Ok(())
}
