//! Redis: options, one server, and commands to it.
//!
//! `redis_groups` starts several servers that work together.

use std::ffi::OsString;
use std::path::PathBuf;

use rustix::process::Signal;

use super::group::{Group, SentinelGroup, start_with};
use super::probe::{Login, Probe};
use super::server::{Plan, Server};
use super::{encoded, redis_groups, with_retries};
use crate::certificates::{Certificates, Tls};
use crate::clock::Clock;
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
/// Nothing is kept on disk by default, so a killed server comes back empty; see
/// [`append_only`](Redis::append_only).
#[derive(Clone, Debug, Default)]
pub struct Redis {
    arguments: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    password: Option<Login>,
    users: Vec<User>,
    sentinel_password: Option<Login>,
    tls: Option<Tls>,
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

    /// Adds a word to the command line, for example `--maxmemory`, after the harness's own words.
    pub fn argument(mut self, word: impl Into<OsString>) -> Redis {
        self.arguments.push(word.into());
        self
    }

    /// Sets an environment variable of the server.
    pub fn environment(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Redis {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// Puts the server on a clock that the test moves and stops.
    pub fn clock(mut self, clock: &Clock) -> Redis {
        let variables = clock.environment().map(|(name, value)| (name.into(), value.into()));
        self.environment.extend(variables);
        self
    }

    /// Asks clients for this password.
    pub fn password(mut self, password: &str) -> Redis {
        self.password = Some(Login::of_default_user(password));
        self
    }

    /// Adds a user with access rules, for example `~* &* +@all`.
    pub fn user(mut self, name: &str, password: &str, rules: &str) -> Redis {
        let login = Login { user: name.to_owned(), password: password.to_owned() };
        self.users.push(User { login, rules: rules.to_owned() });
        self
    }

    /// Makes the sentinels of [`start_sentinel`](Redis::start_sentinel) ask for a password too.
    ///
    /// This password is not that of the data, which [`password`](Redis::password) sets.
    pub fn sentinel_password(mut self, password: &str) -> Redis {
        self.sentinel_password = Some(Login::of_default_user(password));
        self
    }

    /// Speaks only TLS with clients, with replicas and within a cluster.
    ///
    /// The harness itself asks over the socket file, which the server then opens too.
    pub fn tls(mut self, certificates: &Certificates) -> Redis {
        self.tls = Some(Tls { certificates: certificates.clone(), mutual: false });
        self.unix_socket()
    }

    /// [`tls`](Redis::tls), and turns away clients that show no certificate of the authority.
    pub fn mutual_tls(mut self, certificates: &Certificates) -> Redis {
        self.tls = Some(Tls { certificates: certificates.clone(), mutual: true });
        self.unix_socket()
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
        with_retries(|| redis_groups::start_all(&vec![self.clone(); count]))
    }

    /// Starts servers that know nothing of each other, each on a clock of its own.
    pub async fn start_on_clocks(&self, clocks: &[Clock]) -> Result<Group> {
        let options: Vec<Redis> = clocks.iter().map(|clock| self.clone().clock(clock)).collect();
        let start = move || with_retries(|| redis_groups::start_all(&options));
        crate::error::unblock(start).await
    }

    /// Starts a Redis Cluster of three masters that share all slots.
    pub async fn start_cluster(&self) -> Result<Group> {
        start_with(self, Redis::start_cluster_blocking).await
    }

    /// [`start_cluster`](Redis::start_cluster) for callers that may block.
    pub fn start_cluster_blocking(&self) -> Result<Group> {
        with_retries(|| redis_groups::start_cluster(self, redis_groups::ALONE))
    }

    /// Starts a Redis Cluster of three masters with a replica each.
    ///
    /// A replica takes over by itself only after 15 s; `CLUSTER FAILOVER` makes it do so at once.
    pub async fn start_cluster_with_replicas(&self) -> Result<Group> {
        start_with(self, |options: &Redis| {
            with_retries(|| redis_groups::start_cluster(options, redis_groups::WITH_REPLICAS))
        })
        .await
    }

    /// Starts a master with two replicas, and three sentinels that watch them.
    pub async fn start_sentinel(&self) -> Result<SentinelGroup> {
        start_with(self, Redis::start_sentinel_blocking).await
    }

    /// [`start_sentinel`](Redis::start_sentinel) for callers that may block.
    pub fn start_sentinel_blocking(&self) -> Result<SentinelGroup> {
        with_retries(|| redis_groups::start_sentinel(self))
    }

    /// The plan for one server on a port of its own.
    pub(super) fn plan(&self) -> Result<Plan> {
        let (port, folder) = (Port::reserve()?, Folder::new()?);
        let mut arguments = self.base_arguments(&folder);
        for (name, value) in self.port_settings(&port, &folder)? {
            arguments.extend([format!("--{name}").into(), value.into()]);
        }
        arguments.extend(self.arguments.iter().cloned());
        Ok(Plan {
            name: "redis",
            url: format!("{}://{}{}", self.scheme(), self.url_login(), port.address()),
            program: programs::find("redis-server", PACKAGE)?,
            arguments,
            environment: self.environment.clone(),
            user: None,
            probe: Probe::Redis { login: self.password.clone(), socket: self.socket(&folder) },
            polite: Signal::TERM,
            ports: vec![port],
            folder,
        })
    }

    /// The scheme of a server's address; addresses of groups also start with it.
    pub(super) fn scheme(&self) -> &'static str {
        if self.tls.is_some() { "rediss" } else { "redis" }
    }

    /// The part of an address before the host.
    pub(super) fn url_login(&self) -> String {
        match &self.password {
            Some(login) => format!(":{}@", encoded(&login.password)),
            None => String::new(),
        }
    }

    pub(super) fn login(&self) -> Option<&Login> {
        self.password.as_ref()
    }

    /// The options for the sentinels of servers with these options.
    pub(super) fn for_sentinels(&self) -> Redis {
        Redis {
            password: self.sentinel_password.clone(),
            tls: self.tls.clone(),
            unix_socket: self.unix_socket,
            ..Redis::new()
        }
    }

    /// The socket file over which the harness asks; `None` if the server accepts TCP without TLS.
    fn socket(&self, folder: &Folder) -> Option<PathBuf> {
        self.tls.is_some().then(|| folder.path().join(UNIX_SOCKET))
    }

    /// The settings about listening, for the command line or a sentinel's file.
    pub(super) fn port_settings(
        &self,
        port: &Port,
        folder: &Folder,
    ) -> Result<Vec<(&'static str, String)>> {
        let number = port.number().to_string();
        let mut settings = vec![("bind", "127.0.0.1".to_owned())];
        if self.unix_socket {
            settings.push(("unixsocket", text(folder.path().join(UNIX_SOCKET))));
        }
        let Some(tls) = &self.tls else {
            settings.push(("port", number));
            return Ok(settings);
        };
        let files = tls.certificates.copy_to(folder.path(), None)?;
        settings.extend([
            ("port", "0".to_owned()),
            ("tls-port", number),
            ("tls-ca-cert-file", text(files.ca)),
            ("tls-cert-file", text(files.certificate)),
            ("tls-key-file", text(files.key)),
            ("tls-auth-clients", if tls.mutual { "yes" } else { "no" }.to_owned()),
            ("tls-replication", "yes".to_owned()),
            ("tls-cluster", "yes".to_owned()),
        ]);
        Ok(settings)
    }

    fn base_arguments(&self, folder: &Folder) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = Vec::new();
        let mut set = |name: &str, values: &[&str]| {
            arguments.push(format!("--{name}").into());
            arguments.extend(values.iter().map(OsString::from));
        };
        set("dir", &[&folder.path().to_string_lossy()]);
        set("save", &[""]);
        set("loglevel", &["warning"]);
        set("appendonly", &[if self.append_only { "yes" } else { "no" }]);
        set("appendfsync", &["always"]);
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
    /// Sends one command to a Redis server, over a connection of its own.
    ///
    /// It is for faults (`SCRIPT FLUSH`, `FLUSHALL`, `FAILOVER`) and for reading what is stored.
    /// Lists come back with one item in each line, and nothing comes back as an empty text.
    pub fn redis(&self, command: &[&str]) -> Result<String> {
        let answer = self.probe().call_redis(self.address(), command);
        answer.map_err(|error| Error::Refused {
            server: self.name().to_owned(),
            request: command.join(" "),
            answer: error.to_string(),
        })
    }
}

fn text(path: PathBuf) -> String {
    path.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn password_is_encoded_in_the_address_and_absent_from_debug() {
        let options = Redis::new().password("p@ss/1").user("bob", "hidden", "~*");
        let options = options.sentinel_password("hidden too");
        assert!(options.plan().unwrap().url.starts_with("redis://:p%40ss%2F1@127.0.0.1:"));
        let debug = format!("{options:?}");
        assert!(!debug.contains("p@ss") && !debug.contains("hidden"), "{debug}");
    }
}
