//! Moving and stopping the wall clock of a server while it runs.
//!
//! A small C library (`clock.c`) is loaded before the server's own C library; it reads a setting
//! from a mapped file. Monotonic clocks stay as they are. It reaches Redis, PostgreSQL and Java. It
//! does not reach etcd, because Go asks the kernel without the C library.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::error::{Doing, Result};
use crate::folder::Folder;
use crate::preload;

const SOURCE: &str = include_str!("clock.c");

/// A wall clock for servers, which the test moves and stops.
///
/// Give [`environment`](Clock::environment) to a server's options, and keep the clock as long as
/// the server. A setting counts from the moment its call returns: the server answers every later
/// request by the new time.
///
/// # A clock that stands still
///
/// With [`freeze`](Clock::freeze) and [`advance`](Clock::advance) a test knows to the microsecond
/// what time the server sees. It follows that:
///
/// - Redis 7.0 reads the clock when it begins a command or script, and counts expiry by that
///   reading. No `PING` is needed first. It also removes expired keys on its own, ten times a
///   second by a monotonic clock, but only those that the shown time has expired. A key with
///   `PX 1000` is still there after exactly 1000 ms, with a `PTTL` of 0, and gone after 1001.
/// - Every wait for the wall clock lasts for ever while it stands still. In Redis these are the
///   time limits of blocking commands and of `CLIENT PAUSE`, and all of Sentinel and Cluster. In
///   PostgreSQL they are `pg_sleep`, `statement_timeout`, `lock_timeout`, `deadlock_timeout` and
///   the idle ones. Freeze single servers only.
#[derive(Debug)]
pub struct Clock {
    library: PathBuf,
    file: PathBuf,
    setting: Mutex<Setting>,
    word: Word,
    _folder: Folder,
}

/// How the clock runs; numbers are microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Setting {
    /// It runs, that much ahead of the true time.
    Ahead(i64),
    /// It stands still, that much after the start of 1970.
    Frozen(i64),
}

impl Clock {
    /// Compiles the library and makes a clock that shows the true time.
    pub fn new() -> Result<Clock> {
        let folder = Folder::new()?;
        let library = preload::compile(&folder, "clock", SOURCE)?;
        let file = folder.path().join("setting");
        let doing = || "make a clock".to_owned();
        let setting = Setting::Ahead(0);
        fs::write(&file, setting.word().to_ne_bytes()).doing(doing)?;
        // A server that runs as another user reads it too.
        fs::set_permissions(&file, Permissions::from_mode(0o644)).doing(doing)?;
        let opened = File::options().read(true).write(true).open(&file);
        let word = opened.and_then(|file| Word::map(&file)).doing(doing)?;
        Ok(Clock { library, file, setting: Mutex::new(setting), word, _folder: folder })
    }

    /// The environment variables that put a server on this clock.
    pub fn environment(&self) -> [(&'static str, PathBuf); 2] {
        [(preload::VARIABLE, self.library.clone()), ("LH_CLOCK_FILE", self.file.clone())]
    }

    /// Sets the clock ahead of the true time, at once, and lets it run; zero is the true time.
    pub fn set_ahead(&self, by: Duration) -> Result<()> {
        self.change(|_| Setting::Ahead(micros(by)));
        Ok(())
    }

    /// Sets the clock behind the true time, at once, and lets it run.
    pub fn set_behind(&self, by: Duration) -> Result<()> {
        self.change(|_| Setting::Ahead(-micros(by)));
        Ok(())
    }

    /// Stops the clock at the time that it shows now; the result is that time since 1970.
    pub fn freeze(&self) -> Duration {
        let frozen = self.change(|setting| Setting::Frozen(setting.shown()));
        duration(frozen.shown())
    }

    /// Stops the clock at an instant, given as the time since 1970.
    ///
    /// Fractions of a microsecond are cut off.
    pub fn freeze_at(&self, since_epoch: Duration) {
        self.change(|_| Setting::Frozen(micros(since_epoch)));
    }

    /// Moves the clock by exactly that much, whether it runs or stands still.
    ///
    /// Fractions of a microsecond are cut off.
    pub fn advance(&self, by: Duration) {
        self.change(|setting| match setting {
            Setting::Ahead(ahead) => Setting::Ahead(ahead.saturating_add(micros(by))),
            Setting::Frozen(at) => Setting::Frozen(at.saturating_add(micros(by))),
        });
    }

    /// Lets a clock that stands still run on from the time that it shows.
    pub fn thaw(&self) {
        self.change(|setting| Setting::Ahead(setting.shown() - true_time()));
    }

    /// The time that the clock shows now, since 1970.
    pub fn shown(&self) -> Duration {
        duration(self.setting().shown())
    }

    fn change(&self, to: impl FnOnce(Setting) -> Setting) -> Setting {
        let mut setting = self.setting();
        *setting = to(*setting);
        self.word.store(setting.word());
        *setting
    }

    fn setting(&self) -> MutexGuard<'_, Setting> {
        // Each change replaces the whole setting: after a panic elsewhere it is the old one or the
        // new one.
        self.setting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Setting {
    /// Mode and number in one word, as `clock.c` reads it.
    fn word(self) -> i64 {
        match self {
            Setting::Ahead(us) => us << 1,
            Setting::Frozen(us) => us << 1 | 1,
        }
    }

    fn shown(self) -> i64 {
        match self {
            Setting::Ahead(us) => true_time() + us,
            Setting::Frozen(us) => us,
        }
    }
}

/// The wall clock of this machine, in microseconds since 1970.
fn true_time() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    micros(since.expect("this machine's clock is past 1970"))
}

/// A word has room for 146,000 years; a longer time would change its sign and the mode.
fn micros(duration: Duration) -> i64 {
    const MAX: i64 = i64::MAX >> 2;
    let us = i64::try_from(duration.as_micros()).unwrap_or(i64::MAX);
    assert!(us <= MAX, "{duration:?} is more than a clock can show");
    us
}

fn duration(us: i64) -> Duration {
    Duration::from_micros(u64::try_from(us).unwrap_or_default())
}

/// The file's 8 bytes, mapped.
///
/// A `write` works for one server most of the time. But only with an atomic store does a reader
/// never see half of the old word and half of the new one.
#[derive(Debug)]
struct Word {
    mapped: NonNull<AtomicI64>,
}

impl Word {
    fn map(file: &File) -> io::Result<Word> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses a place where nothing is mapped. The file has all 8 bytes and
        // is never made shorter.
        let mapped =
            unsafe { mmap(null_mut(), size_of::<AtomicI64>(), access, MapFlags::SHARED, file, 0)? };
        let mapped = NonNull::new(mapped.cast()).ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok(Word { mapped })
    }

