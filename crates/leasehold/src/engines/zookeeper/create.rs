//! Putting a claim into its line: its nodes are created, and what else is there is read.
//!
//! Two requests at once where others may be, and three where the line's node may have to be made. A
//! line whose node is our own and in which the last claim was alone takes one.

use std::sync::Arc;

use crate::clock::{Clock, Moment, SystemClock};
use crate::error::Result;
use crate::rule::claim::Claim;
use crate::rule::name::Name;

use super::Inner;
use super::ask::delete_nodes;
use super::book::{Record, Stay};
use super::detail::Detail;
use super::epoch::Assumed;
use super::link::{self, Link};
use super::nodes::{Attempt, Ours, stems};
use super::read::{By, Line, Lineup, MARK, MOMENT, claim_acl, shared_acl};
use super::session::{Reply, Sent, Session};
use super::wire::{In, Odd, Part, Request, Sort, code};

/// Creates the claim's nodes and reads its line; `None` if something was not as it was thought to
/// be, and is known better now.
///
/// A line's node of our own is written along with it. What is told of that says in which
/// transaction it was, and how many nodes are below it: who is alone need not read whom else there
/// is.
pub(super) async fn create(
    inner: &Inner,
    claim: &Claim,
) -> Result<Option<(Record, Lineup, Moment)>> {
    let name = &claim.key.name;
    let session = inner.session(claim.ttl).await?;
    let link = link::of(inner, &session).await?;
    let identity = session.identity();
    let ours = Ours { attempt: Attempt::of(&claim.key.token), session: identity.id };
    let stay = inner.book.next_stay(claim.key.clone());
    let mut record = record(claim, stay.clone(), (&session, link.times), ours);
    // Before it is sent: whatever becomes of the answer, the claim is looked for.
    inner.book.enter(record.clone());
    let known = inner.known.get(name);
    let ahead = Ahead::send(inner, &session, name, known).await?;
    let line = known.unwrap_or(Line { by: By::Unknown, alone: false });
    let is_ours = line.by == By::Us;
    let detail = Detail::of(claim, &identity, session.timeout());
    let assumed = inner.epochs.assume();
    let mut parts = vec![link.check(inner, &session)];
    parts.extend(assumed.check(inner));
    parts.extend(creation(inner, claim, ours, &detail, is_ours));
    let is_alone = is_ours && line.alone;
    // What is read behind it must be.
    let path = inner.layout.line(name);
    let created = match is_alone && assumed.is_known() {
        true => session.send_with_others_on(link.times, path.clone(), parts).await?,
        false => session.send_on(link.times, Request::Multi(parts)).await?,
    };
    let read = match is_alone {
        true => None,
        false => Some(session.send(Request::Children { path }).await?),
    };
    let epochs = match assumed.is_known() {
        true => None,
        false => Some(session.send(inner.epoch_request()).await?),
    };
    // Without an answer the claim may be there all the same, and stays in the book.
    let by = match ahead.answer(line.by).await? {
        Ok(by) => by,
        Err(error) => return Err(inner.refusal(error)),
    };
    let created = created.answer().await?;
    let (read, epochs) = (answer(read).await?, answer(epochs).await?);
    match made(inner, &created, is_ours)? {
        Ok(made) => {
            let said = (&assumed, epochs);
            record.fence = inner.fence_of_new(&session, said, made.number).await?;
            record.paths = made.paths;
            if !inner.book.update(record.clone()) {
                // The stay was over before its nodes were there. Nobody else would delete them.
                delete_nodes(inner, &record).await?;
                return Ok(None);
            }
            let lineup = match read {
                _ if made.alone => Lineup::new(record.nodes().collect()),
                Some(read) => Lineup::new(inner.children(&read)?),
                None => inner.read_line(&session, name).await?,
            };
            inner.known.set(name, Line { by, alone: lineup.entries.len() == 1 });
            Ok(Some((record, lineup, created.safe_until)))
        }
        Err(unmade) => {
            inner.book.remove(&stay);
            correct(inner, (&session, name), (unmade, is_ours), (&assumed, link)).await?;
            Ok(None)
        }
    }
}

/// Nothing was made: what was thought to be is forgotten, or seen to. An error if that is not why.
async fn correct(
    inner: &Inner,
    (session, name): (&Session, &Name),
    (unmade, is_ours): (Unmade, bool),
    (assumed, link): (&Assumed, Link),
) -> Result<()> {
    if unmade.at == Some(0) {
        session.links().was_wrong(link);
        return Ok(());
    }
    match unmade.error {
        code::BAD_VERSION => inner.epochs.was_wrong(assumed),
        code::NO_AUTH if is_ours => inner.known.set(name, Line { by: By::Others, alone: false }),
        code::NO_NODE => {
            inner.known.forget(name);
            inner.epochs.was_wrong(assumed);
            inner.make_line(session, name).await?;
            inner.known.set(name, Line { by: By::Unknown, alone: false });
        }
        error => return Err(inner.refusal(error)),
    }
    Ok(())
}

