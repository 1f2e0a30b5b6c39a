//! Sending the connections of one program to proxies, whatever addresses it finds by itself.
//!
//! A client of a Redis Cluster or of Sentinel asks the servers where to connect. They tell every
//! client the same, so their answers cannot lead each client to proxies of its own. A small C
//! library (`redirect.c`) is loaded before the program's own C library, and changes the ports to
//! which the program connects.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::error::Result;
use crate::folder::Folder;
use crate::preload;

const SOURCE: &str = include_str!("redirect.c");

/// Gives programs other ways to local ports.
///
/// Keep it as long as the programs.
#[derive(Debug)]
pub struct Redirect {
    library: PathBuf,
    _folder: Folder,
}

impl Redirect {
    /// Compiles the library.
    pub fn new() -> Result<Redirect> {
        let folder = Folder::new()?;
        let library = preload::compile(&folder, "redirect", SOURCE)?;
        Ok(Redirect { library, _folder: folder })
    }

    /// The environment variables that send a program's connections from the first port of each pair
    /// to the second one, on the loopback address of IPv4.
    pub fn environment(
        &self,
        ports: impl IntoIterator<Item = (u16, u16)>,
    ) -> [(&'static str, OsString); 2] {
        let pairs = ports.into_iter().map(|(from, to)| format!("{from}:{to}"));
        let list = pairs.collect::<Vec<_>>().join(",");
        [(preload::VARIABLE, self.library.clone().into()), ("LH_REDIRECT", list.into())]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ports::Port;
    use std::io::Write;
    use std::net::TcpListener;
    use std::process::Command;

    /// A port where everybody who connects is told this word.
    fn speaker(word: &'static str) -> (Port, u16) {
        let (port, listener): (Port, TcpListener) = Port::listen().unwrap();
        let number = port.number();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                stream.unwrap().write_all(word.as_bytes()).unwrap();
            }
        });
        (port, number)
    }

    #[test]
    fn program_connects_to_the_second_port_of_a_pair_and_elsewhere_as_before() {
        let [(_a, first), (_b, second), (_c, third)] = ["first", "second", "third"].map(speaker);
        let redirect = Redirect::new().unwrap();
        let heard = |port: u16| {
            let script = format!("exec 3<>/dev/tcp/127.0.0.1/{port} && cat <&3");
            let mut command = Command::new("bash");
            command.args(["-c", &script]).envs(redirect.environment([(1, 2), (first, second)]));
            String::from_utf8(command.output().unwrap().stdout).unwrap()
        };
        assert_eq!([first, second, third].map(heard), ["second", "second", "third"]);
    }
}
