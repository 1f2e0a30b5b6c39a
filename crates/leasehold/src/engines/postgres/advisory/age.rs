//! Since when the server keeps a lock that was waited for. No I/O, no clock.
//!
//! The server's patience with a session begins with the grant. The word of it may be long under
//! way, over a network that holds it back or to a process that is frozen, and a lease that counted
//! from the reading would outlive its session. So the server says how long the wait was, and the
//! grant was no earlier than that long after the question.

use std::time::Duration;

use crate::clock::Moment;

/// The longest that a grant may have been under way to count from its reading. The server waits
/// longer than the ttl by twice this and more.
const FRESH_MAX: Duration = Duration::from_millis(50);

/// What is known of the age of a grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Age {
    /// It counts from its reading.
    Fresh,
    /// It was granted then, or later.
    Since(Moment),
    /// Little of its time is left, or the clocks do not agree: the server's may have been set
    /// back. Only the session itself can tell.
    Doubtful,
}

impl Age {
    /// The age of a grant for `ttl` that was asked for at `sent`, was `waited` for by the server's
    /// clock, and came at `read`.
    pub(super) fn of(sent: Moment, waited: Duration, read: Moment, ttl: Duration) -> Self {
        let granted = sent + waited;
        match read.since(granted) {
            late if late <= FRESH_MAX => Age::Fresh,
            late if late <= ttl / 2 => Age::Since(granted),
            _ => Age::Doubtful,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(10);
    const SENT: Moment = Moment::from_nanos(7_000_000_000);

    fn of(waited_ms: u64, took_ms: u64) -> Age {
        let took = Duration::from_millis(took_ms);
        Age::of(SENT, Duration::from_millis(waited_ms), SENT + took, TTL)
    }

    #[test]
    fn waiting_is_no_age() {
        assert_eq!(of(3_600_000, 3_600_001), Age::Fresh);
        assert_eq!(of(0, 50), Age::Fresh);
    }

    #[test]
    fn what_was_under_way_is() {
        assert_eq!(of(3_600_000, 3_602_000), Age::Since(SENT + Duration::from_secs(3_600)));
        assert_eq!(of(0, 5_000), Age::Since(SENT));
    }

    #[test]
    fn an_old_grant_is_doubtful() {
        assert_eq!(of(0, 5_001), Age::Doubtful);
        assert_eq!(of(1_000, 60_000), Age::Doubtful);
    }

    #[test]
    fn a_clock_that_ran_ahead_makes_no_grant_younger_than_its_reading() {
        assert_eq!(of(3_600_000, 1), Age::Fresh);
    }
}
