//! Forks the test's own process. The standard library only starts other programs. But a client must
//! tell a forked copy of its process from the original.

use std::io::{Error, Result};

use rustix::process::{Pid, WaitOptions, waitpid};

unsafe extern "C" {
    fn fork() -> i32;
    fn _exit(status: i32) -> !;
}

/// Runs `child` in a forked child, which ends with the status that `child` returns. Waits for that
/// end and returns the status, or `None` if a signal ended the child.
///
/// Only this thread goes on in the child. So `child` must not wait for another thread or for a
/// runtime.
pub fn in_child<T>(kept: T, child: impl FnOnce(T) -> u8) -> Result<(T, Option<i32>)> {
    // SAFETY: it takes no arguments. glibc keeps its allocator usable in the child.
    let pid = unsafe { fork() };
    if pid == 0 {
        let status = i32::from(child(kept));
        // SAFETY: it ends the process without running any code of the parent.
        unsafe { _exit(status) }
    }
    let pid = Pid::from_raw(pid).filter(|_| pid > 0).ok_or_else(Error::last_os_error)?;
    let ended = waitpid(Some(pid), WaitOptions::empty())?;
    Ok((kept, ended.and_then(|(_, status)| status.exit_status())))
}
