//! The bells of a client's waiting claims, and what rings them.
//!
//! A server lets others subscribe to what it publishes, and a claim's token is a secret. So a bell
//! carries the fence and two digests: one of the token, by which the client finds the claim, and
//! one of fence and token. The second proves that the bell is about this place of the claim: nobody
//! can make it out of a bell that was rung for an earlier place.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sha1_smol::Sha1;

use crate::engine::Wake;
use crate::engine::bell::{Bell, BellRegistry};
use crate::rule::claim::Token;

use super::answer::hex;

/// How many digits a fence has in a bell, and a digest.
const FENCE: usize = 20;
const DIGEST: usize = 40;

#[derive(Debug, Default)]
pub(super) struct Bells {
    bell_registry: BellRegistry,
    /// The tokens of the claims that wait, by their digests.
    tokens: Mutex<HashMap<String, Token>>,
}

impl Bells {
    /// Hangs up a claim's bell. To be called before others can see the claim.
    pub(super) fn expect(&self, token: Token) {
        self.tokens().insert(digest("", &token), token);
        self.bell_registry.register(token);
    }

    /// A claim does not wait any more.
    pub(super) fn forget(&self, token: &Token) {
        if self.bell_registry.bell(token).is_some() {
            self.tokens().remove(&digest("", token));
            self.bell_registry.forget(token);
        }
    }

    /// The bell of a claim, if it is expected.
    pub(super) fn bell(&self, token: &Token) -> Option<Arc<Bell>> {
        self.bell_registry.bell(token)
    }

    /// Rings whom a message is for; whether it is a bell of a claim that waits here.
    pub(super) fn ring(&self, message: &[u8]) -> bool {
        let Some((token, fence)) = self.read(message) else { return false };
        self.bell_registry.ring(&token, Wake::holds_at(fence));
        true
    }

    /// Lets all waiters ask again.
    pub(super) fn ring_all(&self) {
        self.bell_registry.ring_all();
    }

    fn read(&self, message: &[u8]) -> Option<(Token, u64)> {
        let (fence, digests) = std::str::from_utf8(message).ok()?.split_at_checked(FENCE)?;
        let (found_by, proof) = digests.split_at_checked(DIGEST)?;
        let token = *self.tokens().get(found_by)?;
        let proven = proof == digest(fence, &token);
        Some((token, fence.parse().ok()?)).filter(|_| proven)
    }

    fn tokens(&self) -> MutexGuard<'_, HashMap<String, Token>> {
        self.tokens.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What `redis.sha1hex` makes of the fence's digits and the token in a script.
fn digest(fence: &str, token: &Token) -> String {
    let mut digest = Sha1::from(fence);
    digest.update(hex(token.as_bytes()).as_ref());
    digest.digest().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn bell_rings_only_with_the_proof_of_its_place() {
        let (bells, token) = (Bells::default(), Token::random());
        bells.expect(token);
        let bell = |fence: u64, proven: u64| {
            let (fence, proven) = (format!("{fence:020}"), format!("{proven:020}"));
            format!("{fence}{}{}", digest("", &token), digest(&proven, &token))
        };
        let plain = format!("{:020}{}", 7, hex(token.as_bytes()));
        for other in ["", "short", "7", &plain, &bell(7, 6), &bell(7, 7)[1..]] {
            assert!(!bells.ring(other.as_bytes()), "{other}");
        }
        assert!(!bell(7, 7).contains(&hex(token.as_bytes()).to_string()));
        assert!(bells.ring(bell(7, 7).as_bytes()));
        let heard = bells.bell(&token).expect("it is expected").heard().await;
        assert_eq!(heard, Wake::holds_at(7));
        bells.forget(&token);
        assert!(!bells.ring(bell(7, 7).as_bytes()));
        assert!(bells.tokens().is_empty());
    }
}
