//! The answer of a claim that does not wait, or does not wait any longer: who is in the way.

use std::fmt;
use std::time::Duration;

use crate::engine::ClaimView;
use crate::error::{Error, Result};
use crate::rule::claim::Holder;
use crate::rule::name::Name;

/// Why a call that does not wait for ever ended without a lease.
///
/// `?` turns it into an [`Error`]. [`UnlessHeld`] is for callers that only ask whether they have
/// the lease.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// use leasehold::TryLockError;
///
/// let client = leasehold::connect("memory:").await?;
/// let _lease = client.mutex("report").note("quarterly").lock().await?;
/// match client.mutex("report").try_lock().await {
///     Ok(lease) => println!("fence {}", lease.fence()),
///     Err(TryLockError::Held(held)) => assert_eq!(held.note, "quarterly"),
///     Err(error) => return Err(error.into()),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum TryLockError {
    /// Other claims have the name, and this one is not in line.
    #[error(transparent)]
    Held(#[from] Box<Held>),
    /// The question could not be answered, or should not have been asked.
    #[error(transparent)]
    Failed(#[from] Error),
}

impl From<TryLockError> for Error {
    fn from(error: TryLockError) -> Self {
        match error {
            TryLockError::Held(held) => Error::Held(held),
            TryLockError::Failed(error) => error,
        }
    }
}

/// The claims that are in the way of one that was refused, as they were at the refusal.
///
/// Everything in it may be out of date when the caller reads it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Held {
    /// The name.
    pub name: Name,
    /// The first holder. `None` if the holder left meanwhile, or the store did not say in time.
    pub by: Option<Holder>,
    /// The first holder's note, without facts; empty if it has none or the store did not say.
    pub note: String,
    /// How many claims are before this one. PostgreSQL's advisory locks count one for a claim that
    /// waited.
    pub ahead: usize,
    /// After this time it is worth asking again.
    pub retry_in: Duration,
    /// All claims that hold the name. Empty if [`by`](Self::by) is `None`, or more than 100 claims
    /// are in line.
    pub claims: Vec<ClaimView>,
    /// Whether the claim was in line, where others may have come behind it.
    pub(crate) waited: bool,
}

impl Held {
    /// A refusal as the engine answered it.
    pub(crate) fn new(name: &Name, by: Option<Holder>, ahead: usize, retry_in: Duration) -> Self {
        let (name, note, claims) = (name.clone(), String::new(), Vec::new());
        Self { name, by, note, ahead, retry_in, claims, waited: false }
    }
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.by {
            Some(holder) => write!(f, "`{}` is held by `{}`", self.name, holder.label())?,
            None => write!(f, "`{}` was not free", self.name)?,
        }
        if !self.note.is_empty() {
            write!(f, " ({})", self.note)?;
        }
        match self.ahead {
            0 => Ok(()),
            1 => f.write_str("; 1 claim is before this one"),
            ahead => write!(f, "; {ahead} claims are before this one"),
        }
    }
}

impl std::error::Error for Held {}

/// Makes an `Option` of an answer, for callers that do not ask who has the name.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// use leasehold::UnlessHeld;
///
/// let client = leasehold::connect("memory:").await?;
/// if let Some(lease) = client.mutex("report").try_lock().await.unless_held()? {
///     println!("fence {}", lease.fence());
/// }
/// # Ok(())
/// # }
/// ```
pub trait UnlessHeld {
    /// The type that a call returns if no other claim has the name.
    type Got;

    /// `None` if other claims have the name; an error if the question could not be answered.
    fn unless_held(self) -> Result<Option<Self::Got>>;
}

impl<T> UnlessHeld for Result<T, TryLockError> {
    type Got = T;

    fn unless_held(self) -> Result<Option<T>> {
        match self {
            Ok(got) => Ok(Some(got)),
            Err(TryLockError::Held(_)) => Ok(None),
            Err(TryLockError::Failed(error)) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(label: Option<&str>, note: &str, ahead: usize) -> Held {
        let by = label.map(|label| Holder::labelled(label).expect("a good label"));
        let name = Name::new("report").expect("a good name");
        Held { note: note.to_owned(), ..Held::new(&name, by, ahead, Duration::ZERO) }
    }

    #[test]
    fn refusal_names_the_holder_the_note_and_the_place() {
        let text = "`report` is held by `web1` (settle); 2 claims are before this one";
        assert_eq!(held(Some("web1"), "settle", 2).to_string(), text);
        let text = "`report` is held by `web1`; 1 claim is before this one";
        assert_eq!(held(Some("web1"), "", 1).to_string(), text);
        assert_eq!(held(None, "", 0).to_string(), "`report` was not free");
    }

    #[test]
    fn refusal_stays_the_same_as_an_error_of_the_library() {
        let refused = TryLockError::from(Box::new(held(Some("web1"), "", 1)));
        let text = refused.to_string();
        let error = Error::from(refused);
        assert!(matches!(&error, Error::Held(held) if held.ahead == 1), "{error:?}");
        assert_eq!(error.to_string(), text);
        assert!(matches!(Error::from(TryLockError::from(Error::Closed)), Error::Closed));
    }

    #[test]
    fn refusal_is_no_lease_and_a_failure_stays_an_error() {
        let refused = Box::new(held(None, "", 0)).into();
        assert!(matches!(Err::<(), TryLockError>(refused).unless_held(), Ok(None)));
        let failed = TryLockError::from(Error::Closed);
        assert!(matches!(Err::<(), _>(failed).unless_held(), Err(Error::Closed)));
        assert!(matches!(Ok::<_, TryLockError>(1).unless_held(), Ok(Some(1))));
    }
}
