//! Claims as an engine sees them, for tests that speak to the engine itself: no keeper renews them
//! or gives them back.

use std::time::Duration;

use leasehold::Name;
use leasehold::claim::{Claim, ClaimKey, Holder, Mode, Note, Renewal, Token, Ttl};

/// Far beyond every test, so that what is held does not end by itself.
const LONG: Duration = Duration::from_secs(300);

/// An exclusive claim of somebody new, which joins the line, with the patience that clients have.
///
/// # Panics
///
/// If that is no name.
pub fn claim(name: &str) -> Claim {
    Claim {
        key: ClaimKey { name: Name::new(name).expect("a good name"), token: Token::random() },
        mode: Mode::Exclusive,
        holder: Holder::fresh(),
        note: Note::default(),
        ttl: LONG,
        patience: Ttl::DEFAULT.patience(),
        join: true,
    }
}

/// The same claim once more: its renewal, or its heartbeat in line.
pub fn renewal(claim: &Claim) -> Renewal {
    Renewal { key: claim.key.clone(), ttl: claim.ttl, patience: claim.patience }
}
