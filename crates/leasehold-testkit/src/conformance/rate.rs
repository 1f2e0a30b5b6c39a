//! The rate limiter: never more units than its number in any window of its period.

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::error::{Invalid, Kind};
use leasehold::{Error, Unit};

use super::harness::{Harness, LONG};
use super::support::{Outcome, soon, until_free, until_waiting};

super::cases! {
    rate_is_kept_in_every_window: permits & ttl_per_claim,
    waiting_units_are_granted_when_they_are_due: permits & ttl_per_claim & fifo,
    refused_unit_says_when_the_next_is_due: permits & ttl_per_claim,
    giving_up_uses_no_unit: permits & ttl_per_claim,
    units_outlive_their_client: permits & ttl_per_claim & detach,
    other_rate_is_refused: permits & ttl_per_claim,
    rates_and_periods_that_cannot_be_are_refused: permits,
}

const UNITS: usize = 3;

async fn rate_is_kept_in_every_window(lab: Arc<dyn Harness>) -> Outcome {
    let name = "rate:window";
    let period = lab.steady();
    let mut takers = Vec::new();
    for _ in 0..3 {
        let client = lab.client().await?;
        takers.push(tokio::spawn(async move {
            let limiter = client.rate_limiter(name, UNITS as u32, period);
            let mut taken = Vec::new();
            while taken.len() < 3 {
                let before = Instant::now();
                match limiter.try_acquire().await? {
                    Unit::Taken => taken.push((before, Instant::now())),
                    Unit::DueIn(wait) => tokio::time::sleep(wait.min(period) / 4).await,
                }
            }
            client.close().await?;
            Ok::<_, Error>(taken)
        }));
    }
    let (mut before, mut after) = (Vec::new(), Vec::new());
    for taker in takers {
        for (asked, answered) in soon("a taker's last unit", taker).await??? {
            before.push(asked);
            after.push(answered);
        }
    }
    // Over all clients, the n-th grant was after the n-th question and before the n-th answer.
    before.sort_unstable();
    after.sort_unstable();
    for (asked, answered) in before.iter().zip(&after[UNITS..]) {
        let span = answered.duration_since(*asked);
        assert!(span >= period, "{} units within {span:?} of {period:?}", UNITS + 1);
    }
    Ok(())
}

async fn waiting_units_are_granted_when_they_are_due(lab: Arc<dyn Harness>) -> Outcome {
    let name = "rate:waits";
    let period = lab.steady();
    let client = lab.client().await?;
    let limiter = client.rate_limiter(name, 2, period);
    let begun = Instant::now();
    for _ in 0..5 {
        soon("a unit", limiter.acquire()).await??;
    }
    // Two units at once, two more a period later, and the fifth after another period.
    let took = begun.elapsed();
    assert!(took >= period * 2, "five units in {took:?}, two in {period:?}");
    Ok(())
}

async fn refused_unit_says_when_the_next_is_due(lab: Arc<dyn Harness>) -> Outcome {
    let name = "rate:due";
    let period = lab.steady() * 2;
    let [one, two] = lab.clients().await?;
    let limiter = two.rate_limiter(name, 1, period);
    assert_eq!(one.rate_limiter(name, 1, period).try_acquire().await?, Unit::Taken);
    let Unit::DueIn(wait) = limiter.try_acquire().await? else {
        panic!("there was one");
    };
    // A store that counts in seconds may answer a little more.
    assert!(wait <= period + Duration::from_secs(2), "{wait:?} of {period:?}");
    soon("the unit when it is due", limiter.acquire()).await??;
    Ok(())
}

async fn giving_up_uses_no_unit(lab: Arc<dyn Harness>) -> Outcome {
    let name = "rate:gives-up";
    let period = lab.steady() * 2;
    let [one, two] = lab.clients().await?;
    let limiter = two.rate_limiter(name, 1, period);
    assert_eq!(one.rate_limiter(name, 1, period).try_acquire().await?, Unit::Taken);
    let waited = loop {
        match limiter.acquire_within(Duration::from_millis(1)).await {
            // A busy store is slower than a client waits for its first answer.
            Err(error) if error.is_transient() => {}
            waited => break waited?,
        }
    };
    assert!(matches!(waited, Unit::DueIn(_)));
    let waiting = tokio::spawn({
        let limiter = limiter.clone();
        async move { limiter.acquire().await }
    });
    until_waiting(&one, name, 1).await?;
    waiting.abort();
    until_waiting(&one, name, 0).await?;
    // The unit is gone with its own period, and no other client has taken one.
    until_free(&one, name).await?;
    assert_eq!(limiter.try_acquire().await?, Unit::Taken);
    Ok(())
}

async fn units_outlive_their_client(lab: Arc<dyn Harness>) -> Outcome {
    let name = "rate:outlives";
    let period = lab.steady() * 4;
    let [one, two] = lab.clients().await?;
    let begun = Instant::now();
    let limiter = one.rate_limiter(name, 1, period);
    assert_eq!(limiter.try_acquire().await?, Unit::Taken);
    drop(limiter);
    one.close().await?;
    drop(one);
    let limiter = two.rate_limiter(name, 1, period);
    let asked = limiter.try_acquire().await?;
    assert!(matches!(asked, Unit::DueIn(_)) || begun.elapsed() >= period, "{asked:?}");
    soon("the next unit", limiter.acquire()).await??;
    assert!(begun.elapsed() >= period, "{:?}", begun.elapsed());
    Ok(())
}

async fn other_rate_is_refused(lab: Arc<dyn Harness>) -> Outcome {
    let name = "rate:mismatch";
    let client = lab.client().await?;
    assert_eq!(client.rate_limiter(name, 2, lab.steady()).try_acquire().await?, Unit::Taken);
    let asked = client.rate_limiter(name, 3, lab.steady()).try_acquire().await;
    let kinds = match &asked {
        Err(Error::Mismatch { in_force, asked, .. }) => Some((*in_force, *asked)),
        _ => None,
    };
    assert_eq!(kinds, Some((Kind::Rate { of: 2 }, Kind::Rate { of: 3 })), "{asked:?}");
    Ok(())
}

async fn rates_and_periods_that_cannot_be_are_refused(lab: Arc<dyn Harness>) -> Outcome {
    let name = "rate:bad";
    let client = lab.client().await?;
    for units in [0, 5_001, u32::MAX] {
        let asked = client.rate_limiter(name, units, LONG).acquire().await;
        assert!(matches!(asked, Err(Error::Invalid(Invalid::Rate { .. }))), "{asked:?}");
    }
    for period in [Duration::ZERO, Duration::from_nanos(1), Duration::from_millis(99)] {
        let asked = client.rate_limiter(name, 1, period).try_acquire().await;
        let short = matches!(asked, Err(Error::Invalid(Invalid::PeriodTooShort { .. })));
        assert!(short, "{asked:?}");
    }
    let asked = client.rate_limiter(name, 1, Duration::from_secs(86_401)).try_acquire().await;
    assert!(matches!(asked, Err(Error::Invalid(Invalid::PeriodTooLong { .. }))), "{asked:?}");
    assert!(client.line(name).await?.is_none());
    Ok(())
}
