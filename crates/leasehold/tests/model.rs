//! Random verbs, run on an engine and on the rule itself: every answer must agree.
//!
//! The reference is the library's own `line::Line`, used directly. Both live on one virtual clock,
//! so that the test compares times exactly. Only the numbers of fences may differ: an engine may
//! leave gaps. But their order and equality must be those of the reference, and in one line they
//! only rise. The conformance suite covers waiting, renewing in the background and crashes.
//!
//! `MODEL_TIMES=20` in the environment makes twenty times as many runs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use leasehold::claim::{
    Amended, Amendment, Claim, ClaimKey, Holder, HolderId, Mode, Note, Released, Renewal, Standing,
    Token,
};
use leasehold::clock::{Clock, VirtualClock};
use leasehold::engine::{Engine, Eviction, LineView, Query, Resize, Resized};
use leasehold::internal::line::{Line, Refusal};
use leasehold::memory::Memory;
use leasehold::{Error, Name};
use leasehold_testkit::PartVerbs;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError};

/// Few names and tokens, so that claims meet.
const NAMES: [&str; 3] = ["alpha", "alphabet", "beta"];
const TOKENS: u8 = 5;
const HOLDERS: u8 = 3;

/// One step of a run. Tokens and names are indices.
#[derive(Debug, Clone)]
enum Step {
    Claim {
        name: usize,
        token: u8,
        mode: Mode,
        ttl_ms: u64,
        patience_ms: u64,
        join: bool,
    },
    Renew {
        keys: Vec<(usize, u8)>,
        ttl_ms: u64,
        patience_ms: u64,
    },
    Release {
        keys: Vec<(usize, u8)>,
    },
    KeepClosed {
        key: (usize, u8),
        stay_ms: u64,
    },
    Amend {
        key: (usize, u8),
        mode: Option<Mode>,
        note: Option<u8>,
    },
    Resize {
        name: usize,
        of: u32,
    },
    /// The bits of `which` choose among the claims of the line.
    Evict {
        name: usize,
        which: u8,
    },
    /// As [`Step::Evict`], for a claim that holds then.
    Steal {
        key: (usize, u8),
        which: u8,
        ttl_ms: u64,
    },
    Advance {
        millis: u64,
    },
}

fn mode() -> impl Strategy<Value = Mode> {
    prop_oneof![
        4 => Just(Mode::Exclusive),
        4 => Just(Mode::Shared),
        4 => (1..=3_u32).prop_map(|take| Mode::Permits { take, of: 3 }),
        1 => (1..=2_u32).prop_map(|take| Mode::Permits { take, of: 2 }),
    ]
}

fn keys() -> impl Strategy<Value = Vec<(usize, u8)>> {
    prop::collection::vec((0..NAMES.len(), 0..TOKENS), 1..4)
}

fn step() -> impl Strategy<Value = Step> {
    let claim = (0..NAMES.len(), 0..TOKENS, mode(), 100..2_000_u64, 100..2_000_u64, any::<bool>());
    prop_oneof![
        8 => claim.prop_map(|(name, token, mode, ttl_ms, patience_ms, join)| {
            Step::Claim { name, token, mode, ttl_ms, patience_ms, join }
        }),
        4 => (keys(), 100..2_000_u64, 100..2_000_u64)
            .prop_map(|(keys, ttl_ms, patience_ms)| Step::Renew { keys, ttl_ms, patience_ms }),
        4 => keys().prop_map(|keys| Step::Release { keys }),
        2 => ((0..NAMES.len(), 0..TOKENS), 1..2_000_u64)
            .prop_map(|(key, stay_ms)| Step::KeepClosed { key, stay_ms }),
        3 => ((0..NAMES.len(), 0..TOKENS), prop::option::of(mode()), prop::option::of(0..9_u8))
            .prop_map(|(key, mode, note)| Step::Amend { key, mode, note }),
        1 => (0..NAMES.len(), 1..5_u32).prop_map(|(name, of)| Step::Resize { name, of }),
        1 => (0..NAMES.len(), any::<u8>()).prop_map(|(name, which)| Step::Evict { name, which }),
        2 => ((0..NAMES.len(), 0..TOKENS), prop_oneof![Just(u8::MAX), any::<u8>()], 100..2_000_u64)
            .prop_map(|(key, which, ttl_ms)| Step::Steal { key, which, ttl_ms }),
        4 => prop_oneof![1..50_u64, 50..1_500_u64].prop_map(|millis| Step::Advance { millis }),
    ]
}

fn name(index: usize) -> Name {
    Name::new(NAMES[index]).expect("the names above are good")
}

fn token(index: u8) -> Token {
    Token::from_bytes([index + 1; 16])
}

/// A claim's token determines its holder, so that a repeated claim has the same one.
fn holder(token: u8) -> Holder {
    let id = u128::from(token % HOLDERS) + 1;
    Holder::known(HolderId(id), format!("holder {id}")).expect("a good label")
}

