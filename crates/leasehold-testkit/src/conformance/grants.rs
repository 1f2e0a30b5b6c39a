//! The leases as their holders saw them, and a check that exclusive leases allow that.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use leasehold::clock::{Clock as _, Moment, SystemClock};
use leasehold::{Lease, Released, Request};

use super::support::{Failure, Outcome};

/// The pause before asking again when the store could not be asked.
const ASK_AGAIN: Duration = Duration::from_millis(100);

/// One lease, as its holder saw it. The machine's clock is the same in all processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Grant {
    fence: u64,
    /// Before the holder asked.
    asked: Moment,
    /// After the lease was returned.
    granted: Moment,
    /// When it stopped being valid for its holder.
    ended: Moment,
}

impl Grant {
    pub(super) fn fence(&self) -> u64 {
        self.fence
    }
}

/// A lease that becomes a [`Grant`] when it is given back.
#[derive(Debug)]
pub(super) struct Holding {
    lease: Lease,
    asked: Moment,
    granted: Moment,
}

impl Holding {
    /// Waits for the lease, whatever happens to the store meanwhile.
    pub(super) async fn take(request: &Request) -> leasehold::Result<Self> {
        let asked = SystemClock.now();
        loop {
            match request.acquire().await {
                Ok(lease) => return Ok(Self { lease, asked, granted: SystemClock.now() }),
                Err(error) if error.is_transient() => tokio::time::sleep(ASK_AGAIN).await,
                Err(error) => return Err(error),
            }
        }
    }

    /// Keeps it for a while, or until it is lost.
    pub(super) async fn keep(&self, span: Duration) {
        tokio::select! {
            _cause = self.lease.lost() => {}
            () = tokio::time::sleep(span) => {}
        }
    }

    pub(super) fn is_held(&self) -> bool {
        self.lease.is_held()
    }

    /// Gives it back; a store that is away receives the release later.
    pub(super) async fn give_back(self) -> (Grant, leasehold::Result<Released>) {
        let Self { lease, asked, granted } = self;
        let ended = SystemClock.now().min(lease.deadline());
        let grant = Grant { fence: lease.fence().as_u64(), asked, granted, ended };
        (grant, lease.release().await)
    }
}

/// Checks three rules. No two leases are valid at one instant. Valid leases have rising fences. A
/// lease has a greater fence than every lease that was returned before it was asked for.
pub(super) fn check(grants: &[Grant]) -> Outcome {
    for late in grants {
        let early =
            grants.iter().find(|early| early.granted < late.asked && early.fence >= late.fence);
        if let Some(early) = early {
            return Err(broken("a smaller fence was returned to a later ask", early, late));
        }
    }
    // A lease that was over before its holder saw it was valid at no instant.
    let valid = grants.iter().filter(|grant| grant.granted < grant.ended);
    let mut valid: Vec<&Grant> = valid.collect();
    valid.sort_by_key(|grant| grant.granted);
    for pair in valid.windows(2) {
        if pair[1].granted < pair[0].ended {
            return Err(broken("two leases are valid at once", pair[0], pair[1]));
        }
        if pair[1].fence <= pair[0].fence {
            return Err(broken("fences do not rise", pair[0], pair[1]));
        }
    }
    Ok(())
}

fn broken(what: &str, first: &Grant, second: &Grant) -> Failure {
    Failure::new(format!("{what} (fence, asked, granted, ended): {first}; {second}"))
}

/// One line, which [`FromStr`] reads.
impl fmt::Display for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { fence, asked, granted, ended } = self;
        write!(f, "{fence} {} {} {}", asked.as_nanos(), granted.as_nanos(), ended.as_nanos())
    }
}

impl FromStr for Grant {
    type Err = Failure;

    fn from_str(text: &str) -> Result<Self, Failure> {
        let numbers: Result<Vec<u64>, _> = text.split(' ').map(str::parse).collect();
        let [fence, asked, granted, ended] = numbers?[..] else {
            return Err(Failure::new(format!("no grant: {text}")));
        };
        let [asked, granted, ended] = [asked, granted, ended].map(Moment::from_nanos);
        Ok(Self { fence, asked, granted, ended })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(grants: [&str; 2]) -> Option<String> {
        let grants = grants.map(|text| text.parse().unwrap());
        check(&grants).err().map(|failure| failure.to_string())
    }

    #[test]
    fn leases_one_after_the_other_are_right_in_any_order_of_asking() {
        assert_eq!(fault(["1 0 10 20", "2 0 20 30"]), None);
        assert_eq!(fault(["2 15 20 30", "1 5 10 20"]), None);
    }

    #[test]
    fn two_leases_that_are_valid_at_once_are_found() {
        let fault = fault(["1 0 10 20", "2 0 19 30"]).unwrap();
        assert!(fault.contains("two leases are valid at once"), "{fault}");
    }

    #[test]
    fn lease_that_was_over_before_its_holder_saw_it_disturbs_nobody() {
        assert_eq!(fault(["1 0 25 20", "2 0 20 30"]), None);
        assert_eq!(fault(["2 0 25 20", "1 0 30 40"]), None);
    }

    #[test]
    fn fences_that_fall_are_found() {
        let grants = fault(["2 0 10 20", "1 0 20 30"]).unwrap();
        assert!(grants.contains("fences do not rise"), "{grants}");
        let asks = fault(["2 0 25 20", "1 26 30 40"]).unwrap();
        assert!(asks.contains("a smaller fence was returned to a later ask"), "{asks}");
    }
}
