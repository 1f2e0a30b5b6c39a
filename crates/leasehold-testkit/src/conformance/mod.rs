//! One suite for every engine: what a store must do to be called a lock.
//!
//! The promises of an engine choose its cases, so a new engine runs them unchanged. It brings a
//! [`Harness`], and cases never ask which engine they run on. The test binary decides how a case is
//! named and run as a test.
//!
//! Cases wait for events (a grant, a loss, a line of another process). Time limits only let a test
//! fail, and are generous. A lease that must not expire has a ttl far beyond them. So the suite
//! sees everything that a case leaves behind before the store removes it.

mod amend;
mod can;
mod cancel;
mod crash;
mod crowd;
mod deadlock;
mod disturbed;
mod election;
mod epoch;
mod evict;
mod exclusion;
mod expiry;
mod fences;
mod fork;
mod forward;
mod grants;
mod handle;
mod harness;
mod inspect;
mod leaving;
mod limits;
mod lost_place;
mod many;
mod messages;
mod names;
mod once;
mod order;
mod partition;
mod permits;
mod rate;
mod reentry;
mod refusal;
mod release;
mod rwlock;
mod shared;
mod slow;
mod steal;
mod support;
mod ticket;
mod totals;
mod unsure;
mod watch;
pub mod worker;

use std::cell::RefCell;
use std::sync::Arc;

use futures_util::future::LocalBoxFuture;

pub use can::Can;
pub use harness::{Crashing, Harness, Proxied, Starting};
pub use support::{Failure, Outcome};

/// One fact about every engine that `needs` admits.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    /// The fact it states.
    pub name: &'static str,
    /// The path of the file that it stands in, as a module.
    pub group: &'static str,
    /// Whether an engine with these capabilities must pass.
    pub needs: fn(&Can) -> bool,
    /// Whether the harness has the hook that the case uses.
    pub applies: fn(&dyn Harness) -> bool,
    /// Runs the case once.
    pub run: fn(Arc<dyn Harness>) -> LocalBoxFuture<'static, Outcome>,
}

/// Lists the cases of a file, each with the capabilities it needs and the hook it uses.
macro_rules! cases {
    ($($name:ident $(: $($need:ident)&+)? $(=> $hook:ident)?),* $(,)?) => {
        pub(super) const CASES: &[super::Case] = &[$(super::Case {
            name: stringify!($name),
            group: module_path!(),
            needs: |can| {
                let super::Can { .. } = can;
                true $($(&& can.$need)+)?
            },
            applies: |lab| {
                let _: &dyn super::Harness = lab;
                true $(&& lab.$hook().is_some())?
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
    disturbed::CASES,
    election::CASES,
    epoch::CASES,
    evict::CASES,
    exclusion::CASES,
    expiry::CASES,
    fences::CASES,
    fork::CASES,
    handle::CASES,
    inspect::CASES,
    leaving::CASES,
    limits::CASES,
    lost_place::CASES,
    many::CASES,
    messages::CASES,
    names::CASES,
    once::CASES,
    order::CASES,
    partition::CASES,
    permits::CASES,
    rate::CASES,
    reentry::CASES,
    refusal::CASES,
    release::CASES,
    rwlock::CASES,
    shared::CASES,
    slow::CASES,
    steal::CASES,
    ticket::CASES,
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

/// Runs a case, then checks that it left nothing in the store.
pub async fn run(case: &Case, harness: Arc<dyn Harness>) -> Outcome {
    let ran = (case.run)(Arc::clone(&harness));
    support::within(support::CASE_MAX, "the end of the case", ran).await??;
    let left = RefCell::new(Vec::new());
    let limit = harness.emptied_within();
    let empty = support::until_within(limit, "an empty store after the case", async || {
        let now = harness.residue().await?;
        left.replace(now);
        Ok(left.borrow().is_empty())
    });
    empty.await.map_err(|failure| {
        let names: Vec<_> = left.take().into_iter().map(|line| line.name).collect();
        support::Failure::new(format!("{failure}; left: {names:?}"))
    })
}
