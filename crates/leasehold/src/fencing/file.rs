//! A file that is read and written under a fence.
//!
//! Beside `FILE` are `FILE.fence`, the greatest fence seen, and `FILE.fence-lock`. An access holds
//! the operating system's lock on the latter. The guard replaces the fence and the content each as
//! a whole, and flushes them, the fence first. So after any crash it accepts no older fence.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use super::{GuardError, judge};
use crate::rule::fence::Fence;

type Result<T> = std::result::Result<T, GuardError<io::Error>>;

/// A file that refuses accesses with an old fence.
///
/// For the processes of one machine and a local disk. Its calls block while another process
/// accesses the file, and while the disk works. Asynchronous code must call it where it may block.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold::fencing::GuardedFile;
///
/// # let folder = std::env::temp_dir().join(format!("leasehold-doc-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder)?;
/// let report = GuardedFile::new(folder.join("report.txt"));
/// report.write(7, b"by the holder with fence 7")?;
/// report.write(9, b"by the next one")?;
/// let late = report.write(7, b"late").expect_err("9 was here");
/// assert_eq!(late.refused().expect("a refusal").highest, 9);
/// assert!(report.read(7).is_err(), "reading is refused as well");
/// assert_eq!(report.read(9)?, b"by the next one");
/// # std::fs::remove_dir_all(&folder)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct GuardedFile {
    path: PathBuf,
}

impl GuardedFile {
    /// The guard of the file at `path`. It touches no file before the first access.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// The guarded file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Replaces the content.
    pub fn write(&self, fence: impl Into<Fence>, content: &[u8]) -> Result<()> {
        self.access(fence, |path| replace(path, content))
    }

    /// Reads the content.
    pub fn read(&self, fence: impl Into<Fence>) -> Result<Vec<u8>> {
        self.access(fence, |path| std::fs::read(path))
    }

    /// Calls `act` with the file's path, if the fence is not old. Other accesses wait meanwhile.
    pub fn access<T>(
        &self,
        fence: impl Into<Fence>,
        act: impl FnOnce(&Path) -> io::Result<T>,
    ) -> Result<T> {
        let (path, fence) = (self.real_path(), fence.into());
        let lock = lock(&path).map_err(GuardError::Store)?;
        let highest = self.seen(&path)?;
        judge(&self.resource(), fence, highest)?;
        if fence > highest {
            let seen = format!("{fence}\n");
            replace(&beside(&path, "fence"), seen.as_bytes()).map_err(GuardError::Store)?;
        }
        let done = act(&path).map_err(GuardError::Store);
        drop(lock);
        done
    }

    /// The greatest fence seen; 0 before the first.
    pub fn highest(&self) -> Result<Fence> {
        let path = self.real_path();
        let _lock = lock(&path).map_err(GuardError::Store)?;
        self.seen(&path)
    }

    /// The file that a link leads to, so that the file has one guard under all its names.
    fn real_path(&self) -> PathBuf {
        std::fs::canonicalize(&self.path).unwrap_or_else(|_| self.path.clone())
    }

    fn seen(&self, path: &Path) -> Result<Fence> {
        match std::fs::read_to_string(beside(path, "fence")) {
            Ok(text) => text.trim().parse().map(u64::into).map_err(|_| GuardError::Unusable {
                resource: self.resource(),
                // Reading it as zero would accept every fence.
                reason: "what stands in its `.fence` file is no fence",
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Fence::from(0)),
            Err(error) => Err(GuardError::Store(error)),
        }
    }

    fn resource(&self) -> String {
        self.path.display().to_string()
    }
}

/// Waits until no other access is going on. The lock ends with the value, or the process.
fn lock(path: &Path) -> io::Result<File> {
    let path = beside(path, "fence-lock");
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(path)?;
    loop {
        match flock(&file, FlockOperation::LockExclusive) {
            Err(rustix::io::Errno::INTR) => {}
            locked => return locked.map(|()| file).map_err(io::Error::from),
        }
    }
}

fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(ending);
    name.into()
}

