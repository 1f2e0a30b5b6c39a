//! A server's address: the parts of a store URL, with its secrets kept apart.
//!
//! Each engine gives the parts their meaning. No error here repeats the text that it complains of,
//! because a password may stand anywhere in it.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use percent_encoding::percent_decode_str;

use crate::error::{Config, Error, Result};

/// The most servers one URL may name: more than any quorum or ensemble has.
const HOSTS_MAX: usize = 32;

/// A text that no message shows: a password.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(String);

impl Secret {
    pub(crate) fn new(text: String) -> Self {
        Self(text)
    }

    /// The text itself, for the store.
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// `SCHEME://[USER[:PASSWORD]@]HOST[:PORT][,HOST[:PORT]…][/PATH][?OPTION=VALUE[&…]]`.
#[derive(Debug, Clone)]
pub(crate) struct Address {
    pub(crate) scheme: String,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<Secret>,
    pub(crate) hosts: Vec<Host>,
    /// The text behind the hosts, with its slash, decoded; empty if there is none.
    pub(crate) path: String,
    pub(crate) options: Options,
}

/// One server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Host {
    /// A host name or an IP address; an IPv6 address without its brackets.
    pub(crate) name: String,
    pub(crate) port: u16,
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name.contains(':') {
            true => write!(f, "[{}]:{}", self.name, self.port),
            false => write!(f, "{}:{}", self.name, self.port),
        }
    }
}

impl Address {
    /// Parses a URL. The error shows the `examples`.
    pub(crate) fn parse(url: &str, port: u16, examples: &[&'static str]) -> Result<Address> {
        parse(url, port).map_err(|reason| {
            Error::Config(Config::Url { reason: reason.into(), known: examples.to_vec() })
        })
    }

    /// The hosts, separated by commas.
    pub(crate) fn host_list(&self) -> String {
        self.hosts.iter().map(Host::to_string).collect::<Vec<_>>().join(",")
    }

    /// The address without its secrets, user and options.
    pub(crate) fn public(&self) -> String {
        format!("{}://{}{}", self.scheme, self.host_list(), self.path)
    }
}

fn parse(url: &str, default_port: u16) -> Result<Address, &'static str> {
    let (scheme, rest) = url.split_once("://").ok_or("`://` is missing behind the scheme")?;
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, path) = match rest.find('/') {
        Some(at) => rest.split_at(at),
        None => (rest, ""),
    };
    let (login, hosts) = match authority.rsplit_once('@') {
        Some((login, hosts)) => (Some(login), hosts),
        None => (None, authority),
    };
    let (user, password) = match login.map(|login| login.split_once(':').unwrap_or((login, ""))) {
        Some((user, password)) => (decoded(user)?, decoded(password)?),
        None => Default::default(),
    };
    let hosts: Vec<Host> =
        hosts.split(',').map(|host| parse_host(host, default_port)).collect::<Result<_, _>>()?;
    if hosts.len() > HOSTS_MAX {
        return Err("it names more than 32 servers");
    }
    Ok(Address {
        scheme: scheme.to_owned(),
        user: Some(user).filter(|user| !user.is_empty()),
        password: Some(password).filter(|password| !password.is_empty()).map(Secret),
        hosts,
        path: decoded(path)?,
        options: Options::parse(query)?,
    })
}

fn parse_host(text: &str, default_port: u16) -> Result<Host, &'static str> {
    let (name, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (name, port) = rest.split_once(']').ok_or("a `]` is missing in a host")?;
            match port {
                "" => (name, None),
                port => (name, Some(port.strip_prefix(':').ok_or("a host has odd text behind")?)),
            }
        }
        None => match text.split_once(':') {
            Some((name, port)) => (name, Some(port)),
            None => (text, None),
        },
    };
    let port = match port {
        Some(port) => port.parse().map_err(|_| "a port is not a number up to 65535")?,
        None => default_port,
    };
    Ok(Host { name: decoded(name)?, port })
}

fn decoded(text: &str) -> Result<String, &'static str> {
    let text = percent_decode_str(text).decode_utf8();
    text.map(|text| text.into_owned()).map_err(|_| "what its `%` stand for is not UTF-8")
}

/// The options behind the `?`. The engine takes each once; those left over are unknown.
#[derive(Debug, Clone, Default)]
pub(crate) struct Options(BTreeMap<String, String>);

