//! Where the database file may be, and whether it is still the same file.
//!
//! A lock file is only as good as its file system: on a network share two machines would count
//! on two boot clocks, and a file others can swap protects nothing. Refused here, before SQLite
//! sees the path.

use std::fs::{Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags};
use rustix::io::Errno;

use crate::error::{Config, Error, Result};

use super::failure::{is_too_many, too_many_files};
use super::platform::{file_system, is_mounted_alone};

/// File systems whose files live on another machine, or may: their magic numbers as `statfs(2)`
/// lists them, and the name people know.
const NETWORK: &[(u64, &str)] = &[
    (0x6969, "NFS"),
    (0x517b, "SMB"),
    (0xfe53_4d42, "SMB2"),
    (0xff53_4d42, "CIFS"),
    (0x6573_5546, "FUSE"),
    (0x0102_1997, "9P"),
    (0x00c3_6400, "Ceph"),
    (0x5346_414f, "AFS"),
    (0x7375_7245, "Coda"),
    (0x0bd0_0bd0, "Lustre"),
    (0x0116_1970, "GFS2"),
    (0x7461_636f, "OCFS2"),
    (0x564c, "NCP"),
];

/// The magic number of a file system in which several containers may see one file, and each writes
/// to a copy of its own.
const OVERLAY: u64 = 0x794c_7630;

/// The kind of network file system behind a magic number, if it is one.
fn network_kind(magic: u64) -> Option<&'static str> {
    let magic = magic & 0xffff_ffff;
    NETWORK.iter().find(|(known, _)| *known == magic).map(|(_, kind)| *kind)
}

/// A database file that passed the checks.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) path: PathBuf,
    device: u64,
    inode: u64,
    /// Whether everybody may make files beside the database.
    for_everybody: bool,
}

/// Who may use the database, and so its bells.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rights {
    pub(super) mode: u32,
    pub(super) owner: u32,
    pub(super) group: u32,
    /// Whether everybody may make files beside the database.
    pub(super) for_everybody: bool,
}

impl Place {
    /// Checks `path` and makes the file, readable for its owner only, if it is not there.
    pub(super) fn prepare(path: &Path, allow_network: bool) -> Result<Self> {
        let path = std::path::absolute(path).map_err(|error| refused(path, &error))?;
        let folder = path.parent().unwrap_or(Path::new("/"));
        let about = folder.metadata().map_err(|error| refused(folder, &error))?;
        if !about.is_dir() {
            let advice = "name a file inside a folder";
            return Err(refuse(folder, "it is not a folder", advice));
        }
        let (for_everybody, sticky) = (about.mode() & 0o002 != 0, about.mode() & 0o1000 != 0);
        if for_everybody && !sticky {
            let reason = "everybody may replace files in this folder";
            return Err(refuse(folder, reason, "use a folder of your own, or `chmod o-w` it"));
        }
        let network = file_system(folder).and_then(network_kind);
        if let Some(kind) = network.filter(|_| !allow_network) {
            let reason = format!("it is on a network file system ({kind})");
            let advice = "put it on a local disk, or use a server engine; \
                          `?allow_network=yes` if all its users are on this one machine";
            return Err(refuse(&path, reason, advice));
        }
        let about = match path.symlink_metadata() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                create(&path).and_then(|()| path.symlink_metadata())
            }
            about => about,
        };
        let about = about.map_err(|error| refused(&path, &error))?;
        if about.is_symlink() {
            return Err(refuse(&path, "it is a symbolic link", "name the file itself"));
        }
        if !about.is_file() {
            return Err(refuse(&path, "it is not a regular file", "name a file"));
        }
        refuse_other_paths(&path, &about)?;
        let (device, inode) = (about.dev(), about.ino());
        let place = Self { path, device, inode, for_everybody };
        place.refuse_strangers()?;
        Ok(place)
    }

    /// Refuses files of other users in a folder for everybody: the database, and what SQLite takes
    /// for its log. To be called again once SQLite has the files open, because another user may
    /// make one meanwhile.
    pub(super) fn refuse_strangers(&self) -> Result<()> {
        if !self.for_everybody {
            return Ok(());
        }
        let user = rustix::process::geteuid().as_raw();
        for ending in ["", "-wal", "-shm", "-journal"] {
            let mut path = self.path.clone().into_os_string();
            path.push(ending);
            let path = PathBuf::from(path);
            match path.symlink_metadata() {
                Ok(about) if about.is_file() && [user, 0].contains(&about.uid()) => {}
                Ok(_) => {
                    let reason = "it belongs to another user, and its folder is for everybody";
                    return Err(refuse(&path, reason, "use a file in a folder of your own"));
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(refused(&path, &error)),
            }
        }
        Ok(())
    }

    /// Whether the path still leads to the file that was opened.
    pub(super) fn is_same(&self) -> bool {
        self.path.symlink_metadata().is_ok_and(|about| self.is(&about))
    }

    fn is(&self, about: &Metadata) -> bool {
        about.dev() == self.device && about.ino() == self.inode
    }

    /// The network file system the file is on, if it is on one.
    pub(super) fn network(&self) -> Option<&'static str> {
        file_system(&self.path).and_then(network_kind)
    }

    /// Whether the file is in a layered file system, as that of a container is.
    pub(super) fn is_overlay(&self) -> bool {
        file_system(&self.path).is_some_and(|magic| magic & 0xffff_ffff == OVERLAY)
    }

    /// Who may use the file; nobody but root where it is gone.
    pub(super) fn rights(&self) -> Rights {
        let about = self.path.symlink_metadata();
        let of = |read: fn(&Metadata) -> u32| about.as_ref().map_or(0, read);
        Rights {
            mode: of(|about| about.mode() & 0o777),
            owner: of(Metadata::uid),
            group: of(Metadata::gid),
            for_everybody: self.for_everybody,
        }
    }
}

