//! Which key a claim has: one that this client used before, where that is safe.
//!
//! etcd keeps a key that was deleted in its index until the store is compacted, and reads past it
//! whenever a line is read. With a new key for each claim, a name would get slower with every lock
//! that it ever had. So a client has few keys on a name: as many as claims at a time, as etcd's own
//! clients do. Whose claim it is at the moment stands in its value.
//!
//! A key is used again only if nothing can be on its way to it: its claim was given back, nobody
//! else was about to touch it, and no request was given up since. After any doubt all keys are new.

use std::collections::HashMap;
use std::sync::Mutex;

use crate::rule::claim::{ClaimKey, Mode, Token};
use crate::rule::name::Name;

use super::link::lock;

/// What tells the keys of a line apart.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Slot(u128);

impl std::fmt::Debug for Slot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // That of a shared claim is its token.
        f.write_str("Slot")
    }
}

impl Slot {
    /// The key that belongs to a token and to no other. Shared claims have it, because they hold
    /// beside others, without reading whether their token is among them.
    pub(super) fn of(token: &Token) -> Self {
        Self(u128::from_be_bytes(*token.as_bytes()))
    }

    /// The token whose own it is.
    pub(super) fn token(self) -> Token {
        Token::from_bytes(self.0.to_be_bytes())
    }

    pub(super) fn to_hex(self) -> String {
        format!("{:032x}", self.0)
    }

    pub(super) fn from_hex(hex: &str) -> Option<Self> {
        u128::from_str_radix(hex, 16).ok().map(Self)
    }
}

/// The keys that a client uses.
#[derive(Debug, Default)]
pub(super) struct Slots {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Random, and another one after each doubt.
    era: Era,
    /// How many requests had been given up when the era began.
    abandoned: u64,
    names: HashMap<Name, Used>,
    claims: HashMap<ClaimKey, Taken>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Era(u128);

impl Default for Era {
    fn default() -> Self {
        // The last 32 bits are those of the number.
        Self(rand::random::<u128>() << 32)
    }
}

/// What is used of a name in this era.
#[derive(Debug, Default)]
struct Used {
    next: u32,
    free: Vec<u32>,
}

/// The key of a claim that is not over.
#[derive(Debug, Clone, Copy)]
struct Taken {
    era: Era,
    number: u32,
    /// How many requests about it are on their way.
    busy: u32,
}

impl State {
    fn renew(&mut self) {
        self.era = Era::default();
        self.names.clear();
    }

    fn heed(&mut self, abandoned: u64) {
        if self.abandoned != abandoned {
            self.abandoned = abandoned;
            self.renew();
        }
    }
}

/// Says that a request about a claim is on its way, until it is dropped.
pub(super) struct Busy<'a> {
    slots: &'a Slots,
    key: &'a ClaimKey,
    counted: bool,
}

impl Busy<'_> {
    /// Whether the claim has a key that nobody uses again meanwhile.
    pub(super) fn keeps_key(&self) -> bool {
        self.counted
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        if !self.counted {
            return;
        }
        if let Some(taken) = lock(&self.slots.state).claims.get_mut(self.key) {
            taken.busy = taken.busy.saturating_sub(1);
        }
    }
}

impl Slots {
    /// The key of a claim: that which it has, or one for it. `abandoned` is how many requests were
    /// given up so far.
    pub(super) fn take(&self, key: &ClaimKey, mode: Mode, abandoned: u64) -> Slot {
        if mode == Mode::Shared {
            return Slot::of(&key.token);
        }
        let mut state = lock(&self.state);
        state.heed(abandoned);
        let State { era, names, claims, .. } = &mut *state;
        let taken = claims.entry(key.clone()).or_insert_with(|| {
            let used = names.entry(key.name.clone()).or_default();
            let number = used.free.pop().unwrap_or_else(|| {
                used.next += 1;
                used.next - 1
            });
            Taken { era: *era, number, busy: 0 }
        });
        Slot(taken.era.0 | u128::from(taken.number))
    }

    /// Whether this client has no more than one claim on a name, as far as can be told.
    pub(super) fn is_only_one(&self, name: &Name, mode: Mode) -> bool {
        let taken = |used: &Used| used.next as usize - used.free.len();
        let is_one = |used| taken(used) <= 1;
        mode != Mode::Shared && lock(&self.state).names.get(name).is_none_or(is_one)
    }

    /// Says that a request about a claim is on its way.
    pub(super) fn busy<'a>(&'a self, key: &'a ClaimKey) -> Busy<'a> {
        let mut state = lock(&self.state);
        let taken = state.claims.get_mut(key).map(|taken| taken.busy += 1);
        Busy { slots: self, key, counted: taken.is_some() }
    }

    /// Another key for a claim that is not written yet: somebody else's claim is at the one it
    /// has. Only a store that was set back, or a handle that another client has, makes that happen.
    pub(super) fn replace(&self, key: &ClaimKey) {
        let mut state = lock(&self.state);
        state.renew();
        let (era, used) = (state.era, Used { next: 1, free: Vec::new() });
        if let Some(taken) = state.claims.get_mut(key) {
            (taken.era, taken.number) = (era, 0);
            state.names.insert(key.name.clone(), used);
        }
    }

