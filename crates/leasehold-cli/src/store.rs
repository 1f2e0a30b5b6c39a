//! Which store, and as whom: from options, environment and files to a connected client.
//!
//! Passwords pass through here and nowhere else: a URL is read, checked and handed to the
//! library, and never becomes part of a message.

use std::fs::DirBuilder;
use std::io::Read as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use leasehold::claim::HolderId;
use leasehold::sqlite::Sqlite;
use leasehold::{Client, ClientBuilder, Holder};

use crate::args::Globals;
use crate::exit::Failure;
use crate::out::Voice;

/// The store's address, for this process and for a child that is to have it.
pub(crate) const URL_VARIABLE: &str = "LEASEHOLD_URL";
/// The identity of the run around this one.
pub(crate) const HOLDER_VARIABLE: &str = "LEASEHOLD_HOLDER";

/// A URL longer than this is a mistake, such as the wrong file.
const URL_BYTES_MAX: usize = 16 * 1024;

/// Query options whose values are secrets.
const SECRET_OPTIONS: [&str; 6] = ["auth", "pass", "password", "secret", "sslpassword", "token"];

/// A connected store, and how to talk to the user about it.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) client: Client,
    pub(crate) voice: Voice,
    /// The address to pass on to a child that may have it; none for the default store, which it
    /// finds by itself.
    pub(crate) url: Option<String>,
}

/// Connects to the store that was asked for.
pub(crate) async fn open(globals: &Globals, store_prefix: Option<&str>) -> Result<Store, Failure> {
    open_at(globals, store_prefix, find_url(globals)?).await
}

/// The same without installing anything there.
pub(crate) async fn open_to_look(
    globals: &Globals,
    store_prefix: Option<&str>,
) -> Result<Store, Failure> {
    let url = find_url(globals)?.map(|url| match url.starts_with("postgres") {
        true if url.contains("install=") => url,
        true if url.contains('?') => format!("{url}&install=no"),
        true => format!("{url}?install=no"),
        false => url,
    });
    open_at(globals, store_prefix, url).await
}

async fn open_at(
    globals: &Globals,
    store_prefix: Option<&str>,
    url: Option<String>,
) -> Result<Store, Failure> {
    if store_prefix.is_some() {
        return Err(refuse_prefix(url.as_deref()));
    }
    let builder = identity(globals)?;
    let client = match &url {
        Some(url) => builder.connect(url).await?,
        None => builder.engine(Sqlite::open(default_file()?)?)?,
    };
    Ok(Store { client, voice: Voice::new(globals), url })
}

/// The URL that was given, by whichever way; `None` for the default store.
fn find_url(globals: &Globals) -> Result<Option<String>, Failure> {
    let url = match (&globals.url, &globals.url_file) {
        (Some(url), _) if has_password(url) => {
            return Err(Failure::usage(
                "the url has a password in it, and everybody on this machine can read arguments",
            )
            .hint(format!("put it into {URL_VARIABLE}, or into a file for --url-file")));
        }
        (Some(url), _) => url.clone(),
        (None, Some(path)) => read_url_file(path)?,
        (None, None) => match std::env::var_os(URL_VARIABLE) {
            None => return Ok(None),
            Some(url) => url
                .into_string()
                .map_err(|_| Failure::config(format!("{URL_VARIABLE} is not UTF-8")))?,
        },
    };
    if url.trim().is_empty() {
        return Err(Failure::config("the store's url is empty")
            .hint("write `sqlite:PATH`, or leave it out for a file in your state folder"));
    }
    Ok(Some(url.trim().to_owned()))
}

/// Whether a URL carries a secret that must not be seen in the process list.
fn has_password(url: &str) -> bool {
    let Some((_, rest)) = url.split_once(':') else { return false };
    let (address, query) = rest.split_once('?').unwrap_or((rest, ""));
    // Several servers are written with commas, and each may have a user part of its own. A
    // password may itself hold a slash, so the whole address is looked at.
    let in_address = address.trim_start_matches('/').split(',').any(|server| {
        server
            .rsplit_once('@')
            .and_then(|(user, _)| user.split_once(':'))
            .is_some_and(|(_, password)| !password.is_empty())
    });
    let in_query =
        query.split(['&', ';']).filter_map(|pair| pair.split_once('=')).any(|(option, value)| {
            let option = option.to_ascii_lowercase();
            !value.is_empty() && SECRET_OPTIONS.contains(&option.as_str())
        });
    in_address || in_query
}

