//! The clock of leases, which runs on while the machine is suspended: instants and sleeps.
//!
//! The client never decides by wall time. [`VirtualClock`] stands still until a test advances it,
//! so a test of a lost lock need not wait. Servers do decide by their wall clocks: `remote` judges
//! them.

#[doc(hidden)]
pub mod remote;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

pub use remote::{ClockTrouble, Shift};

/// A future that a clock hands out.
pub type Sleep = Pin<Box<dyn Future<Output = ()> + Send>>;

/// An instant on a [`Clock`]: nanoseconds since the machine started, or since a virtual clock did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(u64);

impl Moment {
    /// Later than any deadline.
    pub const NEVER: Moment = Moment(u64::MAX);

    /// The instant that is `nanos` nanoseconds after the clock's start.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the clock's start.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// How long after `earlier` this is; zero if it is before.
    pub fn since(self, earlier: Moment) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl std::ops::Add<Duration> for Moment {
    type Output = Moment;
    fn add(self, span: Duration) -> Moment {
        Moment(self.0.saturating_add(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl std::ops::Sub<Duration> for Moment {
    type Output = Moment;
    fn sub(self, span: Duration) -> Moment {
        Moment(self.0.saturating_sub(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)))
    }
}

/// A clock and its last reading, which saves others a second reading of the same clock.
#[derive(Debug, Clone, Copy)]
pub struct ClockReading<'a> {
    /// The clock.
    pub clock: &'a Arc<dyn Clock>,
    /// The reading.
    pub at: Moment,
}

impl<'a> ClockReading<'a> {
    /// Reads a clock.
    pub fn of(clock: &'a Arc<dyn Clock>) -> Self {
        Self { clock, at: clock.now() }
    }

    /// The time on `clock`. If it is the clock of this reading, returns the last reading.
    pub fn on(&self, clock: &Arc<dyn Clock>) -> Moment {
        if Arc::ptr_eq(self.clock, clock) { self.at } else { clock.now() }
    }
}

/// The source of deadlines.
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// The present instant.
    fn now(&self) -> Moment;

    /// Ends at `at`, or a little later if the machine slept in between. Needs a tokio runtime
    /// with time.
    fn sleep_until(&self, at: Moment) -> Sleep;

    /// Ends at `at`, also when the machine slept in between. Needs a tokio runtime with I/O.
    fn alarm(&self, at: Moment) -> Sleep;
}

/// The machine's boot clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

#[cfg(any(target_os = "linux", target_os = "android"))]
const CLOCK_ID: rustix::time::ClockId = rustix::time::ClockId::Boottime;
// Elsewhere there is only the monotonic clock; on macOS it stops while the machine sleeps.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const CLOCK_ID: rustix::time::ClockId = rustix::time::ClockId::Monotonic;

impl Clock for SystemClock {
    fn now(&self) -> Moment {
        let time = rustix::time::clock_gettime(CLOCK_ID);
        Moment(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
    }

    fn sleep_until(&self, at: Moment) -> Sleep {
        Box::pin(async move {
            loop {
                let left = at.since(SystemClock.now());
                if left.is_zero() {
                    return;
                }
                tokio::time::sleep(left).await;
            }
        })
    }

    fn alarm(&self, at: Moment) -> Sleep {
        #[cfg(target_os = "linux")]
        if let Ok(timer) = boot_timer(at) {
            return Box::pin(async move {
                // An unreadable timer counts as expired: the caller reads the clock again either
                // way.
                drop(timer.readable().await);
            });
        }
        self.sleep_until(at)
    }
}

#[cfg(target_os = "linux")]
fn boot_timer(at: Moment) -> std::io::Result<tokio::net::unix::pipe::Receiver> {
    use rustix::time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
        timerfd_settime,
    };
    let timer =
        timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
    // An all-zero value would disarm the timer, and the kernel refuses one past i64.
    let nanos = at.as_nanos().clamp(1, i64::MAX as u64);
    let value = Timespec {
        tv_sec: (nanos / 1_000_000_000) as i64,
        tv_nsec: (nanos % 1_000_000_000) as i64,
    };
    let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
    timerfd_settime(&timer, TimerfdTimerFlags::ABSTIME, &once)?;
    // For the reactor, a timer is a file that turns readable. This needs no more than that.
    tokio::net::unix::pipe::Receiver::from_owned_fd_unchecked(timer)
}

/// A clock that moves only when a test calls [`advance`](Self::advance).
///
/// Clones share their time. See [`Memory::virtual_time`](crate::memory::Memory::virtual_time) for
/// a store and clients on such a clock.
#[derive(Clone, Default)]
pub struct VirtualClock {
    state: Arc<Mutex<VirtualState>>,
}

#[derive(Default)]
struct VirtualState {
    now: u64,
    sleepers: Vec<(Moment, oneshot::Sender<()>)>,
}

impl VirtualClock {
    /// A clock that shows one second after its start.
    pub fn new() -> Self {
        let clock = Self::default();
        clock.lock().now = 1_000_000_000;
        clock
    }

    /// Moves time forward and wakes all sleepers whose instant has come.
    pub fn advance(&self, span: Duration) {
        let mut state = self.lock();
        let now = Moment(state.now) + span;
        state.now = now.0;
        let (due, rest) = state.sleepers.drain(..).partition(|(at, _)| *at <= now);
        state.sleepers = rest;
        drop(state);
        let due: Vec<(Moment, oneshot::Sender<()>)> = due;
        for (_, sleeper) in due {
            // The sleeper's future may be dropped already.
            let _gone = sleeper.send(());
        }
    }

    fn lock(&self) -> MutexGuard<'_, VirtualState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for VirtualClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VirtualClock").field("now", &self.now()).finish_non_exhaustive()
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Moment {
        Moment(self.lock().now)
    }

    fn sleep_until(&self, at: Moment) -> Sleep {
        let clock = self.clone();
        Box::pin(async move {
            let woken = {
                let mut state = clock.lock();
                if at.0 <= state.now {
                    return;
                }
                state.sleepers.retain(|(_, sleeper)| !sleeper.is_closed());
                let (sender, receiver) = oneshot::channel();
                state.sleepers.push((at, sender));
                receiver
            };
            // Never an error: the sender lives as long as the clock, which this future keeps alive.
            let _always = woken.await;
        })
    }

    fn alarm(&self, at: Moment) -> Sleep {
        self.sleep_until(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_virtual_sleeper_wakes_when_its_instant_comes_and_not_before() {
        let clock = VirtualClock::new();
        let mut sleep = clock.sleep_until(clock.now() + Duration::from_secs(10));
        clock.advance(Duration::from_secs(9));
        assert!(futures_util::poll!(&mut sleep).is_pending());
        clock.advance(Duration::from_secs(1));
        sleep.await;
    }

    #[tokio::test]
    async fn the_boot_alarm_rings_at_its_instant() {
        let at = SystemClock.now() + Duration::from_millis(5);
        SystemClock.alarm(at).await;
        assert!(SystemClock.now() >= at);
        SystemClock.alarm(Moment::from_nanos(0)).await;
    }
}