fn key((index, secret): (usize, u8)) -> ClaimKey {
    ClaimKey { name: name(index), token: token(secret) }
}

/// The rule, with nothing around it but a map of names and a counter.
struct Reference {
    lines: BTreeMap<Name, Line<()>>,
    fence: u64,
    expired: u64,
    clock: VirtualClock,
    settles: Settles,
}

/// Whether reading a line, or refusing a claim to it, also removes expired claims from it and
/// grants the next ones. Only the age of a claim that was granted so shows the difference.
#[derive(Clone, Copy)]
struct Settles {
    on_reading: bool,
    on_refusal: bool,
}

impl Reference {
    /// The line after expiry, as every verb sees it.
    fn line(&mut self, name: &Name) -> &mut Line<()> {
        let now = self.clock.now();
        let line = self.lines.entry(name.clone()).or_default();
        let expired = line.expire(now);
        self.expired += expired.iter().filter(|entry| entry.granted.is_some()).count() as u64;
        if !expired.is_empty() {
            line.settle(now);
        }
        line
    }

    fn claim(&mut self, claim: &Claim) -> Result<Standing, Refusal> {
        let (now, next) = (self.clock.now(), self.fence + 1);
        let before = (self.lines.get(&claim.key.name).cloned(), self.expired);
        let mut used = false;
        let answer = self.line(&claim.key.name).claim(
            now,
            claim,
            |_| (),
            || {
                used = true;
                next
            },
        );
        self.fence += u64::from(used);
        if answer.is_err() && !self.settles.on_refusal {
            self.lines.insert(claim.key.name.clone(), before.0.unwrap_or_default());
            self.expired = before.1;
        }
        answer
    }

    fn renew(&mut self, renewal: &Renewal) -> Standing {
        let now = self.clock.now();
        self.line(&renewal.key.name).renew(now, renewal)
    }

    fn release(&mut self, key: &ClaimKey) -> Released {
        let now = self.clock.now();
        let line = self.line(&key.name);
        let released = line.release(&key.token);
        line.settle(now);
        released
    }

    fn keep_closed(&mut self, key: &ClaimKey, stay: Duration) -> Released {
        let now = self.clock.now();
        self.line(&key.name).keep_closed(now, &key.token, (stay, Token::retired()))
    }

    fn amend(&mut self, key: &ClaimKey, amendment: &Amendment) -> Amended {
        let now = self.clock.now();
        let line = self.line(&key.name);
        let amended = line.amend(&key.token, amendment);
        line.settle(now);
        amended
    }

    fn resize(&mut self, order: &Resize) -> Result<Resized, Refusal> {
        let now = self.clock.now();
        let before = (self.lines.get(&order.name).cloned(), self.expired);
        let line = self.line(&order.name);
        let resized = line.resize(order.of);
        line.settle(now);
        if resized.is_err() && !self.settles.on_refusal {
            self.lines.insert(order.name.clone(), before.0.unwrap_or_default());
            self.expired = before.1;
        }
        resized
    }

    /// The fences of the claims in a line that the bits of `which` choose.
    fn chosen(&self, name: &Name, which: u8) -> Vec<u64> {
        let entries = self.lines.get(name).into_iter().flat_map(Line::entries).enumerate();
        let chosen = entries.filter(|(at, _)| which >> (at % 8) & 1 == 1);
        chosen.map(|(_, entry)| entry.fence).collect()
    }

    fn evict(&mut self, name: &Name, fences: &[u64]) -> Vec<Holder> {
        let now = self.clock.now();
        let line = self.line(name);
        let evicted = line.evict(|fence| fences.contains(&fence));
        line.settle(now);
        evicted.into_iter().map(|entry| entry.holder).collect()
    }

    fn steal(&mut self, claim: &Claim, fences: &[u64]) -> Result<Standing, Refusal> {
        let (name, now) = (&claim.key.name, self.clock.now());
        let before = (self.lines.get(name).cloned(), self.expired);
        let mut last = self.fence;
        let next = || {
            last += 1;
            last
        };
        let stolen = self.line(name).steal(now, claim, |fence| fences.contains(&fence), (), next);
        self.fence = last;
        if stolen.is_err() && !self.settles.on_refusal {
            self.lines.insert(name.clone(), before.0.unwrap_or_default());
            self.expired = before.1;
        }
        Ok(stolen?.standing)
    }

    fn views(&mut self) -> Vec<LineView> {
        let now = self.clock.now();
        let names: Vec<Name> = self.lines.keys().cloned().collect();
        let mut views = Vec::new();
        for name in names {
            let view = if self.settles.on_reading {
                self.line(&name).view(&name, now)
            } else {
                let mut line = self.lines[&name].clone();
                line.expire(now);
                line.view(&name, now)
            };
            views.extend(view);
        }
        views
    }
}

/// Which fence of the engine stands for which of the reference, per name.
#[derive(Default)]
struct Fences(BTreeMap<(Name, u64), u64>);

