//! From a URL to a store: schemes, options, and what they mean.

use std::time::Duration;

use redis::{ClientTlsConfig, RedisResult, TlsCertificates};

use crate::engine::kit::address::{Address, Options, Secret, TlsFiles, bad};
use crate::error::{Config, Error, Result};

use super::eviction::LOOK_EVERY;
use super::failure;
use super::keys::Layout;
use super::shape::{Limits, Login, Sentinels, Shape, Way};

const PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

const EXAMPLES: &[&str] = &[
    "redis://HOST:PORT/DATABASE",
    "rediss://USER@HOST",
    "redis+unix:///run/redis.sock",
    "redis+sentinel://HOST,HOST,HOST/MASTER",
    "redis+cluster://HOST,HOST,HOST",
];

const OPTIONS: &str = "`prefix`, `connect_timeout_ms`, `timeout_ms`, `allow_eviction`, \
    `look_every_ms`, `wait_replicas`, `wait_ms`, `ca`, `cert`, `key`, `sentinel_user`, \
    `sentinel_password`";

/// A grant counts only when this many replicas have it.
#[derive(Debug, Clone, Copy)]
pub(super) struct WaitFor {
    pub(super) replicas: u64,
    pub(super) at_most: Duration,
}

/// Everything a URL says.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) shape: Shape,
    pub(super) layout: Layout,
    /// The address without secrets.
    pub(super) store: String,
    pub(super) allow_eviction: bool,
    /// How often to look whether the servers' settings were changed.
    pub(super) look_every: Duration,
    pub(super) wait_for: Option<WaitFor>,
}

impl Settings {
    pub(super) fn from_url(url: &str) -> Result<Settings> {
        let sentinel = url.split("://").next().is_some_and(|scheme| scheme.contains("sentinel"));
        let port = if sentinel { SENTINEL_PORT } else { PORT };
        let mut address = Address::parse(url, port, EXAMPLES)?;
        let store = address.public();
        let secure = address.scheme.starts_with("rediss");
        let tls = TlsFiles::take(&mut address.options)?;
        let way = way(&mut address, secure.then_some(tls))?;
        let options = &mut address.options;
        let prefix = options.text("prefix").unwrap_or_else(|| "lock:".into());
        let allow_eviction = options.flag("allow_eviction")?.unwrap_or(false);
        let look_every = look_every(options)?;
        let wait_for = wait_for(&mut address)?;
        let shape = shape(&mut address, way)?;
        if wait_for.is_some() && shape.is_cluster() {
            return Err(bad("wait_replicas", "works with one server or Sentinels, not a Cluster"));
        }
        let database = match &shape {
            Shape::One { way, .. } | Shape::Sentinel { way, .. } => way.database,
            Shape::Cluster { .. } => 0,
        };
        let layout = Layout::new(prefix, shape.is_cluster(), database);
        address.options.finish(OPTIONS)?;
        Ok(Settings { shape, layout, store, allow_eviction, look_every, wait_for })
    }
}

/// How often to look whether the servers' settings were changed.
pub(super) fn look_every(options: &mut Options) -> Result<Duration> {
    match options.millis("look_every_ms")? {
        Some(every) if every.is_zero() => Err(bad("look_every_ms", "takes more than nothing")),
        every => Ok(every.unwrap_or(LOOK_EVERY)),
    }
}

pub(super) fn way(address: &mut Address, tls: Option<TlsFiles>) -> Result<Way> {
    let connect = address.options.millis("connect_timeout_ms")?;
    let answer = address.options.millis("timeout_ms")?;
    Ok(Way {
        login: Login { user: address.user.take(), password: address.password.take() },
        database: 0,
        tls: tls.map(certificates),
        limits: Limits {
            connect: connect.unwrap_or(Duration::from_secs(2)),
            answer: answer.unwrap_or(Duration::from_secs(3)),
        },
    })
}

fn certificates(files: TlsFiles) -> TlsCertificates {
    // The driver takes the process's provider of cryptography, and panics when there are several
    // and none was chosen. Whoever chose one before keeps it.
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        let _chosen_meanwhile = rustls::crypto::ring::default_provider().install_default();
    }
    let client_tls =
        files.identity.map(|(client_cert, client_key)| ClientTlsConfig { client_cert, client_key });
    TlsCertificates { client_tls, root_cert: files.ca }
}

