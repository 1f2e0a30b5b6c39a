//! The needs of a run of all tests, checked before anything is compiled.
//!
//! `setup` installs packages. This module checks what no package brings: room on the disk, and
//! ports.

use std::io;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::ops::RangeInclusive;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::Path;
use std::time::Duration;

use crate::Failure;
use crate::command::target_folder;

/// The ports that servers of tests listen on; `leasehold-testkit` takes them from the same range.
const PORTS: RangeInclusive<u16> = 15_000..=32_767;

/// The start of the name under which the testkit reserves a port, in the kernel's namespace.
const RESERVATION: &str = "leasehold-testkit-port-";

/// How many of them must be free: several times the number that a run uses at once.
const FREE_PORTS_MIN: usize = 1_000;

/// How long a connection within this machine may take.
const CONNECT_MAX: Duration = Duration::from_secs(5);

const GIB: u64 = 1 << 30;

/// A workspace that was built completely, and the data of the servers.
const BUILD_BYTES: u64 = 8 * GIB;

/// Room for a build when most of it exists, and for the data of the servers.
const RUN_BYTES: u64 = 2 * GIB;

/// Checks everything; the first thing that is missing is the error.
pub(crate) fn check() -> Result<(), Failure> {
    let target = target_folder();
    let wanted = if target.join("debug/deps").is_dir() { RUN_BYTES } else { BUILD_BYTES };
    room(&target, wanted)?;
    room(&std::env::temp_dir(), GIB)?;
    ports()
}

/// Checks that so many bytes are free in a folder, or where it will be made.
fn room(folder: &Path, wanted: u64) -> Result<(), Failure> {
    let existing = folder.ancestors().find(|folder| folder.exists()).unwrap_or(folder);
    let free = rustix::fs::statvfs(existing).map_err(|error| {
        Failure::Message(format!("cannot ask how full `{}` is: {error}", existing.display()))
    })?;
    let free = free.f_bavail.saturating_mul(free.f_frsize);
    if free >= wanted {
        return Ok(());
    }
    let gib = |bytes: u64| bytes as f64 / GIB as f64;
    Err(Failure::Message(format!(
        "`{}` has {:.1} GiB free, and the tests need {:.1} GiB there",
        existing.display(),
        gib(free),
        gib(wanted),
    )))
}

/// Checks that servers can listen on the ports of the tests, and that clients can reach them.
fn ports() -> Result<(), Failure> {
    let (first, last) = (PORTS.start(), PORTS.end());
    let mut free = PORTS.filter_map(bound).take(FREE_PORTS_MIN);
    let reached = free.next().ok_or(io::ErrorKind::AddrInUse.into()).and_then(|(_, listener)| {
        let address = listener.local_addr()?;
        TcpStream::connect_timeout(&address, CONNECT_MAX)
    });
    if let Err(error) = reached {
        return Err(Failure::Message(format!(
            "no server on a port from {first} to {last} of 127.0.0.1 can be reached: {error}"
        )));
    }
    let count = 1 + free.count();
    if count >= FREE_PORTS_MIN {
        return Ok(());
    }
    Err(Failure::Message(format!(
        "only {count} ports from {first} to {last} are free, and the tests need {FREE_PORTS_MIN}"
    )))
}

/// A listener on a free port, reserved in the same way as the testkit reserves its ports: the
/// servers of another run keep theirs.
fn bound(port: u16) -> Option<(UnixListener, TcpListener)> {
    let name = SocketAddr::from_abstract_name(format!("{RESERVATION}{port}")).ok()?;
    let reservation = UnixListener::bind_addr(&name).ok()?;
    Some((reservation, TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::workspace_root;

    #[test]
    fn missing_room_is_said_in_one_sentence() {
        let Err(Failure::Message(message)) = room(Path::new("/no/such/folder"), u64::MAX) else {
            panic!("no disk has as much");
        };
        assert!(message.starts_with("`/` has ") && message.contains(" GiB free"), "{message}");
        assert!(room(&std::env::temp_dir(), 0).is_ok());
    }

    #[test]
    fn ports_are_those_of_the_testkit() {
        let path = workspace_root().join("crates/leasehold-testkit/src/ports.rs");
        let text = std::fs::read_to_string(path).expect("the testkit's ports");
        let constant = |name: &str| {
            let (_, rest) = text.split_once(&format!("const {name}: u16 = ")).expect(name);
            let digits: String =
                rest.chars().take_while(|&c| c != ';').filter(|&c| c != '_').collect();
            digits.parse::<u16>().expect("a number")
        };
        assert_eq!(constant("FIRST")..=constant("LAST"), PORTS);
        assert!(text.contains(RESERVATION));
    }
}