impl Fences {
    /// Enters a pair; fails if the order of the engine's fences is not that of the reference.
    fn pair(&mut self, name: &Name, engine: u64, reference: u64) -> Result<(), TestCaseError> {
        let known = *self.0.entry((name.clone(), reference)).or_insert(engine);
        prop_assert_eq!(known, engine, "a claim's fence changed");
        let of_name = self.0.range((name.clone(), 0)..=(name.clone(), u64::MAX));
        let numbers: Vec<u64> = of_name.map(|(_, engine)| *engine).collect();
        prop_assert!(numbers.is_sorted_by(|one, next| one < next), "fences fell: {numbers:?}");
        Ok(())
    }
}

struct Run {
    engine: Arc<dyn Engine>,
    reference: Reference,
    fences: Fences,
    /// Moves the clock of the engine's server, if it has one of its own.
    advance_server: Option<Box<dyn Fn(Duration)>>,
    /// Whether the engine lives on the reference's clock. If not, nothing may expire during a run,
    /// and the test compares no times.
    timed: bool,
}

impl Run {
    fn new(engine: Arc<dyn Engine>, clock: VirtualClock, settles: Settles) -> Self {
        let lines = BTreeMap::new();
        let reference = Reference { lines, fence: 0, expired: 0, clock, settles };
        Self { engine, reference, fences: Fences::default(), advance_server: None, timed: true }
    }

    async fn steps(&mut self, steps: &[Step]) -> Result<(), TestCaseError> {
        for step in steps {
            self.step(step).await?;
            self.compare_views().await?;
        }
        let sums = self.engine.totals().await.expect("an answer");
        prop_assert_eq!(sums.counts.expired, self.reference.expired, "expiries counted");
        Ok(())
    }

    async fn step(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match step {
            Step::Claim { name: index, token: secret, mode, ttl_ms, patience_ms, join } => {
                let claim = Claim {
                    key: key((*index, *secret)),
                    mode: *mode,
                    holder: holder(*secret),
                    note: Note::new(format!("note {secret}")).expect("a short note"),
                    ttl: Duration::from_millis(*ttl_ms),
                    patience: Duration::from_millis(*patience_ms),
                    join: *join,
                };
                self.claim(&claim).await
            }
            Step::Renew { keys, ttl_ms, patience_ms } => {
                let ttl = Duration::from_millis(*ttl_ms);
                let patience = Duration::from_millis(*patience_ms);
                let renewals: Vec<Renewal> =
                    keys.iter().map(|at| Renewal { key: key(*at), ttl, patience }).collect();
                let answers = self.engine.renew(&renewals).await.expect("an answer");
                prop_assert_eq!(answers.len(), renewals.len());
                for (renewal, answer) in renewals.iter().zip(answers) {
                    let expected = self.reference.renew(renewal);
                    self.compare(&renewal.key.name, answer.expect("an answer"), expected)?;
                }
                Ok(())
            }
            Step::Release { keys } => {
                let keys: Vec<ClaimKey> = keys.iter().map(|at| key(*at)).collect();
                let released = self.engine.release(&keys).await.expect("an answer");
                let expected: Vec<Released> =
                    keys.iter().map(|key| self.reference.release(key)).collect();
                prop_assert_eq!(released, expected);
                Ok(())
            }
            Step::KeepClosed { key: at, stay_ms } => {
                let (key, stay) = (key(*at), Duration::from_millis(*stay_ms));
                let released = self.engine.keep_closed(&key, stay).await.expect("an answer");
                prop_assert_eq!(released, self.reference.keep_closed(&key, stay));
                Ok(())
            }
            Step::Amend { key: at, mode, note } => {
                let note = note.map(|text| Note::new(format!("amended {text}")).expect("short"));
                self.amend(&key(*at), &Amendment { mode: *mode, note }).await
            }
            Step::Resize { name: index, of } => self.resize(&name(*index), *of).await,
            Step::Evict { name: index, which } => self.evict(&name(*index), *which).await,
            Step::Steal { key: at, which, ttl_ms } => {
                let ttl = Duration::from_millis(*ttl_ms);
                let claim = Claim {
                    key: key(*at),
                    mode: Mode::Exclusive,
                    holder: holder(at.1),
                    note: Note::new(format!("note {}", at.1)).expect("a short note"),
                    ttl,
                    patience: ttl,
                    join: false,
                };
                self.steal(&claim, *which).await
            }
            Step::Advance { millis } => {
                let span = Duration::from_millis(*millis);
                self.reference.clock.advance(span);
                if let Some(advance) = &self.advance_server {
                    advance(span);
                }
                Ok(())
            }
        }
    }

    /// An order about the claims in a line that the bits of `which` choose, and their fences in the
    /// reference.
    fn order(&self, name: &Name, which: u8) -> (Eviction, Vec<u64>) {
        let chosen = self.reference.chosen(name, which);
        let of_engine = |fence: &u64| self.fences.0[&(name.clone(), *fence)];
        let order = Eviction {
            name: name.clone(),
            fences: chosen.iter().map(of_engine).collect(),
            unreadable: false,
            by: holder(0),
            reason: "a test".into(),
        };
        (order, chosen)
    }