fn read_url_file(path: &Path) -> Result<String, Failure> {
    let fail = |what: &str, error: std::io::Error| {
        Failure::config(format!("cannot {what} `{}`: {error}", path.display()))
    };
    // The mode is asked of the open file, so that nobody can swap it in between.
    let file = std::fs::File::open(path).map_err(|error| fail("open", error))?;
    let mode = file.metadata().map_err(|error| fail("look at", error))?.mode();
    if mode & 0o077 != 0 {
        return Err(Failure::config(format!(
            "others may read `{}` (mode {:04o})",
            path.display(),
            mode & 0o777
        ))
        .hint(format!("`chmod 600 {}`", path.display())));
    }
    let mut text = String::new();
    file.take(URL_BYTES_MAX as u64 + 1)
        .read_to_string(&mut text)
        .map_err(|error| fail("read", error))?;
    if text.len() > URL_BYTES_MAX || text.trim().lines().count() != 1 {
        return Err(Failure::config(format!("`{}` must hold one url", path.display())));
    }
    Ok(text)
}

/// The engines of this build keep no keys that could begin with anything.
fn refuse_prefix(url: Option<&str>) -> Failure {
    let scheme = url.and_then(|url| url.split_once(':')).map_or("sqlite", |(scheme, _)| scheme);
    Failure::config(format!("--prefix is for stores that have keys, and `{scheme}:` has none"))
        .hint("leave it out; `list --prefix P` filters by name")
}

/// Who this process is: a new holder, or the one whose run it is part of.
fn identity(globals: &Globals) -> Result<ClientBuilder, Failure> {
    let mut builder = Client::builder();
    if let Some(text) = std::env::var_os(HOLDER_VARIABLE) {
        let holder = text.to_str().and_then(read_holder).ok_or_else(|| {
            Failure::config(format!("{HOLDER_VARIABLE} is set to something `run` never writes"))
                .hint(format!("`unset {HOLDER_VARIABLE}`; use --holder for a label"))
        })?;
        builder = builder.holder(holder);
    }
    if let Some(label) = &globals.holder {
        builder = builder.label(label);
    }
    Ok(builder)
}

/// A holder as its child's environment carries it: `ID@LABEL`.
pub(crate) fn write_holder(holder: &Holder) -> String {
    format!("{:032x}@{}", holder.id().0, holder.label())
}

fn read_holder(text: &str) -> Option<Holder> {
    let (id, label) = text.split_once('@')?;
    if id.len() != 32 {
        return None;
    }
    let id = u128::from_str_radix(id, 16).ok()?;
    Holder::known(HolderId(id), label).ok()
}

/// `$XDG_STATE_HOME/leasehold/locks.db`, with its folder, for this user only.
fn default_file() -> Result<PathBuf, Failure> {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let state = absolute("XDG_STATE_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".local/state")))
        .ok_or_else(|| {
            Failure::config("there is no home folder to keep the default store in")
                .hint(format!("set {URL_VARIABLE} or give --url, such as `sqlite:PATH`"))
        })?;
    let folder = state.join("leasehold");
    if !folder.is_dir() {
        DirBuilder::new().recursive(true).mode(0o700).create(&folder).map_err(|error| {
            Failure::config(format!("cannot create `{}`: {error}", folder.display()))
                .hint(format!("set {URL_VARIABLE} or give --url, such as `sqlite:PATH`"))
        })?;
    }
    Ok(folder.join("locks.db"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f145_passwords_are_found_wherever_a_url_may_hold_them() {
        let with = [
            "redis://:pw@h:6379/0",
            "redis://user:pw@h",
            "redlock://a:1,:pw@b:1",
            "postgres://u:p/w@h/db",
            "postgres://u:p@ss@h/db",
            "postgres://h/db?user=u&password=pw",
            "postgres://h/db?PASSWORD=pw",
            "redis+unix:/run/redis.sock?pass=pw",
        ];
        let without = [
            "memory:",
            "sqlite:/var/lib/a:b/locks.db",
            "redis://h:6379/0",
            "redis://user@h:6379",
            "redis://user:@h:6379",
            "redlock://a:1,b:1,c:1",
            "postgres://u@h/db?sslmode=require",
            "nonsense",
        ];
        for url in with {
            assert!(has_password(url), "{url}");
        }
        for url in without {
            assert!(!has_password(url), "{url}");
        }
    }

    #[test]
    fn a_holder_survives_the_environment() {
        let holder = Holder::labelled("a@b: c").expect("a good label");
        let read = read_holder(&write_holder(&holder)).expect("what was written can be read");
        assert_eq!((read.id(), read.label()), (holder.id(), "a@b: c"));
        for bad in ["", "me", "12@me", "zz@me", &format!("{:032x}@", 1)] {
            assert!(read_holder(bad).is_none(), "{bad}");
        }
    }
}
