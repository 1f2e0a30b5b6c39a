//! Nodes that forgot: who may vote, and when one that may not may again.
//!
//! A node votes under a marker that names the run of its process. Whoever meets one without waits,
//! on its own clock, for the longest ttl; then it has the node's counters raised to what a majority
//! of the others has reached, and writes the marker. Why that is right, and what is not, is in
//! `docs/engines/redlock.md`.

use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::join_all;

use super::attempt::cause;
use super::engine::{Inner, lock};
use super::{Marker, Passport};
use crate::clock::{Clock, Moment, SystemClock};
use crate::error::{Config, Error, NodeReason, Result};
use crate::rule::claim::margin;

/// When to try again to admit a node whose time has come.
const TRY_AGAIN: Duration = Duration::from_secs(1);

/// A node on probation, as this client knows it.
#[derive(Debug, Clone)]
struct Watch {
    run_id: String,
    /// When this run was first seen, on this machine's clock.
    since: Moment,
}

/// What this client knows of nodes that gave cause for doubt.
#[derive(Debug)]
pub(super) struct Watches {
    nodes: Vec<Option<Watch>>,
    /// Whether a task looks after a node.
    tended: Vec<bool>,
}

impl Watches {
    pub(super) fn new(nodes: usize) -> Self {
        Self { nodes: vec![None; nodes], tended: vec![false; nodes] }
    }

    /// Since when a run is known not to be admitted.
    fn see(&mut self, node: usize, run_id: &str) -> Moment {
        let watch = &mut self.nodes[node];
        match watch {
            Some(watch) if watch.run_id == run_id => watch.since,
            _ => {
                let since = SystemClock.now();
                *watch = Some(Watch { run_id: run_id.to_owned(), since });
                since
            }
        }
    }
}

impl Inner {
    /// How long a node that forgot must not vote.
    fn probation(&self) -> Duration {
        self.settings.ttl_max + margin(self.settings.ttl_max)
    }

    /// What each node says of itself.
    pub(super) async fn passports(&self) -> Vec<Result<Passport>> {
        let ask = |node: usize| async move {
            let sent = SystemClock.now();
            let passport = self.in_time(node, self.nodes[node].passport()).await;
            if let Ok(passport) = &passport {
                self.read_clock(node, passport.time, sent, SystemClock.now());
            }
            passport
        };
        join_all((0..self.nodes.len()).map(ask)).await
    }

    /// Meets the nodes, founds the set if it is new, and returns its id.
    pub(super) async fn greet(&self) -> Result<u128> {
        let mut passports = Vec::with_capacity(self.nodes.len());
        let mut causes = Vec::with_capacity(self.nodes.len());
        for passport in self.passports().await {
            match passport {
                Ok(passport) => {
                    let admitted = passport.is_admitted();
                    causes.push(if admitted { NodeReason::Granted } else { NodeReason::Probation });
                    passports.push(passport);
                }
                // A wrong password or a server that will not do is nothing to wait for.
                Err(error) if !error.is_transient() => return Err(error),
                Err(error) => causes.push(cause(&error)),
            }
        }
        let markers: Vec<&Marker> =
            passports.iter().filter_map(|passport| passport.marker.as_ref()).collect();
        if let Some(first) = markers.first() {
            self.check_terms(&markers)?;
            if passports.len() < self.majority() {
                return Err(self.no_majority(causes));
            }
            return Ok(first.set_id);
        }
        if passports.len() < self.nodes.len() {
            return Err(self.no_majority(causes));
        }
        self.found(&passports).await
    }

    fn check_terms(&self, markers: &[&Marker]) -> Result<()> {
        let refused = |option: &str, reason: String| {
            Err(Error::Config(Config::Option { option: option.into(), reason }))
        };
        for marker in markers {
            if marker.nodes != self.nodes.len() {
                let (theirs, ours) = (marker.nodes, self.nodes.len());
                let reason = format!("names {ours} nodes, but their set has {theirs}");
                return refused("HOST,HOST,…", reason);
            }
            if marker.ttl_max != self.settings.ttl_max {
                let millis = marker.ttl_max.as_millis();
                let reason = format!("must be {millis}, as it was when the set was founded");
                return refused("ttl_max_ms", reason);
            }
            if marker.set_id != markers[0].set_id {
                return refused("HOST,HOST,…", "names nodes of different sets".into());
            }
        }
        Ok(())
    }

    /// Founds a set. Whoever marks the first node decides its id, so that two who found it at
    /// once found one set.
    async fn found(&self, passports: &[Passport]) -> Result<u128> {
        let mut set_id = rand::random();
        for (index, passport) in passports.iter().enumerate() {
            let marker = self.marker(set_id, &passport.run_id);
            let node = &self.nodes[index];
            if !self.in_time(index, node.admit(passport, &marker, 0)).await?
                && index == 0
                && let Some(theirs) = self.in_time(index, node.passport()).await?.marker
            {
                set_id = theirs.set_id;
            }
        }
        Ok(set_id)
    }