    async fn steal(&mut self, claim: &Claim, which: u8) -> Result<(), TestCaseError> {
        if self.engine.all_parts().steal.is_none() {
            return Ok(());
        }
        let (order, chosen) = self.order(&claim.key.name, which);
        let answer = self.engine.steal(claim, &order).await;
        let expected = self.reference.steal(claim, &chosen);
        self.compare_answers(claim, answer, expected)
    }

    async fn evict(&mut self, name: &Name, which: u8) -> Result<(), TestCaseError> {
        let (order, chosen) = self.order(name, which);
        let evicted = self.engine.evict(&order).await.expect("an answer");
        prop_assert_eq!(evicted, self.reference.evict(name, &chosen));
        Ok(())
    }

    async fn amend(&mut self, key: &ClaimKey, amendment: &Amendment) -> Result<(), TestCaseError> {
        let parts = self.engine.all_parts();
        if let (Some(mode), Some(part)) = (amendment.mode, parts.convert) {
            let amended = part.set_mode(key, mode).await.expect("an answer");
            prop_assert_eq!(amended, self.reference.amend(key, &Amendment::mode(mode)));
        }
        if let (Some(note), Some(part)) = (&amendment.note, parts.amend) {
            let amended = part.set_note(key, note).await.expect("an answer");
            prop_assert_eq!(amended, self.reference.amend(key, &Amendment::note(note.clone())));
        }
        Ok(())
    }

    async fn resize(&mut self, name: &Name, of: u32) -> Result<(), TestCaseError> {
        if self.engine.all_parts().convert.is_none() {
            return Ok(());
        }
        let order = Resize { name: name.clone(), of, by: holder(0) };
        match (self.engine.resize(&order).await, self.reference.resize(&order)) {
            (Ok(resized), Ok(expected)) => prop_assert_eq!(resized, expected),
            (Err(Error::Mismatch { in_force, .. }), Err(Refusal::Mismatch(expected))) => {
                prop_assert_eq!(in_force, expected);
            }
            (answer, expected) => {
                return Err(TestCaseError::fail(format!("{answer:?} for {expected:?}")));
            }
        }
        Ok(())
    }

    async fn claim(&mut self, claim: &Claim) -> Result<(), TestCaseError> {
        let answer = self.engine.claim(claim).await;
        let expected = self.reference.claim(claim);
        self.compare_answers(claim, answer, expected)
    }

    fn compare_answers(
        &mut self,
        claim: &Claim,
        answer: leasehold::Result<Standing>,
        expected: Result<Standing, Refusal>,
    ) -> Result<(), TestCaseError> {
        match (answer, expected) {
            (Ok(answer), Ok(expected)) => self.compare(&claim.key.name, answer, expected),
            (Err(Error::Mismatch { in_force, .. }), Err(Refusal::Mismatch(expected))) => {
                prop_assert_eq!(in_force, expected);
                Ok(())
            }
            (answer, expected) => Err(TestCaseError::fail(format!("{answer:?} for {expected:?}"))),
        }
    }

    fn compare(
        &mut self,
        name: &Name,
        answer: Standing,
        expected: Standing,
    ) -> Result<(), TestCaseError> {
        match (answer, expected) {
            (
                Standing::Held { fence, remaining },
                Standing::Held { fence: expected, remaining: expected_remaining },
            ) => {
                prop_assert!(remaining == expected_remaining || !self.timed, "{:?}", remaining);
                self.fences.pair(name, fence, expected)
            }
            (
                Standing::Queued { place, ahead, retry_in },
                Standing::Queued {
                    place: expected_place,
                    ahead: expected_ahead,
                    retry_in: expected_retry_in,
                },
            ) => {
                // The place of each of these engines is the fence that the claim joined with.
                self.fences.pair(name, place.number(), expected_place.number())?;
                prop_assert_eq!(ahead, expected_ahead);
                prop_assert!(retry_in == expected_retry_in || !self.timed, "{:?}", retry_in);
                Ok(())
            }
            (
                Standing::Out { ahead, by, .. },
                Standing::Out { ahead: expected, by: expected_by, .. },
            ) if !self.timed => {
                prop_assert_eq!((ahead, by), (expected, expected_by));
                Ok(())
            }
            (answer, expected) => {
                prop_assert_eq!(answer, expected);
                Ok(())
            }
        }
    }

    async fn compare_views(&mut self) -> Result<(), TestCaseError> {
        let page = self.engine.inspect(&Query::all()).await.expect("an answer");
        let mut expected = self.reference.views();
        for (seen, expected) in page.lines.iter().zip(&mut expected) {
            let seen = seen.held.iter().chain(&seen.waiting);
            let expected_claims = expected.held.iter_mut().chain(&mut expected.waiting);
            for (seen, expected_claim) in seen.zip(expected_claims) {
                let [one, other] = [seen.fence, expected_claim.fence].map(u64::from);
                self.fences.pair(&expected.name, one, other)?;
                expected_claim.fence = seen.fence;
                if !self.timed {
                    expected_claim.age = seen.age;
                    expected_claim.remaining = seen.remaining;
                }
            }
        }
        // Fences are equal by now; everything else must be equal by itself.
        prop_assert_eq!(format!("{:#?}", page.lines), format!("{expected:#?}"));
        Ok(())
    }
}

