//! One way through a connection: reads pieces, holds them, and passes them on when they may.
//!
//! The proxy reads pieces even while they may not pass, so that a test can see that they arrived. A
//! side that closes sends a piece without bytes, which the proxy holds like any other.

use std::collections::VecDeque;
use std::io;

use tokio::io::AsyncWriteExt;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::connection::{Connection, Fate};
use super::settings::{AfterLoss, Settings, Way};

/// Requests and replies of lock stores fit; longer ones come in several pieces.
const PIECE_BYTES_MAX: usize = 16 * 1024;

/// Pieces held for each way. When this many are held the proxy slows the sender down, as a full
/// network does.
const PIECES_MAX: usize = 256;

/// Bytes that arrived together.
#[derive(Debug)]
struct Piece {
    bytes: Vec<u8>,
    arrived_at: Instant,
}

#[derive(Debug)]
pub(super) struct Pump<'a> {
    way: Way,
    connection: &'a Connection,
    settings: watch::Receiver<Settings>,
    from: ReadHalf<'a>,
    to: WriteHalf<'a>,
    pieces: VecDeque<Piece>,
    has_ended: bool,
}

impl<'a> Pump<'a> {
    pub(super) fn new(
        way: Way,
        connection: &'a Connection,
        from: ReadHalf<'a>,
        to: WriteHalf<'a>,
    ) -> Pump<'a> {
        let settings = connection.shared.settings.subscribe();
        Pump { way, connection, settings, from, to, pieces: VecDeque::new(), has_ended: false }
    }

    /// Runs until the sender has closed and the receiver knows; an error means a broken connection.
    pub(super) async fn run(mut self) -> io::Result<()> {
        loop {
            let reads = !self.has_ended && self.pieces.len() < PIECES_MAX;
            let first = self.pieces.front().map(|piece| piece.arrived_at);
            tokio::select! {
                ready = self.from.readable(), if reads => {
                    ready?;
                    self.read()?;
                }
                ready = may_pass(self.way, first, &mut self.settings, &self.to) => {
                    ready?;
                    if self.pass_first().await? {
                        return Ok(());
                    }
                }
            }
        }
    }

    fn read(&mut self) -> io::Result<()> {
        let mut bytes = vec![0; PIECE_BYTES_MAX];
        let count = match self.from.try_read(&mut bytes) {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        };
        bytes.truncate(count);
        self.has_ended = count == 0;
        let arrived_at = Instant::now();
        self.count(|way, traffic| traffic.flow(way).held += count as u64);
        self.connection.state().active_at = arrived_at;
        self.pieces.push_back(Piece { bytes, arrived_at });
        Ok(())
    }

    /// Passes on the first piece, or as much of it as the receiver takes; true after the last.
    async fn pass_first(&mut self) -> io::Result<bool> {
        let Some(piece) = self.pieces.front() else { return Ok(false) };
        if piece.bytes.is_empty() {
            self.to.shutdown().await?;
            return Ok(true);
        }
        let mut last = None;
        match self.way {
            Way::ToServer => {
                self.claim_loss(&piece.bytes);
                last = self.settings.borrow().passes_before_hold(&piece.bytes);
            }
            Way::ToClient if self.loses(piece.bytes.len())? => {
                self.pieces.pop_front();
                return Ok(false);
            }
            Way::ToClient => {}
        }
        let written = self.write(&piece.bytes[..last.unwrap_or(piece.bytes.len())])?;
        if last == Some(written) {
            self.connection.shared.settings.send_modify(Settings::hold);
        }
        if written == piece.bytes.len() {
            self.pieces.pop_front();
        } else if let Some(piece) = self.pieces.front_mut() {
            piece.bytes.drain(..written);
        }
        Ok(false)
    }

    /// Writes as much as the receiver takes now, if no fault came in between.
    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        let written = {
            // The settings cannot change while they are borrowed: after a control has returned, no
            // byte passes against it.
            let settings = self.settings.borrow();
            if settings.resets != self.connection.born {
                return Err(io::ErrorKind::ConnectionReset.into());
            }
            if settings.blocks(self.way) {
                return Ok(0);
            }
            match self.to.try_write(bytes) {
                Ok(written) => written,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
                Err(error) => return Err(error),
            }
        };
        self.count(|way, traffic| {
            traffic.flow(way).held -= written as u64;
            traffic.flow(way).forwarded += written as u64;
        });
        self.connection.state().active_at = Instant::now();
        Ok(written)
    }

    /// Makes this connection lose its next reply, if the test asked to lose the reply to this
    /// request.
    fn claim_loss(&self, request: &[u8]) {
        let mut claimed = None;
        self.connection.shared.settings.send_if_modified(|settings| {
            claimed = settings.loss.take_if(|loss| loss.is_for(request)).map(|loss| loss.after);
            claimed.is_some()
        });
        if let Some(after) = claimed {
            self.connection.state().fate = Fate::LosesNext(after);
        }
    }

    /// Whether a piece of a reply is lost; an error when the connection must not go on after it.
    fn loses(&self, count: usize) -> io::Result<bool> {
        let fate = self.connection.state().fate;
        let lost = match fate {
            Fate::Passes => return Ok(false),
            Fate::LosesNext(AfterLoss::Reset) => {
                self.count(|_, traffic| traffic.replies_lost += 1);
                return Err(io::ErrorKind::ConnectionReset.into());
            }
            Fate::LosesNext(AfterLoss::Silence) => 1,
            Fate::Silent => 0,
        };
        self.connection.state().fate = Fate::Silent;
        self.count(|way, traffic| {
            traffic.replies_lost += lost;
            traffic.flow(way).held -= count as u64;
            traffic.flow(way).discarded += count as u64;
        });
        Ok(true)
    }

    fn count(&self, change: impl FnOnce(Way, &mut super::Traffic)) {
        self.connection.shared.traffic.send_modify(|traffic| change(self.way, traffic));
    }
}

impl Drop for Pump<'_> {
    fn drop(&mut self) {
        let left: usize = self.pieces.iter().map(|piece| piece.bytes.len()).sum();
        self.count(|way, traffic| {
            traffic.flow(way).held -= left as u64;
            traffic.flow(way).discarded += left as u64;
        });
    }
}

/// Waits until a piece that arrived at the given time may pass; forever when there is none.
///
/// A change of the settings also counts for pieces that are already held.
async fn may_pass(
    way: Way,
    arrived_at: Option<Instant>,
    settings: &mut watch::Receiver<Settings>,
    to: &WriteHalf<'_>,
) -> io::Result<()> {
    let Some(arrived_at) = arrived_at else { return std::future::pending().await };
    loop {
        let (blocked, delay) = {
            let settings = settings.borrow_and_update();
            (settings.blocks(way), settings.delay_of(way))
        };
        let due = arrived_at + delay;
        if !blocked && due <= Instant::now() {
            return to.writable().await;
        }
        tokio::select! {
            () = sleep_until(due), if !blocked => {}
            Ok(()) = settings.changed() => {}
        }
    }
}