    fn store(&self, word: i64) {
        // SAFETY: a mapping starts at a page, so it is aligned. It stays until the drop. Other
        // processes read it with atomic loads only.
        unsafe { self.mapped.as_ref() }.store(word, Ordering::SeqCst);
    }
}

// SAFETY: the mapping belongs to no thread, and it holds an atomic.
unsafe impl Send for Word {}
// SAFETY: as above.
unsafe impl Sync for Word {}

impl Drop for Word {
    fn drop(&mut self) {
        // SAFETY: nothing refers to the mapping any more. An error would leave one page mapped.
        let _ = unsafe { munmap(self.mapped.as_ptr().cast(), size_of::<AtomicI64>()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn date(clock: &Clock, format: &str) -> String {
        let output =
            Command::new("date").args(["-u", format]).envs(clock.environment()).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    fn year_shown(clock: &Clock) -> i32 {
        date(clock, "+%Y").parse().unwrap()
    }

    #[test]
    fn clock_moves_both_ways_and_back() {
        const YEARS_20: Duration = Duration::from_secs(20 * 366 * 24 * 3600);
        let clock = Clock::new().unwrap();
        let now = year_shown(&clock);
        clock.set_ahead(YEARS_20).unwrap();
        assert!(year_shown(&clock) >= now + 20);
        clock.set_behind(YEARS_20).unwrap();
        assert!(year_shown(&clock) <= now - 19);
        clock.set_ahead(Duration::ZERO).unwrap();
        assert!(year_shown(&clock) <= now + 1);
    }

    #[test]
    fn frozen_clock_shows_the_given_instant_until_it_is_advanced() {
        let clock = Clock::new().unwrap();
        clock.freeze_at(Duration::new(1_000_000_000, 999_999_999));
        assert_eq!(date(&clock, "+%s.%N"), "1000000000.999999000");
        assert_eq!(clock.shown(), Duration::from_micros(1_000_000_000_999_999));
        clock.advance(Duration::from_micros(1));
        assert_eq!(date(&clock, "+%s.%N"), "1000000001.000000000");
    }

    #[test]
    fn clock_freezes_at_what_it_shows_and_runs_on_from_there() {
        const HOUR: Duration = Duration::from_secs(3600);
        let clock = Clock::new().unwrap();
        clock.set_behind(HOUR).unwrap();
        let before = clock.shown();
        let frozen = clock.freeze();
        assert!(before <= frozen && frozen < before + HOUR / 2, "{before:?} {frozen:?}");
        clock.advance(2 * HOUR);
        clock.thaw();
        let ahead = clock
            .shown()
            .saturating_sub(Duration::from_micros(u64::try_from(true_time()).unwrap()));
        assert!(ahead > HOUR / 2 && ahead <= HOUR, "{ahead:?}");
        let first = clock.shown();
        while clock.shown() == first {}
        clock.advance(HOUR);
        assert!(clock.shown() > first + HOUR, "a clock that runs can be advanced too");
    }

    #[test]
    fn words_tell_the_modes_and_signs_apart() {
        assert_eq!(Setting::Ahead(0).word(), 0);
        assert_eq!(Setting::Ahead(-3).word(), -6);
        assert_eq!(Setting::Frozen(3).word(), 7);
    }
}
