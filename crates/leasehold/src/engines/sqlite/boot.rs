//! Which boot of the machine this is, and whether this process sees the machine's boot clock.

use std::io;
use std::path::Path;

use crate::error::Result;

use super::place::{refuse, refused};
use super::platform;

/// The kernel's id of the present boot.
pub(super) fn boot_id() -> Result<String> {
    refuse_shifted_clock()?;
    let (source, text) = platform::boot_id();
    let text = text.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => {
            let reason = "this system does not say which boot it is";
            refuse(source, reason, "the SQLite engine needs Linux with /proc, or macOS")
        }
        _ => refused(source, &error),
    })?;
    Ok(text.trim().to_owned())
}

/// Refuses a time namespace whose boot clock is not the machine's: the instants that this process
/// writes would mean something else to the others.
fn refuse_shifted_clock() -> Result<()> {
    let path = Path::new("/proc/self/timens_offsets");
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        // A kernel without time namespaces.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(refused(path, &error)),
    };
    if is_shifted(&text) {
        let reason = "this process is in a time namespace that shows another boot clock";
        return Err(refuse(path, reason, "run it outside, or use a server engine"));
    }
    Ok(())
}

/// Whether a line for the boot clock has seconds or nanoseconds that are not zero.
fn is_shifted(offsets: &str) -> bool {
    let boot = |line: &&str| line.trim_start().starts_with("boottime");
    offsets.lines().filter(boot).any(|line| line.split_whitespace().skip(1).any(|part| part != "0"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_offsets_of_the_boot_clock_count() {
        assert!(!is_shifted("monotonic           0         0\nboottime            0         0\n"));
        assert!(!is_shifted("monotonic      100000         0\nboottime            0         0\n"));
        assert!(is_shifted("monotonic           0         0\nboottime       100000         0\n"));
        assert!(is_shifted("monotonic           0         0\nboottime           -1 999999999\n"));
    }
}
