//! A complete engine: exclusive locks for the tasks and threads of one process.
//!
//! `docs/adding-an-engine.md` explains it. The conformance suite runs it as `toy`. It has the eight
//! methods that every engine has, and one part, which replaces the note of a lease.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use leasehold::claim::{Amended, Claim, ClaimKey, Note, Place, Released, Renewal, Standing, Token};
use leasehold::engine::{
    Amend, Capabilities, ClaimView, Engine, Info, LineView, Page, Parts, Query, Select, Wake,
};
use leasehold::error::Kind;
use leasehold::{Client, Holder, Mode, Name, Result};
use tokio::sync::Notify;

/// A store of its own. Clones are the same store.
#[derive(Debug, Clone)]
pub struct Toy {
    info: Info,
    store: Arc<Mutex<Store>>,
}

#[derive(Debug, Default)]
struct Store {
    lines: BTreeMap<Name, Line>,
    /// The last fence that was given out. It only rises.
    fence: u64,
}

/// The claims on one name in order of arrival. The first one holds.
#[derive(Debug, Default)]
struct Line(VecDeque<Entry>);

#[derive(Debug)]
struct Entry {
    token: Token,
    holder: Holder,
    note: Note,
    fence: u64,
    holds: bool,
    /// When it began to hold or to wait.
    since: Instant,
    /// When it ends unless its client asks or renews before.
    ends: Instant,
    bell: Arc<Notify>,
}

impl Toy {
    /// An empty store.
    pub fn open() -> Self {
        let can = Capabilities {
            fifo: true,
            shared: false,
            permits: false,
            ttl_per_claim: true,
            across_processes: false,
            waits_by_token: true,
        };
        let (engine, store) = ("toy", "toy:".to_owned());
        // Random, so that no other store has it.
        let store_id = Holder::fresh().id().0;
        let info = Info { engine, store, store_id, can, can_fail: false };
        Self { info, store: Arc::default() }
    }

    fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something to a line, as one step that others cannot see half done.
    fn on_line<T>(&self, name: &Name, work: impl FnOnce(&mut Line, &mut u64, Instant) -> T) -> T {
        let (mut store, now) = (self.store(), Instant::now());
        let Store { lines, fence } = &mut *store;
        let line = lines.entry(name.clone()).or_default();
        line.settle(now);
        let answer = work(line, fence, now);
        line.settle(now);
        if line.0.is_empty() {
            lines.remove(name);
        }
        answer
    }
}

impl Line {
    /// Takes out what has expired, and lets the first claim hold.
    fn settle(&mut self, now: Instant) {
        self.0.retain(|entry| entry.ends > now);
        if let Some(first) = self.0.front_mut().filter(|first| !first.holds) {
            (first.holds, first.since) = (true, now);
            first.bell.notify_one();
        }
    }

    fn index(&self, token: &Token) -> Option<usize> {
        self.0.iter().position(|entry| entry.token == *token)
    }

    fn held_by(&self) -> Option<Holder> {
        self.0.front().map(|first| first.holder.clone())
    }

    /// Starts the time of a claim again, if it is in line, and says how it stands.
    fn keep(&mut self, token: &Token, now: Instant, [ttl, patience]: [Duration; 2]) -> Standing {
        let index = self.index(token);
        let ahead = index.unwrap_or(self.0.len());
        // The claims before it end then at the latest, if nobody renews them.
        let last = self.0.iter().take(ahead).map(|entry| entry.ends).max().unwrap_or(now);
        let retry_in = last.saturating_duration_since(now);
        let Some(entry) = index.and_then(|index| self.0.get_mut(index)) else {
            return Standing::Out { ahead, retry_in, by: self.held_by() };
        };
        let fence = entry.fence;
        if ahead == 0 {
            // Never sooner: another client may count on the end that it was told.
            entry.ends = entry.ends.max(now + ttl);
            return Standing::Held { fence, remaining: entry.ends - now };
        }
        entry.ends = now + patience;
        Standing::Queued { place: Place::new(fence), ahead, retry_in }
    }