/// Replaces a file as a whole, and flushes it to the disk. Its permissions stay.
fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let fresh = beside(path, "new");
    let permissions: Option<Permissions> =
        std::fs::metadata(path).ok().map(|metadata| metadata.permissions());
    let mut file = File::create(&fresh)?;
    if let Some(permissions) = permissions {
        file.set_permissions(permissions)?;
    }
    file.write_all(content)?;
    file.sync_all()?;
    std::fs::rename(&fresh, path)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place() -> (tempfile::TempDir, GuardedFile) {
        let folder = tempfile::tempdir().expect("a folder");
        let file = GuardedFile::new(folder.path().join("data"));
        (folder, file)
    }

    #[test]
    fn an_old_fence_neither_writes_nor_reads_and_an_equal_one_does_both() {
        let (_folder, file) = place();
        file.write(5, b"five").expect("the first");
        file.write(5, b"five again").expect("the same lease");
        assert_eq!(file.read(8).expect("newer"), b"five again");
        let late = file.write(5, b"late").expect_err("8 has read it");
        let refused = late.refused().expect("a refusal");
        assert_eq!((refused.given.as_u64(), refused.highest.as_u64()), (5, 8));
        assert!(late.to_string().contains("fence 5 is old: 8 was seen"), "{late}");
        assert!(file.read(7).is_err_and(|error| error.refused().is_some()));
        assert_eq!(std::fs::read(file.path()).expect("there"), b"five again");
    }

    #[test]
    fn greatest_fence_outlives_the_guard() {
        let (_folder, file) = place();
        file.write(u64::MAX, b"x").expect("written");
        let again = GuardedFile::new(file.path());
        assert_eq!(again.highest().expect("readable"), u64::MAX);
        assert!(again.write(u64::MAX - 1, b"y").is_err());
    }

    #[test]
    fn a_record_that_is_no_fence_lets_nobody_in() {
        let (_folder, file) = place();
        file.write(5, b"five").expect("written");
        for broken in ["", "-1", "5x", "99999999999999999999999"] {
            std::fs::write(beside(file.path(), "fence"), broken).expect("spoilt");
            let refused = file.write(9, b"nine");
            assert!(matches!(refused, Err(GuardError::Unusable { .. })), "{broken:?}: {refused:?}");
        }
    }

    #[test]
    fn a_missing_file_is_the_stores_error_and_the_fence_counts() {
        let (_folder, file) = place();
        assert!(matches!(file.read(5), Err(GuardError::Store(_))));
        assert_eq!(file.highest().expect("readable"), 5);
    }

    #[test]
    fn a_link_leads_to_the_same_guard_and_stays_a_link() {
        let (folder, file) = place();
        file.write(8, b"eight").expect("written");
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(file.path(), &link).expect("linked");
        let linked = GuardedFile::new(&link);
        assert!(linked.write(7, b"late").is_err_and(|error| error.refused().is_some()));
        linked.write(9, b"nine").expect("newer");
        assert_eq!(file.read(9).expect("the same"), b"nine");
        assert!(std::fs::symlink_metadata(&link).expect("there").is_symlink());
    }

    #[test]
    fn permissions_of_the_file_stay() {
        use std::os::unix::fs::PermissionsExt as _;
        let (_folder, file) = place();
        file.write(1, b"x").expect("written");
        let secret = Permissions::from_mode(0o600);
        std::fs::set_permissions(file.path(), secret).expect("ours");
        file.write(2, b"y").expect("written");
        let mode = std::fs::metadata(file.path()).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn among_many_threads_what_is_accepted_never_goes_back() {
        let (_folder, file) = place();
        let accepted = std::sync::Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for thread in 0..8_u64 {
                let (file, accepted) = (&file, &accepted);
                scope.spawn(move || {
                    for round in 0..12_u64 {
                        let fence = round * 8 + (thread * 5) % 8;
                        let done = file.access(fence, |path| {
                            accepted.lock().expect("sound").push(fence);
                            std::fs::write(path, fence.to_string())
                        });
                        let late = done.is_err_and(|error| error.refused().is_none());
                        assert!(!late, "nothing but refusals");
                    }
                });
            }
        });
        let accepted = accepted.into_inner().expect("sound");
        assert!(accepted.is_sorted(), "{accepted:?}");
        let last = accepted.last().expect("some were").to_string();
        assert_eq!(std::fs::read_to_string(file.path()).expect("there"), last);
        assert_eq!(file.highest().expect("readable").to_string(), last);
    }
}
