//! The settings of a proxy, and its account of the traffic. Pure data.

use std::net::SocketAddr;
use std::time::Duration;

/// The bytes that a fault affects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Direction {
    /// From the client to the server: requests.
    ToServer,
    /// From the server to the client: replies.
    ToClient,
    /// Both.
    Both,
}

/// The state of a connection after its reply was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AfterLoss {
    /// The proxy resets it, so that the client learns at once that something is wrong.
    Reset,
    /// It stays open without a further byte for the client, which must notice by time. Only a reset
    /// ends that; taking back all faults does not.
    Silence,
}

/// One way through a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    ToServer,
    ToClient,
}

impl Direction {
    fn covers(self, way: Way) -> bool {
        match self {
            Direction::Both => true,
            Direction::ToServer => way == Way::ToServer,
            Direction::ToClient => way == Way::ToClient,
        }
    }
}

/// The traffic through a proxy since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Traffic {
    /// Connections that are open now.
    pub connections: usize,
    /// Connections that were accepted.
    pub accepted: u64,
    /// Bytes from clients.
    pub to_server: Flow,
    /// Bytes from the server.
    pub to_client: Flow,
    /// Replies that the proxy lost on request.
    pub replies_lost: u64,
}

/// The bytes of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Flow {
    /// Bytes that the proxy has passed on.
    pub forwarded: u64,
    /// Bytes that are in the proxy now.
    pub held: u64,
    /// Bytes that will never go on.
    pub discarded: u64,
}

impl Traffic {
    pub(super) fn flow(&mut self, way: Way) -> &mut Flow {
        match way {
            Way::ToServer => &mut self.to_server,
            Way::ToClient => &mut self.to_client,
        }
    }
}

/// The reply to lose.
#[derive(Clone, Debug)]
pub(super) struct Loss {
    /// A part of the request; an empty one is in every request.
    pub(super) request: Vec<u8>,
    pub(super) after: AfterLoss,
}

impl Loss {
    pub(super) fn is_for(&self, bytes: &[u8]) -> bool {
        let part = self.request.as_slice();
        part.is_empty() || bytes.windows(part.len()).any(|window| window == part)
    }
}

/// All settings that can change while the proxy runs.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) target: SocketAddr,
    pub(super) refuses: bool,
    pub(super) idle_max: Option<Duration>,
    pub(super) loss: Option<Loss>,
    /// The last bytes to the server that pass before the proxy holds all others.
    pub(super) last: Option<Vec<u8>>,
    /// How often all connections were reset; a connection older than the last reset must end.
    pub(super) resets: u64,
    to_server: Fault,
    to_client: Fault,
}

/// The faults that affect the bytes of one way.
#[derive(Clone, Copy, Debug, Default)]
struct Fault {
    blocked: bool,
    delay: Duration,
}

impl Settings {
    pub(super) fn passing(target: SocketAddr) -> Settings {
        let (to_server, to_client) = (Fault::default(), Fault::default());
        Settings {
            target,
            refuses: false,
            idle_max: None,
            loss: None,
            last: None,
            resets: 0,
            to_server,
            to_client,
        }
    }

    pub(super) fn pass(&mut self) {
        *self = Settings { resets: self.resets, ..Settings::passing(self.target) };
    }

    pub(super) fn block(&mut self, direction: Direction) {
        self.change(direction, |fault| fault.blocked = true);
    }

    pub(super) fn delay(&mut self, direction: Direction, delay: Duration) {
        self.change(direction, |fault| fault.delay = delay);
    }

    /// How many of these bytes to the server may pass before the proxy holds all others.
    pub(super) fn passes_before_hold(&self, bytes: &[u8]) -> Option<usize> {
        let last = self.last.as_deref()?;
        let at = bytes.windows(last.len()).position(|window| window == last)?;
        Some(at + last.len())
    }

    /// Holds the bytes to the server from here on.
    pub(super) fn hold(&mut self) {
        self.last = None;
        self.block(Direction::ToServer);
    }

    pub(super) fn blocks(&self, way: Way) -> bool {
        self.fault(way).blocked
    }

    pub(super) fn delay_of(&self, way: Way) -> Duration {
        self.fault(way).delay
    }

    fn change(&mut self, direction: Direction, change: impl Fn(&mut Fault)) {
        if direction.covers(Way::ToServer) {
            change(&mut self.to_server);
        }
        if direction.covers(Way::ToClient) {
            change(&mut self.to_client);
        }
    }

    fn fault(&self, way: Way) -> Fault {
        match way {
            Way::ToServer => self.to_server,
            Way::ToClient => self.to_client,
        }
    }
}
