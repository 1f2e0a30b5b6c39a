//! What a server refuses, made into the library's errors.

use crate::error::{Config, Error};

use super::wire::{Odd, code};

/// The error for an answer that is one.
pub(super) fn refusal(error: i32, store: &str) -> Error {
    let denied = |reason: &str| {
        let (store, reason) = (store.to_owned(), reason.to_owned());
        let advice = "docs/engines/zookeeper.md has the rights that are needed";
        Error::Config(Config::Denied { store, reason, advice })
    };
    let (cause, transient) = match error {
        code::NO_NODE => ("a node is missing".to_owned(), true),
        code::BAD_VERSION | code::NODE_EXISTS | code::NOT_EMPTY => {
            ("too many change the same thing at once".to_owned(), true)
        }
        code::UNIMPLEMENTED => {
            ("it is too old: ZooKeeper 3.6 or later is needed".to_owned(), false)
        }
        code::QUOTA => ("the quota of its locks' node is used up".to_owned(), false),
        code::THROTTLED => ("it has too much to do".to_owned(), true),
        // Any password is accepted as one of somebody: what is somebody else's is found closed.
        code::NO_AUTH => return denied("its nodes belong to somebody else"),
        code::AUTH_FAILED => return denied("it does not accept the user and password"),
        error => (format!("it answered with error {error}"), false),
    };
    Error::Store { store: store.to_owned(), cause, transient }
}

pub(super) fn odd(odd: Odd, store: &str) -> Error {
    Error::Store { store: store.to_owned(), cause: odd.to_string(), transient: false }
}
