//! The way out of one member of a cluster: a SOCKS proxy that only this member uses.
//!
//! So each connection shows which member dials; an address that others share does not. A table says
//! where each address leads. The proxies at those addresses handle the bytes.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};

use crate::error::{Doing, Result};
use crate::ports::Port;

/// The version of the protocol.
const SOCKS: u8 = 5;
/// The gate asks for no login.
const NO_LOGIN: u8 = 0;
const CONNECT: u8 = 1;
const IPV4: u8 = 1;
const GRANTED: u8 = 0;
const UNREACHABLE: u8 = 4;

/// Where each address that a member knows leads.
pub(super) type Table = HashMap<SocketAddrV4, SocketAddr>;

/// A running gate. Dropping it closes it, and every connection through it.
#[derive(Debug)]
pub(super) struct Gate {
    port: Port,
    listener: AbortHandle,
}

impl Gate {
    pub(super) async fn open(table: Table) -> Result<Gate> {
        let (port, listener) = Port::listen()?;
        let doing = || format!("listen on {}", port.address());
        listener.set_nonblocking(true).doing(doing)?;
        let listener = TcpListener::from_std(listener).doing(doing)?;
        let task = tokio::spawn(listen(listener, Arc::new(table)));
        Ok(Gate { port, listener: task.abort_handle() })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.port.address()
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        // The connections belong to the listener's task, and end with it.
        self.listener.abort();
    }
}

async fn listen(listener: TcpListener, table: Arc<Table>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            // A member that left before it was accepted is an error here, and no fault of the gate.
            accepted = listener.accept() => if let Ok((member, _)) = accepted {
                let table = Arc::clone(&table);
                connections.spawn(async move { serve(member, &table).await });
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Connects one member to the address it wants; an error ends the connection, which the member
/// sees.
async fn serve(mut member: TcpStream, table: &Table) -> io::Result<()> {
    let to = greet(&mut member).await?;
    let way = match table.get(&to) {
        Some(address) => TcpStream::connect(address).await,
        None => Err(io::ErrorKind::NotFound.into()),
    };
    let said = if way.is_ok() { GRANTED } else { UNREACHABLE };
    // The address from which the gate dials does not matter.
    member.write_all(&[SOCKS, said, 0, IPV4, 0, 0, 0, 0, 0, 0]).await?;
    let mut way = way?;
    // The gate must not add delays of its own.
    let _ = (member.set_nodelay(true), way.set_nodelay(true));
    copy_bidirectional(&mut member, &mut way).await.map(|_| ())
}

/// Reads where a connection wants to go.
async fn greet(member: &mut TcpStream) -> io::Result<SocketAddrV4> {
    let mut start = [0; 2];
    member.read_exact(&mut start).await?;
    let mut logins = vec![0; usize::from(start[1])];
    member.read_exact(&mut logins).await?;
    if start[0] != SOCKS || !logins.contains(&NO_LOGIN) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    member.write_all(&[SOCKS, NO_LOGIN]).await?;
    let mut wish = [0; 10];
    member.read_exact(&mut wish).await?;
    let [SOCKS, CONNECT, _, IPV4, a, b, c, d, high, low] = wish else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    Ok(SocketAddrV4::new(Ipv4Addr::new(a, b, c, d), u16::from_be_bytes([high, low])))
}
