//! From a URL to a store: schemes, options, and what they mean.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::engine::kit::address::{Address, Host, Secret, TlsFiles, bad};
use crate::error::{Config, Error, Result};

use super::nodes::Dialect;
use super::tls::Tls;

const PORT: u16 = 2181;

const EXAMPLES: &[&str] = &["zk://HOST:PORT,HOST:PORT/LOCKS", "zks://USER@HOST"];

const OPTIONS: &str = "`dialect`, `connect_timeout_ms`, `timeout_ms`, `ca`, `cert`, `key`";

/// Where locks are if the URL says nothing else.
const ROOT: &str = "/locks";

/// Who to be for the servers.
#[derive(Debug, Clone)]
pub(super) struct Login {
    pub(super) user: String,
    pub(super) password: Secret,
}

/// How to reach the servers.
#[derive(Debug, Clone)]
pub(super) struct Servers {
    pub(super) hosts: Vec<Host>,
    pub(super) tls: Option<Tls>,
    pub(super) login: Option<Login>,
    /// The address without secrets.
    pub(super) store: String,
    /// How long one server has to take a connection.
    pub(super) connect: Duration,
    /// How long a request has for its answer.
    pub(super) answer: Duration,
    /// What the servers grant at most, as far as it was seen.
    pub(super) longest: Longest,
}

/// The longest session that the servers grant: known since one asked for more than it got.
#[derive(Debug, Clone, Default)]
pub(super) struct Longest(Arc<AtomicU64>);

impl Longest {
    /// A session asked for this long, and was granted for that long. Both travel as milliseconds.
    pub(super) fn see(&self, asked: Duration, granted: Duration) {
        let known = self.get();
        if millis(granted) < millis(asked) {
            self.0.store(millis(granted), Ordering::Relaxed);
        } else if known.is_some_and(|known| granted > known) {
            // The servers have other settings now.
            self.0.store(0, Ordering::Relaxed);
        }
    }

    pub(super) fn get(&self) -> Option<Duration> {
        Some(self.0.load(Ordering::Relaxed)).filter(|known| *known > 0).map(Duration::from_millis)
    }
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// Everything a URL says.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) servers: Servers,
    /// Below which node locks are; empty for the root.
    pub(super) root: String,
    pub(super) dialect: Dialect,
}

impl Settings {
    pub(super) fn from_url(url: &str) -> Result<Settings> {
        let mut address = Address::parse(url, PORT, EXAMPLES)?;
        let store = address.public();
        let secure = match address.scheme.as_str() {
            "zk" => false,
            "zks" => true,
            _ => return Err(url_error("its scheme is not one of ZooKeeper")),
        };
        if address.hosts.iter().any(|host| host.name.is_empty()) {
            return Err(url_error("a host is missing"));
        }
        let login = match (address.user.take(), address.password.take()) {
            (Some(user), Some(password)) => Some(Login { user, password }),
            (None, None) => None,
            _ => return Err(url_error("user and password come together")),
        };
        let root = root(&address.path)?;
        let options = &mut address.options;
        let dialect = match options.text("dialect").as_deref() {
            None | Some("both") => Dialect::Both,
            Some("kazoo") => Dialect::Kazoo,
            Some("curator") => Dialect::Curator,
            Some(_) => return Err(bad("dialect", "is `kazoo`, `curator` or `both`")),
        };
        let connect = options.millis("connect_timeout_ms")?.unwrap_or(Duration::from_secs(2));
        let answer = options.millis("timeout_ms")?.unwrap_or(Duration::from_secs(3));
        let files = TlsFiles::take(options)?;
        if !secure && (files.ca.is_some() || files.identity.is_some()) {
            return Err(bad("ca, cert, key", "are for `zks:`"));
        }
        let tls = if secure { Some(Tls::new(&files)?) } else { None };
        address.options.finish(OPTIONS)?;
        let servers = Servers {
            hosts: address.hosts,
            tls,
            login,
            store,
            connect,
            answer,
            longest: Longest::default(),
        };
        Ok(Settings { servers, root, dialect })
    }
}

/// The node below which locks are.
fn root(path: &str) -> Result<String> {
    if path.is_empty() {
        return Ok(ROOT.to_owned());
    }
    let root = path.strip_suffix('/').unwrap_or(path);
    let parts = root.strip_prefix('/').map(|parts| parts.split('/'));
    let fits = |part: &str| !part.is_empty() && super::nodes::encode(part) == part;
    if parts.is_some_and(|mut parts| !parts.all(fits)) || root.starts_with("/zookeeper") {
        return Err(url_error("its path is none that locks can be at"));
    }
    Ok(root.to_owned())
}

fn url_error(reason: &str) -> Error {
    Error::Config(Config::Url { reason: reason.into(), known: EXAMPLES.to_vec() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn session_that_was_granted_but_for_a_part_of_a_millisecond_is_not_the_longest() {
        let longest = Longest::default();
        longest.see(Duration::from_micros(1_500), Duration::from_millis(1));
        assert_eq!(longest.get(), None);
        longest.see(Duration::from_millis(2), Duration::from_millis(1));
        assert_eq!(longest.get(), Some(Duration::from_millis(1)));
    }

    #[test]
    fn the_path_of_a_url_is_where_its_locks_are() {
        for (url, root) in [
            ("zk://h", "/locks"),
            ("zk://h/", ""),
            ("zk://h/my/app", "/my/app"),
            ("zk://u:pw@a,b:1,[::1]:2/x/?dialect=kazoo", "/x"),
        ] {
            let settings = Settings::from_url(url).expect(url);
            assert_eq!(settings.root, root);
            assert!(!settings.servers.store.contains("pw"), "{settings:?}");
            assert!(!format!("{settings:?}").contains("pw"), "{settings:?}");
        }
    }

    #[test]
    fn what_cannot_be_meant_is_refused_without_the_password() {
        let urls = [
            "zk://u:hush@h?odd=1",
            "zk://u:hush@h?dialect=latin",
            "zk://u:hush@h?ca=/no/such/file",
            "zk://u:hush@h/a//b",
            "zk://u:hush@h/a/../b",
            "zk://u:hush@h/zookeeper",
            "zk://u:hush@",
            "zk://:hush@h",
            "zkx://u:hush@h",
        ];
        for url in urls {
            let error = Settings::from_url(url).expect_err(url);
            assert!(matches!(error, Error::Config(_)), "{url}: {error:?}");
            assert!(!error.to_string().contains("hush"), "{error}");
        }
    }
}
