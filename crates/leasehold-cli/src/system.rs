//! The store of the machine: one SQLite file that several users share, by a group.
//!
//! Only the group may enter its folder. A folder in which every user may create files is not safe:
//! SQLite would take another user's log there for its own.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use leasehold::sqlite::Sqlite;
use nix::unistd::{Gid, Group};
use rustix::fs::{Access, AtFlags, CWD, Mode, OFlags};

use crate::exit::Failure;

/// The store's folder, inside a folder that only root may change.
const FOLDER: &str = "/var/lib/leasehold";

/// The users who share the store.
const GROUP: &str = "leasehold";

/// The store, as this user sees it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// There is no store.
    None,
    /// There is one, but this user may not write to it.
    Closed,
    /// Its folder is there without the file. One that this user makes would not be the group's.
    Missing,
    /// There is one, in this file.
    Open(PathBuf),
}

/// The database file, which may not exist yet.
pub(crate) fn file() -> PathBuf {
    Path::new(FOLDER).join("locks.db")
}

/// Looks for the store, and whether this user may use it.
pub(crate) fn find() -> Found {
    let folder = Path::new(FOLDER);
    if !folder.is_dir() {
        return Found::None;
    }
    let may = |path: &Path, access| rustix::fs::accessat(CWD, path, access, AtFlags::EACCESS);
    let file = file();
    let entered = may(folder, Access::WRITE_OK | Access::EXEC_OK);
    if entered.is_err() {
        return Found::Closed;
    }
    match may(&file, Access::READ_OK | Access::WRITE_OK) {
        Ok(()) => Found::Open(file),
        Err(rustix::io::Errno::NOENT) => Found::Missing,
        Err(_) => Found::Closed,
    }
}

/// Creates the store; harmless if it exists.
pub(crate) fn make() -> Result<(), Failure> {
    let group = group()?;
    make_folder(group).map_err(|error| refused(Path::new(FOLDER), &error))?;
    let file = file();
    make_file(&file, group).map_err(|error| refused(&file, &error))?;
    Sqlite::open(file)?;
    Ok(())
}

/// The message after the store was created.
pub(crate) fn ready() -> String {
    format!(
        "`{}` is ready: the default store of root and of the users in the group `{GROUP}`",
        file().display()
    )
}

/// The message for a user who may not use the store.
pub(crate) fn closed() -> String {
    format!(
        "this lock excludes commands of this user only: the store of this machine, in `{FOLDER}`, \
         is for the group `{GROUP}`"
    )
}

/// The advice for users of the group where the file is missing.
pub(crate) fn missing() -> String {
    format!(
        "this lock excludes commands of this user only: `{}` is missing, and `sudo leasehold init \
         --system` makes it",
        file().display()
    )
}

fn group() -> Result<Gid, Failure> {
    let unknown = |why: String| {
        Failure::config(format!("{why}, whose users would share the store")).hint(format!(
            "`groupadd --system {GROUP}`, then `usermod -aG {GROUP} USER` for each of them"
        ))
    };
    match Group::from_name(GROUP) {
        Ok(Some(group)) => Ok(group.gid),
        Ok(None) => Err(unknown(format!("there is no group `{GROUP}`"))),
        Err(errno) => Err(unknown(format!("cannot look up the group `{GROUP}`: {errno}"))),
    }
}

/// Creates the folder, whose files inherit its group.
fn make_folder(group: Gid) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(FOLDER) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = rustix::fs::open(FOLDER, flags, Mode::empty())?;
    // Sets the group first: a change of the group clears the mode's first digit.
    std::os::unix::fs::fchown(&folder, None, Some(group.as_raw()))?;
    rustix::fs::fchmod(&folder, Mode::from_raw_mode(0o2770))?;
    Ok(())
}

/// Creates an empty database, whose rights SQLite gives to its log too. An existing file stays as
/// it is: a member of the group may have put another file in its place.
fn make_file(path: &Path, group: Gid) -> io::Result<()> {
    let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let file: File = match made {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
        made => made?,
    };
    std::os::unix::fs::fchown(&file, None, Some(group.as_raw()))?;
    rustix::fs::fchmod(&file, Mode::from_raw_mode(0o660))?;
    Ok(())
}

fn refused(path: &Path, error: &io::Error) -> Failure {
    Failure::config(format!("cannot make `{}`: {error}", path.display()))
        .hint("run it as root: `sudo leasehold init --system`")
}
