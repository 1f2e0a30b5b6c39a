//! A small disk for the database file, so that it can be filled.
//!
//! The program runs itself again in a mount namespace in which a folder is a small disk in memory.
//! The mount ends with the last process of the namespace. A program that may not mount goes on
//! without it.

use std::env;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Names the folder with the small disk, in a program that was run again; empty if there is none.
const VARIABLE: &str = "LEASEHOLD_TORTURE_DISK";

/// Mounts, and goes on in any case. Other mounts of the namespace stay as they are.
const SCRIPT: &str = "mount -t tmpfs -o size=32m,mode=700 tmpfs \"$LEASEHOLD_TORTURE_DISK\" \
                      2>/dev/null || export LEASEHOLD_TORTURE_DISK=; exec \"$@\"";

/// How `unshare` makes the namespace: as root, or in a namespace of users where the user stays the
/// same.
const WAYS: [&[&str]; 2] =
    [&["--mount"], &["--user", "--map-current-user", "--keep-caps", "--mount"]];

/// Runs this program again with a small disk at `folder`; comes back if that cannot be done, or
/// was done already.
pub fn run_again_with_one(folder: &Path) {
    if env::var_os(VARIABLE).is_some() || std::fs::create_dir_all(folder).is_err() {
        return;
    }
    let Some(way) = WAYS.into_iter().find(|way| is_open(way)) else { return };
    let Ok(program) = env::current_exe() else { return };
    let mut command = Command::new("unshare");
    command.args(way).args(["sh", "-c", SCRIPT, "sh"]).arg(program).args(env::args_os().skip(1));
    // It comes back only with an error. Then the fault that needs the disk says so.
    let _none = command.env(VARIABLE, folder).exec();
}

/// Whether the system lets this user make such a namespace, and mount in it.
fn is_open(way: &[&str]) -> bool {
    let mut command = Command::new("unshare");
    command.args(way).args(["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", "/tmp"]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// The folder with the small disk.
pub fn folder() -> Option<PathBuf> {
    env::var_os(VARIABLE).map(PathBuf::from).filter(|path| !path.as_os_str().is_empty())
}
