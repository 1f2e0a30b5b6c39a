//! From a URL and the environment to what a connection needs.
//!
//! The words are those of `libpq` where it has one: `sslmode`, `sslrootcert`, `passfile`, and the
//! variables `PGUSER`, `PGPASSWORD`, `PGPASSFILE` and `PGDATABASE`. The environment counts only
//! where the URL says nothing.

use std::env;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio_postgres::config::{SslMode, TargetSessionAttrs};

use crate::engine::kit::address::{Address, Host, Options, TlsFiles, bad};
use crate::error::{Config, Error, Result};

use super::passfile;
use super::tls::Tls;

const PORT: u16 = 5432;
const EXAMPLES: [&str; 2] =
    ["postgres://user@host/database", "postgres:///database?host=/var/run/postgresql"];
const KNOWN: &str = "`schema`, `install`, `sslmode`, `sslrootcert`, `sslcert`, `sslkey`, \
                     `passfile`, `host`, `connections`, `connect_timeout_ms` and `timeout_ms`";

/// The folder of a local server's socket where nothing else is said, as Debian has it.
const SOCKET_FOLDER: &str = "/var/run/postgresql";

/// How long a connection may take to be made: two exchanges and the start of a process.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// How long an answer may take: a thousand renewals and a flush on a busy server.
const EXCHANGE_LIMIT: Duration = Duration::from_secs(5);

/// How many connections a runtime opens at most, beside the one that hears bells: enough that a
/// statement which waits for a line, or for the disk, does not hold up the others.
const CONNECTIONS: u64 = 3;
const CONNECTIONS_MAX: u64 = 64;

/// The longest schema name: PostgreSQL's 63 bytes, less what is put behind it for a channel.
const SCHEMA_BYTES_MAX: usize = 40;

/// Everything about a server and how to reach it.
#[derive(Clone)]
pub(super) struct Settings {
    /// For each connection, without a host.
    pub(super) config: tokio_postgres::Config,
    pub(super) hosts: Hosts,
    pub(super) tls: Option<Tls>,
    /// The address without secrets, for messages.
    pub(super) store: String,
    pub(super) schema: String,
    /// Whether a store that is not there is installed without being asked to.
    pub(super) install: bool,
    pub(super) connections: usize,
    pub(super) connect_limit: Duration,
    pub(super) exchange_limit: Duration,
}

/// The hosts of a store, and which one is tried first. Shared by all who connect.
#[derive(Debug, Clone)]
pub(super) struct Hosts(Arc<(Vec<Host>, AtomicUsize)>);

impl Hosts {
    fn new(hosts: Vec<Host>) -> Self {
        Self(Arc::new((hosts, AtomicUsize::new(0))))
    }

    /// All of them with their places, beginning with the one that served last: one that is silent
    /// costs its time once, and not with each connection.
    pub(super) fn in_order(&self) -> impl Iterator<Item = (usize, &Host)> {
        let (hosts, last) = &*self.0;
        let first = last.load(Ordering::Relaxed);
        let places = (0..hosts.len()).map(move |place| (first + place) % hosts.len());
        places.map(|place| (place, &hosts[place]))
    }

    /// The one at this place served.
    pub(super) fn served(&self, place: usize) {
        self.0.1.store(place, Ordering::Relaxed);
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings").field("store", &self.store).finish_non_exhaustive()
    }
}

impl Settings {
    /// Reads a URL.
    pub(super) fn parse(url: &str) -> Result<Settings> {
        Self::parse_with(url, CONNECTIONS, KNOWN, |_| Ok(())).map(|(settings, ())| settings)
    }

