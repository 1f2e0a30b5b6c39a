//! The line: first come, first served, and a bell wakes a waiter instead of questions.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use leasehold::layer::chaos::{Trouble, Verb};
use leasehold::{Lease, LeaseState, Mode, Released, UnlessHeld};

use super::harness::{Harness, LONG};
use super::support::{Outcome, Waiter, claim, line, soon, until, until_waiting};

super::cases! {
    waiters_are_granted_in_order_of_arrival: fifo,
    released_name_goes_to_the_line_not_to_a_passer_by: fifo,
    release_wakes_the_next_by_its_bell,
    f110_lost_bell_is_repaired_by_the_heartbeat,
    failed_wait_does_not_end_the_waiting,
    late_answer_to_a_heartbeat_does_not_lose_the_lease,
    one_release_wakes_no_herd: fifo,
    f117_order_survives_a_cut_connection: fifo,
    waiter_keeps_its_place_past_its_patience: fifo & ttl_per_claim,
    expiry_of_the_holder_grants_the_first_in_line: fifo & ttl_per_claim,
}

async fn waiters_are_granted_in_order_of_arrival(lab: Arc<dyn Harness>) -> Outcome {
    let name = "order:arrival";
    let client = lab.client().await?;
    let lease = client.mutex(name).ttl(LONG).lock().await?;
    let granted = Arc::new(Mutex::new(Vec::new()));
    let mut waiters = Vec::new();
    for index in 0..6 {
        let (other, granted) = (lab.client().await?, Arc::clone(&granted));
        waiters.push(tokio::spawn(async move {
            let lease = other.mutex(name).ttl(LONG).lock().await?;
            granted.lock().expect("nobody panics here").push((index, lease.fence()));
            lease.release().await
        }));
        until_waiting(&client, name, index + 1).await?;
    }
    let first = lease.fence();
    lease.release().await?;
    for waiter in waiters {
        soon("a grant", waiter).await???;
    }
    let granted = granted.lock().expect("nobody panicked");
    assert!(granted.iter().map(|(index, _)| *index).eq(0..6), "{granted:?}");
    assert!(granted.iter().map(|(_, fence)| *fence).is_sorted_by(|a, b| a < b), "{granted:?}");
    assert!(granted[0].1 > first);
    Ok(())
}

async fn released_name_goes_to_the_line_not_to_a_passer_by(lab: Arc<dyn Harness>) -> Outcome {
    let name = "order:passer-by";
    let [one, two, three] = lab.clients().await?;
    let lease = one.mutex(name).ttl(LONG).lock().await?;
    let mut waiter = Waiter::queue(&one, name, two.request(name).ttl(LONG), 0).await?;
    lease.release().await?;
    assert!(three.mutex(name).try_lock().await.unless_held()?.is_none(), "the line has it already");
    waiter.served().await?;
    Ok(())
}

async fn release_wakes_the_next_by_its_bell(lab: Arc<dyn Harness>) -> Outcome {
    let name = "order:bell";
    let one = lab.client().await?;
    let (two, chaos) = lab.troubled().await?;
    let lease = one.mutex(name).ttl(LONG).lock().await?;
    // Without heartbeats nothing but the bell can bring the waiter back before the ttl.
    chaos.next(Verb::Renew, Trouble::Refuse, u32::MAX);
    let mut waiter = Waiter::queue(&one, name, two.request(name).ttl(LONG), 0).await?;
    assert_eq!(chaos.calls(Verb::Claim), 1, "waiting is not asking");
    lease.release().await?;
    waiter.served().await?;
    assert!(chaos.calls(Verb::Claim) <= 2, "one claim to join, at most one to confirm");
    Ok(())
}

async fn f110_lost_bell_is_repaired_by_the_heartbeat(lab: Arc<dyn Harness>) -> Outcome {
    let name = "order:lost-bell";
    let one = lab.client().await?;
    let (two, chaos) = lab.troubled().await?;
    let lease = one.mutex(name).ttl(LONG).lock().await?;
    chaos.next(Verb::Wait, Trouble::Hang, u32::MAX);
    let mut waiter = Waiter::queue(&one, name, two.request(name).ttl(LONG), 0).await?;
    soon("the wait that hears nothing", chaos.hanging(1)).await?;
    lease.release().await?;
    waiter.served().await?;
    Ok(())
}

async fn failed_wait_does_not_end_the_waiting(lab: Arc<dyn Harness>) -> Outcome {
    let name = "order:failed-wait";
    let one = lab.client().await?;
    let (two, chaos) = lab.troubled().await?;
    let lease = one.mutex(name).ttl(LONG).lock().await?;
    chaos.next(Verb::Wait, Trouble::Refuse, 1);
    let mut waiter = Waiter::start(two.request(name).ttl(LONG));
    until("the waiter to wait again", async || Ok(chaos.calls(Verb::Wait) >= 2)).await?;
    assert!(waiter.is_waiting());
    until_waiting(&one, name, 1).await?;
    lease.release().await?;
    waiter.served().await?;
    Ok(())
}

