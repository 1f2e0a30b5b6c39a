//! Heartbeats: one cheap exchange on each session that has a claim to be kept.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio_postgres::types::Type;

use crate::clock::Moment;
use crate::error::{Error, Result};
use crate::rule::claim::{Renewal, Standing};

use super::book::{Place, Written};
use super::session::Shared;
use super::{Inner, RETRY_IN, view};

/// How long writing down a changed ttl may hold up a renewal.
const WRITE_MAX: Duration = Duration::from_millis(500);

/// How long a loss may be held up by looking who has it now.
const LOOK_MAX: Duration = Duration::from_millis(250);

/// How a session answered.
enum Pulse {
    Beats,
    Over,
    Silent(Error),
}

impl Inner {
    pub(super) async fn renew(self: &Arc<Self>, renewals: &[Renewal]) -> Result<Vec<Standing>> {
        let sent = self.now();
        let sessions = self.involved(renewals);
        let beats = sessions.iter().map(|(session, set)| self.pulse(session, *set));
        let pulses = join_all(beats).await;
        let mut silent = None;
        for ((session, _), pulse) in sessions.iter().zip(pulses) {
            match pulse {
                Pulse::Beats => {}
                Pulse::Over => self.condemn(session),
                Pulse::Silent(error) => silent = Some(error),
            }
        }
        if let Some(error) = silent {
            return Err(error);
        }
        let mut answers = self.kept(renewals, sent, &sessions);
        // That others cannot read the new ends is no reason to lose a lease.
        if !matches!(tokio::time::timeout(WRITE_MAX, self.prolong(renewals)).await, Ok(Ok(()))) {
            tracing::debug!("others read another end of some leases than they have");
        }
        if answers.iter().any(|answer| matches!(answer, Standing::Out { .. })) {
            self.name_holders(renewals, &mut answers).await;
        }
        Ok(answers)
    }

    /// Says who has what was lost. That nobody can say it is no reason to say nothing.
    async fn name_holders(&self, renewals: &[Renewal], answers: &mut [Standing]) {
        let Ok(Ok(locks)) = tokio::time::timeout(LOOK_MAX, self.locks()).await else {
            return tracing::debug!("who has what was lost is not known");
        };
        for (renewal, answer) in renewals.iter().zip(answers) {
            if let Standing::Out { by, .. } = answer {
                *by = view::holder(self.keys, &renewal.key.name, &locks);
            }
        }
    }

    /// The sessions of claims that are held, with the timeout to set where it is another now.
    fn involved(&self, renewals: &[Renewal]) -> Vec<(Shared, Option<u64>)> {
        let mut book = self.book();
        let mut ids = BTreeMap::new();
        for renewal in renewals {
            if let Some(entry) = book.entry(&renewal.key)
                && let Place::Held { session, .. } = entry.place
            {
                // A shorter ttl counts from the answer on, a longer one from before the question.
                entry.ttl = entry.ttl.max(renewal.ttl);
                ids.insert(session, ());
            }
        }
        let ids: Vec<u64> = ids.into_keys().collect();
        let sessions = ids.into_iter().filter_map(|id| {
            let longest = book.longest_ms(id)?;
            let seat = book.seats.get_mut(&id)?;
            let set = (longest != seat.timeout_ms).then_some(longest);
            seat.timeout_ms = longest;
            Some((Arc::clone(&seat.session), set))
        });
        sessions.collect()
    }

    async fn pulse(&self, session: &Shared, set: Option<u64>) -> Pulse {
        match session.beat(set).await {
            Ok(Ok(())) => Pulse::Beats,
            Ok(Err(error)) => {
                tracing::debug!(%error, "a lock session ended");
                Pulse::Over
            }
            Err(error @ Error::Unreachable { .. }) => Pulse::Silent(error),
            Err(error) => {
                tracing::warn!(%error, "a lock session is not one");
                Pulse::Over
            }
        }
    }

    /// How each claim stands.
    fn kept(
        &self,
        renewals: &[Renewal],
        sent: Moment,
        asked: &[(Shared, Option<u64>)],
    ) -> Vec<Standing> {
        let now = self.now();
        let mut book = self.book();
        let stand = |renewal: &Renewal| {
            let out = Standing::Out { ahead: 0, retry_in: RETRY_IN, by: None };
            let Some(entry) = book.entry(&renewal.key) else { return out };
            match &mut entry.place {
                // Granted meanwhile: its session was not asked, and does not begin anew.
                Place::Held { session, fence, kept_until, .. }
                    if asked.iter().all(|(asked, _)| asked.id != *session) =>
                {
                    Standing::Held {
                        fence: *fence,
                        remaining: kept_until.since(sent).min(renewal.ttl),
                    }
                }
                Place::Held { fence, kept_until, expires, .. } => {
                    (*kept_until, *expires) = (sent + renewal.ttl, now + renewal.ttl);
                    self.lapse.expect(*expires);
                    entry.ttl = renewal.ttl;
                    Standing::Held { fence: *fence, remaining: renewal.ttl }
                }
                Place::Waiting { .. } => {
                    let place = entry.in_line();
                    Standing::Queued { place, ahead: 1, retry_in: RETRY_IN }
                }
                Place::Gone => {
                    book.remove(&renewal.key.token);
                    out
                }
                _ => out,
            }
        };
        renewals.iter().map(stand).collect()
    }

    /// Lets others read the new ends of what they can read about.
    async fn prolong(&self, renewals: &[Renewal]) -> Result<()> {
        let _pen = self.scribe.pen.lock().await;
        let (rows, lefts) = self.ends(renewals);
        if rows.is_empty() {
            return Ok(());
        }
        let arguments: [_; 2] = [(&rows as _, Type::INT8_ARRAY), (&lefts as _, Type::INT8_ARRAY)];
        self.ask(&self.statements.prolong, &arguments).await.map(drop)
    }

    /// The rows about claims that are held, and the microseconds that each has left.
    fn ends(&self, renewals: &[Renewal]) -> (Vec<i64>, Vec<i64>) {
        let now = self.now();
        let mut book = self.book();
        let end = |renewal: &Renewal| {
            let entry = book.entry(&renewal.key).filter(|entry| entry.written == Written::Held)?;
            let left = entry.left(now).as_micros();
            Some((entry.row, i64::try_from(left).unwrap_or(i64::MAX)))
        };
        renewals.iter().filter_map(end).unzip()
    }
}
