//! Temporary folders that are removed by their owner, or else by a later test process.
//!
//! Dropping a folder removes it. A test process that is killed drops nothing, and neither does one
//! that keeps a server in a static. So each process starts by removing folders whose owner is gone.
//! The owner holds a lock on a file inside. The kernel releases that lock when the process ends.
//!
//! The `servers` and `worker` modules end the processes that use a folder.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Once;

use tempfile::TempDir;

use crate::error::{Doing, Result};
use crate::process::POLL;

const PREFIX: &str = "leasehold-test-";
const LOCK: &str = ".owner";

/// A server that received its death signal is gone within a few milliseconds.
const REMOVE_ATTEMPTS_MAX: usize = 20;

/// The folder inside in which PostgreSQL keeps its data.
pub(crate) const POSTGRES_DATA: &str = "pg";

/// A folder of our own.
#[derive(Debug)]
pub(crate) struct Folder {
    folder: TempDir,
    // Dropped after the folder is removed.
    _owner: File,
}

impl Folder {
    pub(crate) fn new() -> Result<Folder> {
        static SWEPT: Once = Once::new();
        let parent = std::env::temp_dir();
        SWEPT.call_once(|| sweep(&parent));
        loop {
            let folder = tempfile::Builder::new()
                .prefix(PREFIX)
                .permissions(Permissions::from_mode(0o700))
                .tempdir_in(&parent);
            let folder = folder.doing(|| format!("create a folder in {}", parent.display()))?;
            let path = folder.path().join(LOCK);
            let owner = File::create(&path).doing(|| format!("create `{}`", path.display()))?;
            if is_owned(&owner, &path) {
                return Ok(Folder { folder, _owner: owner });
            }
        }
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// Takes the lock of a new folder; false if another process takes the folder for an orphan.
///
/// That process keeps the lock until it has removed the folder. Then the lock is free again, but
/// the file is gone.
fn is_owned(owner: &File, path: &Path) -> bool {
    owner.try_lock().is_ok() && path.exists()
}

impl Drop for Folder {
    fn drop(&mut self) {
        remove_shared_memory(self.path());
    }
}

/// Removes what killed test processes left behind; every test process does so at its first start.
pub fn remove_orphans() {
    sweep(&std::env::temp_dir());
}

/// Removes the folders whose owner is gone. A folder that cannot be removed belongs to another
/// user.
fn sweep(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let path = entry.path();
        let is_ours = entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX));
        if is_ours
            && let Ok(owner) = File::open(path.join(LOCK))
            && owner.try_lock().is_ok()
        {
            remove_shared_memory(&path);
            remove(&path);
        }
    }
}

/// The owner's servers may still be ending, and may write to the folder: try again.
fn remove(path: &Path) {
    for _ in 0..REMOVE_ATTEMPTS_MAX {
        match fs::remove_dir_all(path) {
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {
                std::thread::sleep(POLL);
            }
            _ => return,
        }
    }
}

/// Removes the shared memory segment that a killed PostgreSQL leaves behind; a machine has a few
/// thousand of them. Its number is the second word of line 7 of `postmaster.pid`. A server that
/// ended cleanly has removed that file.
fn remove_shared_memory(folder: &Path) {
    let file = folder.join(POSTGRES_DATA).join("postmaster.pid");
    let Ok(text) = fs::read_to_string(file) else { return };
    if let Some(id) = text.lines().nth(6).and_then(|line| line.split_whitespace().nth(1)) {
        let mut command = Command::new("ipcrm");
        command.args(["--shmem-id", id]).stdout(Stdio::null()).stderr(Stdio::null());
        let _ = command.status();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sweep_removes_what_has_no_owner_and_keeps_the_rest() {
        let owned = Folder::new().unwrap();
        let parent = tempfile::tempdir().unwrap();
        let orphan = parent.path().join(format!("{PREFIX}orphan"));
        let stranger = parent.path().join("stranger");
        for path in [&orphan, &stranger] {
            fs::create_dir(path).unwrap();
            File::create(path.join(LOCK)).unwrap();
        }
        sweep(parent.path());
        sweep(&std::env::temp_dir());
        assert!(!orphan.exists());
        assert!(stranger.exists());
        assert!(owned.path().exists());
    }

    #[test]
    fn folder_that_a_sweep_removed_before_it_was_locked_is_not_owned() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join(format!("{PREFIX}new"));
        fs::create_dir(&path).unwrap();
        let lock = path.join(LOCK);
        let owner = File::create(&lock).unwrap();
        sweep(parent.path());
        assert!(!is_owned(&owner, &lock));
        fs::create_dir(&path).unwrap();
        assert!(is_owned(&File::create(&lock).unwrap(), &lock));
    }

    #[test]
    fn dropped_folder_is_gone() {
        let folder = Folder::new().unwrap();
        let path = folder.path().to_owned();
        drop(folder);
        assert!(!path.exists());
    }
}