impl Options {
    fn parse(query: &str) -> Result<Options, &'static str> {
        let mut options = BTreeMap::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (option, value) = pair.split_once('=').unwrap_or((pair, ""));
            if options.insert(decoded(option)?, decoded(value)?).is_some() {
                return Err("an option is there twice");
            }
        }
        Ok(Options(options))
    }

    /// The text of an option.
    pub(crate) fn text(&mut self, option: &str) -> Option<String> {
        self.0.remove(option)
    }

    /// An option that names a file.
    pub(crate) fn path(&mut self, option: &str) -> Option<PathBuf> {
        self.text(option).map(PathBuf::from)
    }

    /// An option that is `yes` or `no`.
    pub(crate) fn flag(&mut self, option: &str) -> Result<Option<bool>> {
        match self.text(option).as_deref() {
            None => Ok(None),
            Some("yes") => Ok(Some(true)),
            Some("no") => Ok(Some(false)),
            Some(_) => Err(bad(option, "takes `yes` or `no`")),
        }
    }

    /// An option that is a whole number.
    pub(crate) fn number(&mut self, option: &str) -> Result<Option<u64>> {
        let Some(text) = self.text(option) else { return Ok(None) };
        text.parse().map(Some).map_err(|_| bad(option, "takes a whole number"))
    }

    /// An option that is a number of milliseconds.
    pub(crate) fn millis(&mut self, option: &str) -> Result<Option<Duration>> {
        let Some(text) = self.text(option) else { return Ok(None) };
        let millis = text.parse().map_err(|_| bad(option, "takes a number of milliseconds"))?;
        Ok(Some(Duration::from_millis(millis)))
    }

    /// Refuses options that are left over. `known` lists the engine's options.
    pub(crate) fn finish(self, known: &str) -> Result<()> {
        match self.0.into_keys().next() {
            Some(option) => Err(bad(&option, &format!("is unknown; this engine has {known}"))),
            None => Ok(()),
        }
    }
}

/// The error for an option whose value does not fit.
pub(crate) fn bad(option: &str, reason: &str) -> Error {
    Error::Config(Config::Option { option: option.to_owned(), reason: reason.to_owned() })
}

/// The files for TLS, which the engine reads when it opens the store. Verification cannot be
/// turned off.
#[derive(Clone, Default)]
pub(crate) struct TlsFiles {
    /// The authorities to trust instead of the system's, in PEM.
    pub(crate) ca: Option<Vec<u8>>,
    /// The client's certificate and key, in PEM.
    pub(crate) identity: Option<(Vec<u8>, Vec<u8>)>,
}

impl fmt::Debug for TlsFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (ca, identity) = (self.ca.is_some(), self.identity.is_some());
        write!(f, "TlsFiles(ca: {ca}, identity: {identity})")
    }
}

impl TlsFiles {
    /// Takes the options `ca`, `cert` and `key`, each the path of a PEM file.
    #[allow(dead_code, reason = "a build may have only engines that call them otherwise")]
    pub(crate) fn take(options: &mut Options) -> Result<TlsFiles> {
        Self::take_called(options, ["ca", "cert", "key"])
    }

    /// The same three options under other names.
    #[allow(dead_code, reason = "a build may have no engine that calls them otherwise")]
    pub(crate) fn take_called(options: &mut Options, called: [&str; 3]) -> Result<TlsFiles> {
        let [ca, cert, key] = called;
        let roots = options.path(ca).map(|path| read(ca, &path)).transpose()?;
        let identity = match (options.path(cert), options.path(key)) {
            (None, None) => None,
            (Some(chain), Some(secret)) => Some((read(cert, &chain)?, read(key, &secret)?)),
            (Some(_), None) => return Err(bad(cert, &format!("needs `{key}` beside it"))),
            (None, Some(_)) => return Err(bad(key, &format!("needs `{cert}` beside it"))),
        };
        let ca = roots;
        Ok(TlsFiles { ca, identity })
    }
}

fn read(option: &str, path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path)
        .map_err(|error| bad(option, &format!("names `{}`: {error}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good(url: &str) -> Address {
        Address::parse(url, 1234, &[]).expect("a good address")
    }

    #[test]
    fn every_part_is_found_and_decoded() {
        let mut address = good("x+y://me%40home:p%2Fw%3A@one,two:99,[::1]:7/db%20a?a=1&b=%26");
        assert_eq!(address.scheme, "x+y");
        assert_eq!(address.user.as_deref(), Some("me@home"));
        assert_eq!(address.password.as_ref().map(Secret::reveal), Some("p/w:"));
        assert_eq!(address.public(), "x+y://one:1234,two:99,[::1]:7/db a");
        assert_eq!(address.options.number("a").expect("a number"), Some(1));
        assert_eq!(address.options.text("b").as_deref(), Some("&"));
        assert!(address.options.finish("`a`").is_ok());
    }

    #[test]
    fn a_password_may_stand_without_a_user() {
        let address = good("x://:secret@host");
        assert_eq!(address.user, None);
        assert!(address.password.is_some());
        assert!(!format!("{address:?}").contains("secret"));
    }

    #[test]
    fn error_does_not_repeat_the_text() {
        let urls = ["secret", "x://h:secret", "x://[secret", "x://%ff", "x://h?a=1&a=2"];
        for url in urls {
            let error = Address::parse(url, 1, &["x://host"]).expect_err("a bad address");
            assert!(!error.to_string().contains("secret"), "{error}");
        }
    }

    #[test]
    fn an_unknown_option_and_a_bad_value_are_refused() {
        let mut options = good("x://h?flag=maybe&odd=1").options;
        assert!(options.flag("flag").is_err());
        assert!(options.finish("`flag`").expect_err("odd").to_string().contains("`odd`"));
    }
}
