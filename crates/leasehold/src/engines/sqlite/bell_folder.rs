//! The folder of the pipes: `.bells` beside the database.
//!
//! Another user may be allowed to write beside the database, and may put a link or a folder of
//! their own under this name. So the folder is opened once for each use, without following links,
//! and its owner is compared; everything else goes through that descriptor. Only what this process
//! made gets other rights, and only pipes with names of ours are opened or removed.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, RawMode, RenameFlags, Stat};
use rustix::io::Errno;

use crate::error::{Error, Result};

use super::place::{Rights, refuse, refused};
use super::platform::make_pipe;

/// The folder beside one database.
#[derive(Debug)]
pub(super) struct BellFolder {
    path: PathBuf,
    /// Those of the database: who may use it may ring.
    rights: Rights,
}

impl BellFolder {
    pub(super) fn beside(database: &Path, rights: Rights) -> Self {
        let mut path = database.as_os_str().to_owned();
        path.push(".bells");
        Self { path: path.into(), rights }
    }

    /// Makes the pipe of a mailbox. It gets its name only when somebody reads it, so that a pipe
    /// without a reader always means a client that is gone.
    pub(super) fn create_pipe(&self, mailbox: i64) -> Result<File> {
        let folder = self.make()?;
        sweep(&folder);
        let unnamed = format!("new-{mailbox:016x}");
        let make = || {
            make_pipe(&folder, &self.path, &unnamed)?;
            // Reading and writing, so that the pipe never ends when the last ringer leaves.
            let pipe = open_pipe(&folder, &unnamed, OFlags::RDWR)?;
            rustix::fs::fchmod(&pipe, Mode::from_raw_mode(self.rights.mode as RawMode))?;
            rustix::fs::renameat(&folder, &unnamed, &folder, pipe_name(mailbox))?;
            Ok(File::from(pipe))
        };
        make().map_err(|error: io::Error| match Errno::from_io_error(&error) {
            Some(errno) => self.cannot(errno),
            None => self.failed(&error),
        })
    }

    /// Opens another client's pipe; `NXIO` if nobody reads it.
    pub(super) fn open_pipe(&self, mailbox: i64) -> Result<File, Errno> {
        // A folder that cannot be trusted tells nothing about its pipes.
        let folder = self.open().map_err(|_refused| Errno::ACCESS)?;
        open_pipe(&folder, &pipe_name(mailbox), OFlags::WRONLY | OFlags::NONBLOCK).map(File::from)
    }

    /// Opens the pipes of all clients, but for those that nobody reads.
    pub(super) fn open_pipes(&self) -> Result<Vec<(i64, File)>> {
        if matches!(rustix::fs::lstat(&self.path), Err(Errno::NOENT)) {
            return Ok(Vec::new());
        }
        let folder = self.open()?;
        let entries = Dir::read_from(&folder).map_err(|errno| self.cannot(errno))?;
        let mut pipes = Vec::new();
        for entry in entries.flatten() {
            let Some(mailbox) = mailbox_of(entry.file_name()) else { continue };
            let access = OFlags::WRONLY | OFlags::NONBLOCK;
            if let Ok(pipe) = open_pipe(&folder, &pipe_name(mailbox), access) {
                pipes.push((mailbox, File::from(pipe)));
            }
        }
        Ok(pipes)
    }

    /// Removes the pipe of a mailbox.
    pub(super) fn remove_pipe(&self, mailbox: i64) {
        if let Ok(folder) = self.open() {
            // Another client may have swept it up already.
            let _gone = rustix::fs::unlinkat(folder, pipe_name(mailbox), AtFlags::empty());
        }
    }