/// How often each name was given back under each token.
#[cfg(any(feature = "etcd", feature = "zookeeper"))]
type GivenBack = BTreeMap<(usize, u8), u8>;

/// Gives each claim that follows a release of its token a token of its own, as the library does.
///
/// On some engines only a claim that keeps its name closed makes a difference. On others a client
/// may give back a claim that it does not know. It looks for that claim again later, because the
/// claim may still be in flight.
#[cfg(any(feature = "etcd", feature = "zookeeper"))]
fn with_fresh_tokens(mut step: Step, given_back: &mut GivenBack, releases_too: bool) -> Step {
    let fresh = |of: &mut (usize, u8), times: &GivenBack| {
        of.1 += times.get(of).copied().unwrap_or_default() * TOKENS;
    };
    let mut gone: BTreeSet<(usize, u8)> = BTreeSet::new();
    match &mut step {
        Step::Claim { name, token, .. } => {
            let mut of = (*name, *token);
            fresh(&mut of, given_back);
            *token = of.1;
        }
        Step::Amend { key, .. } => fresh(key, given_back),
        Step::Renew { keys, .. } => keys.iter_mut().for_each(|of| fresh(of, given_back)),
        Step::Release { keys } => {
            gone.extend(keys.iter().filter(|_| releases_too));
            keys.iter_mut().for_each(|of| fresh(of, given_back));
        }
        Step::KeepClosed { key, .. } => {
            gone.insert(*key);
            fresh(key, given_back);
        }
        Step::Resize { .. } | Step::Evict { .. } | Step::Steal { .. } | Step::Advance { .. } => {}
    }
    gone.into_iter().for_each(|of| *given_back.entry(of).or_default() += 1);
    step
}

/// Histories in which an administrator evicts one client's claim, and another client makes it again
/// under the same token. The first client may still remember its own claim when it asks. The two
/// take turns at the parts.
#[cfg(any(feature = "etcd", feature = "zookeeper"))]
fn claims_made_again() -> Vec<Vec<Vec<Step>>> {
    let at = (0, 0);
    let claim = |join| Step::Claim {
        name: at.0,
        token: at.1,
        mode: Mode::Exclusive,
        ttl_ms: 100,
        patience_ms: 100,
        join,
    };
    let verbs = [
        Step::Amend { key: at, mode: None, note: None },
        Step::Amend { key: at, mode: None, note: Some(1) },
        Step::Renew { keys: vec![at], ttl_ms: 100, patience_ms: 100 },
        Step::Release { keys: vec![at] },
        Step::Release { keys: vec![at, (at.0, at.1 + 3)] },
        claim(false),
        claim(true),
    ];
    let history = |verb: Step| {
        let again = vec![Step::Evict { name: at.0, which: u8::MAX }, claim(true)];
        vec![vec![claim(true)], again, vec![verb.clone(), verb]]
    };
    verbs.map(history).to_vec()
}

const ALWAYS: Settles = Settles { on_reading: true, on_refusal: true };
#[cfg(feature = "sqlite")]
const NEVER: Settles = Settles { on_reading: false, on_refusal: false };

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

fn config(cases: u32) -> Config {
    let times = std::env::var("MODEL_TIMES").map(|times| times.parse().expect("a number"));
    let cases = cases * times.unwrap_or(1);
    Config { cases, failure_persistence: None, max_shrink_iters: 20_000, ..Config::default() }
}

proptest! {
    #![proptest_config(config(400))]
    #[test]
    fn memory_answers_as_the_rule(steps in prop::collection::vec(step(), 1..80)) {
        let (memory, clock) = Memory::virtual_time();
        runtime().block_on(Run::new(Arc::new(memory), clock, ALWAYS).steps(&steps))?;
    }
}

#[cfg(feature = "sqlite")]
mod sqlite {
    //! The same on a file; a new one for each run, so that shrinking starts from nothing.

    use super::*;
    use leasehold::sqlite::{Settings, Sqlite};

    fn open(folder: &tempfile::TempDir, clock: &VirtualClock) -> Sqlite {
        let settings = Settings { clock: Arc::new(clock.clone()), ..Settings::default() };
        Sqlite::open_with(folder.path().join("locks.db"), settings).expect("a fresh file")
    }

