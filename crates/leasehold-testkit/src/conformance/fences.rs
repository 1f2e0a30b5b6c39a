//! Fences: unique, and rising in the order of grants, whatever ended the lease before.

use std::sync::Arc;
use std::sync::Mutex;

use leasehold::claim::{Mode, Standing};
use leasehold::engine::Engine;
use leasehold::{Client, UnlessHeld};

use super::harness::{Harness, LONG};
use super::support::{Outcome, claim, soon, until_free};

super::cases! {
    fences_rise_across_releases,
    fences_rise_across_expiry: ttl_per_claim,
    fences_rise_across_eviction: evict,
    fences_rise_across_connections,
    contended_fences_are_unique_and_rise_with_the_grants,
    refused_claims_do_not_lower_fences,
    repeated_claim_keeps_its_fence,
    claim_repeated_elsewhere_keeps_its_fence: detach,
}

async fn fences_rise_across_releases(lab: Arc<dyn Harness>) -> Outcome {
    let [one, two] = lab.clients().await?;
    let mut last = 0;
    for round in 0..10 {
        let client = if round % 2 == 0 { &one } else { &two };
        let lease = client.mutex("fences:release").lock().await?;
        assert!(lease.fence() > last, "{} after {last}", lease.fence());
        last = lease.fence().as_u64();
        lease.release().await?;
    }
    Ok(())
}

async fn fences_rise_across_expiry(lab: Arc<dyn Harness>) -> Outcome {
    let name = "fences:expiry";
    let (client, engine) = (lab.client().await?, lab.engine().await?);
    let mut last = 0;
    for _ in 0..2 {
        let asked = claim(name, Mode::Exclusive, lab.brief())?;
        let Standing::Held { fence, .. } = engine.claim(&asked).await? else { panic!("free") };
        assert!(fence > last, "{fence} after {last}");
        last = fence;
        until_free(&client, name).await?;
    }
    assert!(client.mutex(name).lock().await?.fence() > last);
    Ok(())
}

async fn fences_rise_across_eviction(lab: Arc<dyn Harness>) -> Outcome {
    let name = "fences:eviction";
    let [one, two] = lab.clients().await?;
    let mut last = 0;
    let mut evicted = Vec::new();
    for _ in 0..3 {
        let lease = one.mutex(name).ttl(LONG).try_lock().await.unless_held()?.expect("it is free");
        assert!(lease.fence() > last, "{} after {last}", lease.fence());
        last = lease.fence().as_u64();
        assert_eq!(two.admin().force_release(name, "a test").await?, [one.holder().clone()]);
        evicted.push(lease);
    }
    assert!(two.mutex(name).lock().await?.fence() > last);
    Ok(())
}

async fn fences_rise_across_connections(lab: Arc<dyn Harness>) -> Outcome {
    let mut last = 0;
    for _ in 0..4 {
        let client = lab.client().await?;
        let lease = client.mutex("fences:connection").lock().await?;
        assert!(lease.fence() > last, "{} after {last}", lease.fence());
        last = lease.fence().as_u64();
        client.close().await?;
    }
    Ok(())
}

async fn contended_fences_are_unique_and_rise_with_the_grants(lab: Arc<dyn Harness>) -> Outcome {
    let granted = Arc::new(Mutex::new(Vec::new()));
    let mut contenders = Vec::new();
    for _ in 0..8 {
        let (client, granted) = (lab.client().await?, Arc::clone(&granted));
        contenders.push(tokio::spawn(async move {
            for _ in 0..50 {
                let lease = client.mutex("fences:contended").ttl(LONG).lock().await?;
                granted.lock().expect("nobody panics here").push(lease.fence());
                lease.release().await?;
            }
            client.close().await
        }));
    }
    for contender in contenders {
        soon("a contender's last lease", contender).await???;
    }
    let granted = granted.lock().expect("nobody panicked");
    assert_eq!(granted.len(), 400);
    assert!(granted.is_sorted_by(|one, next| one < next), "{granted:?}");
    Ok(())
}

async fn refused_claims_do_not_lower_fences(lab: Arc<dyn Harness>) -> Outcome {
    let name = "fences:refused";
    let [one, two] = lab.clients().await?;
    let lease = one.mutex(name).ttl(LONG).lock().await?;
    for _ in 0..5 {
        assert!(two.mutex(name).try_lock().await.unless_held()?.is_none());
    }
    let fence = lease.fence();
    lease.release().await?;
    assert!(two.mutex(name).lock().await?.fence() > fence);
    Ok(())
}

async fn repeated_claim_keeps_its_fence(lab: Arc<dyn Harness>) -> Outcome {
    let (client, engine) = (lab.client().await?, lab.engine().await?);
    repeated(&client, "fences:repeated", [&engine, &engine]).await
}

async fn claim_repeated_elsewhere_keeps_its_fence(lab: Arc<dyn Harness>) -> Outcome {
    let (client, engine, other) = (lab.client().await?, lab.engine().await?, lab.engine().await?);
    repeated(&client, "fences:elsewhere", [&engine, &other]).await
}

async fn repeated(client: &Client, name: &str, [one, two]: [&Arc<dyn Engine>; 2]) -> Outcome {
    let asked = claim(name, Mode::Exclusive, LONG)?;
    let Standing::Held { fence, .. } = one.claim(&asked).await? else { panic!("free") };
    let again = two.claim(&asked).await?;
    assert!(matches!(again, Standing::Held { fence: same, .. } if same == fence), "{again:?}");
    let line = super::support::line(client, name).await?;
    assert_eq!((line.held.len(), line.waiting.len()), (1, 0));
    one.release(&[asked.key]).await?;
    assert!(client.line(name).await?.is_none());
    Ok(())
}
