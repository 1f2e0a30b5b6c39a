//! A trial lock for `doctor`: checks that the store grants a lock and takes it back.
//!
//! A store's settings do not show a full disk, a missing right or a server that stopped writing.
//! Taking a lock does, on every engine.

use crate::engine::{Engine, Finding, Level};
use crate::error::Result;
use crate::rule::claim::{Claim, ClaimKey, Holder, Mode, Note, Standing, Token, Ttl};
use crate::rule::name::Name;

/// Takes a lock on a random name, and gives it back.
pub(crate) async fn lock(engine: &dyn Engine) -> Finding {
    let (level, found, advice) = match try_lock(engine).await {
        Ok(true) => (Level::Good, "a lock was taken and given back".to_owned(), ""),
        Ok(false) => (Level::Bad, "a free name was refused".to_owned(), REFUSED),
        Err(error) => (Level::Bad, format!("no lock can be taken: {error}"), FAILED),
    };
    Finding { level, subject: "trial", found, advice: advice.into() }
}

const REFUSED: &str = "after a restart the store grants nothing for a while; if there was none, \
                       see who uses names that begin with `doctor:`";
const FAILED: &str = "nobody can work until the store grants locks again";

async fn try_lock(engine: &dyn Engine) -> Result<bool> {
    let name = Name::new(format!("doctor:{:016x}", rand::random::<u64>()))?;
    let ttl = Ttl::DEFAULT.get();
    let claim = Claim {
        key: ClaimKey { name, token: Token::random() },
        mode: Mode::Exclusive,
        holder: Holder::fresh(),
        note: Note::default(),
        ttl,
        patience: ttl,
        join: false,
    };
    let standing = engine.claim(&claim).await;
    // Even after an error: the store may have granted the lock before.
    let released = engine.release(std::slice::from_ref(&claim.key)).await;
    let held = matches!(standing?, Standing::Held { .. });
    released.map(|_released| held)
}