    proptest! {
        #![proptest_config(config(150))]
        #[test]
        fn sqlite_answers_as_the_rule(steps in prop::collection::vec(step(), 1..80)) {
            let (folder, clock) = (tempfile::tempdir().expect("a folder"), VirtualClock::new());
            let engine = Arc::new(open(&folder, &clock));
            runtime().block_on(Run::new(engine, clock, NEVER).steps(&steps))?;
        }

        /// Each verb goes through another connection, as from another process.
        #[test]
        fn sqlite_answers_as_the_rule_over_three_connections(
            parts in prop::collection::vec(prop::collection::vec(step(), 1..8), 1..8),
        ) {
            let (folder, clock) = (tempfile::tempdir().expect("a folder"), VirtualClock::new());
            let engines: Vec<Arc<Sqlite>> =
                (0..3).map(|_| Arc::new(open(&folder, &clock))).collect();
            let mut run = Run::new(Arc::clone(&engines[0]) as Arc<dyn Engine>, clock, NEVER);
            for (index, part) in parts.iter().enumerate() {
                run.engine = Arc::clone(&engines[index % engines.len()]) as Arc<dyn Engine>;
                runtime().block_on(run.steps(part))?;
            }
        }
    }
}

#[cfg(feature = "etcd")]
mod etcd {
    //! The same on a real cluster. Its clock cannot be moved: the steps are those without time, and
    //! every ttl is far longer than a run. As in the library, a token claims with one mode on one
    //! name: the mode is part of the key.

    use super::*;
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    use leasehold::etcd::Etcd;
    use leasehold_testkit::servers;

    static CLUSTER: LazyLock<servers::Group> = LazyLock::new(|| {
        servers::Etcd::new().start_cluster_blocking().expect("a cluster").shared()
    });

    fn timeless(step: &Step) -> Option<Step> {
        let mut step = step.clone();
        match &mut step {
            Step::Claim { name, token, mode, .. } => *mode = mode_of(*name, *token),
            Step::Advance { .. } => return None,
            _ => {}
        }
        match &mut step {
            Step::Claim { ttl_ms, patience_ms, .. } | Step::Renew { ttl_ms, patience_ms, .. } => {
                // Some alike and some different, so that claims move between leases.
                *ttl_ms = 300_000 + *ttl_ms / 500 * 100_000;
                *patience_ms = 300_000 + *patience_ms / 1_000 * 100_000;
            }
            Step::KeepClosed { stay_ms, .. } => *stay_ms += 300_000,
            _ => {}
        }
        Some(step)
    }

    /// One name for locks, one for a semaphore with a stray lock, one where kinds clash.
    fn mode_of(name: usize, token: u8) -> Mode {
        let permits = |take, of| Mode::Permits { take, of };
        let (exclusive, shared) = (Mode::Exclusive, Mode::Shared);
        let modes = [
            [exclusive, shared, shared, exclusive, shared],
            [permits(1, 3), permits(2, 3), permits(1, 3), permits(3, 3), permits(1, 2)],
            [exclusive, shared, permits(1, 3), exclusive, permits(2, 3)],
        ];
        modes[name][usize::from(token)]
    }

    /// Runs the parts over two clients in turns, in a store of their own.
    fn run(parts: &[Vec<Step>]) -> Result<(), TestCaseError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let url = format!("{}?prefix=model{number}:", CLUSTER.url());
        runtime().block_on(async {
            let one = Etcd::open(&url).await.expect("the store");
            let other = Etcd::open(&url).await.expect("the store");
            let engines = [Arc::new(one) as Arc<dyn Engine>, Arc::new(other)];
            let mut run = Run::new(Arc::clone(&engines[0]), VirtualClock::new(), ALWAYS);
            run.timed = false;
            let mut given_back = GivenBack::new();
            for (index, part) in parts.iter().enumerate() {
                run.engine = Arc::clone(&engines[index % 2]);
                let timeless = part.iter().filter_map(timeless);
                let part: Vec<Step> =
                    timeless.map(|step| with_fresh_tokens(step, &mut given_back, true)).collect();
                run.steps(&part).await?;
            }
            Ok(())
        })
    }

    #[test]
    fn etcd_answers_as_the_rule_for_claims_made_again_elsewhere() {
        for parts in claims_made_again() {
            run(&parts).unwrap_or_else(|error| panic!("{error}: {parts:#?}"));
        }
    }

    proptest! {
        #![proptest_config(config(40))]
        #[test]
        fn etcd_answers_as_the_rule(
            // Many short parts: claims of one client that the other changes are the hard part.
            parts in prop::collection::vec(prop::collection::vec(step(), 1..8), 1..12),
        ) {
            run(&parts)?;
        }
    }
}

#[cfg(feature = "redlock")]
mod redis {
    //! The same on real servers, whose clock stands still between the steps of a run.
    //!
    //! A key lives through the millisecond in which it expires. So here every span is odd and every
    //! step of the clock is even. They never meet, and the test compares everything else exactly.

    use super::*;
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    use leasehold::redis::Redis;
    use leasehold_testkit::{Clock, servers};

    const ON_REFUSAL: Settles = Settles { on_reading: false, on_refusal: true };

    /// Servers and their clock. Runs take turns, because they move it.
    struct Lab<S> {
        clock: Arc<Clock>,
        servers: S,
        turn: std::sync::Mutex<()>,
    }

