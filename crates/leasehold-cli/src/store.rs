//! Which store, and as whom: from options, environment and files to a connected client.
//!
//! Passwords pass through here and nowhere else: a URL is read, checked and handed to the
//! library, and never becomes part of a message.

use std::fs::DirBuilder;
use std::io::Read as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use leasehold::claim::HolderId;
use leasehold::sqlite::Sqlite;
use leasehold::{Client, ClientBuilder, Error, Holder};

use crate::args::Globals;
use crate::exit::Failure;
use crate::out::Voice;
use crate::system::{self, Found};
use crate::take::Wait;
use crate::waiting::Waiting;

/// The store's address, for this process and for a child that is to have it.
pub(crate) const URL_VARIABLE: &str = "LEASEHOLD_URL";
/// A file with the store's address in it.
pub(crate) const URL_FILE_VARIABLE: &str = "LEASEHOLD_URL_FILE";
/// The identity of the run around this one.
pub(crate) const HOLDER_VARIABLE: &str = "LEASEHOLD_HOLDER";

/// The store of the run around this one, by its id.
pub(crate) const STORE_VARIABLE: &str = "LEASEHOLD_STORE";

/// A URL longer than this is a mistake, such as the wrong file.
const URL_BYTES_MAX: usize = 16 * 1024;

/// Before a server that cannot serve now is asked again.
pub(crate) const PAUSE: Duration = Duration::from_millis(200);

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

/// What a command wants the store for.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Purpose {
    /// It takes locks.
    pub(crate) takes: bool,
    /// How long it waits for them.
    pub(crate) wait: Wait,
}

/// A store's address, and where it comes from.
#[derive(Debug)]
struct Address {
    /// None for the default store.
    url: Option<String>,
    /// Whether an option or `LEASEHOLD_URL` names it. A run takes the latter from its command, so
    /// somebody means it for the command inside.
    meant: bool,
}

/// Connects to the store that was asked for.
pub(crate) async fn open(globals: &Globals, purpose: Purpose) -> Result<Store, Failure> {
    open_at(globals, find_address(globals)?, purpose).await
}

/// The same without installing anything there.
pub(crate) async fn open_to_look(globals: &Globals) -> Result<Store, Failure> {
    let mut address = find_address(globals)?;
    if let Some(url) = &address.url
        && url.starts_with("postgres")
    {
        address.url = Some(with_option(url, "install=no"));
    }
    open_at(globals, address, Purpose::default()).await
}

/// The same, if the store is there: no file is made for that.
pub(crate) async fn open_existing(globals: &Globals) -> Option<Store> {
    let file = match find_address(globals).ok()?.url {
        Some(url) => url.strip_prefix("sqlite:").map(|rest| {
            let path = rest.split('?').next().unwrap_or(rest);
            PathBuf::from(path)
        }),
        None => Some(default_file().ok()?.0),
    };
    if file.is_some_and(|file| !file.exists()) {
        return None;
    }
    open_to_look(globals).await.ok()
}

/// A url with an option that it does not set itself.
fn with_option(url: &str, option: &str) -> String {
    let name = option.split_inclusive('=').next().unwrap_or(option);
    match url {
        url if url.contains(name) => url.to_owned(),
        url if url.contains('?') => format!("{url}&{option}"),
        url => format!("{url}?{option}"),
    }
}

async fn open_at(globals: &Globals, address: Address, purpose: Purpose) -> Result<Store, Failure> {
    let voice = Voice::new(globals);
    let Address { url, meant } = address;
    let client = match &url {
        Some(url) => connect(globals, url, purpose.wait).await?,
        None => {
            let (file, warning) = default_file()?;
            // A file that is to be made is not the store of a run.
            if is_inside_a_run() && !file.exists() {
                return Err(other_than_outer());
            }
            if let Some(warning) = warning.filter(|_| purpose.takes && !is_inside_a_run()) {
                voice.tell(&warning);
            }
            identity(globals)?.engine(Sqlite::open(file)?)?
        }
    };
    if !meant
        && let Some(outer) = std::env::var_os(STORE_VARIABLE)
        && outer.to_str() != Some(&write_id(&client))
    {
        return Err(other_than_outer());
    }
    Ok(Store { client, voice, url })
}

fn is_inside_a_run() -> bool {
    std::env::var_os(STORE_VARIABLE).is_some()
}

/// A lock in another store would exclude nobody whom the run around this one does.
fn other_than_outer() -> Failure {
    Failure::config("the `leasehold` around this uses another store than this one would").hint(
        "let it pass its store on with --pass-url, or give this one --url, --url-file or \
         LEASEHOLD_URL",
    )
}

/// Connects to a server or opens a file, and says so if that takes long. A server that answers, but
/// has no connection left or cannot serve yet, is asked again for as long as the caller waits for
/// its locks.
async fn connect(globals: &Globals, url: &str, wait: Wait) -> Result<Client, Failure> {
    let begun = Instant::now();
    let waiting = Waiting::new(Voice::new(globals));
    let is_file = url.starts_with("sqlite:");
    let connecting = async {
        loop {
            let error = match connect_once(globals, url).await? {
                Ok(client) => return Ok(client),
                Err(error) => error,
            };
            if !is_passing(&error) || !wait.goes_on(begun, is_file) {
                return Err(error.into());
            }
            tracing::debug!(%error, "connecting again");
            waiting.failed(&error);
            tokio::time::sleep(PAUSE).await;
        }
    };
    tokio::select! {
        biased;
        connected = connecting => connected,
        never = waiting.show_connecting() => match never {},
    }
}