    fn view(&self, name: &Name, now: Instant) -> LineView {
        let view = |entry: &Entry| ClaimView {
            holder: entry.holder.clone(),
            fence: entry.fence.into(),
            mode: Mode::Exclusive,
            age: now.duration_since(entry.since),
            remaining: entry.ends.saturating_duration_since(now),
            note: entry.note.clone(),
            closed: false,
        };
        let mut held: Vec<ClaimView> = self.0.iter().map(view).collect();
        let waiting = held.split_off(1);
        LineView { name: name.clone(), kind: Kind::Lock, held, waiting }
    }
}

#[async_trait]
impl Engine for Toy {
    fn info(&self) -> &Info {
        &self.info
    }

    async fn claim(&self, claim: &Claim) -> Result<Standing> {
        Ok(self.on_line(&claim.key.name, |line, last_fence, now| {
            let token = claim.key.token;
            let enters = line.index(&token).is_none() && (claim.join || line.0.is_empty());
            if enters {
                *last_fence += 1;
                line.0.push_back(Entry {
                    token,
                    holder: claim.holder.clone(),
                    note: claim.note.clone(),
                    fence: *last_fence,
                    holds: line.0.is_empty(),
                    since: now,
                    ends: now,
                    bell: Arc::default(),
                });
            }
            line.keep(&token, now, [claim.ttl, claim.patience])
        }))
    }

    async fn wait(&self, key: &ClaimKey) -> Result<Wake> {
        let bell = self.on_line(&key.name, |line, _, _| {
            line.index(&key.token).map(|index| Arc::clone(&line.0[index].bell))
        });
        if let Some(bell) = bell {
            bell.notified().await;
        }
        Ok(Wake::Ask)
    }

    async fn renew(&self, renewals: &[Renewal]) -> Result<Vec<Result<Standing>>> {
        let renew = |renewal: &Renewal| {
            let Renewal { key, ttl, patience } = renewal;
            self.on_line(&key.name, |line, _, now| line.keep(&key.token, now, [*ttl, *patience]))
        };
        Ok(renewals.iter().map(|renewal| Ok(renew(renewal))).collect())
    }

    async fn release(&self, keys: &[ClaimKey]) -> Result<Vec<Released>> {
        let release = |key: &ClaimKey| {
            self.on_line(&key.name, |line, _, _| match line.index(&key.token) {
                Some(index) => {
                    line.0.remove(index);
                    Released::Released
                }
                None => line.held_by().map_or(Released::AlreadyExpired, Released::TakenBy),
            })
        };
        Ok(keys.iter().map(release).collect())
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        let (mut store, now) = (self.store(), Instant::now());
        let mut page = Page::default();
        for (name, line) in &mut store.lines {
            line.settle(now);
            let mut holders = line.0.iter().map(|entry| entry.holder.id());
            let is_asked_for = match &query.select {
                Select::Holder(holder) => holders.any(|id| id == *holder),
                _ => holders.next().is_some(),
            };
            if !is_asked_for || !query.admits(name) {
                continue;
            }
            if page.lines.len() == query.page_lines() {
                page.next = page.lines.last().map(|last| last.name.clone());
                break;
            }
            page.lines.push(line.view(name, now));
        }
        Ok(page)
    }

    async fn close(&self) -> Result<()> {
        Ok(())
    }

    fn parts(self: Arc<Self>) -> Parts {
        let mut parts = Parts::default();
        parts.amend = Some(self);
        parts
    }
}

#[async_trait]
impl Amend for Toy {
    async fn set_note(&self, key: &ClaimKey, note: &Note) -> Result<Amended> {
        Ok(self.on_line(&key.name, |line, _, _| {
            let by = line.held_by();
            match line.0.front_mut().filter(|first| first.token == key.token) {
                Some(held) => {
                    held.note = note.clone();
                    Amended::Done
                }
                None => Amended::Out { by },
            }
        }))
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let client = Client::builder().engine(Toy::open())?;
    for _ in 0..2 {
        let lease = client.mutex("report").lock().await?;
        lease.set_note("half done").await?;
        println!("held with fence {}", lease.fence());
        lease.release().await?;
    }
    Ok(())
}