    /// Reads a URL of an engine that opens other numbers of connections and has options of its
    /// own, which `more` takes. `known` lists all options.
    pub(super) fn parse_with<T>(
        url: &str,
        connections: u64,
        known: &str,
        more: impl FnOnce(&mut Options) -> Result<T>,
    ) -> Result<(Settings, T)> {
        let mut address = Address::parse(url, PORT, &EXAMPLES)?;
        let more = more(&mut address.options)?;
        take_socket(&mut address);
        let local = address.hosts.iter().all(is_local);
        let tls = take_tls(&mut address.options, local)?;
        let schema = take_schema(&mut address.options)?;
        let install = address.options.flag("install")?.unwrap_or(true);
        let connections = address.options.number("connections")?.unwrap_or(connections);
        if !(1..=CONNECTIONS_MAX).contains(&connections) {
            return Err(bad("connections", "takes a number from 1 to 64"));
        }
        let connect_limit = limit(&mut address.options, "connect_timeout_ms", CONNECT_LIMIT)?;
        let exchange_limit = limit(&mut address.options, "timeout_ms", EXCHANGE_LIMIT)?;
        let user = address.user.clone().or_else(|| variable("PGUSER")).or_else(user_name);
        let Some(user) = user else {
            return Err(not_a_url("it names no user, and neither PGUSER nor USER is set"));
        };
        let database = database(&address)?.unwrap_or_else(|| user.clone());
        let mut config = tokio_postgres::Config::new();
        config.user(&user).dbname(&database).application_name("leasehold");
        config.ssl_mode(if tls.is_some() { SslMode::Require } else { SslMode::Disable });
        if address.hosts.len() > 1 {
            // One of them is the primary, and after a fail-over it is another one.
            config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        }
        silence_limits(&mut config, connect_limit);
        let passfile = address.options.path("passfile");
        let given = address.password.as_ref().map(|secret| secret.reveal().to_owned());
        let password = match given.or_else(|| variable("PGPASSWORD")) {
            None => passfile::find(passfile, &address.hosts, &database, &user)?,
            given => given,
        };
        if let Some(password) = password {
            config.password(password);
        }
        let store = store(&address, &database, &schema);
        address.options.finish(known)?;
        let hosts = Hosts::new(address.hosts);
        let connections = connections as usize;
        let settings = Settings {
            config,
            hosts,
            tls,
            store,
            schema,
            install,
            connections,
            connect_limit,
            exchange_limit,
        };
        Ok((settings, more))
    }
}

/// How long a peer may be silent before the system gives the connection up.
fn silence_limits(config: &mut tokio_postgres::Config, connect_limit: Duration) {
    config
        .connect_timeout(connect_limit)
        .tcp_user_timeout(Duration::from_secs(10))
        .keepalives_idle(Duration::from_secs(10))
        .keepalives_interval(Duration::from_secs(3))
        .keepalives_retries(3);
}

/// A host may be given as an option, as a folder with the server's socket mostly.
fn take_socket(address: &mut Address) {
    let given = address.options.text("host");
    for host in &mut address.hosts {
        if let Some(given) = &given {
            host.name.clone_from(given);
        } else if host.name.is_empty() {
            host.name = variable("PGHOST").unwrap_or_else(|| SOCKET_FOLDER.to_owned());
        }
    }
}