    /// Opens the folder, and makes it if it is not there. It gets its name only when its rights
    /// are set.
    fn make(&self) -> Result<OwnedFd> {
        if !matches!(rustix::fs::lstat(&self.path), Err(Errno::NOENT)) {
            return self.open();
        }
        let mut unnamed = self.path.clone().into_os_string();
        unnamed.push(format!(".new-{:016x}", rand::random::<u64>()));
        let mode = self.rights.mode | (self.rights.mode & 0o444) >> 2;
        let make = || {
            rustix::fs::mkdir(&unnamed, Mode::RWXU)?;
            let folder = open_folder(unnamed.as_ref())?;
            // A bit that the folder around it hands on, so that pipes get its group as well.
            let about = rustix::fs::fstat(&folder)?;
            let group_of_pipes = Mode::from_raw_mode(about.st_mode) & Mode::SGID;
            rustix::fs::fchmod(&folder, Mode::from_raw_mode(mode as RawMode) | group_of_pipes)?;
            let only_new = RenameFlags::NOREPLACE;
            match rustix::fs::renameat_with(CWD, &unnamed, CWD, &self.path, only_new) {
                // This file system cannot do that; this replaces an empty folder at most.
                Err(Errno::INVAL) => rustix::fs::rename(&unnamed, &self.path),
                renamed => renamed,
            }
        };
        let made = make();
        if made.is_err() {
            let _unmade = rustix::fs::rmdir(&unnamed);
        }
        match made {
            // Another client may have been faster, or something else has this name now.
            Ok(()) | Err(Errno::EXIST | Errno::NOTEMPTY | Errno::NOTDIR) => self.open(),
            Err(errno) => Err(self.cannot(errno)),
        }
    }

    /// Opens the folder, if this user may trust it.
    fn open(&self) -> Result<OwnedFd> {
        let opened = open_folder(&self.path).and_then(|folder| {
            let about = rustix::fs::fstat(&folder)?;
            Ok((folder, about))
        });
        let (folder, about) = opened.map_err(|errno| self.cannot(errno))?;
        if !self.trusts(&about) {
            let reason = format!("it belongs to another user (number {})", about.st_uid);
            return Err(refuse(&self.path, reason, "remove it; it is made again by itself"));
        }
        Ok(folder)
    }

    /// The owner of a folder hears its bells and can keep them back. So it must be somebody who may
    /// use the database: its owner, or a member of the group that it is shared with. A folder's
    /// group says nothing about its owner where everybody may make folders.
    fn trusts(&self, about: &Stat) -> bool {
        let Rights { mode, owner, group, for_everybody } = self.rights;
        let shared = mode & 0o020 != 0 && about.st_gid == group && !for_everybody;
        let user = rustix::process::geteuid().as_raw();
        shared || [user, owner, 0].contains(&about.st_uid)
    }

    /// The error for a mailbox that could not be made.
    pub(super) fn failed(&self, error: &io::Error) -> Error {
        refused(&self.path, error)
    }

    fn cannot(&self, errno: Errno) -> Error {
        match errno {
            Errno::NOTDIR | Errno::LOOP => {
                let reason = "it is a link, or something else that is no folder";
                refuse(&self.path, reason, "remove it; a folder is made by itself")
            }
            Errno::ACCESS | Errno::PERM => {
                let advice = "give it the rights of the database, or remove it";
                refuse(&self.path, "this user may not make pipes in it", advice)
            }
            errno => self.failed(&errno.into()),
        }
    }
}

fn open_folder(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty())
}

fn pipe_name(mailbox: i64) -> String {
    format!("{mailbox:016x}")
}

fn mailbox_of(name: &CStr) -> Option<i64> {
    let digits = name.to_str().ok().filter(|_| is_pipe_name(name))?;
    i64::from_str_radix(digits, 16).ok()
}

fn is_pipe_name(name: &CStr) -> bool {
    let name = name.to_bytes();
    name.len() == 16 && name.iter().all(u8::is_ascii_hexdigit)
}

/// Opens a pipe, and nothing else that may have its name.
fn open_pipe(folder: impl AsFd, name: &str, access: OFlags) -> Result<OwnedFd, Errno> {
    let flags = access | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let pipe = rustix::fs::openat(folder, name, flags, Mode::empty())?;
    let kind = FileType::from_raw_mode(rustix::fs::fstat(&pipe)?.st_mode);
    if kind == FileType::Fifo { Ok(pipe) } else { Err(Errno::INVAL) }
}

/// Removes the pipes of clients that died without closing.
fn sweep(folder: &OwnedFd) {
    let Ok(entries) = Dir::read_from(folder) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let kind = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)
            .map(|about| FileType::from_raw_mode(about.st_mode));
        if !is_pipe_name(name) || kind != Ok(FileType::Fifo) {
            continue;
        }
        let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let opened = rustix::fs::openat(folder, name, flags, Mode::empty());
        if opened.is_err_and(|errno| errno == Errno::NXIO) {
            // Another client may sweep at the same time.
            let _gone = rustix::fs::unlinkat(folder, name, AtFlags::empty());
        }
    }
}