    impl<S> Lab<S> {
        fn new(start: impl FnOnce(&servers::Redis) -> leasehold_testkit::Result<S>) -> Self {
            let clock = Clock::new().expect("a clock");
            let servers = start(&servers::Redis::new().clock(&clock)).expect("servers");
            clock.freeze();
            Self { clock: Arc::new(clock), servers, turn: std::sync::Mutex::default() }
        }

        fn run(&self, address: &str, parts: &[Vec<Step>]) -> Result<(), TestCaseError> {
            static NEXT: AtomicU64 = AtomicU64::new(0);
            let _turn = self.turn.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            // Nothing repeats a request here, so a busy machine has time for each answer.
            let url = format!("{address}?prefix={number}:&timeout_ms=30000");
            runtime().block_on(async {
                let one = Redis::open(&url).await.expect("the store");
                let other = Redis::open(&url).await.expect("the store");
                let engines = [Arc::new(one) as Arc<dyn Engine>, Arc::new(other)];
                let mut run = Run::new(Arc::clone(&engines[0]), VirtualClock::new(), ON_REFUSAL);
                let clock = Arc::clone(&self.clock);
                run.advance_server = Some(Box::new(move |span| clock.advance(span)));
                for (index, part) in parts.iter().enumerate() {
                    run.engine = Arc::clone(&engines[index % 2]);
                    let part: Vec<Step> = part.iter().map(apart).collect();
                    run.steps(&part).await?;
                }
                Ok(())
            })
        }
    }

    /// A Cluster has a quarter of the ttl for the answer to a renewal. So all times are longer here
    /// than in the steps: a busy machine takes up to a second.
    const LONGER: u64 = 20;

    fn apart(step: &Step) -> Step {
        let mut step = step.clone();
        match &mut step {
            Step::Claim { ttl_ms, patience_ms, .. } | Step::Renew { ttl_ms, patience_ms, .. } => {
                *ttl_ms = (*ttl_ms * LONGER) | 1;
                *patience_ms = (*patience_ms * LONGER) | 1;
            }
            Step::Steal { ttl_ms, .. } => *ttl_ms = (*ttl_ms * LONGER) | 1,
            Step::KeepClosed { stay_ms, .. } => *stay_ms = (*stay_ms * LONGER) | 1,
            Step::Advance { millis } => *millis = (*millis * LONGER + 1) & !1,
            _ => {}
        }
        step
    }

    fn parts() -> impl Strategy<Value = Vec<Vec<Step>>> {
        prop::collection::vec(prop::collection::vec(step(), 1..16), 1..6)
    }

    static ONE: LazyLock<Lab<servers::Server>> =
        LazyLock::new(|| Lab::new(|redis| redis.start_blocking().map(servers::Server::shared)));
    static SENTINEL: LazyLock<Lab<servers::SentinelGroup>> = LazyLock::new(|| {
        Lab::new(|redis| redis.start_sentinel_blocking().map(servers::SentinelGroup::shared))
    });
    static CLUSTER: LazyLock<Lab<servers::Group>> = LazyLock::new(|| {
        Lab::new(|redis| redis.start_cluster_blocking().map(servers::Group::shared))
    });

    proptest! {
        #![proptest_config(config(100))]
        #[test]
        fn redis_answers_as_the_rule(parts in parts()) {
            ONE.run(ONE.servers.url(), &parts)?;
        }
    }

    proptest! {
        #![proptest_config(config(30))]
        #[test]
        fn sentinel_answers_as_the_rule(parts in parts()) {
            SENTINEL.run(SENTINEL.servers.url(), &parts)?;
        }

        #[test]
        fn cluster_answers_as_the_rule(parts in parts()) {
            CLUSTER.run(CLUSTER.servers.url(), &parts)?;
        }
    }
}

#[cfg(feature = "postgres")]
mod postgres {
    //! The same on a server whose wall clock stands still between the steps of a run; a new schema
    //! for each run.

