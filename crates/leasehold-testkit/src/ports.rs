//! Free loopback ports that no other test process takes at the same time.
//!
//! A port is reserved under a name in the kernel's abstract socket namespace, which other users of
//! this module see. Binding the port tests it, and shows other programs that it is in use. Another
//! program may take the port just before the server binds it. Then the server ends early, and
//! `servers` starts it again on other ports.

use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixListener};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::error::{Error, Result};

/// Below this are well-known services.
const FIRST: u16 = 15_000;

/// Linux hands out 32768 and above to clients; a server there can find its port in use.
const LAST: u16 = 32_767;

/// A loopback port that is ours until this is dropped.
#[derive(Debug)]
pub struct Port {
    number: u16,
    _reservation: UnixListener,
}

impl Port {
    /// Reserves a free port.
    pub fn reserve() -> Result<Port> {
        Ok(Port::listen()?.0)
    }

    /// Reserves a free port and listens on it.
    ///
    /// Binding the port a second time could fail. A process that another thread starts meanwhile
    /// has a copy of the first listener until it runs its program.
    pub(crate) fn listen() -> Result<(Port, TcpListener)> {
        let count = u32::from(LAST - FIRST) + 1;
        for _ in 0..count {
            let offset = next_offset() % count;
            let number = FIRST + u16::try_from(offset).expect("the range is within u16");
            if let Some(reserved) = Port::listen_on(number) {
                return Ok(reserved);
            }
        }
        Err(Error::NoFreePort { first: FIRST, last: LAST })
    }

    /// Reserves this port and listens on it, unless it is in use.
    fn listen_on(number: u16) -> Option<(Port, TcpListener)> {
        let reservation = reserve(number)?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, number)).ok()?;
        Some((Port { number, _reservation: reservation }, listener))
    }

    /// The port's number.
    pub fn number(&self) -> u16 {
        self.number
    }

    /// The port on 127.0.0.1.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.number))
    }
}

/// Counts up from a random start. So processes that run side by side rarely meet, and a port is not
/// given out again at once.
fn next_offset() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    if NEXT.load(Ordering::Relaxed) == 0 {
        let bytes = RandomState::new().hash_one(std::process::id()).to_le_bytes();
        let start = u32::from_le_bytes([bytes[0], bytes[1], 0, 0]) + 1;
        let _ = NEXT.compare_exchange(0, start, Ordering::Relaxed, Ordering::Relaxed);
    }
    NEXT.fetch_add(1, Ordering::Relaxed)
}

fn reserve(number: u16) -> Option<UnixListener> {
    let name = format!("leasehold-testkit-port-{number}");
    let reserved =
        UnixAddress::from_abstract_name(name).and_then(|address| UnixListener::bind_addr(&address));
    reserved.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_ports_differ_and_can_be_bound() {
        let ports: Vec<Port> = (0..50).map(|_| Port::reserve().unwrap()).collect();
        let mut numbers: Vec<u16> = ports.iter().map(Port::number).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), ports.len());
        assert!(numbers.iter().all(|number| (FIRST..=LAST).contains(number)));
        TcpListener::bind(ports[0].address()).unwrap();
    }

    #[test]
    fn reserved_port_is_not_given_out_twice_until_dropped() {
        let port = Port::reserve().unwrap();
        let number = port.number();
        assert!(reserve(number).is_none());
        drop(port);
        assert!(reserve(number).is_some());
    }

    #[test]
    fn port_with_a_listener_is_not_given_out() {
        let (port, _listener) = Port::listen().unwrap();
        let number = port.number();
        drop(port);
        assert!(Port::listen_on(number).is_none());
    }
}
