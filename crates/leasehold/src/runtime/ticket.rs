//! Tickets: a claim whose caller chooses its token, so that each call about it may come from
//! another process.
//!
//! A [`Lease`](crate::Lease) belongs to a process that renews it. A ticket belongs to every caller
//! that knows its token. A server makes one for each client that asks for a lock, and keeps no
//! state itself.

use std::time::Duration;

use crate::client::Client;
use crate::clock::Moment;
use crate::engine::unsupported;
use crate::error::{Error, Invalid, Result};
use crate::handle::Handle;
use crate::rule::claim::{Claim, Holder, Released, Renewal, Standing, Token};
use crate::runtime::acquire::{BELL_RETRY, FIRST_ANSWER, Request};
use crate::runtime::claim_state::{BEAT_MAX, LeaseTerms};

/// A claim that outlives the calls about it; made by [`Request::ticket`].
///
/// [`enter`](Self::enter) puts it in line, [`wait`](Self::wait) waits for it, and
/// [`leave`](Self::leave) takes it out. Every client of the store that makes a ticket of the same
/// token, name and options continues the same claim. Dropping a ticket changes nothing in the
/// store.
///
/// The place in line lasts for the ttl, 10 s at most, from the last `enter` or `wait` on. When the
/// claim holds, the caller looks after the lease: only [`Client::renew`] with its handle renews
/// it, and [`Client::release`] gives it back. Waits for a ticket take no part in the search for
/// deadlocks.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// use leasehold::claim::Token;
/// use leasehold::TicketState;
///
/// let client = leasehold::connect("memory:").await?;
/// // The caller of a server makes the token, and sends it with each request.
/// let token = Token::random();
/// let ticket = client.request("order:42").ticket(token)?;
/// if let TicketState::Held { handle, time_left } = ticket.enter().await? {
///     println!("fence {}, for {time_left:?} unless renewed", handle.fence());
///     client.renew(&handle).await?;
///     client.release(&handle).await?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use = "it does nothing until it enters the line"]
pub struct Ticket {
    client: Client,
    claim: Claim,
    terms: LeaseTerms,
}

/// How the claim of a [`Ticket`] stands.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum TicketState {
    /// It holds.
    Held {
        /// The handle to renew the lease and give it back.
        handle: Handle,
        /// How long the lease lasts from now on, without a renewal.
        time_left: Duration,
    },
    /// It waits in line.
    Queued {
        /// How many claims are before it.
        ahead: usize,
    },
}

impl Request {
    /// A claim of these options with the caller's token: 16 bytes that nobody can guess, because a
    /// caller that knows them owns the claim. Another claim, even a later one on the same name,
    /// needs another token.
    ///
    /// Returns an error if the options need a client that keeps the lease, such as
    /// [`hold_at_most`](crate::LockOptions::hold_at_most) and
    /// [`reentrant`](crate::LockOptions::reentrant). Also if the store cannot
    /// keep a lease that outlives its process.
    pub fn ticket(&self, token: Token) -> Result<Ticket> {
        if token.is_retired() {
            let (what, rule) = ("the token of a ticket", "one that no store keeps for itself");
            return Err(Error::Invalid(Invalid::Setting { what, rule }));
        }
        let (mut claim, terms) = self.claim(true)?;
        if terms.bounds.is_some() || self.is_reentrant() {
            let what = "a claim with a ticket";
            let rule = "without hold_at_most, hold_at_least, lock_delay and reentrant";
            return Err(Error::Invalid(Invalid::Setting { what, rule }));
        }
        let info = self.client().info();
        if self.client().parts().unattended.is_none() || !info.can.waits_by_token {
            let what = "keep a place in line for another client";
            let advice = "use another store, such as the lease table";
            return Err(unsupported(info, what, advice));
        }
        claim.key.token = token;
        Ok(Ticket { client: self.client().clone(), claim, terms })
    }
}

impl Ticket {
    /// Puts the claim in line, or returns how it stands if it is there already.
    ///
    /// # Cancel safety
    ///
    /// The claim may or may not be in line afterwards. It is safe to enter again.
    pub async fn enter(&self) -> Result<TicketState> {
        self.client.check_unrenewed(self.terms.kept()).await?;
        let keeper = &self.client.inner.keeper;
        let sent = keeper.clock.now();
        let standing = keeper.engine.claim(&self.claim).await?;
        Ok(self.state(standing, sent)?.0)
    }

