//! Redis: options, one server, and commands to it.
//!
//! The shapes of several servers are in `redis_groups`.

use std::ffi::OsString;

use rustix::process::Signal;

use super::group::{Group, SentinelGroup, start_with};
use super::probe::{Login, Probe};
use super::server::{Plan, Server};
use super::{redis_groups, with_retries};
use crate::error::{Error, Result};
use crate::folder::Folder;
use crate::ports::Port;
use crate::programs;

/// The file name of the socket in the server's folder, with [`Redis::unix_socket`].
pub const UNIX_SOCKET: &str = "redis.sock";

/// The Debian package that has the server.
const PACKAGE: &str = "redis-server";

/// Starts Redis servers; the methods set options.
///
/// Nothing is kept on disk unless [`append_only`](Redis::append_only) says so: a killed server
/// comes back empty.
#[derive(Clone, Debug, Default)]
pub struct Redis {
    arguments: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    password: Option<Login>,
    users: Vec<User>,
    append_only: bool,
    unix_socket: bool,
}

/// A user besides the default one.
#[derive(Clone, Debug)]
struct User {
    login: Login,
    rules: String,
}

impl Redis {
    /// A server with the harness's defaults.
    pub fn new() -> Redis {
        Redis::default()
    }

    /// Adds a word to the command line, `--maxmemory` for instance, after the harness's own words.
    pub fn argument(mut self, word: impl Into<OsString>) -> Redis {
        self.arguments.push(word.into());
        self
    }

    /// Sets an environment variable of the server.
    pub fn environment(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Redis {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// Asks clients for this password.
    pub fn password(mut self, password: &str) -> Redis {
        let login = Login { user: "default".to_owned(), password: password.to_owned() };
        self.password = Some(login);
        self
    }

    /// Adds a user with access rules, `~* &* +@all` for instance.
    pub fn user(mut self, name: &str, password: &str, rules: &str) -> Redis {
        let login = Login { user: name.to_owned(), password: password.to_owned() };
        self.users.push(User { login, rules: rules.to_owned() });
        self
    }

    /// Keeps data on disk, written before each answer, so that it survives a kill.
    pub fn append_only(mut self) -> Redis {
        self.append_only = true;
        self
    }

    /// Listens on a socket file too: [`UNIX_SOCKET`] in the server's folder.
    pub fn unix_socket(mut self) -> Redis {
        self.unix_socket = true;
        self
    }

    /// Starts one server.
    ///
    /// # Cancel safety
    ///
    /// When the caller stops waiting, the server is killed as soon as it has started. That holds
    /// for every `start` of the harness.
    pub async fn start(&self) -> Result<Server> {
        start_with(self, Redis::start_blocking).await
    }

    /// [`start`](Redis::start) for callers that may block.
    pub fn start_blocking(&self) -> Result<Server> {
        with_retries(|| Server::ready(self.plan()?))
    }

    /// Starts `count` servers that know nothing of each other, with one address for all.
    pub async fn start_many(&self, count: usize) -> Result<Group> {
        let options = self.clone();
        crate::error::unblock(move || options.start_many_blocking(count)).await
    }

    /// [`start_many`](Redis::start_many) for callers that may block.
    pub fn start_many_blocking(&self, count: usize) -> Result<Group> {
        with_retries(|| redis_groups::start_many(self, count))
    }

    /// Starts a Redis Cluster of three masters that share all slots.
    pub async fn start_cluster(&self) -> Result<Group> {
        start_with(self, Redis::start_cluster_blocking).await
    }

    /// [`start_cluster`](Redis::start_cluster) for callers that may block.
    pub fn start_cluster_blocking(&self) -> Result<Group> {
        with_retries(|| redis_groups::start_cluster(self))
    }

    /// Starts a master with two replicas, and three sentinels that watch them.
    ///
    /// Passwords are not supported here; the sentinels would need them too.
    pub async fn start_sentinel(&self) -> Result<SentinelGroup> {
        start_with(self, Redis::start_sentinel_blocking).await
    }

    /// [`start_sentinel`](Redis::start_sentinel) for callers that may block.
    pub fn start_sentinel_blocking(&self) -> Result<SentinelGroup> {
        assert!(self.password.is_none(), "sentinel groups are started without a password");
        with_retries(|| redis_groups::start_sentinel(self))
    }

    /// The plan for one server on a port of its own.
    pub(super) fn plan(&self) -> Result<Plan> {
        let (port, folder) = (Port::reserve()?, Folder::new()?);
        let mut arguments = self.base_arguments(&port, &folder);
        arguments.extend(self.arguments.iter().cloned());
        let url = match &self.password {
            Some(login) => format!("redis://:{}@{}", encoded(&login.password), port.address()),
            None => format!("redis://{}", port.address()),
        };
        Ok(Plan {
            name: "redis",
            url,
            program: programs::find("redis-server", PACKAGE)?,
            arguments,
            environment: self.environment.clone(),
            user: None,
            probe: Probe::Redis { login: self.password.clone() },
            polite: Signal::TERM,
            ports: vec![port],
            folder,
        })
    }

    fn base_arguments(&self, port: &Port, folder: &Folder) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = Vec::new();
        let mut set = |name: &str, values: &[&str]| {
            arguments.push(format!("--{name}").into());
            arguments.extend(values.iter().map(OsString::from));
        };
        set("port", &[&port.number().to_string()]);
        set("bind", &["127.0.0.1"]);
        set("dir", &[&folder.path().to_string_lossy()]);
        set("save", &[""]);
        set("loglevel", &["warning"]);
        set("appendonly", &[if self.append_only { "yes" } else { "no" }]);
        set("appendfsync", &["always"]);
        if self.unix_socket {
            set("unixsocket", &[&folder.path().join(UNIX_SOCKET).to_string_lossy()]);
        }
        if let Some(login) = &self.password {
            set("requirepass", &[&login.password]);
        }
        for user in &self.users {
            let password = format!(">{}", user.login.password);
            let mut words = vec![user.login.user.as_str(), "on", &password];
            words.extend(user.rules.split_whitespace());
            set("user", &words);
        }
        arguments
    }
}

impl Server {
    /// Gives a Redis server one command, by hand over a connection of its own.
    ///
    /// For faults (`SCRIPT FLUSH`, `FLUSHALL`, `FAILOVER`) and for looking at what is stored.
    /// Lists come back with one item a line, nothing as an empty text.
    pub fn redis(&self, command: &[&str]) -> Result<String> {
        let answer = self.probe().call_redis(self.address(), command);
        answer.map_err(|error| Error::Refused {
            server: self.name().to_owned(),
            request: command.join(" "),
            answer: error.to_string(),
        })
    }
}

/// Writes every byte that means something in an address as `%XX`.
fn encoded(text: &str) -> String {
    let bytes = text.bytes().map(|byte| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
            char::from(byte).to_string()
        }
        _ => format!("%{byte:02X}"),
    });
    bytes.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn password_is_encoded_in_the_address_and_absent_from_debug() {
        let options = Redis::new().password("p@ss/1").user("bob", "hidden", "~*");
        assert!(options.plan().unwrap().url.starts_with("redis://:p%40ss%2F1@127.0.0.1:"));
        let debug = format!("{options:?}");
        assert!(!debug.contains("p@ss") && !debug.contains("hidden"), "{debug}");
    }
}