    use super::*;
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicU32, Ordering};

    use leasehold::postgres::LeaseTable;
    use leasehold_testkit::{Clock, servers};

    const ON_REFUSAL: Settles = Settles { on_reading: false, on_refusal: true };

    /// A server and its clock. Runs take turns, because they move it.
    struct Lab {
        clock: Arc<Clock>,
        server: servers::Server,
        turn: std::sync::Mutex<()>,
    }

    static LAB: LazyLock<Lab> = LazyLock::new(|| {
        let clock = Clock::new().expect("a clock");
        let server =
            servers::Postgres::new().clock(&clock).start_blocking().expect("a server").shared();
        clock.freeze();
        Lab { clock: Arc::new(clock), server, turn: std::sync::Mutex::default() }
    });

    /// How often a busy machine may be too slow to open a store in time.
    const TRIES: usize = 5;

    async fn opened(url: &str) -> LeaseTable {
        for _ in 1..TRIES {
            match LeaseTable::open(url).await {
                Err(error) if error.is_transient() => {}
                opened => return opened.expect("a fresh schema"),
            }
        }
        LeaseTable::open(url).await.expect("a fresh schema")
    }

    /// Runs the parts over as many connections, one after the other.
    fn run(connections: usize, parts: &[Vec<Step>]) -> Result<(), TestCaseError> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let _turn = LAB.turn.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let url = format!("{}?schema=run_{number}", LAB.server.url());
        runtime().block_on(async {
            let mut engines: Vec<Arc<dyn Engine>> = Vec::new();
            for _ in 0..connections {
                engines.push(Arc::new(opened(&url).await));
            }
            let mut run = Run::new(Arc::clone(&engines[0]), VirtualClock::new(), ON_REFUSAL);
            let clock = Arc::clone(&LAB.clock);
            run.advance_server = Some(Box::new(move |span| clock.advance(span)));
            for (index, part) in parts.iter().enumerate() {
                run.engine = Arc::clone(&engines[index % connections]);
                run.steps(part).await?;
            }
            Ok(())
        })
    }

    proptest! {
        #![proptest_config(config(150))]
        #[test]
        fn postgres_answers_as_the_rule(steps in prop::collection::vec(step(), 1..80)) {
            run(1, &[steps])?;
        }

        /// Each part goes through another connection, as from another process.
        #[test]
        fn postgres_answers_as_the_rule_over_three_connections(
            parts in prop::collection::vec(prop::collection::vec(step(), 1..8), 1..8),
        ) {
            run(3, &parts)?;
        }
    }
}

#[cfg(feature = "zookeeper")]
mod zookeeper {
    //! The same on a real server. Its clock is not moved: the steps are those without time, and
    //! every ttl is far longer than a run. As in the library, a token claims with one mode on one
    //! name: the mode is part of the node.

    use super::*;
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    use leasehold::zookeeper::ZooKeeper;
    use leasehold_testkit::servers;

    static SERVER: LazyLock<servers::Server> = LazyLock::new(|| {
        let options = servers::Zookeeper::new().setting("maxSessionTimeout", "2000000000");
        options.start_blocking().expect("a server").shared()
    });

    fn timeless(step: &Step) -> Option<Step> {
        let mut step = step.clone();
        match &mut step {
            Step::Claim { name, token, mode, .. } => *mode = mode_of(*name, *token),
            Step::Advance { .. } => return None,
            _ => {}
        }
        match &mut step {
            Step::Claim { ttl_ms, patience_ms, .. } | Step::Renew { ttl_ms, patience_ms, .. } => {
                // Some alike and some different, so that claims are on several sessions.
                *ttl_ms = 300_000 + *ttl_ms / 500 * 100_000;
                *patience_ms = 300_000 + *patience_ms / 1_000 * 100_000;
            }
            Step::KeepClosed { stay_ms, .. } => *stay_ms += 300_000,
            _ => {}
        }
        Some(step)
    }

    /// One name for locks, one for a semaphore with a stray lock, one where kinds clash.
    fn mode_of(name: usize, token: u8) -> Mode {
        let permits = |take, of| Mode::Permits { take, of };
        let (exclusive, shared) = (Mode::Exclusive, Mode::Shared);
        let modes = [
            [exclusive, shared, shared, exclusive, shared],
            [permits(1, 3), permits(2, 3), permits(1, 3), permits(3, 3), permits(1, 2)],
            [exclusive, shared, permits(1, 3), exclusive, permits(2, 3)],
        ];
        modes[name][usize::from(token)]
    }

    /// Runs the parts over two clients in turns, in a store of their own.
    fn run(parts: &[Vec<Step>]) -> Result<(), TestCaseError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let url = format!("{}/model{number}", SERVER.url());
        runtime().block_on(async {
            let one = ZooKeeper::open(&url).await.expect("the store");
            let other = ZooKeeper::open(&url).await.expect("the store");
            let engines = [Arc::new(one) as Arc<dyn Engine>, Arc::new(other)];
            let mut run = Run::new(Arc::clone(&engines[0]), VirtualClock::new(), ALWAYS);
            run.timed = false;
            let mut given_back = GivenBack::new();
            for (index, part) in parts.iter().enumerate() {
                run.engine = Arc::clone(&engines[index % 2]);
                let timeless = part.iter().filter_map(timeless);
                let part: Vec<Step> =
                    timeless.map(|step| with_fresh_tokens(step, &mut given_back, false)).collect();
                run.steps(&part).await?;
            }
            Ok(())
        })
    }

    #[test]
    fn zookeeper_answers_as_the_rule_for_claims_made_again_elsewhere() {
        for parts in claims_made_again() {
            run(&parts).unwrap_or_else(|error| panic!("{error}: {parts:#?}"));
        }
    }

    proptest! {
        #![proptest_config(config(25))]
        #[test]
        fn zookeeper_answers_as_the_rule(
            parts in prop::collection::vec(prop::collection::vec(step(), 1..12), 1..6),
        ) {
            run(&parts)?;
        }
    }
}