fn is_local(host: &Host) -> bool {
    host.name.starts_with('/')
        || host.name == "localhost"
        || host.name.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

/// TLS is on, and the server is who it says, unless the server is on this machine or the URL says
/// `disable`. There is no mode that tries without when it fails with.
fn take_tls(options: &mut Options, local: bool) -> Result<Option<Tls>> {
    let files = TlsFiles::take_called(options, ["sslrootcert", "sslcert", "sslkey"])?;
    match options.text("sslmode").as_deref() {
        Some("disable") => Ok(None),
        None if local => Ok(None),
        None | Some("require" | "verify-full") => Ok(Some(Tls::new(&files)?)),
        Some("allow" | "prefer") => {
            Err(bad("sslmode", "may not fall back silently; use `verify-full` or `disable`"))
        }
        Some(_) => Err(bad("sslmode", "takes `verify-full`, `require` (the same) or `disable`")),
    }
}

/// Schema names go into statements, so they are held to what never needs quoting.
fn take_schema(options: &mut Options) -> Result<String> {
    let Some(schema) = options.text("schema") else { return Ok("leasehold".to_owned()) };
    let plain = schema.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
    let begins = schema.starts_with(|c: char| c.is_ascii_lowercase() || c == '_');
    if !plain || !begins || schema.len() > SCHEMA_BYTES_MAX || schema.starts_with("pg_") {
        let rule = "takes 1 to 40 of `a-z`, `0-9` and `_`, beginning with neither digit nor `pg_`";
        return Err(bad("schema", rule));
    }
    Ok(schema)
}

fn limit(options: &mut Options, option: &str, default: Duration) -> Result<Duration> {
    match options.millis(option)? {
        Some(limit) if limit.is_zero() => Err(bad(option, "takes at least 1 millisecond")),
        given => Ok(given.unwrap_or(default)),
    }
}

fn database(address: &Address) -> Result<Option<String>> {
    match address.path.trim_start_matches('/') {
        "" => Ok(variable("PGDATABASE")),
        name if name.contains('/') => Err(not_a_url("its database has a slash in it")),
        name => Ok(Some(name.to_owned())),
    }
}

fn store(address: &Address, database: &str, schema: &str) -> String {
    let schema = match schema {
        "leasehold" => String::new(),
        other => format!("?schema={other}"),
    };
    format!("{}://{}/{database}{schema}", address.scheme, address.host_list())
}

fn not_a_url(reason: &str) -> Error {
    Error::Config(Config::Url { reason: reason.into(), known: EXAMPLES.to_vec() })
}

fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

fn user_name() -> Option<String> {
    variable("USER").or_else(|| variable("LOGNAME"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(url: &str) -> String {
        Settings::parse(url).expect_err("refused").to_string()
    }

    #[test]
    fn tls_is_on_unless_the_server_is_on_this_machine_or_the_url_says_otherwise() {
        let tls = |url: &str| Settings::parse(url).expect("a good url").tls.is_some();
        assert!(tls("postgres://u@db.example.com/d"));
        assert!(tls("postgres://u@10.0.0.1/d?sslmode=require"));
        assert!(tls("postgres://u@localhost/d?sslmode=verify-full"));
        assert!(!tls("postgres://u@127.0.0.1:5433/d"));
        assert!(!tls("postgres://u@[::1]/d"));
        assert!(!tls("postgres://u@/d?host=/run/postgresql"));
        assert!(!tls("postgres://u@db.example.com/d?sslmode=disable"));
        assert!(tls("postgres://u@localhost,db.example.com/d"), "one of them is elsewhere");
    }

    #[test]
    fn modes_that_fall_back_silently_are_refused() {
        for mode in ["prefer", "allow"] {
            let error = refused(&format!("postgres://u@h/d?sslmode={mode}"));
            assert!(error.contains("fall back silently"), "{error}");
        }
        assert!(refused("postgres://u@h/d?sslmode=maybe").contains("`verify-full`"));
    }

    #[test]
    fn options_that_do_not_fit_are_named() {
        for (query, word) in [
            ("colour=red", "`colour`"),
            ("schema=Robert%22;drop", "`schema`"),
            ("schema=pg_mine", "`schema`"),
            ("schema=", "`schema`"),
            ("connections=0", "1 to 64"),
            ("timeout_ms=x", "milliseconds"),
            ("timeout_ms=0", "at least 1"),
            ("sslcert=/dev/null", "`sslkey`"),
            ("sslrootcert=/no/such/file", "`/no/such/file`"),
        ] {
            let error = refused(&format!("postgres://u@localhost/d?{query}"));
            assert!(error.contains(word), "{query}: {error}");
        }
        assert!(refused("postgres://u@localhost/a/b").contains("slash"));
    }

    #[test]
    fn f145_a_password_shows_nowhere() {
        let settings = Settings::parse("postgres://u:hunter2@localhost/d").expect("a good url");
        assert!(!format!("{settings:?} {:?}", settings.config).contains("hunter2"));
        assert_eq!(settings.store, "postgres://localhost:5432/d");
        assert_eq!(settings.config.get_password(), Some("hunter2".as_bytes()));
        assert!(!refused("postgres://u:hunter2@h:x/d").contains("hunter2"));
    }
}
