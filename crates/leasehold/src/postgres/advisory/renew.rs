//! Heartbeats: one cheap exchange on each session that has a claim to be kept.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio_postgres::types::Type;

use crate::claim::{Renewal, Standing};
use crate::error::{Error, Result};

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
        let (mut answers, prolonged) = self.kept(renewals, sent);
        self.prolong(prolonged).await;
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

    /// How each claim stands, and whose end others should read anew.
    fn kept(
        &self,
        renewals: &[Renewal],
        sent: crate::clock::Moment,
    ) -> (Vec<Standing>, Vec<(i64, Duration)>) {
        let (now, mut prolonged) = (self.now(), Vec::new());
        let mut book = self.book();
        let stand = |renewal: &Renewal| {
            let out = Standing::Out { ahead: 0, retry_in: RETRY_IN, by: None };
            let Some(entry) = book.entry(&renewal.key) else { return out };
            match &mut entry.place {
                Place::Held { fence, kept_until, expires, .. } => {
                    (*kept_until, *expires) = (sent + renewal.ttl, now + renewal.ttl);
                    self.lapse.expect(*expires);
                    entry.ttl = renewal.ttl;
                    let fence = *fence;
                    if entry.written == Written::Held {
                        prolonged.push((entry.row, renewal.ttl));
                    }
                    Standing::Held { fence, remaining: renewal.ttl }
                }
                Place::Waiting { .. } => Standing::Queued { ahead: 1, retry_in: RETRY_IN },
                Place::Gone => {
                    book.remove(&renewal.key.token);
                    out
                }
                _ => out,
            }
        };
        let answers = renewals.iter().map(stand).collect();
        (answers, prolonged)
    }

    /// Lets others read the new ends. That they cannot is no reason to lose a lease.
    async fn prolong(&self, prolonged: Vec<(i64, Duration)>) {
        if prolonged.is_empty() {
            return;
        }
        let (rows, lefts): (Vec<i64>, Vec<i64>) = prolonged
            .into_iter()
            .map(|(row, ttl)| (row, i64::try_from(ttl.as_micros()).unwrap_or(i64::MAX)))
            .unzip();
        let arguments: [_; 2] = [(&rows as _, Type::INT8_ARRAY), (&lefts as _, Type::INT8_ARRAY)];
        let written = self.ask(&self.statements.prolong, &arguments);
        match tokio::time::timeout(WRITE_MAX, written).await {
            Ok(Ok(_)) => {}
            _ => tracing::debug!("others read an earlier end of some leases than they have"),
        }
    }
}
