//! Counting, and the questions an operator asks of a store.

use std::sync::Arc;

use leasehold::UnlessHeld;
use leasehold::claim::{Mode, Standing};
use leasehold::engine::Level;

use super::Can;
use super::harness::{Harness, LONG};
use super::support::{Outcome, Waiter, claim, soon, until, until_free};

super::cases! {
    client_counts_what_it_did,
    totals_add_up_over_clients: tally,
    totals_count_what_is_in_line_now: tally,
    totals_count_expiries_of_dead_holders: tally & ttl_per_claim,
    examination_answers,
    installing_twice_is_harmless,
    store_has_one_id_for_all_its_clients,
}

async fn client_counts_what_it_did(lab: Arc<dyn Harness>) -> Outcome {
    let name = "totals:client";
    let [one, two] = lab.clients().await?;
    let lease = one.mutex(name).ttl(LONG).lock().await?;
    assert!(two.mutex(name).try_lock().await.unless_held()?.is_none());
    let mut waiter = Waiter::queue(&one, name, two.request(name).ttl(LONG), 0).await?;
    // The store knows of the wait a moment before its client does.
    until("the wait to be counted", async || Ok(two.stats().waiting == 1)).await?;
    assert_eq!(one.stats().active, 1);
    lease.release().await?;
    let lease = waiter.granted().await?;
    assert_eq!((two.stats().active, two.stats().waiting), (1, 0));
    lease.release().await?;
    let (one, two) = (one.stats(), two.stats());
    assert_eq!((one.acquired, one.released, one.contended, one.lost), (1, 1, 0, 0));
    assert_eq!((two.acquired, two.released, two.contended, two.lost), (1, 1, 2, 0));
    assert_eq!((one.active, two.active), (0, 0));
    Ok(())
}

async fn totals_add_up_over_clients(lab: Arc<dyn Harness>) -> Outcome {
    let [one, two, three] = lab.clients().await?;
    assert_eq!(three.admin().store_stats().await?, leasehold::engine::Totals::default());
    for _ in 0..3 {
        one.mutex("totals:sum").lock().await?.release().await?;
    }
    let lease = two.mutex("totals:sum").ttl(LONG).lock().await?;
    assert!(one.mutex("totals:sum").try_lock().await.unless_held()?.is_none());
    drop(lease);
    soon("the close", one.close()).await??;
    soon("the close", two.close()).await??;
    let (sums, one, two) = (three.admin().store_stats().await?, one.stats(), two.stats());
    assert_eq!((one.acquired, two.acquired), (3, 1));
    assert_eq!(sums.counts.acquired, 4);
    assert_eq!(sums.counts.released, 4);
    assert_eq!(sums.counts.contended, 1);
    assert_eq!((sums.counts.lost, sums.counts.expired), (0, 0));
    assert_eq!(three.admin().store_stats().await?, sums, "asking adds nothing");
    Ok(())
}

async fn totals_count_what_is_in_line_now(lab: Arc<dyn Harness>) -> Outcome {
    let [one, two] = lab.clients().await?;
    let _first = one.mutex("totals:now:a").ttl(LONG).lock().await?;
    let second = one.mutex("totals:now:b").ttl(LONG).lock().await?;
    let request = two.request("totals:now:b").ttl(LONG);
    let waiter = Waiter::queue(&one, "totals:now:b", request, 0).await?;
    let sums = two.admin().store_stats().await?;
    assert_eq!((sums.active, sums.waiting), (2, 1));
    drop(waiter);
    second.release().await?;
    until_free(&one, "totals:now:b").await?;
    let sums = two.admin().store_stats().await?;
    assert_eq!((sums.active, sums.waiting), (1, 0));
    Ok(())
}

async fn totals_count_expiries_of_dead_holders(lab: Arc<dyn Harness>) -> Outcome {
    let name = "totals:expired";
    let (client, engine) = (lab.client().await?, lab.engine().await?);
    let asked = claim(name, Mode::Exclusive, lab.brief())?;
    assert!(matches!(engine.claim(&asked).await?, Standing::Held { .. }));
    let lease = soon("a grant", client.mutex(name).ttl(LONG).lock()).await??;
    assert_eq!(client.admin().store_stats().await?.counts.expired, 1);
    lease.release().await?;
    assert_eq!(client.admin().store_stats().await?.counts.expired, 1, "each is counted once");
    Ok(())
}

async fn examination_answers(lab: Arc<dyn Harness>) -> Outcome {
    let client = lab.client().await?;
    let findings = client.admin().examine().await?;
    assert!(!findings.is_empty(), "an engine has something to say about its store");
    let trial: Vec<_> = findings.iter().filter(|finding| finding.subject == "trial").collect();
    assert!(matches!(trial[..], [one] if one.level == Level::Good), "{trial:?}");
    for finding in findings {
        assert!(!finding.subject.is_empty() && !finding.found.is_empty(), "{finding:?}");
        let good = finding.level == Level::Good;
        assert!(good || !finding.advice.is_empty(), "no advice for {finding:?}");
    }
    Ok(())
}

async fn installing_twice_is_harmless(lab: Arc<dyn Harness>) -> Outcome {
    let [one, two] = lab.clients().await?;
    one.admin().install().await?;
    let lease = one.mutex("totals:install").ttl(LONG).lock().await?;
    one.admin().install().await?;
    two.admin().install().await?;
    assert!(two.mutex("totals:install").try_lock().await.unless_held()?.is_none());
    assert!(lease.is_held());
    let fence = lease.fence();
    lease.release().await?;
    two.admin().install().await?;
    assert!(two.mutex("totals:install").lock().await?.fence() > fence);
    Ok(())
}

async fn store_has_one_id_for_all_its_clients(lab: Arc<dyn Harness>) -> Outcome {
    let [one, two] = lab.clients().await?;
    assert_eq!(one.info().store_id, two.info().store_id);
    assert_eq!(Can::of(one.info(), one.parts()), Can::of(two.info(), two.parts()));
    assert_ne!(one.holder(), two.holder());
    let other = leasehold::memory::Memory::new().client()?;
    assert_ne!(one.info().store_id, other.info().store_id);
    Ok(())
}
