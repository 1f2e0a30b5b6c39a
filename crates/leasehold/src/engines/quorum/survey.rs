//! What the nodes' lines look like together, and what is worth knowing about the nodes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use tokio::time::timeout;

use super::attempt::cause;
use super::engine::Inner;
use super::{NodeClaim, NodeView, Passport};
use crate::clock::remote::STILL_MIN;
use crate::engine::server_alert::{AlertKind, ServerAlert};
use crate::engine::{BrokenLine, ClaimView, Finding, Level, LineView, Page, Query, Select, Totals};
use crate::error::{Error, Kind, NodeReason, Result};
use crate::rule::claim::{Holder, HolderId, Mode, Note, Token};
use crate::rule::fence::Fence;
use crate::rule::name::Name;

/// What a lock that is not ours is shown as held by.
const FOREIGN: &str = "a client of another library";

/// Beyond this, clocks of nodes are worth a word: hints miss, and each acquire costs an exchange.
const CLOCKS_APART_MAX: Duration = Duration::from_millis(250);

/// How long the last nodes are waited for when a majority has shown its lines.
const REST_MAX: Duration = Duration::from_millis(50);

/// How long a node is searched for locks of others.
const STRANGERS_MAX: Duration = Duration::from_secs(5);

/// What several nodes have of each line.
type Views = BTreeMap<Name, Vec<NodeView>>;

impl Inner {
    /// A page of the lines that a majority has.
    pub(super) async fn inspect(&self, query: &Query) -> Result<Page> {
        let (mut query, mut page) = (query.clone(), Page::default());
        let limit = query.page_lines();
        // A name may be a line and broken at once.
        let mut shown = 0;
        loop {
            let wanted = limit - shown;
            let (views, answered) = self.views(&query, wanted + 1).await?;
            let more = views.len() > wanted;
            for (name, views) in views.into_iter().take(wanted) {
                query.after = Some(name.clone());
                let broken = self.broken(&name, &views).filter(|_| !is_by_holder(&query));
                let line = self.together(name, views, answered);
                let line = line.filter(|line| is_wanted(line, &query));
                shown += usize::from(line.is_some() || broken.is_some());
                page.lines.extend(line);
                page.broken.extend(broken);
            }
            if !more || shown == limit {
                page.next = query.after.filter(|_| more);
                return Ok(page);
            }
        }
    }

    /// The lines of the first names that any node has, and how many nodes answered.
    async fn views(&self, query: &Query, limit: usize) -> Result<(Views, usize)> {
        let ask = |node: usize| async move {
            (node, self.in_time(node, self.nodes[node].view(query, limit)).await)
        };
        let mut asking: FuturesUnordered<_> = (0..self.nodes.len()).map(ask).collect();
        let mut views = Views::new();
        let mut causes = vec![NodeReason::Granted; self.nodes.len()];
        let mut answered = 0;
        loop {
            let next = match answered < self.majority() {
                true => asking.next().await,
                // A node that is dead holds up nobody.
                false => timeout(REST_MAX, asking.next()).await.unwrap_or(None),
            };
            match next {
                Some((_, Ok(seen))) => {
                    answered += 1;
                    for view in seen {
                        views.entry(view.name.clone()).or_default().push(view);
                    }
                }
                Some((node, Err(error))) => causes[node] = cause(&error),
                None if answered < self.majority() => return Err(self.no_majority(causes)),
                None => return Ok((views, answered)),
            }
        }
    }

    /// What is in all lines now. Nobody adds up what clients counted.
    pub(super) async fn totals(&self) -> Result<Totals> {
        let (mut totals, mut query) = (Totals::default(), Query::all());
        loop {
            let page = self.inspect(&query).await?;
            for line in &page.lines {
                totals.active += line.held.len() as u64;
                totals.waiting += line.waiting.len() as u64;
            }
            match page.next {
                Some(next) => query.after = Some(next),
                None => return Ok(totals),
            }
        }
    }

    /// Everything worth knowing about the nodes.
    pub(super) async fn examine(&self) -> Result<Vec<Finding>> {
        let passports = self.passports().await;
        let examine = |node: usize| self.in_time(node, self.nodes[node].examine());
        let examined = join_all((0..self.nodes.len()).map(examine)).await;
        let mut findings = Vec::new();
        for (index, (passport, examined)) in passports.iter().zip(examined).enumerate() {
            let node = self.nodes[index].address();
            match (passport, examined) {
                (Ok(passport), Ok(examined)) => {
                    findings.extend(examined.into_iter().map(|finding| Finding {
                        found: format!("{node}: {}", finding.found),
                        ..finding
                    }));
                    findings.push(vote(node, passport));
                }
                (Err(error), _) => findings.push(unreachable(node, error)),
                (_, Err(error)) => findings.push(unreachable(node, &error)),
            }
        }
        findings.push(self.clocks_apart(&passports));
        // Other libraries set their locks at all nodes too: one that can be reached is enough.
        if let Some(node) = passports.iter().position(Result::is_ok) {
            let strangers = timeout(STRANGERS_MAX, self.nodes[node].strangers()).await;
            findings.extend(strangers.ok().flatten());
        }
        // A second look at their clocks, to see whether they run.
        tokio::time::sleep(2 * STILL_MIN).await;
        self.passports().await;
        findings.extend(self.concern_watch.last().iter().map(Finding::of_server_alert));
        Ok(findings)
    }

