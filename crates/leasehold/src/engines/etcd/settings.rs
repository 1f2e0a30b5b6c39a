//! From a URL to a store: schemes, options, and what they mean.

use std::time::Duration;

use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

use crate::engine::kit::address::{Address, Host, Secret, TlsFiles, bad};
use crate::error::{Config, Error, Result};

use super::keys::Layout;

const PORT: u16 = 2379;

const EXAMPLES: &[&str] = &["etcd://HOST:PORT,HOST:PORT", "etcds://USER@HOST"];

const OPTIONS: &str = "`prefix`, `connect_timeout_ms`, `timeout_ms`, `ca`, `cert`, `key`";

/// How often a connection in use is asked whether it lives. Servers hang up on clients that ask
/// more often than every five seconds.
const PING_EVERY: Duration = Duration::from_secs(6);
const PING_ANSWER: Duration = Duration::from_secs(3);

/// Who to log in as.
#[derive(Debug, Clone)]
pub(super) struct Login {
    pub(super) user: String,
    pub(super) password: Secret,
}

/// Everything a URL says.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) members: Vec<Endpoint>,
    pub(super) login: Option<Login>,
    pub(super) layout: Layout,
    /// The address without secrets.
    pub(super) store: String,
    /// How long the members together have for an answer.
    pub(super) answer: Duration,
}

impl Settings {
    pub(super) fn from_url(url: &str) -> Result<Settings> {
        let mut address = Address::parse(url, PORT, EXAMPLES)?;
        let store = address.public();
        let secure = match address.scheme.as_str() {
            "etcd" => false,
            "etcds" => true,
            _ => return Err(url_error("its scheme is not one of etcd")),
        };
        if !matches!(address.path.as_str(), "" | "/") {
            return Err(url_error("etcd has no databases; `?prefix=` keeps stores apart"));
        }
        if address.hosts.iter().any(|host| host.name.is_empty()) {
            return Err(url_error("a host is missing"));
        }
        let login = match (address.user.take(), address.password.take()) {
            (Some(user), Some(password)) => Some(Login { user, password }),
            (None, None) => None,
            _ => return Err(url_error("user and password come together")),
        };
        let options = &mut address.options;
        let prefix = options.text("prefix").unwrap_or_default();
        let connect = options.millis("connect_timeout_ms")?.unwrap_or(Duration::from_secs(2));
        let answer = options.millis("timeout_ms")?.unwrap_or(Duration::from_secs(3));
        let files = TlsFiles::take(options)?;
        if !secure && (files.ca.is_some() || files.identity.is_some()) {
            return Err(bad("ca, cert, key", "are for `etcds:`"));
        }
        let tls = secure.then(|| certificates(files));
        let members = address.hosts.iter().map(|host| member(host, connect, tls.as_ref()));
        let members = members.collect::<Result<_>>()?;
        address.options.finish(OPTIONS)?;
        Ok(Settings { members, login, layout: Layout::new(prefix), store, answer })
    }
}

fn certificates(files: TlsFiles) -> ClientTlsConfig {
    let config = match files.ca {
        Some(ca) => ClientTlsConfig::new().ca_certificate(Certificate::from_pem(ca)),
        None => ClientTlsConfig::new().with_native_roots(),
    };
    match files.identity {
        Some((cert, key)) => config.identity(Identity::from_pem(cert, key)),
        None => config,
    }
}

fn member(host: &Host, connect: Duration, tls: Option<&ClientTlsConfig>) -> Result<Endpoint> {
    let scheme = if tls.is_some() { "https" } else { "http" };
    let endpoint = Endpoint::from_shared(format!("{scheme}://{host}"))
        .map_err(|_| url_error("a host is none"))?
        .connect_timeout(connect)
        .http2_keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_ANSWER);
    match tls {
        None => Ok(endpoint),
        Some(tls) => endpoint.tls_config(tls.clone()).map_err(|error| {
            let reason = format!("cannot be used: {}", innermost(&error));
            bad("ca, cert, key", &reason)
        }),
    }
}

fn innermost(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), innermost)
}

fn url_error(reason: &str) -> Error {
    Error::Config(Config::Url { reason: reason.into(), known: EXAMPLES.to_vec() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_urls_are_understood() {
        let urls = ["etcd://h", "etcd://u:pw@a,b:1,[::1]:2/?prefix=p/", "etcds://h?timeout_ms=5"];
        for url in urls {
            let settings = Settings::from_url(url).expect(url);
            assert!(!settings.store.contains("pw"), "{}", settings.store);
            assert!(!format!("{settings:?}").contains("pw"), "{settings:?}");
        }
    }

    #[test]
    fn what_cannot_be_meant_is_refused_without_the_password() {
        let urls = [
            "etcd://u:hush@h/database",
            "etcd://u:hush@h?odd=1",
            "etcd://u:hush@h?ca=/no/such/file",
            "etcd://u:hush@",
            "etcd://:hush@h",
            "etcdx://u:hush@h",
        ];
        for url in urls {
            let error = Settings::from_url(url).expect_err(url);
            assert!(matches!(error, Error::Config(_)), "{url}: {error:?}");
            assert!(!error.to_string().contains("hush"), "{error}");
        }
    }
}
