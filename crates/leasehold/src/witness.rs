//! What a client has seen of its store's fences, so that a store that was set back is noticed.
//!
//! Where fences are counted over all names, whoever was told one and asks then gets a greater one.
//! If not, the store forgot: it was restored from a backup, and fences that it gives out now may
//! have been given out before. Nothing may be done under them.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::engine::Info;
use crate::error::{Error, Result};

/// How far a store that was found to be set back must get above what was known. Counting on alone
/// reaches the old numbers too, and they are no better then.
const DISTRUST: u64 = 65_536;

/// The greatest fence that a client was told.
#[derive(Debug, Default)]
pub(crate) struct Witness {
    greatest: AtomicU64,
    /// What fences must be above since the store was found to be set back.
    bar: AtomicU64,
}

impl Witness {
    /// What is known before a claim is sent for the first time.
    pub(crate) fn known(&self) -> u64 {
        self.greatest.load(Ordering::Acquire).max(self.bar.load(Ordering::Acquire))
    }

    /// Takes the fence of a claim that was sent when `known` was known, or refuses it.
    pub(crate) fn see(&self, info: &Info, known: u64, fence: u64) -> Result<()> {
        if !info.can.epochs {
            return Ok(());
        }
        if fence > known {
            self.greatest.fetch_max(fence, Ordering::AcqRel);
            return Ok(());
        }
        let known = self.greatest.load(Ordering::Acquire);
        self.bar.fetch_max(known.saturating_add(DISTRUST), Ordering::AcqRel);
        Err(Error::SetBack { store: info.store.clone(), given: fence, known })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Capabilities;

    fn info(epochs: bool) -> Info {
        let can = Capabilities { epochs, ..Capabilities::ALL };
        Info { engine: "test", store: "test:".into(), store_id: 1, can, can_fail: true }
    }

    #[test]
    fn fences_count_from_what_was_known_when_the_claim_was_sent() {
        let (witness, info) = (Witness::default(), info(true));
        let early = witness.known();
        witness.see(&info, witness.known(), 7).expect("the first");
        witness.see(&info, early, 5).expect("it was sent before 7 was known");
        assert_eq!(witness.known(), 7);
        witness.see(&info, 7, 8).expect("greater");
    }

    #[test]
    fn a_store_that_was_set_back_is_refused_until_it_is_well_above() {
        let (witness, info) = (Witness::default(), info(true));
        witness.see(&info, 0, 100).expect("the first");
        for fence in [100, 3, 101, 100 + DISTRUST] {
            let refused = witness.see(&info, witness.known(), fence);
            assert!(matches!(refused, Err(Error::SetBack { .. })), "{fence}: {refused:?}");
        }
        let above = 100 + DISTRUST + 1;
        witness.see(&info, witness.known(), above).expect("well above");
    }

    #[test]
    fn where_names_count_apart_nothing_is_concluded() {
        let (witness, info) = (Witness::default(), info(false));
        witness.see(&info, 9, 3).expect("another name's");
        assert_eq!(witness.known(), 0);
    }
}
