//! What can go wrong with a server, made into the library's errors.
//!
//! Messages carry what the server said, never what was sent to it.

use redis::{ErrorKind, RedisError, ServerErrorKind};

use crate::error::{Config, Error, UnreachableReason};

/// Whether the connection is of no more use after this error.
pub(super) fn spoils_connection(error: &RedisError) -> bool {
    error.is_io_error()
        || error.is_unrecoverable_error()
        || error.is_timeout()
        // The server became a replica: whoever is master now has another address.
        || matches!(error.kind(), ErrorKind::Server(ServerErrorKind::ReadOnly))
}

pub(super) fn is_unknown_script(error: &RedisError) -> bool {
    matches!(error.kind(), ErrorKind::Server(ServerErrorKind::NoScript))
}

/// Whether a server of a Cluster refused because another one has the slot.
pub(super) fn is_moved(error: &RedisError) -> bool {
    matches!(error.kind(), ErrorKind::Server(ServerErrorKind::Moved))
}

/// Whether a server of a Cluster refused because another one has the slot, or is about to.
pub(super) fn is_redirect(error: &RedisError) -> bool {
    is_moved(error) || matches!(error.kind(), ErrorKind::Server(ServerErrorKind::Ask))
}

/// The error for a redirect in a Cluster: nothing was done, and another try goes to the right
/// server.
pub(super) fn slot_moves(error: &RedisError, store: &str) -> Error {
    let cause = format!("{error}: the slot of the name moves to another server");
    Error::Store { store: store.to_owned(), cause, transient: true }
}

/// Whether the server takes no writes because its memory or its disk is full.
pub(super) fn is_full(error: &RedisError) -> bool {
    matches!(error.code(), Some("OOM" | "MISCONF"))
}

/// The error for the caller.
pub(super) fn translate(error: &RedisError, store: &str) -> Error {
    let said = |transient: bool, advice: &str| {
        let cause = match (error.code(), error.detail()) {
            (Some(code), Some(detail)) => format!("{code} {detail}{advice}"),
            _ => format!("{error}{advice}"),
        };
        Error::Store { store: store.to_owned(), cause, transient }
    };
    let unreachable = || Error::unreachable_by(store, reason(error), error.clone());
    match error.kind() {
        ErrorKind::Server(kind) => match kind {
            ServerErrorKind::BusyLoading => said(true, ""),
            ServerErrorKind::TryAgain | ServerErrorKind::ClusterDown => said(true, ""),
            ServerErrorKind::MasterDown => said(true, ""),
            ServerErrorKind::ReadOnly => {
                said(true, "; this server is a replica: name the master, or use `redis+sentinel:`")
            }
            ServerErrorKind::Moved | ServerErrorKind::Ask | ServerErrorKind::CrossSlot => {
                said(false, "; this server is part of a Cluster: use `redis+cluster:`")
            }
            ServerErrorKind::NoPerm => denied(error, store),
            _ if is_denied_in_script(error) => denied(error, store),
            _ if is_of_script(error) => said(false, BROKEN),
            _ => said(false, ""),
        },
        ErrorKind::AuthenticationFailed => rejected(store, WRONG),
        ErrorKind::Extension => match error.code() {
            Some("NOAUTH") => rejected(store, "it wants a password, and none was given"),
            Some("WRONGPASS") => rejected(store, WRONG),
            Some("OOM") => said(true, "; the server has no memory left"),
            Some("MISCONF") => said(true, "; the server cannot write to its disk"),
            Some("BUSY") => said(true, "; another script keeps the server"),
            Some("WRONGTYPE") => said(false, BROKEN),
            _ => said(false, ""),
        },
        ErrorKind::Io | ErrorKind::ClusterConnectionNotFound => unreachable(),
        ErrorKind::Parse => Error::Store {
            store: store.to_owned(),
            cause: "it does not answer as a Redis server does".into(),
            transient: false,
        },
        ErrorKind::InvalidClientConfig => Error::Config(Config::Option {
            option: "ca, cert, key".into(),
            reason: format!("cannot be used: {error}"),
        }),
        _ if error.is_io_error() || error.is_timeout() => unreachable(),
        _ => said(false, ""),
    }
}

fn reason(error: &RedisError) -> UnreachableReason {
    if error.is_timeout() {
        return UnreachableReason::NoAnswer;
    }
    if error.is_connection_refusal() {
        return UnreachableReason::Refused;
    }
    match UnreachableReason::of(error) {
        UnreachableReason::Other if error.is_connection_dropped() => UnreachableReason::Broken,
        reason => reason,
    }
}

/// Why a server refuses a client that gave a password.
const WRONG: &str = "its name and password are not accepted";

fn rejected(store: &str, reason: &str) -> Error {
    let (store, reason) = (store.to_owned(), reason.to_owned());
    let advice = "give those of a user of the server in the store's url";
    Error::Config(Config::Denied { store, reason, advice })
}

fn denied(error: &RedisError, store: &str) -> Error {
    let (store, reason) = (store.to_owned(), error.detail().unwrap_or("a right is missing").into());
    let advice =
        "docs/engines/redis.md has the rights that are needed, redlock.md those of a quorum";
    Error::Config(Config::Denied { store, reason, advice })
}

/// What is behind a key of another type, and behind a script that cannot go on with what it reads.
const BROKEN: &str = "; something else writes to these keys: see `leasehold doctor`";

/// Whether a script stopped at what it read. Servers have no code for that either, and their text
/// names the script.
fn is_of_script(error: &RedisError) -> bool {
    error.detail().is_some_and(|detail| detail.contains("user_script:"))
}

/// Whether a command of a script was refused for want of a right. Servers have no code for that:
/// the first text is that of 7.0, the second that of later ones.
fn is_denied_in_script(error: &RedisError) -> bool {
    let texts = ["The user executing the script can't", "ACL failure in script"];
    error.detail().is_some_and(|detail| texts.iter().any(|text| detail.contains(text)))
}
