//! Facts about the machine, and the resources that processes use. Mostly from `/proc`.
//!
//! The facts have no host names and no paths, because the tables are published.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};
use rustix::time::ClockId;

use crate::Result;

/// One line about where and when: date, cores, processor, kernel, file system, load.
pub(crate) fn facts(scratch: &Path) -> String {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name"));
    let model = model.and_then(|rest| rest.split_once(": ")).map_or("unknown", |(_, model)| model);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or("unknown");
    format!(
        "{date}; {cores} cores of {model}, Linux {kernel}, scratch files on {files}, load {load} \
         at the start.",
        date = today(),
        kernel = kernel.trim(),
        files = file_system(scratch),
    )
}

/// The date in UTC, as 2026-01-31.
fn today() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let (year, month, day) = date_of(since.as_secs() / 86_400);
    format!("{year}-{month:02}-{day:02}")
}

/// The date `days` days after 1970-01-01.
fn date_of(days: u64) -> (u64, u64, u64) {
    let (mut year, mut left) = (1970, days);
    let leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    while left >= 365 + u64::from(leap(year)) {
        left -= 365 + u64::from(leap(year));
        year += 1;
    }
    let february = 28 + u64::from(leap(year));
    let months = [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 1;
    for length in months {
        if left < length {
            break;
        }
        left -= length;
        month += 1;
    }
    (year, month, left + 1)
}

fn file_system(path: &Path) -> String {
    let Ok(about) = rustix::fs::statfs(path) else { return "an unknown file system".to_owned() };
    match about.f_type as u64 & 0xffff_ffff {
        0xef53 => "ext4".to_owned(),
        0x0102_1994 => "tmpfs".to_owned(),
        0x5846_5342 => "XFS".to_owned(),
        0x9123_683e => "Btrfs".to_owned(),
        0x794c_7630 => "overlayfs".to_owned(),
        other => format!("file system {other:#x}"),
    }
}

/// Now, on the clock that all processes of the machine share.
pub(crate) fn now() -> u64 {
    nanos(ClockId::Monotonic)
}

/// The CPU time of this process so far, user and system, all threads: like that of `getrusage`,
/// but in nanoseconds.
pub(crate) fn own_cpu() -> Duration {
    Duration::from_nanos(nanos(ClockId::ProcessCPUTime))
}

fn nanos(clock: ClockId) -> u64 {
    let time = rustix::time::clock_gettime(clock);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The CPU time of another process so far, of all its living threads.
///
/// From `schedstat`, because the ticks in `stat` are 10 ms long and a good waiter uses less.
pub(crate) fn cpu_of(pid: u32) -> Result<Duration> {
    let mut sum = 0;
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        let text = fs::read_to_string(thread?.path().join("schedstat"))?;
        let ran = text.split(' ').next().unwrap_or_default();
        sum += ran.parse::<u64>().map_err(|_| "this kernel has no schedstat")?;
    }
    Ok(Duration::from_nanos(sum))
}

/// The names of this process's threads, sorted.
pub(crate) fn own_threads() -> Result<Vec<String>> {
    let mut names = Vec::new();
    for thread in fs::read_dir("/proc/self/task")? {
        names.push(fs::read_to_string(thread?.path().join("comm"))?.trim().to_owned());
    }
    names.sort();
    Ok(names)
}

/// The memory of this process that is in RAM, in bytes.
///
/// From `smaps_rollup`, because the counter in `status` is off by up to 64 pages a thread.
pub(crate) fn own_memory() -> Result<u64> {
    let text = fs::read_to_string("/proc/self/smaps_rollup")?;
    let line = text.lines().find_map(|line| line.strip_prefix("Rss:"));
    let kilobytes = line.and_then(|rest| rest.split_whitespace().next());
    let kilobytes: u64 = kilobytes.ok_or("no `Rss` in smaps_rollup")?.parse()?;
    Ok(kilobytes * 1_024)
}

/// The cores that this thread may run on.
pub(crate) fn own_cores() -> Result<Vec<usize>> {
    let allowed = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core)).collect())
}

/// Keeps a process on these cores, with all processes that it starts from now on. Without a process
/// it keeps this thread there.
pub(crate) fn keep_on(process: Option<u32>, cores: &[usize]) -> Result<()> {
    let process = process.map(|id| Pid::from_raw(id.cast_signed()).ok_or("no process has that id"));
    let mut allowed = CpuSet::new();
    cores.iter().for_each(|core| allowed.set(*core));
    Ok(sched_setaffinity(process.transpose()?, &allowed)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_know_leap_years() {
        assert_eq!(date_of(0), (1970, 1, 1));
        assert_eq!(date_of(11_016), (2000, 2, 29));
        assert_eq!(date_of(11_017), (2000, 3, 1));
        assert_eq!(date_of(20_818), (2026, 12, 31));
    }
}
