//! Parts of the SQLite engine that need Linux, and their replacements on other systems.
//!
//! Elsewhere programs make the pipes and tell the boot, as they do on macOS. The place of the file
//! is judged less: no network share is recognized, and no file that is mounted by itself.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::Mode;

/// Makes a named pipe in a folder that is open, for its owner alone. `path` is the folder's.
#[cfg(target_os = "linux")]
pub(super) fn make_pipe(folder: &OwnedFd, _path: &Path, name: &str) -> io::Result<()> {
    Ok(rustix::fs::mkfifoat(folder, name, Mode::RUSR | Mode::WUSR)?)
}

/// Makes a named pipe in a folder that is open, for its owner alone. `path` is the folder's.
#[cfg(not(target_os = "linux"))]
pub(super) fn make_pipe(_folder: &OwnedFd, path: &Path, name: &str) -> io::Result<()> {
    let mode = format!("{:o}", (Mode::RUSR | Mode::WUSR).bits());
    let status =
        std::process::Command::new("mkfifo").args(["-m", &mode]).arg(path.join(name)).status()?;
    if status.success() { Ok(()) } else { Err(io::Error::other(format!("mkfifo: {status}"))) }
}

/// Whether a file is mounted by itself, without the folder around it.
#[cfg(target_os = "linux")]
pub(super) fn is_mounted_alone(path: &Path) -> io::Result<bool> {
    use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx};
    use rustix::io::Errno;
    match statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::empty()) {
        Ok(about) => Ok(about.stx_attributes.contains(StatxAttributes::MOUNT_ROOT)),
        // A kernel before 5.8, or a container that forbids the question.
        Err(Errno::NOSYS | Errno::PERM) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// Whether a file is mounted by itself, without the folder around it.
#[cfg(not(target_os = "linux"))]
pub(super) fn is_mounted_alone(_path: &Path) -> io::Result<bool> {
    Ok(false)
}

/// The number of the kind of file system that a path is on, as `statfs(2)` of Linux lists them.
#[cfg(target_os = "linux")]
pub(super) fn file_system(path: &Path) -> Option<u64> {
    rustix::fs::statfs(path).ok().map(|about| about.f_type as u64)
}

/// The number of the kind of file system that a path is on, as `statfs(2)` of Linux lists them.
#[cfg(not(target_os = "linux"))]
pub(super) fn file_system(_path: &Path) -> Option<u64> {
    None
}

/// The kernel's id of the present boot, and where it comes from.
#[cfg(target_os = "linux")]
pub(super) fn boot_id() -> (&'static Path, io::Result<String>) {
    let source = Path::new("/proc/sys/kernel/random/boot_id");
    (source, std::fs::read_to_string(source))
}

/// The kernel's id of the present boot, and where it comes from.
#[cfg(not(target_os = "linux"))]
pub(super) fn boot_id() -> (&'static Path, io::Result<String>) {
    let asked = std::process::Command::new("sysctl").args(["-n", "kern.bootsessionuuid"]).output();
    let told = asked.and_then(|output| {
        let text = String::from_utf8(output.stdout).map_err(io::Error::other)?;
        if output.status.success() { Ok(text) } else { Err(io::ErrorKind::NotFound.into()) }
    });
    (Path::new("sysctl kern.bootsessionuuid"), told)
}