    /// A claim is over. Its key may be used again if it is surely not in the store, and whoever
    /// says so is the only one who is busy with it.
    pub(super) fn end(&self, key: &ClaimKey, surely: bool, abandoned: u64) {
        let mut state = lock(&self.state);
        let Some(taken) = state.claims.remove(key) else { return };
        state.heed(abandoned);
        if taken.era != state.era {
            return;
        }
        if !surely || taken.busy > 1 {
            state.renew();
            return;
        }
        let Some(used) = state.names.get_mut(&key.name) else { return };
        used.free.push(taken.number);
        if used.free.len() == used.next as usize {
            // All are free, and the next claim begins with the first.
            state.names.remove(&key.name);
        }
    }

    /// A claim is over, and nobody knows what may still be on its way to its key.
    pub(super) fn drop_in_doubt(&self, key: &ClaimKey) {
        let mut state = lock(&self.state);
        if state.claims.remove(key).is_some_and(|taken| taken.era == state.era) {
            state.renew();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> ClaimKey {
        ClaimKey { name: Name::new(name).expect("a name"), token: Token::random() }
    }

    fn take(slots: &Slots, key: &ClaimKey) -> Slot {
        slots.take(key, Mode::Exclusive, 0)
    }

    #[test]
    fn a_client_has_as_many_keys_on_a_name_as_claims_at_a_time() {
        let slots = Slots::default();
        let mut seen = std::collections::HashSet::new();
        for _ in 0..100 {
            let pair = [key("n"), key("n")];
            let taken = pair.each_ref().map(|key| take(&slots, key));
            assert_ne!(taken[0], taken[1]);
            assert_eq!(taken[0], take(&slots, &pair[0]), "a claim keeps its key");
            seen.extend(taken);
            for key in &pair {
                slots.end(key, true, 0);
            }
        }
        assert_eq!(seen.len(), 2);
        let state = lock(&slots.state);
        assert!(state.names.is_empty() && state.claims.is_empty(), "what is over is forgotten");
    }

    #[test]
    fn after_a_doubt_no_key_is_used_again() {
        let slots = Slots::default();
        let (first, second) = (key("n"), key("n"));
        let before = [take(&slots, &first), take(&slots, &second)];
        slots.end(&first, false, 0);
        let after = take(&slots, &key("n"));
        assert!(!before.contains(&after), "nobody knows whether it is in the store");
        slots.end(&second, true, 0);
        assert!(!before.contains(&take(&slots, &key("n"))), "it is of the time before");
    }

    #[test]
    fn a_request_that_was_given_up_makes_all_keys_new() {
        let slots = Slots::default();
        let first = key("n");
        let before = take(&slots, &first);
        slots.end(&first, true, 1);
        let second = key("n");
        assert_ne!(slots.take(&second, Mode::Exclusive, 1), before, "it was given up before");
        let before = slots.take(&second, Mode::Exclusive, 1);
        slots.end(&second, true, 1);
        assert_ne!(slots.take(&key("n"), Mode::Exclusive, 2), before, "it was given up since");
    }

    #[test]
    fn a_key_that_somebody_else_is_busy_with_is_not_used_again() {
        let slots = Slots::default();
        let first = key("n");
        let before = take(&slots, &first);
        let (own, other) = (slots.busy(&first), slots.busy(&first));
        slots.end(&first, true, 0);
        assert_ne!(take(&slots, &key("n")), before);
        drop((own, other));
    }

    #[test]
    fn a_key_is_kept_for_whoever_is_busy_with_a_claim_that_is_not_over() {
        let slots = Slots::default();
        let first = key("n");
        take(&slots, &first);
        assert!(slots.busy(&first).keeps_key());
        slots.end(&first, true, 0);
        assert!(!slots.busy(&first).keeps_key(), "it may be another claim's by now");
    }

    #[test]
    fn a_claim_whose_key_is_somebody_elses_gets_another_that_no_other_has() {
        let slots = Slots::default();
        let (first, second) = (key("n"), key("n"));
        let before = [take(&slots, &first), take(&slots, &second)];
        slots.replace(&second);
        let after = take(&slots, &second);
        assert!(!before.contains(&after));
        assert_ne!(after, take(&slots, &key("n")));
        slots.end(&second, true, 0);
        assert_eq!(after, take(&slots, &key("n")), "and that is used again");
    }

    #[test]
    fn it_is_known_whether_a_claim_is_the_only_one_on_its_name() {
        let slots = Slots::default();
        let (first, second) = (key("n"), key("n"));
        let is_only = |mode| slots.is_only_one(&first.name, mode);
        take(&slots, &first);
        assert!(is_only(Mode::Exclusive));
        take(&slots, &second);
        assert!(!is_only(Mode::Exclusive));
        slots.end(&first, true, 0);
        assert!(is_only(Mode::Exclusive), "the second, whose key is not the first one's");
        assert!(!is_only(Mode::Shared), "those are not counted");
    }

    #[test]
    fn shared_claims_have_keys_of_their_own() {
        let slots = Slots::default();
        let claim = key("n");
        assert_eq!(slots.take(&claim, Mode::Shared, 0).token(), claim.token);
        assert!(lock(&slots.state).claims.is_empty());
    }
}
