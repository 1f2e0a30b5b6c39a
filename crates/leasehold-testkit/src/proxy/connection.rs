//! One connection through the proxy: both ways side by side, and the faults that end it.
//!
//! `pump` decides what happens to the bytes.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};

use super::Shared;
use super::pump::Pump;
use super::settings::{AfterLoss, Settings, Way};

/// A target on this machine answers at once or not at all.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// The state that both ways of a connection share.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) shared: Arc<Shared>,
    /// The number of resets when this connection was accepted.
    pub(super) born: u64,
    state: Mutex<State>,
}

#[derive(Debug)]
pub(super) struct State {
    /// When the last byte passed.
    pub(super) active_at: Instant,
    pub(super) fate: Fate,
}

/// The state of the replies on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Passes,
    LosesNext(AfterLoss),
    /// One reply was lost, so all later ones are lost too.
    Silent,
}

/// How a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// Both sides have closed.
    Closed,
    /// It broke, or the test asked for a reset: the proxy resets the other side too.
    Reset,
}

/// Forwards a client's connection until it ends.
pub(super) async fn serve(mut client: TcpStream, shared: Arc<Shared>) {
    let born = shared.settings.borrow().resets;
    let state = Mutex::new(State { active_at: Instant::now(), fate: Fate::Passes });
    let connection = Connection { shared, born, state };
    connection.shared.traffic.send_modify(|traffic| {
        traffic.accepted += 1;
        traffic.connections += 1;
    });
    let server = tokio::select! {
        server = connect(&connection) => server,
        () = told_to_reset(&connection) => None,
    };
    let Some(mut server) = server else {
        reset(client);
        return;
    };
    // The proxy must not add delays of its own.
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    if forward(&connection, &mut client, &mut server).await == End::Reset {
        reset(client);
        reset(server);
    }
}

async fn forward(connection: &Connection, client: &mut TcpStream, server: &mut TcpStream) -> End {
    let (from_client, to_client) = client.split();
    let (from_server, to_server) = server.split();
    let requests = Pump::new(Way::ToServer, connection, from_client, to_server);
    let replies = Pump::new(Way::ToClient, connection, from_server, to_client);
    let both = async {
        match tokio::try_join!(requests.run(), replies.run()) {
            Ok(_) => End::Closed,
            // The kernel reports that one side broke the connection, or a lost reply breaks it
            // here.
            Err(_) => End::Reset,
        }
    };
    tokio::select! {
        end = both => end,
        () = told_to_reset(connection) => End::Reset,
        () = idle_for_too_long(connection) => End::Reset,
    }
}

/// Connects to the target once requests may pass; a partition also holds the handshake.
async fn connect(connection: &Connection) -> Option<TcpStream> {
    let mut settings = connection.shared.settings.subscribe();
    let target = wait(&mut settings, |settings| !settings.blocks(Way::ToServer)).await.target;
    timeout(CONNECT_LIMIT, TcpStream::connect(target)).await.ok()?.ok()
}

async fn told_to_reset(connection: &Connection) {
    let mut settings = connection.shared.settings.subscribe();
    wait(&mut settings, |settings| settings.resets != connection.born).await;
}

async fn idle_for_too_long(connection: &Connection) {
    let mut settings = connection.shared.settings.subscribe();
    loop {
        let idle_max = settings.borrow_and_update().idle_max;
        let Some(idle_max) = idle_max else {
            wait(&mut settings, |settings| settings.idle_max.is_some()).await;
            continue;
        };
        let due = connection.state().active_at + idle_max;
        if due <= Instant::now() {
            return;
        }
        tokio::select! {
            () = sleep_until(due) => {}
            Ok(()) = settings.changed() => {}
        }
    }
}

/// Waits until the settings are as wanted, and returns a copy.
async fn wait(
    settings: &mut watch::Receiver<Settings>,
    wanted: impl FnMut(&Settings) -> bool,
) -> Settings {
    let found = settings.wait_for(wanted).await.map(|settings| settings.clone());
    match found {
        Ok(settings) => settings,
        // The connection's shared state owns the sender, so this cannot happen while it lives.
        Err(_) => std::future::pending().await,
    }
}

/// Closes with a reset instead of the usual end.
fn reset(stream: TcpStream) {
    let _ = stream.set_zero_linger();
    drop(stream);
}

impl Connection {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        // Every change is one assignment, so that a panic leaves nothing half-made.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.shared.traffic.send_modify(|traffic| traffic.connections -= 1);
    }
}