async fn late_answer_to_a_heartbeat_does_not_lose_the_lease(lab: Arc<dyn Harness>) -> Outcome {
    let name = "order:late-beat";
    let one = lab.client().await?;
    let (two, chaos) = lab.troubled().await?;
    let lease = one.mutex(name).ttl(LONG).lock().await?;
    // The store answers the heartbeat with "in line", and then hands the name over. The answer
    // arrives after the grant, and says nothing about it.
    chaos.next(Verb::Renew, Trouble::HangAfter, 1);
    let mut waiter = Waiter::queue(&one, name, two.request(name).ttl(LONG), 0).await?;
    soon("a heartbeat to hang", chaos.hanging(1)).await?;
    lease.release().await?;
    let lease = waiter.granted().await?;
    chaos.heal();
    // A client sends a renewal only after it has read the answer before it.
    soon("the extension", lease.extend(LONG)).await??;
    assert_eq!(lease.state(), LeaseState::Held);
    assert_eq!(lease.release().await?, Released::Released);
    Ok(())
}

async fn one_release_wakes_no_herd(lab: Arc<dyn Harness>) -> Outcome {
    const WAITERS: usize = 50;
    let name = "order:herd";
    let one = lab.client().await?;
    let (crowd, chaos) = lab.troubled().await?;
    let lease = one.mutex(name).ttl(LONG).lock().await?;
    let (sender, mut granted) = tokio::sync::mpsc::channel::<Lease>(WAITERS);
    let mut waiters = tokio::task::JoinSet::new();
    for _ in 0..WAITERS {
        let (request, sender) = (crowd.request(name).ttl(LONG), sender.clone());
        waiters.spawn(async move {
            let lease = request.acquire().await.expect("a grant in its turn");
            sender.send(lease).await.expect("the case receives every lease");
        });
    }
    until_waiting(&one, name, WAITERS).await?;
    let mut held = lease;
    for waiter in 0..WAITERS {
        let before = chaos.calls(Verb::Claim);
        held.release().await?;
        held = soon("the next grant", granted.recv()).await?.expect("somebody waits");
        let woken = chaos.calls(Verb::Claim) - before;
        assert!(woken <= 2, "release {waiter} woke {woken}");
    }
    Ok(())
}

async fn f117_order_survives_a_cut_connection(lab: Arc<dyn Harness>) -> Outcome {
    let name = "order:cut";
    let one = lab.client().await?;
    let (two, chaos) = lab.troubled().await?;
    let three = lab.client().await?;
    let lease = one.mutex(name).ttl(LONG).lock().await?;
    chaos.next(Verb::Claim, Trouble::LoseAnswer, 1);
    let mut first = Waiter::queue(&one, name, two.request(name).ttl(LONG), 0).await?;
    let mut second = Waiter::queue(&one, name, three.request(name).ttl(LONG), 1).await?;
    let beats = chaos.calls(Verb::Renew);
    chaos.next(Verb::Renew, Trouble::LoseAnswer, 1);
    chaos.next(Verb::Renew, Trouble::Refuse, 1);
    until("two failed heartbeats", async || Ok(chaos.calls(Verb::Renew) >= beats + 3)).await?;
    lease.release().await?;
    let lease = first.granted().await?;
    assert!(second.is_waiting());
    let fence = lease.fence();
    lease.release().await?;
    assert!(second.granted().await?.fence() > fence);
    Ok(())
}

async fn waiter_keeps_its_place_past_its_patience(lab: Arc<dyn Harness>) -> Outcome {
    let name = "order:patience";
    let one = lab.client().await?;
    let (two, chaos) = lab.troubled().await?;
    let three = lab.client().await?;
    let lease = one.mutex(name).ttl(LONG).lock().await?;
    let patience = lab.steady();
    let mut first = Waiter::queue(&one, name, two.request(name).ttl(patience), 0).await?;
    let fence = line(&one, name).await?.waiting[0].fence;
    let mut second = Waiter::queue(&one, name, three.request(name).ttl(LONG), 1).await?;
    let begun = Instant::now();
    until("heartbeats beyond the patience", async || {
        Ok(begun.elapsed() > patience * 3 / 2 && chaos.calls(Verb::Renew) >= 2)
    })
    .await?;
    lease.release().await?;
    let lease = first.granted().await?;
    assert_eq!(lease.fence(), fence, "it never left the line");
    drop(lease);
    second.served().await?;
    Ok(())
}

async fn expiry_of_the_holder_grants_the_first_in_line(lab: Arc<dyn Harness>) -> Outcome {
    let name = "order:expiry";
    let [one, two, three] = lab.clients().await?;
    let engine = lab.engine().await?;
    let dead = claim(name, Mode::Exclusive, lab.steady() * 2)?;
    engine.claim(&dead).await?;
    let mut first = Waiter::queue(&one, name, two.request(name).ttl(LONG), 0).await?;
    let second = Waiter::queue(&one, name, three.request(name).ttl(LONG), 1).await?;
    let lease = first.granted().await?;
    assert!(second.is_waiting());
    assert_eq!(lease.state(), LeaseState::Held);
    Ok(())
}