fn wait_for(address: &mut Address) -> Result<Option<WaitFor>> {
    let replicas = address.options.number("wait_replicas")?.unwrap_or(0);
    let at_most = address.options.millis("wait_ms")?;
    match (replicas, at_most) {
        (0, Some(_)) => Err(bad("wait_ms", "needs `wait_replicas` beside it")),
        (0, None) => Ok(None),
        (_, Some(at_most)) if at_most.is_zero() => Err(bad("wait_ms", "takes more than nothing")),
        (replicas, at_most) => {
            let at_most = at_most.unwrap_or(Duration::from_secs(1));
            Ok(Some(WaitFor { replicas, at_most }))
        }
    }
}

fn shape(address: &mut Address, mut way: Way) -> Result<Shape> {
    let path = address.path.trim_start_matches('/').to_owned();
    let built = |built: RedisResult<Shape>| {
        built.map_err(|error| failure::translate(&error, &address.scheme))
    };
    let named = address.hosts.iter().all(|host| !host.name.is_empty());
    match address.scheme.as_str() {
        "redis" | "rediss" | "redis+cluster" | "rediss+cluster" | "redis+sentinel"
        | "rediss+sentinel"
            if !named =>
        {
            Err(url_error("a host is missing"))
        }
        "redis" | "rediss" => {
            let [host] = &address.hosts[..] else {
                return Err(url_error(
                    "it names several servers; `redis+cluster:`, `redis+sentinel:` and \
                     `redlock:` take several",
                ));
            };
            way.database = database(&path)?;
            built(way.client(host).map(|client| Shape::One { way, client }))
        }
        "redis+unix" => {
            way.database = database(&address.options.text("database").unwrap_or_default())?;
            built(way.client_of_file(&address.path).map(|client| Shape::One { way, client }))
        }
        "redis+cluster" | "rediss+cluster" => {
            if !path.is_empty() {
                return Err(url_error("a Cluster has no databases"));
            }
            built(Shape::cluster(way, &address.hosts))
        }
        "redis+sentinel" | "rediss+sentinel" => {
            let (master, number) = path.split_once('/').unwrap_or((&path, ""));
            if master.is_empty() {
                return Err(url_error("the master's name is missing behind the hosts"));
            }
            way.database = database(number)?;
            let login = Login {
                user: address.options.text("sentinel_user"),
                password: address.options.text("sentinel_password").map(Secret::new),
            };
            let sentinels = Sentinels {
                way: Way { login, database: 0, ..way.clone() },
                hosts: address.hosts.clone(),
                master: master.to_owned(),
            };
            Ok(Shape::Sentinel { way, sentinels })
        }
        _ => Err(url_error("its scheme is not one of Redis")),
    }
}

pub(super) fn database(text: &str) -> Result<i64> {
    match text {
        "" => Ok(0),
        text => text
            .parse::<u16>()
            .map(i64::from)
            .map_err(|_| url_error("the database is not a number")),
    }
}

fn url_error(reason: &str) -> Error {
    Error::Config(Config::Url { reason: reason.into(), known: EXAMPLES.to_vec() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scheme_has_its_shape() {
        let good = [
            ("redis://h", "One"),
            ("redis://:pw@h:1/3?prefix=", "One"),
            ("rediss://u:pw@h", "One"),
            ("redis+unix:///run/x.sock?database=2", "One"),
            ("redis+sentinel://a,b:1,c/m/4?sentinel_password=x", "Sentinel"),
            ("redis+cluster://a,b", "Cluster"),
        ];
        for (url, shape) in good {
            let settings = Settings::from_url(url).expect(url);
            assert_eq!(format!("{:?}", settings.shape), shape, "{url}");
            assert!(!settings.store.contains("pw"), "{}", settings.store);
        }
    }

    #[test]
    fn what_cannot_be_meant_is_refused_without_the_password() {
        let urls = [
            "redis://u:hush@a,b",
            "redis://u:hush@h/x",
            "redis://u:hush@h?odd=1",
            "redis://u:hush@h?wait_ms=5",
            "redis+sentinel://u:hush@h",
            "redis+cluster://u:hush@h/3",
            "redis+cluster://u:hush@h?wait_replicas=1",
            "rediss://u:hush@h?ca=/no/such/file",
            "redis://u:hush@",
        ];
        for url in urls {
            let error = Settings::from_url(url).expect_err(url);
            assert!(matches!(error, Error::Config(_)), "{url}: {error:?}");
            assert!(!error.to_string().contains("hush"), "{error}");
        }
    }
}
