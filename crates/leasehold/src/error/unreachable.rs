//! Why a store cannot be reached, as a value, and the driver's error behind it.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::sync::Arc;

/// Why a store cannot be reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum UnreachableReason {
    /// No answer came in time.
    NoAnswer,
    /// The server refused the connection, or none listens there.
    Refused,
    /// The connection broke, or one side closed it.
    Broken,
    /// The server's name has no address.
    UnknownHost,
    /// TLS failed, for example because of a certificate.
    Tls,
    /// The servers that answer do not take writes.
    ReadOnly,
    /// Another failure; the cause or the source says which.
    Other,
}

impl UnreachableReason {
    /// The reason behind a driver's error: the first in its chain of sources that has one.
    #[allow(dead_code, reason = "the engines of the build decide whether it is used")]
    pub(crate) fn of(error: &(dyn StdError + 'static)) -> Self {
        let mut next = Some(error);
        while let Some(error) = next {
            if is_of_tls(error) {
                return UnreachableReason::Tls;
            }
            let io = error.downcast_ref::<io::Error>();
            if let Some(reason) = io.and_then(Self::of_io) {
                return reason;
            }
            next = error.source();
        }
        UnreachableReason::Other
    }

    fn of_io(error: &io::Error) -> Option<Self> {
        if error.get_ref().is_some_and(|inner| is_of_tls(inner)) {
            return Some(UnreachableReason::Tls);
        }
        match error.kind() {
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => {
                Some(UnreachableReason::NoAnswer)
            }
            // No socket file: no server listens at it.
            io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => {
                Some(UnreachableReason::Refused)
            }
            io::ErrorKind::BrokenPipe
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::NotConnected
            | io::ErrorKind::UnexpectedEof => Some(UnreachableReason::Broken),
            _ => None,
        }
    }
}

#[cfg(any(feature = "postgres", feature = "redis", feature = "zookeeper"))]
fn is_of_tls(error: &(dyn StdError + 'static)) -> bool {
    error.is::<rustls::Error>()
}

#[cfg(not(any(feature = "postgres", feature = "redis", feature = "zookeeper")))]
fn is_of_tls(_error: &(dyn StdError + 'static)) -> bool {
    false
}

impl fmt::Display for UnreachableReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            UnreachableReason::NoAnswer => "no answer in time",
            UnreachableReason::Refused => "the connection was refused",
            UnreachableReason::Broken => "the connection broke",
            UnreachableReason::UnknownHost => "its name has no address",
            UnreachableReason::Tls => "TLS failed",
            UnreachableReason::ReadOnly => "it does not take writes",
            UnreachableReason::Other => "the exchange failed",
        })
    }
}

/// An error of a driver or of the system. The copies of an [`Error`](crate::Error) share it.
#[derive(Clone)]
pub struct Source(Arc<dyn StdError + Send + Sync>);

impl Source {
    pub(crate) fn new(error: impl StdError + Send + Sync + 'static) -> Self {
        Self(Arc::new(error))
    }

    /// The error itself, to be downcast to its type.
    pub fn get(&self) -> &(dyn StdError + Send + Sync + 'static) {
        &*self.0
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl StdError for Source {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::error::Error;
    use crate::rule::name::Name;

    fn refused() -> Error {
        let io = io::Error::new(io::ErrorKind::ConnectionRefused, "port 1 is closed");
        Error::unreachable_by("test:", UnreachableReason::of(&io), io)
    }

    #[test]
    fn error_keeps_its_source_and_does_not_repeat_it() {
        let error = refused();
        assert_eq!(error.to_string(), "cannot reach the store `test:`: the connection was refused");
        let source = error.source().expect("the system's error");
        let source = source.downcast_ref::<Source>().expect("a shared error").get();
        let kind = source.downcast_ref::<io::Error>().map(io::Error::kind);
        assert_eq!(kind, Some(io::ErrorKind::ConnectionRefused));
        assert!(error.with_sources().ends_with("the connection was refused: port 1 is closed"));
    }

    #[test]
    fn copy_of_an_error_shares_its_source() {
        let (error, copy) = (refused(), refused().clone());
        assert_eq!(copy.with_sources(), error.with_sources());
    }

    #[test]
    fn time_limit_names_the_last_failure_as_its_source() {
        let (name, waited) = (Name::new("n").expect("a good name"), Duration::from_secs(2));
        let error = Error::Timeout { name, waited, last: Box::new(refused()) };
        assert!(!error.to_string().contains("cannot reach"), "{error}");
        let text = error.with_sources();
        assert!(text.contains("cannot reach") && text.ends_with("port 1 is closed"), "{text}");
    }

    #[test]
    fn reasons_are_told_apart_by_the_kind_of_the_systems_error() {
        let table = [
            (io::ErrorKind::TimedOut, UnreachableReason::NoAnswer),
            (io::ErrorKind::ConnectionRefused, UnreachableReason::Refused),
            (io::ErrorKind::ConnectionReset, UnreachableReason::Broken),
            (io::ErrorKind::UnexpectedEof, UnreachableReason::Broken),
            (io::ErrorKind::PermissionDenied, UnreachableReason::Other),
        ];
        for (kind, reason) in table {
            assert_eq!(UnreachableReason::of(&io::Error::from(kind)), reason, "{kind:?}");
        }
    }
}
