//! Stealing: takes a name from its holders, before those who wait.
//!
//! The order names the claims that were in line when the caller looked. If another claim holds when
//! the order arrives, nothing changes and the caller looks again. So an order that arrives late
//! takes the name from nobody who came later.

use crate::engine::{Eviction, HolderMessage, Query};
use crate::error::{Error, Held, Invalid, Result};
use crate::lease::Lease;
use crate::rule::claim::{Claim, Standing};
use crate::runtime::acquire::{ClaimGuard, Request};

/// How many waiting claims an order names besides those that hold: one of them may hold when the
/// order arrives.
const WAITING_NAMED_MAX: usize = 64;

/// How often the caller looks. Only a name that changes hands faster than the store answers needs
/// more than a few looks.
const LOOKS_MAX: usize = 100;

impl Request {
    /// Takes the name from its holders, and tells them why.
    pub(crate) async fn steal(&self, reason: String) -> Result<Lease> {
        match self.steal_unexplained(reason).await {
            Err(error @ Error::Mismatch { .. }) => Err(self.told_apart(error).await),
            stolen => stolen,
        }
    }

    async fn steal_unexplained(&self, reason: String) -> Result<Lease> {
        let keeper = &self.client().inner.keeper;
        let part = keeper.need(&keeper.parts.steal)?;
        if self.is_reentrant() {
            let (what, rule) = ("reentrant", "not for a lock that is stolen");
            return Err(Error::Invalid(Invalid::Setting { what, rule }));
        }
        let (claim, terms) = self.claim(false)?;
        if let Some(span) = self.unrenewed() {
            self.client().inner.check_unrenewed(span).await?;
        }
        let begun = keeper.clock.now();
        let guard = ClaimGuard::begin(self.client(), &claim, terms, begun)?;
        let mut looks = 0;
        let (order, sent, fence, remaining) = loop {
            let order = self.order_to_steal(&claim, &reason).await?;
            let sent = keeper.clock.now();
            let standing = keeper.retry.again(|| part.steal(&claim, &order)).await?;
            looks += 1;
            match standing {
                Standing::Held { fence, remaining } => break (order, sent, fence, remaining),
                Standing::Out { ahead, retry_in, by } if looks == LOOKS_MAX => {
                    let held = Held::new(&claim.key.name, by, ahead, retry_in);
                    return Err(Error::Held(Box::new(held)));
                }
                _ if keeper.is_closed() => return Err(Error::Closed),
                _ => {}
            }
        };
        guard.check(fence)?;
        let now = keeper.clock.now();
        let held = guard.claim_state.hold(fence, sent, remaining, now);
        let lease = held.map(|due| {
            let times = (begun, now, due);
            guard.granted(self.client(), &claim, fence, times)
        });
        let (name, by) = (&claim.key.name, order.by.label());
        tracing::warn!(%name, by, reason, fence, "stolen");
        // Also if the lease is over already: its holders lost the name.
        keeper.send(&HolderMessage::of_eviction(&order)).await;
        lease.ok_or_else(|| Error::TooSlow { name: name.clone(), took: now.since(sent) })
    }

    /// An order to take the name from the claims that are in line now.
    async fn order_to_steal(&self, claim: &Claim, reason: &str) -> Result<Eviction> {
        let name = claim.key.name.clone();
        let page = self.client().inner.keeper.engine.inspect(&Query::name(name.clone())).await?;
        let line = page.lines.into_iter().next();
        let claims = line.into_iter().flat_map(|line| {
            line.held.into_iter().chain(line.waiting.into_iter().take(WAITING_NAMED_MAX))
        });
        let fences = claims.map(|claim| claim.fence.as_u64()).collect();
        let (by, reason) = (claim.holder.clone(), reason.to_owned());
        Ok(Eviction { name, fences, unreadable: false, by, reason })
    }
}
