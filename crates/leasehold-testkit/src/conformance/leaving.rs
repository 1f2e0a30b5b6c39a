//! A client that gave up a wait: its own old claim never keeps it from a name.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::layer::chaos::{Trouble, Verb};
use leasehold::{Client, Released, UnlessHeld};

use super::harness::Harness;
use super::support::{Failure, Outcome, soon, until_free, until_waiting};

super::cases! {
    try_lock_after_own_given_up_wait_is_granted,
    try_lock_after_own_cancelled_wait_is_granted,
    try_lock_after_own_dropped_lease_is_granted,
    given_up_wait_has_left_the_line_when_it_is_answered,
    try_lock_is_answered_although_an_old_claim_cannot_leave,
}

/// An old claim that leaves a moment too late is found in one of these.
const ROUNDS: usize = 50;

/// How long a client that gave up waits until its claim has left.
const FIRST_ANSWER: Duration = Duration::from_millis(250);

/// Long enough for a place in line on most stores, and too short for a grant.
const BRIEF_WAIT: Duration = Duration::from_millis(5);

/// Counts the rounds in which the client's own old claim left in time.
#[derive(Default)]
struct Rounds {
    in_time: usize,
}

impl Rounds {
    /// Takes the name, which only an old claim of the client may keep from it, and gives it back.
    async fn take_at_once(&mut self, client: &Client, name: &str, ttl: Duration) -> Outcome {
        let asked_at = Instant::now();
        match client.mutex(name).ttl(ttl).try_lock().await.unless_held()? {
            Some(lease) => {
                self.in_time += 1;
                assert_eq!(lease.release().await?, Released::Released);
                Ok(())
            }
            // The store was slower than the client waits for it: the claim leaves later.
            None if asked_at.elapsed() >= FIRST_ANSWER => until_free(client, name).await,
            None => Err(Failure::new("refused by its own claim")),
        }
    }

    fn end(self) {
        assert!(self.in_time > 0, "the store never answered in time");
    }
}

/// Waits briefly for a name that is held. False if the store was slower than the client waits for
/// its first answer.
async fn wait_in_vain(client: &Client, name: &str, ttl: Duration) -> Result<bool, Failure> {
    let begun = Instant::now();
    match client.mutex(name).ttl(ttl).lock_within(BRIEF_WAIT).await.unless_held() {
        Ok(None) => Ok(true),
        Ok(Some(_)) => Err(Failure::new("granted, although another claim holds")),
        Err(error) if error.is_transient() && begun.elapsed() >= FIRST_ANSWER => Ok(false),
        Err(error) => Err(error.into()),
    }
}

async fn try_lock_after_own_given_up_wait_is_granted(lab: Arc<dyn Harness>) -> Outcome {
    let name = "leaving:given-up";
    let client = lab.client().await?;
    let ttl = lab.long().await?;
    let mut rounds = Rounds::default();
    for _ in 0..ROUNDS {
        let held = client.mutex(name).ttl(ttl).lock().await?;
        let in_time = soon("the end of the wait", wait_in_vain(&client, name, ttl)).await??;
        assert_eq!(held.release().await?, Released::Released);
        if in_time {
            rounds.take_at_once(&client, name, ttl).await?;
        } else {
            until_free(&client, name).await?;
        }
    }
    rounds.end();
    Ok(())
}

async fn try_lock_after_own_cancelled_wait_is_granted(lab: Arc<dyn Harness>) -> Outcome {
    let name = "leaving:cancelled";
    let [client, other] = lab.clients().await?;
    let ttl = lab.long().await?;
    let mut rounds = Rounds::default();
    for _ in 0..ROUNDS {
        let held = client.mutex(name).ttl(ttl).lock().await?;
        {
            let mutex = client.mutex(name).ttl(ttl);
            let mut wait = pin!(mutex.lock());
            tokio::select! {
                ended = &mut wait => panic!("the name is held: {ended:?}"),
                waits = until_waiting(&other, name, 1) => waits?,
            }
        }
        assert_eq!(held.release().await?, Released::Released);
        rounds.take_at_once(&client, name, ttl).await?;
    }
    rounds.end();
    Ok(())
}

async fn try_lock_after_own_dropped_lease_is_granted(lab: Arc<dyn Harness>) -> Outcome {
    let name = "leaving:dropped";
    let client = lab.client().await?;
    let ttl = lab.long().await?;
    let mut rounds = Rounds::default();
    for _ in 0..ROUNDS {
        drop(client.mutex(name).ttl(ttl).lock().await?);
        rounds.take_at_once(&client, name, ttl).await?;
    }
    rounds.end();
    Ok(())
}

async fn given_up_wait_has_left_the_line_when_it_is_answered(lab: Arc<dyn Harness>) -> Outcome {
    let name = "leaving:left";
    let [client, other] = lab.clients().await?;
    let ttl = lab.long().await?;
    let held = other.mutex(name).ttl(ttl).lock().await?;
    let mut looked = 0;
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        let in_time = wait_in_vain(&client, name, ttl).await?;
        // The client does not wait for a slower store: then the claim leaves later.
        if in_time && begun.elapsed() < FIRST_ANSWER {
            let line = super::support::line(&other, name).await?;
            assert_eq!(line.waiting.len(), 0, "it answered before its claim had left");
            looked += 1;
        } else {
            until_waiting(&other, name, 0).await?;
        }
    }
    assert!(looked > 0, "the store never answered in time");
    assert_eq!(held.release().await?, Released::Released);
    Ok(())
}

async fn try_lock_is_answered_although_an_old_claim_cannot_leave(lab: Arc<dyn Harness>) -> Outcome {
    let name = "leaving:stuck";
    let (client, chaos) = lab.troubled().await?;
    let other = lab.client().await?;
    let ttl = lab.long().await?;
    let held = client.mutex(name).ttl(ttl).lock().await?;
    chaos.next(Verb::Release, Trouble::Hang, 1);
    drop(held);
    soon("the release to hang", chaos.hanging(1)).await?;
    let refused = soon("an answer", client.mutex(name).ttl(ttl).try_lock()).await?.unless_held()?;
    assert!(refused.is_none(), "its old lease is still there");
    chaos.heal();
    until_free(&other, name).await
}