    /// Awaits what is found about the nodes, and looks at them when it is time.
    pub(super) async fn server_alerts(self: &Arc<Self>) -> Vec<ServerAlert> {
        loop {
            tokio::select! {
                biased;
                server_alerts = self.concern_watch.news() => return server_alerts,
                () = self.rounds.due() => {
                    // Apart, because whoever awaits this drops it when there is something to do.
                    for node in 0..self.nodes.len() {
                        tokio::spawn(Arc::clone(self).look_at(node));
                    }
                }
            }
        }
    }

    async fn look_at(self: Arc<Self>, index: usize) {
        let node = &self.nodes[index];
        match self.in_time(index, node.began_to_evict()).await {
            Ok(Some(policy)) => {
                self.concern_watch.tell(node.address(), AlertKind::Eviction { policy });
            }
            Ok(None) => {}
            // It may be a right that is missing. What cannot be known is not told.
            Err(error) => tracing::debug!(%error, "a node did not tell its eviction policy"),
        }
    }

    fn clocks_apart(&self, passports: &[Result<Passport>]) -> Finding {
        // They are asked at once, so that what lies between their answers is small.
        let times = || passports.iter().flatten().map(|passport| passport.time);
        let apart = times().max().unwrap_or(0) - times().min().unwrap_or(0);
        let apart = Duration::from_micros(apart);
        let good = apart <= CLOCKS_APART_MAX;
        Finding {
            level: if good { Level::Good } else { Level::Warning },
            subject: "clocks",
            found: format!("the nodes' clocks are {apart:.0?} apart"),
            advice: match good {
                true => String::new(),
                false => "an acquire takes an exchange more; keep them in step by NTP".into(),
            },
        }
    }
}

fn unreachable(node: &str, error: &Error) -> Finding {
    Finding {
        level: Level::Bad,
        subject: "node",
        found: format!("{node}: {}", cause(error)),
        advice: "start it, or see to the network; a majority must answer".into(),
    }
}

fn vote(node: &str, passport: &Passport) -> Finding {
    if passport.is_admitted() {
        let found = format!("{node}: votes");
        return Finding { level: Level::Good, subject: "vote", found, advice: String::new() };
    }
    Finding {
        level: Level::Warning,
        subject: "vote",
        found: format!("{node}: on probation: it started empty, and does not vote yet"),
        advice: "it votes again when a client has watched it for the longest ttl; with \
                 `appendonly yes` and `appendfsync always` it would vote at once"
            .into(),
    }
}

fn is_wanted(line: &LineView, query: &Query) -> bool {
    match &query.select {
        Select::Holder(holder) => {
            let is_theirs = |claim: &ClaimView| claim.holder.id() == *holder;
            line.held.iter().chain(&line.waiting).any(is_theirs)
        }
        _ => true,
    }
}

fn is_by_holder(query: &Query) -> bool {
    matches!(query.select, Select::Holder(_))
}

impl Inner {
    /// The name, if some node cannot read its record.
    fn broken(&self, name: &Name, views: &[NodeView]) -> Option<BrokenLine> {
        let count = views.iter().filter(|view| view.broken).count();
        let nodes = self.nodes.len();
        let cause = format!(
            "at {count} of {nodes} nodes its keys hold something that leasehold never writes"
        );
        (count > 0).then(|| BrokenLine { name: name.clone(), cause })
    }

