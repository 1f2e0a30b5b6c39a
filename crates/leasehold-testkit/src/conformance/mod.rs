//! One suite for every engine: what a store must do to be called a lock.
//!
//! A case is chosen by what the engine says it can do, so a new engine runs it unchanged: it
//! brings a [`Harness`], and cases never ask which engine they run on. How a case is named and
//! run as a test is left to the test binary.
//!
//! Cases wait for events (a grant, a loss, a line of another process). Time limits are only there
//! to fail, and are generous; a lease that must not expire has a ttl far beyond them, so that
//! what a case leaves behind is seen before the store cleans it up.

mod amend;
mod cancel;
mod crash;
mod deadlock;
mod election;
mod epoch;
mod evict;
mod exclusion;
mod expiry;
mod fences;
mod forward;
mod handle;
mod harness;
mod inspect;
mod limits;
mod many;
mod names;
mod once;
mod order;
mod partition;
mod permits;
mod rate;
mod reentry;
mod release;
mod rwlock;
mod shared;
mod slow;
mod support;
mod totals;
mod unsure;
mod watch;
pub mod worker;

use std::cell::RefCell;
use std::sync::Arc;

use futures_util::future::LocalBoxFuture;
use leasehold::engine::Capabilities;

pub use harness::Harness;
pub use support::{Failure, Outcome};

/// One thing that every engine which `needs` admits must do.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    /// The fact it states.
    pub name: &'static str,
    /// Whether an engine that can do this must pass.
    pub needs: fn(&Capabilities) -> bool,
    /// Runs it once.
    pub run: fn(Arc<dyn Harness>) -> LocalBoxFuture<'static, Outcome>,
}

/// Lists the cases of a file, each with the capabilities it needs.
macro_rules! cases {
    ($($name:ident $(: $($need:ident)&+)?),* $(,)?) => {
        pub(super) const CASES: &[super::Case] = &[$(super::Case {
            name: stringify!($name),
            needs: |can| {
                let super::Capabilities { .. } = can;
                true $($(&& can.$need)+)?
            },
            run: |harness| Box::pin($name(harness)),
        }),*];
    };
}
use cases;

const GROUPS: &[&[Case]] = &[
    amend::CASES,
    cancel::CASES,
    crash::CASES,
    deadlock::CASES,
    election::CASES,
    epoch::CASES,
    evict::CASES,
    exclusion::CASES,
    expiry::CASES,
    fences::CASES,
    handle::CASES,
    inspect::CASES,
    limits::CASES,
    many::CASES,
    names::CASES,
    once::CASES,
    order::CASES,
    partition::CASES,
    permits::CASES,
    rate::CASES,
    reentry::CASES,
    release::CASES,
    rwlock::CASES,
    shared::CASES,
    slow::CASES,
    totals::CASES,
    unsure::CASES,
    watch::CASES,
];

/// Every case.
pub const CASES: &[Case] = &flat::<{ count() }>();

const fn count() -> usize {
    let (mut count, mut group) = (0, 0);
    while group < GROUPS.len() {
        count += GROUPS[group].len();
        group += 1;
    }
    count
}

const fn flat<const COUNT: usize>() -> [Case; COUNT] {
    let mut all = [GROUPS[0][0]; COUNT];
    let (mut next, mut group) = (0, 0);
    while group < GROUPS.len() {
        let mut index = 0;
        while index < GROUPS[group].len() {
            all[next] = GROUPS[group][index];
            next += 1;
            index += 1;
        }
        group += 1;
    }
    all
}

/// Runs a case, then sees that it left nothing in the store.
pub async fn run(case: &Case, harness: Arc<dyn Harness>) -> Outcome {
    let ran = (case.run)(Arc::clone(&harness));
    support::within(support::CASE_MAX, "the end of the case", ran).await??;
    let left = RefCell::new(Vec::new());
    let empty = support::until("an empty store after the case", async || {
        let now = harness.residue().await?;
        left.replace(now);
        Ok(left.borrow().is_empty())
    });
    empty.await.map_err(|failure| {
        let names: Vec<_> = left.take().into_iter().map(|line| line.name).collect();
        support::Failure::new(format!("{failure}; left: {names:?}"))
    })
}