    fn marker(&self, set_id: u128, run_id: &str) -> Marker {
        let (nodes, ttl_max) = (self.nodes.len(), self.settings.ttl_max);
        Marker { run_id: run_id.to_owned(), set_id, nodes, ttl_max }
    }

    /// Looks after every node that may not vote.
    pub(super) fn vet_all(self: &Arc<Self>) {
        for node in 0..self.nodes.len() {
            let inner = Arc::clone(self);
            tokio::spawn(async move { inner.vet(node).await });
        }
    }

    /// Looks at a node that does not vote. Says whether it may vote now: because somebody has
    /// admitted it, or because it forgot nothing. Otherwise a task looks after it from now on.
    pub(super) async fn vet(self: &Arc<Self>, node: usize) -> bool {
        let Ok(passport) = self.in_time(node, self.nodes[node].passport()).await else {
            return false;
        };
        if passport.is_admitted() {
            return true;
        }
        if let Some(marker) = passport.marker.as_ref().filter(|_| passport.durable) {
            let marker = Marker { run_id: passport.run_id.clone(), ..marker.clone() };
            let admitted = self.nodes[node].admit(&passport, &marker, 0);
            return self.in_time(node, admitted).await.unwrap_or(false);
        }
        let mut watches = lock(&self.watches);
        watches.see(node, &passport.run_id);
        let tended = std::mem::replace(&mut watches.tended[node], true);
        drop(watches);
        if !tended {
            let address = self.nodes[node].address();
            tracing::warn!(node = address, wait = ?self.probation(), "a node is on probation");
            tokio::spawn(tend(Tending(Arc::downgrade(self), node)));
        }
        false
    }

    /// Admits a node whose time has come. `Err` says when to look again.
    async fn try_admit(&self, node: usize) -> std::result::Result<(), Moment> {
        let again = || SystemClock.now() + TRY_AGAIN;
        let passports = self.passports().await;
        let Ok(passport) = &passports[node] else { return Err(again()) };
        if passport.is_admitted() {
            return Ok(());
        }
        let mut ready_at = lock(&self.watches).see(node, &passport.run_id) + self.probation();
        if ready_at > SystemClock.now() {
            return Err(ready_at);
        }
        let admitted = |other: &usize| {
            *other != node && passports[*other].as_ref().is_ok_and(Passport::is_admitted)
        };
        let mut witnesses: Vec<usize> = (0..self.nodes.len()).filter(admitted).collect();
        if witnesses.len() < self.majority() {
            // Too many have forgotten. All must be there, and all have waited.
            for (other, passport) in passports.iter().enumerate() {
                let Ok(passport) = passport else { return Err(again()) };
                if !passport.is_admitted() {
                    let seen = lock(&self.watches).see(other, &passport.run_id);
                    ready_at = ready_at.max(seen + self.probation());
                }
            }
            if ready_at > SystemClock.now() {
                return Err(ready_at);
            }
            witnesses = (0..self.nodes.len()).collect();
        }
        let ceilings =
            join_all(witnesses.iter().map(|node| self.in_time(*node, self.nodes[*node].ceiling())));
        let ceilings: Vec<u64> = ceilings.await.into_iter().flatten().collect();
        let needed = self.majority().min(witnesses.len());
        let floor = ceilings.iter().copied().max().unwrap_or(0);
        if ceilings.len() < needed {
            return Err(again());
        }
        let set_id = passports.iter().flatten().find_map(|passport| passport.marker.as_ref());
        let set_id = set_id.map_or(self.info.store_id, |marker| marker.set_id);
        let marker = self.marker(set_id, &passport.run_id);
        match self.in_time(node, self.nodes[node].admit(passport, &marker, floor)).await {
            Ok(true) => {
                tracing::info!(node = self.nodes[node].address(), "a node votes again");
                Ok(())
            }
            _ => Err(again()),
        }
    }
}

/// Looks after a node until it votes again. Lets go when its runtime ends, so that another may.
struct Tending(Weak<Inner>, usize);

impl Drop for Tending {
    fn drop(&mut self) {
        if let Some(inner) = self.0.upgrade() {
            lock(&inner.watches).tended[self.1] = false;
        }
    }
}

async fn tend(tending: Tending) {
    loop {
        let Some(inner) = tending.0.upgrade() else { return };
        let again = match inner.try_admit(tending.1).await {
            Ok(()) => return,
            Err(again) => again,
        };
        drop(inner);
        SystemClock.sleep_until(again).await;
    }
}