/// The answer to what was asked, if it was.
async fn answer(sent: Option<Sent<'_>>) -> Result<Option<Reply>> {
    match sent {
        Some(sent) => sent.answer().await.map(Some),
        None => Ok(None),
    }
}

fn record(claim: &Claim, stay: Stay, (session, times): (&Arc<Session>, u64), ours: Ours) -> Record {
    Record {
        stay,
        name: claim.key.name.clone(),
        session: Arc::clone(session),
        ours,
        times,
        mode: claim.mode,
        paths: Vec::new(),
        fence: 0,
        held: false,
        seen: true,
        ttl: claim.ttl,
        ttl_path: None,
        note_path: None,
        closed_path: None,
        looked: times,
        until: SystemClock.now() + claim.ttl.max(claim.patience),
        ending: false,
    }
}

/// What is asked about a line's node before a claim is created below it: nothing, if it is known.
struct Ahead<'a> {
    container: Option<Sent<'a>>,
    data: Option<Sent<'a>>,
}

impl<'a> Ahead<'a> {
    async fn send(
        inner: &Inner,
        session: &'a Session,
        name: &Name,
        known: Option<Line>,
    ) -> Result<Self> {
        let path = inner.layout.line(name);
        let (mut container, mut data) = (None, None);
        match known {
            None => {
                let (data, acl) = (MARK.to_vec(), shared_acl(inner.has_login()));
                let request = Request::Create { path, data, acl, sort: Sort::Container };
                container = Some(session.send(request).await?);
            }
            // Only where it is of use: among others the line is read anyway.
            Some(Line { by: By::Unknown, alone: true }) => {
                data = Some(session.send(Request::GetData { path }).await?);
            }
            Some(_) => {}
        }
        Ok(Self { container, data })
    }

    /// Who made the line's node, or why nobody can.
    async fn answer(self, by: By) -> Result<std::result::Result<By, i32>> {
        if let Some(container) = self.container {
            return Ok(match container.answer().await?.code {
                code::OK => Ok(By::Us),
                code::NODE_EXISTS | code::NO_NODE | code::NO_AUTH => Ok(by),
                error => Err(error),
            });
        }
        let Some(data) = self.data else { return Ok(Ok(by)) };
        let read = data.answer().await?;
        let is_marked = read.code == code::OK && In(&read.body).bytes() == Ok(MARK);
        Ok(Ok(if is_marked { By::Us } else { By::Others }))
    }
}

fn creation(
    inner: &Inner,
    claim: &Claim,
    ours: Ours,
    detail: &Detail,
    is_ours: bool,
) -> Vec<Request> {
    let line = inner.layout.line(&claim.key.name);
    let stems = stems(inner.dialect, ours, claim.mode);
    let mut creations: Vec<Request> = stems
        .into_iter()
        .map(|stem| Request::Create {
            path: format!("{line}/{stem}"),
            data: detail.encode(),
            acl: claim_acl(inner.has_login()),
            sort: Sort::EphemeralSequential,
        })
        .collect();
    // Servers do not tell in which transaction several nodes were created together, but they do
    // where something was written.
    let (path, data) = match is_ours {
        true => (line, MARK.to_vec()),
        false => (inner.layout.own(MOMENT), Vec::new()),
    };
    creations.push(Request::SetData { path, data, version: -1 });
    creations
}

/// The nodes that were made, and the transaction that did it.
struct Made {
    paths: Vec<String>,
    number: i64,
    /// Whether no others are in the line, for sure.
    alone: bool,
}

/// Why nothing was made.
struct Unmade {
    error: i32,
    /// Which part of the transaction failed, if one did. The first one checks the session's link.
    at: Option<usize>,
}

/// What was made, or why it was not.
fn made(inner: &Inner, reply: &Reply, is_ours: bool) -> Result<std::result::Result<Made, Unmade>> {
    if reply.code != code::OK {
        return Ok(Err(Unmade { error: reply.code, at: None }));
    }
    let mut made = Made { paths: Vec::new(), number: 0, alone: false };
    for (at, part) in inner.parts(reply)?.into_iter().enumerate() {
        match part {
            Part::Created(path) => made.paths.push(path),
            Part::Written(stat) => {
                made.number = stat.modified;
                made.alone = is_ours && usize::try_from(stat.children) == Ok(made.paths.len());
            }
            Part::Failed(error) => return Ok(Err(Unmade { error, at: Some(at) })),
            Part::Done => {}
        }
    }
    match made.number {
        0 => Err(inner.odd(Odd)),
        _ => Ok(Ok(made)),
    }
}
