//! Claims as an engine sees them, for tests that speak to the engine itself: no keeper renews them
//! or gives them back.

use std::time::Duration;

use leasehold::Name;
use leasehold::claim::{Claim, ClaimKey, Holder, Mode, Note, Renewal, Token};

/// Far beyond every test, so that no claim ends by itself.
const LONG: Duration = Duration::from_secs(300);

/// How long a claim keeps its place without a heartbeat. It is longer than a quick test on a busy
/// machine, and short enough for a session that a ZooKeeper server allows by default.
const PATIENCE: Duration = Duration::from_secs(25);

/// An exclusive claim of a new holder, which joins the line.
///
/// # Panics
///
/// If `name` is not a valid name.
pub fn claim(name: &str) -> Claim {
    Claim {
        key: ClaimKey { name: Name::new(name).expect("a good name"), token: Token::random() },
        mode: Mode::Exclusive,
        holder: Holder::fresh(),
        note: Note::default(),
        ttl: LONG,
        patience: PATIENCE,
        join: true,
    }
}

/// The same claim once more: its renewal, or its heartbeat in line.
pub fn renewal(claim: &Claim) -> Renewal {
    Renewal { key: claim.key.clone(), ttl: claim.ttl, patience: claim.patience }
}