    /// One line out of what several nodes have of it; `None` if no majority can have anybody in
    /// it: what only few nodes have is on its way in or out.
    fn together(&self, name: Name, views: Vec<NodeView>, answered: usize) -> Option<LineView> {
        // What a node cannot read may be anything, as what a silent one has.
        let broken = views.iter().filter(|view| view.broken).count();
        let silent = self.nodes.len() - answered + broken;
        let foreign = views.iter().filter_map(|view| view.foreign);
        let foreign = foreign.clone().max().filter(|_| foreign.count() + silent >= self.majority());
        let claims = views.into_iter().flat_map(|view| view.claims).collect();
        let mut claims = without_given_back(claims, silent, self.majority());
        claims.sort_by(|one, other| {
            (one.rank, one.token.as_bytes()).cmp(&(other.rank, other.token.as_bytes()))
        });
        let (held, holds) = most_held(&claims);
        let held = held.filter(|_| holds + silent >= self.majority());
        let mut line = LineView { name, kind: Kind::Lock, held: Vec::new(), waiting: Vec::new() };
        line.held.extend(foreign.map(foreign_view));
        for of_it in claims.chunk_by(|one, other| one.token == other.token) {
            if held == Some(of_it[0].token) && foreign.is_none() {
                line.held.push(lease(of_it, self.majority()));
            } else if of_it.len() + silent >= self.majority() {
                line.waiting.push(view(&of_it[0]));
            }
        }
        (!line.held.is_empty() || !line.waiting.is_empty()).then_some(line)
    }
}

/// A lock of somebody else's library.
fn foreign_view(remaining: Duration) -> ClaimView {
    ClaimView {
        holder: Holder::known(HolderId(0), FOREIGN).unwrap_or_else(|_| Holder::fresh()),
        fence: Fence::from(0),
        mode: Mode::Exclusive,
        age: Duration::ZERO,
        remaining,
        note: Note::default(),
        closed: false,
    }
}

/// A lease that keeps its name closed has another token since it was given back. This leaves out
/// what nodes have that did not hear of that, if a majority may have heard.
fn without_given_back(
    mut claims: Vec<NodeClaim>,
    silent: usize,
    majority: usize,
) -> Vec<NodeClaim> {
    let closed = claims.iter().filter(|claim| claim.token.is_retired());
    let closed: Vec<u64> = closed.filter_map(|claim| claim.vote).collect();
    let is_given_back = |vote: u64| {
        let heard = closed.iter().filter(|other| **other == vote).count();
        heard > 0 && heard + silent >= majority
    };
    claims.retain(|claim| claim.token.is_retired() || !claim.vote.is_some_and(is_given_back));
    claims
}

/// The claim that holds at most nodes, of several the one with the greatest vote, and at how many.
fn most_held(claims: &[NodeClaim]) -> (Option<Token>, usize) {
    let held = || claims.iter().filter(|claim| claim.vote.is_some());
    let count = |token: Token| held().filter(|claim| claim.token == token).count();
    let most = held().max_by_key(|claim| (count(claim.token), claim.vote));
    most.map_or((None, 0), |claim| (Some(claim.token), count(claim.token)))
}

/// The lease of a claim: its fence is the vote that most nodes have.
fn lease(of_it: &[NodeClaim], majority: usize) -> ClaimView {
    let mut held: Vec<&NodeClaim> = of_it.iter().filter(|claim| claim.vote.is_some()).collect();
    let votes = |vote: Option<u64>| of_it.iter().filter(|claim| claim.vote == vote).count();
    let fence = held.iter().map(|claim| claim.vote).max_by_key(|vote| votes(*vote)).flatten();
    held.sort_by_key(|claim| std::cmp::Reverse(claim.remaining));
    let last = held[majority.min(held.len()) - 1];
    ClaimView { fence: fence.unwrap_or(0).into(), ..view(last) }
}

fn view(claim: &NodeClaim) -> ClaimView {
    ClaimView {
        holder: claim.holder.clone(),
        fence: claim.vote.unwrap_or(0).into(),
        mode: Mode::Exclusive,
        age: claim.age,
        remaining: claim.remaining,
        note: claim.note.clone(),
        closed: claim.token.is_retired(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(token: Token, vote: u64) -> NodeClaim {
        NodeClaim {
            token,
            rank: 1,
            holder: Holder::fresh(),
            note: Note::default(),
            vote: Some(vote),
            age: Duration::ZERO,
            remaining: Duration::from_secs(1),
        }
    }

    #[test]
    fn lease_that_was_given_back_is_not_held_by_the_word_of_a_node_that_did_not_hear() {
        let (old, closed) = (Token::random(), Token::retired());
        let left = |claims: &[(Token, u64)], silent| {
            let claims = claims.iter().map(|(token, vote)| claim(*token, *vote)).collect();
            let left = without_given_back(claims, silent, 2);
            left.iter().map(|claim| claim.token).collect::<Vec<_>>()
        };
        assert_eq!(left(&[(closed, 7), (closed, 7), (old, 7)], 0), [closed, closed]);
        assert_eq!(left(&[(closed, 7), (old, 7)], 1), [closed], "the silent one may have heard");
        let few = [(closed, 7), (old, 7), (old, 7)];
        assert_eq!(left(&few, 0), [closed, old, old], "no majority keeps the name closed");
        assert_eq!(left(&[(closed, 7), (old, 8)], 1), [closed, old], "a later lease stays");
    }
}
