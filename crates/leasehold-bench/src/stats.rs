//! The numbers behind the tables: percentiles, ratios of rounds, fairness, and hand-offs.
//!
//! Pure arithmetic on recorded values. The scenarios record them.

/// Durations in nanoseconds, sorted.
#[derive(Debug, Clone, Default)]
pub(crate) struct Samples {
    sorted: Vec<u64>,
}

impl Samples {
    pub(crate) fn new(mut values: Vec<u64>) -> Self {
        values.sort_unstable();
        Self { sorted: values }
    }

    /// All samples of several rounds.
    pub(crate) fn pooled<'a>(rounds: impl IntoIterator<Item = &'a Samples>) -> Self {
        Self::new(rounds.into_iter().flat_map(|round| round.sorted.iter().copied()).collect())
    }

    pub(crate) fn count(&self) -> usize {
        self.sorted.len()
    }

    /// The smallest sample that at least `percent` of all samples do not exceed.
    pub(crate) fn percentile(&self, percent: f64) -> Option<u64> {
        let rank = (percent / 100.0 * self.sorted.len() as f64).ceil() as usize;
        self.sorted.get(rank.saturating_sub(1)).copied()
    }

    pub(crate) fn p50(&self) -> Option<u64> {
        self.percentile(50.0)
    }

    pub(crate) fn p99(&self) -> Option<u64> {
        self.percentile(99.0)
    }
}

/// The middle value; of two middle values the lower one. `None` if there are no values.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len().saturating_sub(1) / 2).copied()
}

/// How many times `base` the `other` takes: the median over rounds of the ratio of their p50s.
///
/// It compares round by round, because the machine's state is alike in neighbouring rounds, and
/// differs between rounds of different minutes.
pub(crate) fn ratio_of_rounds(other: &[Samples], base: &[Samples]) -> Option<f64> {
    let pairs = other.iter().zip(base);
    median(pairs.filter_map(|(other, base)| {
        let (other, base) = (other.p50()?, base.p50()?);
        (base > 0).then(|| other as f64 / base as f64)
    }))
}

/// Jain's index of fairness: 1 when all get the same, 1/n when one of n gets everything.
pub(crate) fn jain(shares: &[u64]) -> Option<f64> {
    let sum: f64 = shares.iter().map(|share| *share as f64).sum();
    let squares: f64 = shares.iter().map(|share| (*share as f64).powi(2)).sum();
    (squares > 0.0).then(|| sum * sum / (shares.len() as f64 * squares))
}

/// One grant to a worker. Instants are nanoseconds on one clock for all workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) worker: usize,
    /// The fence. Without one, the instant of the grant, which orders grants as well, because no
    /// two workers hold at a time.
    pub(crate) order: u64,
    /// When the worker knew that it waits; `None` if it got the lock at once.
    pub(crate) queued: Option<u64>,
    pub(crate) granted: u64,
    /// When the worker called to give it back.
    pub(crate) released: u64,
}

/// The results of the grants of one round.
#[derive(Debug, Clone, Default)]
pub(crate) struct HandOffs {
    /// The times from the call to release until the next worker has the lock. Only between
    /// different workers, and only if the next one was waiting at the time of the call.
    pub(crate) spans: Samples,
    pub(crate) grants: usize,
    /// Grants that went back to the worker that had just released, while another one waited.
    pub(crate) given_back: usize,
    /// Grants that began before the release of the grant ahead of them. Must be 0.
    pub(crate) overlaps: usize,
    pub(crate) jain: Option<f64>,
    /// The share of the time in which the lock was held, from 0 to 1.
    pub(crate) held_share: f64,
    /// How long a holder held, on average.
    pub(crate) hold_ns: f64,
}

impl HandOffs {
    /// Puts the grants in order and compares each one with the one before it.
    pub(crate) fn of(mut grants: Vec<Grant>, workers: usize, span: u64) -> Self {
        grants.sort_unstable_by_key(|grant| grant.order);
        let mut shares = vec![0; workers];
        let mut held = 0;
        for grant in &grants {
            shares[grant.worker] += 1;
            held += grant.released.saturating_sub(grant.granted);
        }
        let mut spans = Vec::with_capacity(grants.len());
        let (mut given_back, mut overlaps) = (0, 0);
        for (index, pair) in grants.windows(2).enumerate() {
            let (last, next) = (&pair[0], &pair[1]);
            if next.granted < last.released {
                overlaps += 1;
            } else if last.worker == next.worker {
                let later = &grants[index + 2..];
                given_back += usize::from(somebody_waited(later, last, workers));
            } else if next.queued.is_some_and(|queued| queued <= last.released) {
                spans.push(next.granted - last.released);
            }
        }
        Self {
            spans: Samples::new(spans),
            grants: grants.len(),
            given_back,
            overlaps,
            jain: jain(&shares),
            held_share: held as f64 / span.max(1) as f64,
            hold_ns: held as f64 / grants.len().max(1) as f64,
        }
    }
}

