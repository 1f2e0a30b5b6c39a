//! A session of another client that is taken up for a moment, by a handle.
//!
//! The client that lives on it makes its connection again a moment after it was cut off, and takes
//! the session back.

use std::future::Future;

use crate::error::{Error, Result};

/// How often something is begun anew that was disturbed.
const TIMES_MAX: usize = 8;

/// Why something on a session that was taken up came to nothing.
#[derive(Debug)]
pub(super) enum Stopped {
    Failed(Error),
    /// The client that lives on it took it back before that.
    TakenBack(Error),
}

impl From<Error> for Stopped {
    fn from(error: Error) -> Self {
        Stopped::Failed(error)
    }
}

/// What a session that was taken up answered.
pub(super) fn answered<T>(answer: Result<T>) -> Result<T, Stopped> {
    answer.map_err(|error| match error {
        Error::Unreachable { .. } => Stopped::TakenBack(error),
        error => Stopped::Failed(error),
    })
}

/// Does something on a session that is taken up, anew if its client takes it back meanwhile: that
/// one waits for a moment only, which on a busy machine, or for somebody far away, is too short. It
/// waits for longer each time.
pub(super) async fn undisturbed<T, F>(attempt: impl Fn() -> F) -> Result<T>
where
    F: Future<Output = Result<T, Stopped>>,
{
    let mut times = 1;
    loop {
        match attempt().await {
            Ok(done) => return Ok(done),
            Err(Stopped::TakenBack(_)) if times < TIMES_MAX => times += 1,
            Err(Stopped::Failed(error) | Stopped::TakenBack(error)) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::Arc;
    use std::time::Duration;

    use leasehold_testkit::waiting::until;

    use super::super::session::Session;
    use super::super::settings::Settings;
    use super::super::wire::Request;
    use super::*;
    use crate::error::UnreachableReason;

    fn unreachable() -> Error {
        Error::unreachable("zk://h", UnreachableReason::Broken, "the server hung up")
    }

    #[tokio::test]
    async fn what_was_disturbed_is_begun_anew_and_nothing_else_is() {
        let tried = Cell::new(0);
        let disturbed = |times: usize| {
            let tried = &tried;
            move || async move {
                tried.set(tried.get() + 1);
                answered(if tried.get() > times { Ok(tried.get()) } else { Err(unreachable()) })
            }
        };
        assert!(matches!(undisturbed(disturbed(TIMES_MAX - 1)).await, Ok(TIMES_MAX)));
        tried.set(0);
        let given_up = undisturbed(disturbed(TIMES_MAX)).await;
        assert!(matches!(given_up, Err(Error::Unreachable { .. })), "{given_up:?}");
        assert_eq!(tried.get(), TIMES_MAX);
        tried.set(0);
        let other = undisturbed(|| async {
            tried.set(tried.get() + 1);
            answered::<()>(Err(Error::Closed))
        });
        assert!(matches!(other.await, Err(Error::Closed)));
        assert_eq!(tried.get(), 1);
    }

    #[tokio::test]
    async fn a_session_that_was_taken_back_before_anything_was_asked_was_taken_back() {
        let server = leasehold_testkit::Zookeeper::new().start().await.expect("a server");
        let servers = Arc::new(Settings::from_url(server.url()).expect("a url").servers);
        let timeout = Duration::from_secs(30);
        let owner = Session::open(&servers, timeout, None).await.expect("a session");
        let visitor = Session::open(&servers, timeout, Some(owner.identity())).await;
        let visitor = visitor.expect("it is taken up");
        until("its owner to take it back", async || visitor.has_ended()).await;
        let asked = answered(visitor.ask(Request::GetData { path: "/".into() }).await);
        assert!(matches!(asked, Err(Stopped::TakenBack(_))), "{:?}", asked.map(|_| ()));
        owner.closed().await;
    }
}
