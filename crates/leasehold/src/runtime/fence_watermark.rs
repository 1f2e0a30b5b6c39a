//! The greatest fence that a client has seen, which shows that a store was set back.
//!
//! If a store counts fences over all names, a client that has seen one fence gets a greater one
//! next. If it does not, the store was restored from a backup. Then the store may give out fences
//! for the second time, and the client must not use them.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::engine::Info;
use crate::error::{Error, Result};

/// How far above the known fence a store must count after it was set back. By normal counting it
/// also reaches the old numbers again, and a client must not use those either.
const DISTRUST: u64 = 65_536;

/// The greatest fence that a client has seen.
#[derive(Debug)]
pub(crate) struct FenceWatermark {
    /// Whether the store counts fences over all names.
    counts_over_all: bool,
    greatest: AtomicU64,
    /// The number that fences must exceed since the client noticed a set-back.
    bar: AtomicU64,
}

impl FenceWatermark {
    pub(crate) fn new(counts_over_all: bool) -> Self {
        Self { counts_over_all, greatest: AtomicU64::new(0), bar: AtomicU64::new(0) }
    }

    /// The known fence, which the caller reads before it first sends a claim.
    pub(crate) fn known(&self) -> u64 {
        self.greatest.load(Ordering::Acquire).max(self.bar.load(Ordering::Acquire))
    }

    /// Accepts or refuses the fence of a claim. `known` was the known fence before it was sent.
    pub(crate) fn check(&self, info: &Info, known: u64, fence: u64) -> Result<()> {
        if !self.counts_over_all {
            return Ok(());
        }
        if fence > known {
            self.greatest.fetch_max(fence, Ordering::AcqRel);
            return Ok(());
        }
        let known = self.greatest.load(Ordering::Acquire);
        self.bar.fetch_max(known.saturating_add(DISTRUST), Ordering::AcqRel);
        let (given, known) = (fence.into(), known.into());
        Err(Error::SetBack { store: info.store.clone(), given, known })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Capabilities;

    fn info() -> Info {
        let can = Capabilities::ALL;
        Info { engine: "test", store: "test:".into(), store_id: 1, can, can_fail: true }
    }

    #[test]
    fn fences_count_from_what_was_known_when_the_claim_was_sent() {
        let (fence_watermark, info) = (FenceWatermark::new(true), info());
        let early = fence_watermark.known();
        fence_watermark.check(&info, fence_watermark.known(), 7).expect("the first");
        fence_watermark.check(&info, early, 5).expect("it was sent before 7 was known");
        assert_eq!(fence_watermark.known(), 7);
        fence_watermark.check(&info, 7, 8).expect("greater");
    }

    #[test]
    fn a_store_that_was_set_back_is_refused_until_it_is_well_above() {
        let (fence_watermark, info) = (FenceWatermark::new(true), info());
        fence_watermark.check(&info, 0, 100).expect("the first");
        for fence in [100, 3, 101, 100 + DISTRUST] {
            let refused = fence_watermark.check(&info, fence_watermark.known(), fence);
            assert!(matches!(refused, Err(Error::SetBack { .. })), "{fence}: {refused:?}");
        }
        let above = 100 + DISTRUST + 1;
        fence_watermark.check(&info, fence_watermark.known(), above).expect("well above");
    }

    #[test]
    fn where_names_count_apart_nothing_is_concluded() {
        let (fence_watermark, info) = (FenceWatermark::new(false), info());
        fence_watermark.check(&info, 9, 3).expect("another name's");
        assert_eq!(fence_watermark.known(), 0);
    }
}
