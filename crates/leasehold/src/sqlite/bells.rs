//! Waking waiters in other processes: one named pipe per client, beside the database.
//!
//! A pipe rather than a socket, because its path may be of any length and opening one that nobody
//! reads fails at once, which tells a dead waiter from a slow one. Rather than a watched file,
//! because a bell must wake one process, not all of them. A thread of its own reads the pipe, so
//! that waiting needs no particular runtime; it exists only in clients that wait or watch.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{Mode, OFlags};
use tokio::sync::Notify;

use crate::bell::{Belfry, Bell};
use crate::claim::Token;

/// What goes through a pipe: a claim's token and fence, or one of two signals. Far below the size
/// up to which the kernel writes in one piece.
type Message = [u8; 24];
const EVENTS: Message = [0x00; 24];
const STOP: Message = [0xff; 24];

/// Whether somebody heard the bell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rung {
    Heard,
    /// The pipe is there and nobody reads it: its client is gone.
    Dead,
    /// The pipe is full or out of reach: the heartbeat will have to do.
    Missed,
}

/// A client's mailbox, and the way to the others'.
#[derive(Debug)]
pub(super) struct Bells {
    shared: Arc<Shared>,
    /// Whether the pipe exists and the thread reads it.
    open: Mutex<bool>,
}

#[derive(Debug)]
struct Shared {
    folder: PathBuf,
    /// The permissions of the database: whoever may use it may ring.
    mode: u32,
    mailbox: i64,
    waiting: Belfry,
    events: Notify,
}

impl Bells {
    pub(super) fn beside(database: &Path, mode: u32) -> Self {
        let mut folder = database.as_os_str().to_owned();
        folder.push(".bells");
        let shared = Shared {
            folder: folder.into(),
            mode,
            mailbox: rand::random_range(1..i64::MAX),
            waiting: Belfry::default(),
            events: Notify::new(),
        };
        Self { shared: Arc::new(shared), open: Mutex::new(false) }
    }

    /// The mailbox to write into a claim.
    pub(super) fn mailbox(&self) -> i64 {
        self.shared.mailbox
    }

    /// Gets ready to hear the bell of a claim that is to be in line with this fence. To be called
    /// before others can see the claim.
    pub(super) fn expect(&self, token: Token, fence: u64) -> io::Result<()> {
        self.open()?;
        self.shared.waiting.expect(token);
        self.shared.waiting.place(&token, fence);
        Ok(())
    }

    /// A claim does not wait any more.
    pub(super) fn forget(&self, token: &Token) {
        self.shared.waiting.forget(token);
    }

    /// The bell of a claim, if it is expected.
    pub(super) fn bell(&self, token: &Token) -> Option<Arc<Bell>> {
        self.shared.waiting.bell(token)
    }

    /// Rings a claim's bell, in this process or another.
    pub(super) fn ring(&self, mailbox: i64, token: &Token, fence: u64) -> Rung {
        let mut message = [0; 24];
        message[..16].copy_from_slice(token.as_bytes());
        message[16..].copy_from_slice(&fence.to_be_bytes());
        if mailbox == self.shared.mailbox {
            self.shared.deliver(&message);
            return Rung::Heard;
        }
        self.send(mailbox, &message)
    }

    /// Tells a watcher that there are events.
    pub(super) fn ring_watcher(&self, mailbox: i64) -> Rung {
        if mailbox == self.shared.mailbox {
            self.shared.events.notify_waiters();
            return Rung::Heard;
        }
        self.send(mailbox, &EVENTS)
    }

    /// Gets ready to hear of events; the returned future ends at the next ones.
    pub(super) fn expect_events(&self) -> io::Result<()> {
        self.open()
    }

    pub(super) fn events(&self) -> &Notify {
        &self.shared.events
    }

    /// Removes the mailbox and ends its thread.
    pub(super) fn close(&self) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::take(&mut *open) {
            self.send(self.shared.mailbox, &STOP);
            // Somebody may have swept it up already.
            let _gone = std::fs::remove_file(self.shared.pipe(self.shared.mailbox));
        }
    }

    fn send(&self, mailbox: i64, message: &Message) -> Rung {
        let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        match rustix::fs::open(self.shared.pipe(mailbox), flags, Mode::empty()) {
            Ok(pipe) => match File::from(pipe).write(message) {
                Ok(sent) if sent == message.len() => Rung::Heard,
                _ => Rung::Missed,
            },
            Err(rustix::io::Errno::NXIO) => Rung::Dead,
            Err(_) => Rung::Missed,
        }
    }

    fn open(&self) -> io::Result<()> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if *open {
            return Ok(());
        }
        let pipe = self.shared.create()?;
        let shared = Arc::clone(&self.shared);
        let thread = std::thread::Builder::new().name("leasehold-bells".into());
        thread.spawn(move || shared.listen(pipe))?;
        *open = true;
        Ok(())
    }
}

impl Drop for Bells {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    fn pipe(&self, mailbox: i64) -> PathBuf {
        self.folder.join(format!("{mailbox:016x}"))
    }

    fn deliver(&self, message: &Message) {
        if *message == EVENTS {
            self.events.notify_waiters();
            return;
        }
        let (mut token, mut fence) = ([0; 16], [0; 8]);
        token.copy_from_slice(&message[..16]);
        fence.copy_from_slice(&message[16..]);
        self.waiting.ring(&Token::from_bytes(token), u64::from_be_bytes(fence));
    }

    /// Makes the pipe. It gets its name only when somebody reads it, so that a pipe without a
    /// reader always means a client that is gone.
    fn create(&self) -> io::Result<File> {
        match std::fs::DirBuilder::new().create(&self.folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let passable = self.mode | (self.mode & 0o444) >> 2;
        rustix::fs::chmod(&self.folder, Mode::from_raw_mode(passable)).or_else(|errno| {
            // Shared by several users: whoever made it has set it up.
            if errno == rustix::io::Errno::PERM { Ok(()) } else { Err(errno) }
        })?;
        self.sweep();
        let unnamed = self.folder.join(format!("new-{:016x}", self.mailbox));
        rustix::fs::mkfifoat(rustix::fs::CWD, &unnamed, Mode::from_raw_mode(self.mode))?;
        // Reading and writing, so that the pipe never ends when the last ringer leaves.
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let pipe = rustix::fs::open(&unnamed, flags, Mode::empty())?;
        std::fs::rename(&unnamed, self.pipe(self.mailbox))?;
        Ok(File::from(pipe))
    }

    /// Removes the pipes of clients that died without closing.
    fn sweep(&self) {
        let Ok(folder) = std::fs::read_dir(&self.folder) else { return };
        for pipe in folder.flatten() {
            if pipe.file_name().as_encoded_bytes().starts_with(b"new-") {
                continue;
            }
            let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            let nobody = rustix::fs::open(pipe.path(), flags, Mode::empty());
            if matches!(nobody, Err(rustix::io::Errno::NXIO)) {
                // Another client may sweep at the same time.
                let _gone = std::fs::remove_file(pipe.path());
            }
        }
    }

    fn listen(&self, mut pipe: File) {
        let mut message = [0; 24];
        // Each message was written in one piece, so it is read in one piece.
        while pipe.read_exact(&mut message).is_ok() && message != STOP {
            self.deliver(&message);
        }
    }
}