/// Whether another worker was waiting when `last` was released. Then its next grant, among the
/// `later` ones, was queued before that. Each of the other workers has one next grant.
fn somebody_waited(later: &[Grant], last: &Grant, workers: usize) -> bool {
    let mut seen = vec![false; workers];
    let mut unseen = workers.saturating_sub(1);
    for grant in later.iter().filter(|grant| grant.worker != last.worker) {
        if std::mem::replace(&mut seen[grant.worker], true) {
            continue;
        }
        if grant.queued.is_some_and(|queued| queued <= last.released) {
            return true;
        }
        unseen -= 1;
        if unseen == 0 {
            break;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grant(worker: usize, order: u64, queued: u64, granted: u64, released: u64) -> Grant {
        let queued = (queued > 0).then_some(queued);
        Grant { worker, order, queued, granted, released }
    }

    #[test]
    fn percentile_is_a_sample_that_was_taken() {
        let samples = Samples::new((1..=200).rev().collect());
        assert_eq!(samples.p50(), Some(100));
        assert_eq!(samples.p99(), Some(198));
        assert_eq!(samples.percentile(0.0), Some(1));
        assert_eq!(samples.percentile(100.0), Some(200));
        assert_eq!(Samples::new(vec![7]).p99(), Some(7));
        assert_eq!(Samples::default().p50(), None);
    }

    #[test]
    fn ratio_is_taken_within_each_round() {
        let ours = [Samples::new(vec![20]), Samples::new(vec![600]), Samples::new(vec![40])];
        let base = [Samples::new(vec![10]), Samples::new(vec![300]), Samples::new(vec![10])];
        assert_eq!(ratio_of_rounds(&ours, &base), Some(2.0));
        assert_eq!(ratio_of_rounds(&ours, &[]), None);
    }

    #[test]
    fn jain_is_one_for_equal_shares_and_a_share_for_a_hog() {
        assert_eq!(jain(&[5, 5, 5, 5]), Some(1.0));
        assert_eq!(jain(&[12, 0, 0, 0]), Some(0.25));
        assert_eq!(jain(&[0, 0]), None);
    }

    #[test]
    fn hand_offs_are_matched_by_fence_between_different_workers() {
        // Given out of order, as two workers report one after the other.
        let grants = vec![
            grant(0, 1, 0, 100, 200),
            grant(0, 3, 250, 330, 400),
            grant(1, 2, 150, 220, 300),
            // Queued only after the release before it: an idle lock, not a hand-off.
            grant(1, 4, 500, 510, 600),
        ];
        let seen = HandOffs::of(grants, 2, 1_000);
        assert_eq!(seen.spans.count(), 2);
        assert_eq!(seen.spans.percentile(0.0), Some(20));
        assert_eq!(seen.spans.percentile(100.0), Some(30));
        assert_eq!((seen.grants, seen.given_back, seen.overlaps), (4, 0, 0));
        assert_eq!(seen.jain, Some(1.0));
        assert!((seen.held_share - 0.34).abs() < 1e-9);
        assert!((seen.hold_ns - 85.0).abs() < 1e-9);
    }

    #[test]
    fn grant_back_to_the_releaser_counts_only_while_somebody_waits() {
        let waited =
            vec![grant(0, 1, 0, 100, 200), grant(0, 2, 0, 210, 300), grant(1, 3, 150, 320, 400)];
        assert_eq!(HandOffs::of(waited, 2, 1_000).given_back, 1);
        let alone =
            vec![grant(0, 1, 0, 100, 200), grant(0, 2, 0, 210, 300), grant(1, 3, 250, 320, 400)];
        assert_eq!(HandOffs::of(alone, 2, 1_000).given_back, 0);
    }

    #[test]
    fn two_holders_at_a_time_are_seen() {
        let grants = vec![grant(0, 1, 0, 100, 200), grant(1, 2, 90, 150, 250)];
        let seen = HandOffs::of(grants, 2, 1_000);
        assert_eq!((seen.overlaps, seen.spans.count()), (1, 0));
    }
}
