//! Clients whose clocks are slower than the store's: cases that the margin covers, and one beyond
//! it.
//!
//! The holder's renewals do not reach the store, so only its own clock makes it stop.

use std::sync::Arc;

use leasehold::clock::{Clock, Moment, Sleep, SystemClock, VirtualClock};
use leasehold::fencing::HighestSeen;
use leasehold::layer::chaos::{Trouble, Verb};
use leasehold::{Client, LeaseState, LostCause, Released};

use super::harness::{Harness, LONG};
use super::support::{Outcome, Waiter, soon};

super::cases! {
    f43_clock_that_is_slow_within_the_margin_loses_before_the_next_grant: ttl_per_claim,
    f43_clock_that_stands_still_overlaps_and_fences_tell_who_is_later: ttl_per_claim,
}

/// A clock may be this much slower. A lease ends for its holder one part in a hundred, and two
/// milliseconds, before it ends in the store.
const SLOW_PER_MILLE: u64 = 9;

/// The machine's clock, but slow.
#[derive(Debug)]
struct SlowClock {
    begun: Moment,
}

impl SlowClock {
    fn new() -> Self {
        Self { begun: SystemClock.now() }
    }

    /// The time on the machine's clock when this one shows `at`, or a little later.
    fn truly(&self, at: Moment) -> Moment {
        let nanos = u128::from(at.as_nanos().saturating_sub(self.begun.as_nanos()));
        let nanos = nanos * 1_000 / u128::from(1_000 - SLOW_PER_MILLE) + 1;
        let nanos = u64::try_from(nanos).unwrap_or(u64::MAX);
        Moment::from_nanos(self.begun.as_nanos().saturating_add(nanos))
    }
}

impl Clock for SlowClock {
    fn now(&self) -> Moment {
        let passed = SystemClock.now().since(self.begun);
        self.begun + passed * (1_000 - SLOW_PER_MILLE as u32) / 1_000
    }

    fn sleep_until(&self, at: Moment) -> Sleep {
        SystemClock.sleep_until(self.truly(at))
    }

    fn alarm(&self, at: Moment) -> Sleep {
        SystemClock.alarm(self.truly(at))
    }
}

async fn f43_clock_that_is_slow_within_the_margin_loses_before_the_next_grant(
    lab: Arc<dyn Harness>,
) -> Outcome {
    let name = "slow:within";
    let clock = Arc::new(SlowClock::new());
    let (slow, chaos) = lab.troubled_with(Client::builder().clock(clock)).await?;
    let other = lab.client().await?;
    chaos.next(Verb::Renew, Trouble::Refuse, u32::MAX);
    let lease = slow.mutex(name).ttl(lab.steady()).lock().await?;
    let mut waiter = Waiter::start(other.request(name).ttl(LONG));
    let next = waiter.granted().await?;
    assert_eq!(lease.state(), LeaseState::Lost, "two hold at once");
    assert!(next.fence() > lease.fence());
    assert_eq!(soon("the loss", lease.lost()).await?, LostCause::Unreachable);
    assert_eq!(next.release().await?, Released::Released);
    chaos.heal();
    Ok(())
}

/// The slowest possible clock. Here two clients do hold at once, for as long as the clock stands.
/// Only a resource that checks fences is protected.
async fn f43_clock_that_stands_still_overlaps_and_fences_tell_who_is_later(
    lab: Arc<dyn Harness>,
) -> Outcome {
    let (name, ttl) = ("slow:beyond", lab.steady());
    let clock = Arc::new(VirtualClock::new());
    let builder = Client::builder().clock(Arc::clone(&clock) as Arc<dyn Clock>);
    let (slow, other) = (lab.client_with(builder).await?, lab.client().await?);
    let guard = HighestSeen::new(1);
    let lease = slow.mutex(name).ttl(ttl).lock().await?;
    drop(guard.enter("resource", lease.fence()).await?);
    let mut waiter = Waiter::start(other.request(name).ttl(LONG));
    let next = waiter.granted().await?;
    assert!(lease.is_held(), "it cannot know");
    assert!(next.is_held() && next.fence() > lease.fence());
    drop(guard.enter("resource", next.fence()).await?);
    assert!(guard.enter("resource", lease.fence()).await.is_err(), "it is not let in again");
    clock.advance(ttl);
    assert_eq!(lease.state(), LeaseState::Lost);
    drop(lease);
    assert!(next.is_held(), "and does no harm to who is");
    assert_eq!(next.release().await?, Released::Released);
    Ok(())
}
