//! Waking waiters in other processes: one named pipe per client, beside the database.
//!
//! A pipe rather than a socket, because its path may be of any length and opening one that nobody
//! reads fails at once, which tells a dead waiter from a slow one. Rather than a watched file,
//! because a bell must wake one process, not all of them. A thread of its own reads the pipe, so
//! that waiting needs no particular runtime; it exists only in clients that wait or watch.
//!
//! A bell names the place in line that it was rung for, and proves that the ringer knows the
//! claim's token. It does not tell the token: a user who hears the bells of others must not own
//! their claims.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::stream::BoxStream;
use rustix::io::Errno;
use sha2::{Digest, Sha256};
use tokio::sync::Notify;

use crate::engine::bell::{Bell, BellRegistry};
use crate::engine::kit::hearers::Hearers;
use crate::engine::{HolderMessage, Wake};
use crate::error::Result;
use crate::rule::claim::Token;

use super::bell_folder::BellFolder;
use super::place::Rights;

/// What goes through a pipe: a proof and the fence that it is for, or one of two signals. Far below
/// the size up to which the kernel writes in one piece.
type Message = [u8; 24];
const EVENTS: Message = [0x00; 24];
const STOP: Message = [0xff; 24];

/// What stands before a message to holders, with its number of bytes behind it. The message itself
/// fills whole bells, so that a client which does not know it reads on in step.
const HOLDERS: [u8; 16] = [0xfe; 16];

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
    folder: BellFolder,
    mailbox: i64,
    waiting: Waiting,
    events: Notify,
    hearers: Hearers,
}

/// The waiting claims of this client. Their bells go by the proofs that ring them.
#[derive(Debug, Default)]
struct Waiting {
    bells: BellRegistry,
    /// The place of each claim.
    places: Mutex<HashMap<Token, u64>>,
}

impl Waiting {
    fn expect(&self, token: Token, place: u64) {
        let mut places = self.places();
        if let Some(former) = places.insert(token, place).filter(|former| *former != place) {
            self.bells.forget(&proof(&token, former));
        }
        self.bells.register(proof(&token, place));
    }

    fn forget(&self, token: &Token) {
        if let Some(place) = self.places().remove(token) {
            self.bells.forget(&proof(token, place));
        }
    }

    fn bell(&self, token: &Token) -> Option<Arc<Bell>> {
        let place = self.places().get(token).copied()?;
        self.bells.bell(&proof(token, place))
    }

    fn places(&self) -> MutexGuard<'_, HashMap<Token, u64>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What only a client that knows the token can say of a place, and what tells no other the token.
fn proof(token: &Token, place: u64) -> Token {
    let digest = Sha256::new().chain_update(token.as_bytes()).chain_update(place.to_be_bytes());
    let mut proof = [0; 16];
    proof.copy_from_slice(&digest.finalize()[..16]);
    Token::from_bytes(proof)
}

impl Bells {
    pub(super) fn beside(database: &Path, rights: Rights) -> Self {
        let shared = Shared {
            folder: BellFolder::beside(database, rights),
            mailbox: rand::random_range(1..i64::MAX),
            waiting: Waiting::default(),
            events: Notify::new(),
            hearers: Hearers::default(),
        };
        Self { shared: Arc::new(shared), open: Mutex::new(false) }
    }

    /// The mailbox to write into a claim.
    pub(super) fn mailbox(&self) -> i64 {
        self.shared.mailbox
    }

    /// Gets ready to hear the bell of a claim at its place in line. To be called before others can
    /// see the claim.
    pub(super) fn expect(&self, token: Token, place: u64) -> Result<()> {
        self.open()?;
        self.shared.waiting.expect(token, place);
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
        message[..16].copy_from_slice(proof(token, fence).as_bytes());
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
    pub(super) fn expect_events(&self) -> Result<()> {
        self.open()
    }

    pub(super) fn events(&self) -> &Notify {
        &self.shared.events
    }

    /// Hands a message to every client that has a mailbox. One whose pipe is full misses it.
    pub(super) fn send_to_all(&self, message: &HolderMessage) -> Result<()> {
        let text = message.to_text();
        let mut bytes = HOLDERS.to_vec();
        bytes.extend((text.len() as u64).to_be_bytes());
        bytes.extend(text.as_bytes());
        bytes.resize(bytes.len().next_multiple_of(size_of::<Message>()), 0);
        for (mailbox, mut pipe) in self.shared.folder.open_pipes()? {
            // Up to 4,096 bytes, of which the kernel writes all or none.
            if let Err(error) = pipe.write(&bytes) {
                tracing::debug!(%error, mailbox, "a client misses a message to holders");
            }
        }
        Ok(())
    }

    /// Messages to holders from now on.
    pub(super) fn listen(&self) -> Result<BoxStream<'static, HolderMessage>> {
        self.open()?;
        Ok(self.shared.hearers.listen())
    }

    /// Removes the mailbox and ends its thread.
    pub(super) fn close(&self) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::take(&mut *open) {
            self.send(self.shared.mailbox, &STOP);
            self.shared.folder.remove_pipe(self.shared.mailbox);
        }
    }

    fn send(&self, mailbox: i64, message: &Message) -> Rung {
        match self.shared.folder.open_pipe(mailbox) {
            Ok(mut pipe) => match pipe.write(message) {
                Ok(sent) if sent == message.len() => Rung::Heard,
                _ => Rung::Missed,
            },
            Err(Errno::NXIO) => Rung::Dead,
            Err(_) => Rung::Missed,
        }
    }

    fn open(&self) -> Result<()> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if *open {
            return Ok(());
        }
        let pipe = self.shared.folder.create_pipe(self.shared.mailbox)?;
        let shared = Arc::clone(&self.shared);
        let thread = std::thread::Builder::new().name("leasehold-bells".into());
        let spawned = thread.spawn(move || shared.listen(pipe));
        spawned.map_err(|error| self.shared.folder.failed(&error))?;
        *open = true;
        Ok(())
    }
}

impl Drop for Bells {
    fn drop(&mut self) {
        self.close();
    }
}

/// The number of bytes of the message to holders that begins here.
fn length(message: &Message) -> Option<usize> {
    let (head, length) = message.split_at(HOLDERS.len());
    let length = usize::try_from(u64::from_be_bytes(length.try_into().ok()?)).ok()?;
    (head == HOLDERS && length <= HolderMessage::BYTES_MAX).then_some(length)
}

impl Shared {
    fn deliver(&self, message: &Message) {
        if *message == EVENTS {
            self.events.notify_waiters();
            return;
        }
        let (mut proof, mut fence) = ([0; 16], [0; 8]);
        proof.copy_from_slice(&message[..16]);
        fence.copy_from_slice(&message[16..]);
        let wake = Wake::holds_at(u64::from_be_bytes(fence));
        self.waiting.bells.ring(&Token::from_bytes(proof), wake);
    }

    fn listen(&self, mut pipe: File) {
        let mut message = [0; 24];
        // Each message was written in one piece, so it is read in one piece.
        while pipe.read_exact(&mut message).is_ok() && message != STOP {
            match length(&message) {
                Some(length) => self.hear(&mut pipe, length),
                None => self.deliver(&message),
            }
        }
        self.hearers.missed();
    }

    /// Reads the rest of a message to holders.
    fn hear(&self, pipe: &mut File, length: usize) {
        let mut bytes = vec![0; length.next_multiple_of(size_of::<Message>())];
        if pipe.read_exact(&mut bytes).is_ok() {
            self.hearers.tell_text(&String::from_utf8_lossy(&bytes[..length]));
        }
    }
}
