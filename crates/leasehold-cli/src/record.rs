//! The record of a force-release: who took a lock, when and why, kept in the store for an hour.
//!
//! It is a shared claim on a name of its own, which nobody renews. So every store that keeps such
//! claims can keep it, and it ends by itself. Advisory locks of PostgreSQL cannot.

use std::time::Duration;

use leasehold::claim::Note;
use leasehold::engine::Query;
use leasehold::{Client, Error, Fence, LostCause, Mode, Name, Purpose, Released, UnlessHeld};
use serde::Serialize;

use crate::guard::Why;
use crate::store::Store;
use crate::text::{escape, wall_clock_ago};

/// How long a record is kept where the store does not keep it for less.
const KEPT_FOR: Duration = Duration::from_secs(3_600);

/// What the name of a record begins with.
const PREFIX: &str = "evicted:";

/// The most bytes of a reason in a record.
const REASON_MAX: usize = 2_048;

/// How long a command that lost its lock looks for the record: it is about to end.
const LOOK_MAX: Duration = Duration::from_secs(1);

/// The fact that a claim is a record.
const USE: (&str, &str) = ("use", "evicted");
/// The fences of the leases that were taken.
const FENCES: &str = "fences";

/// Who took a lock, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Record {
    pub(crate) at: String,
    pub(crate) by: String,
    pub(crate) fences: Vec<String>,
    pub(crate) reason: String,
}

impl Record {
    /// What the holder reads that lost the lock.
    pub(crate) fn words(&self) -> String {
        format!("`{}` force-released it at {}: {}", self.by, self.at, self.reason)
    }

    fn is_of(&self, fence: Fence) -> bool {
        let fence = fence.to_string();
        self.fences.contains(&fence)
    }
}

fn name_of(name: &Name) -> Option<Name> {
    Name::new(format!("{PREFIX}{}", name.as_str())).ok()
}

/// Writes the record, before the lock is taken. A store that cannot keep it does not stop the
/// order.
pub(crate) async fn write(store: &Store, name: &Name, fences: &[Fence], reason: &str) {
    if let Err(error) = try_write(&store.client, name, fences, reason).await {
        store.voice.warn(&format!("the store keeps no record of this: {error}"));
    }
}

async fn try_write(
    client: &Client,
    name: &Name,
    fences: &[Fence],
    reason: &str,
) -> Result<(), Error> {
    let Some(part) = &client.parts().unattended else { return Ok(()) };
    // A name that is almost as long as names may be has no record.
    let Some(record) = name_of(name) else { return Ok(()) };
    let longest = part.longest_without_renewal().await?;
    let ttl = longest.map_or(KEPT_FOR, |longest| longest.min(KEPT_FOR));
    let fences: Vec<String> = fences.iter().map(Fence::to_string).collect();
    let facts = [USE, (FENCES, &fences.join(","))];
    let mut end = reason.len().min(REASON_MAX);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    let note = Note::with_facts(&reason[..end].replace('\0', ""), &facts);
    let request = client.request(record).mode(Mode::Shared).ttl(ttl).note(note);
    if let Some(lease) = request.try_acquire().await.unless_held()? {
        lease.detach().await?;
    }
    Ok(())
}

/// The records of a name, the latest first.
pub(crate) async fn read(client: &Client, name: &Name) -> Result<Vec<Record>, Error> {
    let Some(record) = name_of(name) else { return Ok(Vec::new()) };
    let page = client.admin().inspect(&Query::name(record)).await?;
    let held = page.lines.into_iter().flat_map(|line| line.held);
    let mut records: Vec<_> = held.filter(|claim| claim.purpose() == Purpose::Evicted).collect();
    records.sort_by_key(|claim| claim.age);
    let read = |claim: &leasehold::engine::ClaimView| Record {
        at: wall_clock_ago(claim.age),
        by: claim.holder.label().to_owned(),
        fences: claim.note.fact(FENCES).unwrap_or_default().split(',').map(Into::into).collect(),
        reason: claim.note.text().to_owned(),
    };
    Ok(records.iter().map(read).collect())
}

/// The record that a lease with this fence was taken, if there is one.
pub(crate) async fn of_lease(client: &Client, name: &Name, fence: Fence) -> Option<Record> {
    let records = tokio::time::timeout(LOOK_MAX, read(client, name)).await;
    match records {
        Ok(Ok(records)) => records.into_iter().find(|record| record.is_of(fence)),
        Ok(Err(error)) => {
            tracing::debug!(%error, %name, "the record of a force-release was not read");
            None
        }
        Err(_late) => None,
    }
}

/// Whether a lease that is lost for this reason may have been force-released.
pub(crate) fn may_explain(why: &Why) -> bool {
    let Why::Lost(_, cause) = why else { return false };
    matches!(cause, LostCause::Removed | LostCause::TakenBy(_) | LostCause::Evicted { .. })
}

/// The same for a lease that was gone when it was given back.
pub(crate) fn may_explain_end(released: &Released) -> bool {
    matches!(released, Released::TakenBy(_) | Released::AlreadyExpired)
}

/// The section of `show`; nothing where there is no record.
pub(crate) fn section(records: &[Record]) -> String {
    if records.is_empty() {
        return String::new();
    }
    let mut text = "\nFORCE-RELEASED\n".to_owned();
    for Record { at, by, fences, reason } in records {
        let (by, fences, reason) = (escape(by), escape(&fences.join(", ")), escape(reason));
        text.push_str(&format!("{at}  fence {fences}  by {by}: {reason}\n"));
    }
    text
}
