//! Moving the wall clock of a server while it runs.
//!
//! A small C library (`clock.c`) is put before the server's own; it adds an offset from a mapped
//! file. Monotonic clocks stay as they are. Redis, PostgreSQL and Java are reached; etcd is not,
//! because Go asks the kernel without the C library.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::error::{Doing, Error, Result};
use crate::folder::Folder;
use crate::programs;

const SOURCE: &str = include_str!("clock.c");

/// A wall clock for servers, which the test moves.
///
/// Give [`environment`](Clock::environment) to a server's options, and keep the clock as long as
/// the server.
#[derive(Debug)]
pub struct Clock {
    library: PathBuf,
    file: PathBuf,
    offset: File,
    _folder: Folder,
}

impl Clock {
    /// Compiles the library and makes a clock that shows the true time.
    pub fn new() -> Result<Clock> {
        let folder = Folder::new()?;
        let (source, library) = (folder.path().join("clock.c"), folder.path().join("clock.so"));
        let file = folder.path().join("offset");
        let doing = || "make a clock".to_owned();
        fs::write(&source, SOURCE).doing(doing)?;
        let output = Command::new(programs::find("gcc", "gcc")?)
            .args(["-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o"])
            .args([&library, &source])
            .stdin(Stdio::null())
            .output()
            .doing(doing)?;
        if !output.status.success() {
            return Err(Error::Refused {
                server: "gcc".to_owned(),
                request: "compile clock.c".to_owned(),
                answer: String::from_utf8_lossy(&output.stderr).into_owned(),
            });
        }
        fs::write(&file, 0_i64.to_ne_bytes()).doing(doing)?;
        // A server that runs as another user reads both.
        for (path, mode) in [(folder.path(), 0o711), (&library, 0o755), (&file, 0o644)] {
            fs::set_permissions(path, Permissions::from_mode(mode)).doing(doing)?;
        }
        let offset = File::options().write(true).open(&file).doing(doing)?;
        Ok(Clock { library, file, offset, _folder: folder })
    }

    /// The environment variables that put a server on this clock.
    pub fn environment(&self) -> [(&'static str, PathBuf); 2] {
        [("LD_PRELOAD", self.library.clone()), ("LH_CLOCK_FILE", self.file.clone())]
    }

    /// Sets the clock ahead of the true time, at once; zero is the true time.
    pub fn set_ahead(&self, by: Duration) -> Result<()> {
        self.set(i64::try_from(by.as_micros()).unwrap_or(i64::MAX))
    }

    /// Sets the clock behind the true time, at once.
    pub fn set_behind(&self, by: Duration) -> Result<()> {
        self.set(-i64::try_from(by.as_micros()).unwrap_or(i64::MAX))
    }

    fn set(&self, offset_us: i64) -> Result<()> {
        // One write of 8 aligned bytes: a reader sees the old offset or the new one.
        let written = self.offset.write_all_at(&offset_us.to_ne_bytes(), 0);
        written.doing(|| format!("set the clock {}", self.file.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn year_shown(clock: &Clock) -> i32 {
        let output =
            Command::new("date").args(["-u", "+%Y"]).envs(clock.environment()).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().parse().unwrap()
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
}
