//! What can go wrong with a server, made into the library's errors.
//!
//! Messages carry what the server said, never what was sent to it.

use tonic::{Code, Status};

use crate::error::{Error, UnreachableReason};

/// Whether another member may answer what this one did not.
pub(super) fn spoils_member(status: &Status) -> bool {
    matches!(
        status.code(),
        Code::Unavailable | Code::DeadlineExceeded | Code::Unknown | Code::Cancelled
    ) || status.message().contains("not leader")
}

pub(super) fn is_stale_login(status: &Status) -> bool {
    status.code() == Code::Unauthenticated
        || status.message().contains("revision of auth store is old")
        // A server says so to a request that carries no token.
        || status.message().contains("user name is empty")
}

pub(super) fn is_lease_gone(status: &Status) -> bool {
    status.code() == Code::NotFound && status.message().contains("lease not found")
}

/// Whether the server refused to grant a lease because there is one with this id.
pub(super) fn has_lease(status: &Status) -> bool {
    status.code() == Code::FailedPrecondition
}

/// Whether a request of several may have been refused because of one of them. It was not carried
/// out, in no part.
pub(super) fn may_be_due_to_one(status: &Status) -> bool {
    is_lease_gone(status)
        // A full store still deletes.
        || is_out_of_space(status)
        || matches!(status.code(), Code::PermissionDenied | Code::InvalidArgument)
}

pub(super) fn is_auth_off(status: &Status) -> bool {
    status.message().contains("authentication is not enabled")
}

pub(super) fn is_out_of_space(status: &Status) -> bool {
    status.message().contains("database space exceeded")
}

/// The error for the caller.
pub(super) fn translate(status: &Status, store: &str) -> Error {
    let message = status.message();
    let said = |transient: bool, advice: &str| Error::Store {
        store: store.to_owned(),
        cause: format!("{message}{advice}"),
        transient,
    };
    let from_server = message.starts_with("etcdserver:");
    match status.code() {
        Code::ResourceExhausted if is_out_of_space(status) => said(
            false,
            "; it is full: compact, defragment, then `etcdctl alarm disarm`; locks can still be \
             given back",
        ),
        Code::ResourceExhausted => said(true, ""),
        Code::PermissionDenied => {
            said(false, "; docs/engines/etcd.md has the rights that are needed")
        }
        Code::Unauthenticated => rejected(store),
        _ if message.contains("authentication failed") => rejected(store),
        _ if message.contains("user name is empty") => {
            said(false, "; this cluster wants a user and a password in the url")
        }
        Code::Unavailable | Code::NotFound | Code::OutOfRange if from_server => said(true, ""),
        Code::Unavailable | Code::DeadlineExceeded | Code::Unknown | Code::Cancelled => {
            Error::unreachable(store, reason(status), cause(status))
        }
        Code::FailedPrecondition if message.contains("not leader") => said(true, ""),
        Code::DataLoss => said(false, "; a member's data is corrupt: see the cluster's alarms"),
        _ => said(false, ""),
    }
}

fn rejected(store: &str) -> Error {
    Error::Store {
        store: store.to_owned(),
        cause: "it does not accept this user and password".into(),
        transient: false,
    }
}

fn reason(status: &Status) -> UnreachableReason {
    match status.code() {
        Code::DeadlineExceeded => UnreachableReason::NoAnswer,
        _ => UnreachableReason::of(status),
    }
}

/// The innermost reason: what is around it only says that there was one.
fn cause(status: &Status) -> String {
    let mut inner = std::error::Error::source(status);
    let mut cause = status.message().to_owned();
    while let Some(error) = inner {
        cause = error.to_string();
        inner = error.source();
    }
    cause
}