async fn connect_once(globals: &Globals, url: &str) -> Result<Result<Client, Error>, Failure> {
    let mut builder = identity(globals)?;
    if let Some(limit) = globals.connect_wait {
        builder = builder.connect_within(limit);
    }
    // Of a command many run at once, and each connection is a process of the server.
    if url.starts_with("postgres:") || url.starts_with("postgresql:") {
        let url = with_option(url, "connections=1");
        return Ok(builder.few_connections().connect(url).await);
    }
    Ok(builder.connect(url).await)
}

/// Whether the store answered with a failure that passes, such as too many connections.
pub(crate) fn is_passing(error: &Error) -> bool {
    matches!(error, Error::Store { transient: true, .. } | Error::TaskEnded { .. })
}

/// The address that was given, by an option or a variable.
fn find_address(globals: &Globals) -> Result<Address, Failure> {
    let mut meant = true;
    let url = match (&globals.url, &globals.url_file) {
        (Some(url), _) if has_password(url) => {
            return Err(Failure::usage(
                "the url has a password in it, and everybody on this machine can read arguments",
            )
            .hint(format!("put it into {URL_VARIABLE}, or into a file for --url-file")));
        }
        (Some(url), _) => url.clone(),
        (None, Some(path)) => read_url_file(path)?,
        (None, None) => {
            let variable = std::env::var_os;
            match (variable(URL_VARIABLE), variable(URL_FILE_VARIABLE)) {
                (Some(url), _) => url
                    .into_string()
                    .map_err(|_| Failure::config(format!("{URL_VARIABLE} is not UTF-8")))?,
                (None, Some(path)) => {
                    meant = false;
                    read_url_file(Path::new(&path))?
                }
                (None, None) => return Ok(Address { url: None, meant: false }),
            }
        }
    };
    if url.trim().is_empty() {
        return Err(Failure::config("the store's url is empty")
            .hint("write `sqlite:PATH`, or leave it out for a file in your state folder"));
    }
    Ok(Address { url: Some(url.trim().to_owned()), meant })
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
    // The owner and the mode are asked of the open file, so that nobody can swap it in between.
    let file = std::fs::File::open(path).map_err(|error| fail("open", error))?;
    let facts = file.metadata().map_err(|error| fail("look at", error))?;
    if let Some(fault) = fault_of_url_file(path, &facts) {
        let (path, mode) = (path.display(), facts.mode() & 0o777);
        return Err(Failure::config(format!("{fault} `{path}` (mode {mode:04o})"))
            .hint(format!("`chmod 600 {path}`, or mount the secret with mode 0440")));
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

/// The fault in the owner or the mode of a file that holds a secret, if there is one. Mounted
/// secrets belong to root or to this user, and their group may read them.
fn fault_of_url_file(path: &Path, facts: &std::fs::Metadata) -> Option<&'static str> {
    let us = rustix::process::geteuid().as_raw();
    if facts.uid() != 0 && facts.uid() != us {
        return Some("another user owns");
    }
    if facts.mode() & 0o022 != 0 {
        return Some("others may write to");
    }
    let readable = facts.mode() & 0o004 != 0;
    (readable && !is_below_a_closed_folder(path)).then_some("everybody may read")
}

/// Whether a folder above the file lets only its owner and its group in.
fn is_below_a_closed_folder(path: &Path) -> bool {
    let Ok(path) = path.canonicalize() else { return false };
    path.ancestors().skip(1).any(|folder| {
        let facts = std::fs::metadata(folder);
        facts.is_ok_and(|facts| facts.mode() & 0o001 == 0)
    })
}

/// The identity of this process: a new holder, or the one whose run it is part of.
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

/// The id of a store, as the environment carries it.
pub(crate) fn write_id(client: &Client) -> String {
    format!("{:032x}", client.info().store_id)
}

fn read_holder(text: &str) -> Option<Holder> {
    let (id, label) = text.split_once('@')?;
    if id.len() != 32 {
        return None;
    }
    let id = u128::from_str_radix(id, 16).ok()?;
    Holder::known(HolderId(id), label).ok()
}

/// The default store, and a warning if other users have another one.
fn default_file() -> Result<(PathBuf, Option<String>), Failure> {
    match system::find() {
        Found::Open(file) => Ok((file, None)),
        Found::Closed => Ok((own_file()?, Some(system::closed()))),
        Found::Missing => Ok((own_file()?, Some(system::missing()))),
        Found::None if rustix::process::geteuid().is_root() => {
            Ok((own_file()?, Some(ROOT_ALONE.to_owned())))
        }
        Found::None => Ok((own_file()?, None)),
    }
}

const ROOT_ALONE: &str = "this lock excludes root's commands only: each user has a store of their \
                          own; `leasehold init --system` makes one for all";

/// `$XDG_STATE_HOME/leasehold/locks.db`, with its folder, for this user only.
fn own_file() -> Result<PathBuf, Failure> {
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