/// Refuses a file that other paths may lead to: SQLite's log is found by the path, so each of them
/// would have a log of its own.
fn refuse_other_paths(path: &Path, about: &Metadata) -> Result<()> {
    if about.nlink() > 1 {
        let reason =
            format!("it has {} names (hard links), each with a log of its own", about.nlink());
        return Err(refuse(path, reason, "keep one of them, and share its folder instead"));
    }
    let is_mount = is_mounted_alone(path).map_err(|error| refused(path, &error))?;
    if is_mount {
        let reason = "it is mounted by itself, without the log that belongs to it";
        return Err(refuse(path, reason, "mount its folder instead"));
    }
    Ok(())
}

/// Makes an empty file that only its owner may open.
///
/// It is made under another name, closed, and only then given its own: closing a descriptor of a
/// file drops all locks this process has on it, also those of a connection that another thread
/// has just opened.
fn create(path: &Path) -> io::Result<()> {
    let mut unnamed = path.as_os_str().to_owned();
    unnamed.push(format!(".new-{:016x}", rand::random::<u64>()));
    let unnamed = PathBuf::from(unnamed);
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    drop(options.open(&unnamed)?);
    // Not by a second link: another client may look meanwhile, and would see two.
    let only_new = RenameFlags::NOREPLACE;
    let named = match rustix::fs::renameat_with(CWD, &unnamed, CWD, path, only_new) {
        Ok(()) => return Ok(()),
        // This file system cannot do that.
        Err(Errno::INVAL) => std::fs::hard_link(&unnamed, path),
        Err(errno) => Err(errno.into()),
    };
    std::fs::remove_file(&unnamed)?;
    match named {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        named => named,
    }
}

pub(super) fn refuse(path: &Path, reason: impl Into<String>, advice: &'static str) -> Error {
    Error::Config(Config::Refused { path: path.into(), reason: reason.into(), advice })
}

/// The error for a file or folder that the system does not let this process use.
pub(super) fn refused(path: &Path, error: &io::Error) -> Error {
    if is_too_many(error) {
        return too_many_files(path);
    }
    let advice = match error.kind() {
        io::ErrorKind::NotFound => "create the folder first",
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            "use a file and a folder that you may write to"
        }
        _ => "use a file on a local disk that you may write to",
    };
    refuse(path, error.to_string(), advice)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f103_network_file_systems_are_known_by_their_magic_numbers() {
        assert_eq!(network_kind(0x6969), Some("NFS"));
        assert_eq!(network_kind(0xffff_ffff_ff53_4d42), Some("CIFS"), "sign-extended");
        assert_eq!(network_kind(0xef53), None, "ext4");
        assert_eq!(network_kind(0x0102_1994), None, "tmpfs");
    }
}