    /// Waits until the claim holds, for at most `span`, and returns how it stands then. The store
    /// has 250 ms more for its last answer.
    ///
    /// Returns [`Error::Stale`] if the claim is not in line: it never entered, its place expired
    /// without an `enter` or `wait`, or it was given back. A wait never enters the line.
    ///
    /// The store wakes the wait in the client that entered first. Other clients ask four times a
    /// second, and once a second if they have entered too.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the claim where it is, in line or holding.
    pub async fn wait(&self, span: Duration) -> Result<TicketState> {
        let keeper = &self.client.inner.keeper;
        let begun = keeper.clock.now();
        let deadline = begun + span;
        let mut woken = false;
        loop {
            // The last question may begin at the deadline.
            let asked_at = keeper.clock.now();
            let ask_by = deadline.max(asked_at + FIRST_ANSWER);
            let (state, retry_in) = tokio::select! {
                biased;
                asked = self.ask() => asked?,
                () = keeper.clock.sleep_until(ask_by) => return Err(keeper.silent(asked_at)),
            };
            let now = keeper.clock.now();
            if matches!(state, TicketState::Held { .. }) || now >= deadline {
                return Ok(state);
            }
            let beat = BEAT_MAX.min(self.claim.patience / 3);
            if woken {
                // Woken without a change, for example by an engine that has no bell for the claim.
                // That engine would wake this again at once.
                woken = false;
                keeper.clock.sleep_until(deadline.min(now + BELL_RETRY.min(beat))).await;
            } else {
                woken = self.is_woken_before(deadline.min(now + retry_in.min(beat))).await;
            }
        }
    }

    /// Waits for the claim's bell until this instant. Returns whether it rang.
    async fn is_woken_before(&self, until: Moment) -> bool {
        let keeper = &self.client.inner.keeper;
        tokio::select! {
            biased;
            wake = keeper.engine.wait(&self.claim.key) => {
                if let Err(error) = wake {
                    tracing::debug!(%error, "waiting for a bell failed");
                }
                true
            }
            () = keeper.clock.sleep_until(until) => false,
        }
    }

    /// Takes the claim out of the line, or gives the lease back.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future may leave the claim as it was. It is safe to leave again.
    pub async fn leave(&self) -> Result<Released> {
        let keeper = &self.client.inner.keeper;
        keeper.refuse_fork()?;
        let answers = keeper.engine.release(std::slice::from_ref(&self.claim.key)).await?;
        Ok(answers.into_iter().next().unwrap_or(Released::AlreadyExpired))
    }

    /// Asks how the claim stands and keeps it alive. Also returns when to ask again.
    async fn ask(&self) -> Result<(TicketState, Duration)> {
        let keeper = &self.client.inner.keeper;
        keeper.refuse_fork()?;
        let sent = keeper.clock.now();
        let Claim { key, ttl, patience, .. } = &self.claim;
        let renewal = Renewal { key: key.clone(), ttl: *ttl, patience: *patience };
        let answers = keeper.engine.renew(std::slice::from_ref(&renewal)).await?;
        match answers.into_iter().next().transpose()? {
            Some(standing) => self.state(standing, sent),
            None => Err(self.stale(None)),
        }
    }

    /// Turns the store's answer to a request sent at `sent` into a state.
    fn state(&self, standing: Standing, sent: Moment) -> Result<(TicketState, Duration)> {
        let keeper = &self.client.inner.keeper;
        if keeper.is_closed() {
            return Err(Error::Closed);
        }
        let (fence, remaining) = match standing {
            Standing::Held { fence, remaining } => (fence, remaining),
            Standing::Queued { ahead, retry_in, .. } => {
                return Ok((TicketState::Queued { ahead }, retry_in));
            }
            Standing::Out { by, .. } => return Err(self.stale(by)),
        };
        let took = keeper.clock.now().since(sent);
        let time_left = self.terms.safe(remaining).saturating_sub(took);
        if time_left.is_zero() {
            return Err(Error::TooSlow { name: self.claim.key.name.clone(), took });
        }
        let handle = Handle {
            store_id: keeper.engine.info().store_id,
            key: self.claim.key.clone(),
            fence,
            ttl: self.terms.ttl,
            holder: self.claim.holder.clone(),
        };
        Ok((TicketState::Held { handle, time_left }, Duration::ZERO))
    }

    fn stale(&self, by: Option<Holder>) -> Error {
        Error::Stale { name: self.claim.key.name.clone(), by }
    }
}
