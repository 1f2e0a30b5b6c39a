//! The wait-for graph of some lines: edges, chains and cycles.
//!
//! Pure but for [`gather`], which follows the edges from one line through the store. They lead from
//! a name to the claims in the way, and to the names that their holders wait for. `show` prints the
//! chains as sentences, and `top` draws them as a tree. The client reads lines one after another,
//! so a cycle here is only a hint for people. The library's own search decides.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;

use leasehold::claim::HolderId;
use leasehold::engine::{ClaimView, LineView, Query};
use leasehold::{Client, Error, Mode, Name};
use serde::Serialize;

use crate::lines::purpose_words;
use crate::text::escape;

/// The most edges in one chain. Longer chains of waits are rare, and a longer cycle still shows its
/// first steps at each of its names.
pub(crate) const DEPTH_MAX: usize = 8;
/// The most claims to name in one waiter's way; permits may have thousands.
const BEFORE_MAX: usize = 16;
/// The most holders to ask the store about, with an exchange each.
const HOLDERS_MAX: usize = 64;
/// The most lines to read of one holder. A holder that waits in more places would fill the picture.
const LINES_OF_HOLDER_MAX: usize = 64;
/// The most chains to print; a line may have ten thousand waiters.
const CHAINS_MAX: usize = 200;

/// One claim that waits: its line, and its place among those that wait there.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wait<'a> {
    pub(crate) line: &'a LineView,
    pub(crate) place: usize,
}

/// A claim in the way of one that waits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Before<'a> {
    pub(crate) claim: &'a ClaimView,
    /// Whether it holds; else it waits too, further ahead.
    pub(crate) holds: bool,
}

impl<'a> Wait<'a> {
    pub(crate) fn claim(self) -> &'a ClaimView {
        &self.line.waiting[self.place]
    }

    /// How many claims are before it in line.
    pub(crate) fn ahead(self) -> usize {
        self.line.held.len() + self.place
    }

    /// The claims that it waits for: the leases in its way. If only waiting claims are in its way,
    /// the nearest of them. Also returns how many were left out.
    pub(crate) fn in_the_way(self) -> (Vec<Before<'a>>, usize) {
        let own = self.claim().mode;
        let hinders = |claim: &&ClaimView| own != Mode::Shared || claim.mode != Mode::Shared;
        let mut held = self.line.held.iter().filter(hinders);
        let before: Vec<Before<'a>> =
            held.by_ref().take(BEFORE_MAX).map(|claim| Before { claim, holds: true }).collect();
        if before.is_empty() {
            let ahead = self.line.waiting[..self.place].iter().rev().find(hinders);
            return (ahead.map(|claim| Before { claim, holds: false }).into_iter().collect(), 0);
        }
        (before, held.count())
    }

    fn is(self, other: Self) -> bool {
        self.line.name == other.line.name && self.place == other.place
    }
}

/// The waits in some lines, by holder.
#[derive(Debug, Default)]
pub(crate) struct Graph<'a> {
    waits: HashMap<HolderId, Vec<Wait<'a>>>,
}

impl<'a> Graph<'a> {
    pub(crate) fn new(lines: impl IntoIterator<Item = &'a LineView>) -> Self {
        let mut graph = Self::default();
        let mut seen: HashSet<&Name> = HashSet::new();
        for line in lines {
            // Most lines have no waiters, and need no memory here.
            if !line.waiting.is_empty() && seen.insert(&line.name) {
                for (place, claim) in line.waiting.iter().enumerate() {
                    let waits = graph.waits.entry(claim.holder.id()).or_default();
                    waits.push(Wait { line, place });
                }
            }
        }
        graph
    }

    /// The waits of a holder.
    pub(crate) fn waits_of(&self, holder: HolderId) -> &[Wait<'a>] {
        self.waits.get(&holder).map(Vec::as_slice).unwrap_or_default()
    }

    /// The chains that begin in one line: those of its waiters. Without waiters, those of its
    /// holders that wait elsewhere. Also returns how many waiters were left out.
    pub(crate) fn chains(&self, line: &'a LineView) -> (Vec<Chain<'a>>, usize) {
        let mut chains = Vec::new();
        let starts: Vec<Wait<'a>> = match line.waiting.len() {
            0 => {
                let holders = line.held.iter().take(BEFORE_MAX);
                holders.flat_map(|claim| self.waits_of(claim.holder.id())).copied().collect()
            }
            count => (0..count).map(|place| Wait { line, place }).collect(),
        };
        for (told, start) in starts.iter().enumerate() {
            if chains.len() >= CHAINS_MAX {
                return (chains, starts.len() - told);
            }
            self.follow(*start, &mut Vec::new(), &mut chains);
        }
        (chains, 0)
    }

    /// Adds all chains that go on from `path` with `wait`.
    fn follow(&self, wait: Wait<'a>, path: &mut Vec<Wait<'a>>, chains: &mut Vec<Chain<'a>>) {
        path.push(wait);
        let (before, more) = wait.in_the_way();
        let mut ends = Vec::new();
        for one in before {
            let holder = one.claim.holder.id();
            let closes = path.iter().position(|wait| wait.claim().holder.id() == holder);
            let next = self.waits_of(holder);
            if chains.len() >= CHAINS_MAX {
                break;
            } else if let Some(from) = closes {
                let end = End::Cycle { from };
                chains.push(Chain { waits: path.clone(), before: vec![one], more: 0, end });
            } else if next.is_empty() {
                ends.push(one);
            } else if path.len() >= DEPTH_MAX {
                let end = End::Cut;
                chains.push(Chain { waits: path.clone(), before: vec![one], more: 0, end });
            } else {
                for next in next.iter().take(BEFORE_MAX) {
                    self.follow(*next, path, chains);
                }
            }
        }
        // One chain names all holders that do not wait themselves. A waiter that has nothing in
        // its way any more gets a chain too.
        let told = chains.iter().any(|chain| continues(chain, path));
        if chains.len() < CHAINS_MAX && (!ends.is_empty() || !told) {
            chains.push(Chain { waits: path.clone(), before: ends, more, end: End::Free });
        }
        path.pop();
    }

    /// The edges of the chains from one line, each once.
    pub(crate) fn edges(&self, line: &'a LineView) -> Vec<Edge> {
        let (chains, _) = self.chains(line);
        let mut waits: Vec<(Wait<'a>, bool)> = Vec::new();
        for chain in &chains {
            for (step, wait) in chain.waits.iter().enumerate() {
                let in_cycle = matches!(chain.end, End::Cycle { from } if step >= from);
                match waits.iter_mut().find(|(seen, _)| seen.is(*wait)) {
                    Some((_, cycle)) => *cycle |= in_cycle,
                    None => waits.push((*wait, in_cycle)),
                }
            }
        }
        waits.into_iter().map(|(wait, cycle)| Edge::of(wait, cycle)).collect()
    }
}

/// Whether a chain goes on from this path.
fn continues(chain: &Chain<'_>, path: &[Wait<'_>]) -> bool {
    chain.waits.len() >= path.len() && chain.waits.iter().zip(path).all(|(one, two)| one.is(*two))
}

/// Waits in a row: the holder of each next wait blocks the one before it.
#[derive(Debug)]
pub(crate) struct Chain<'a> {
    waits: Vec<Wait<'a>>,
    /// The claims in the way of the last wait.
    before: Vec<Before<'a>>,
    /// How many more of these were left out.
    more: usize,
    end: End,
}

/// How a chain ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// With holders that do not wait.
    Free,
    /// With the holder of the wait at `from`.
    Cycle { from: usize },
    /// It goes on, but is not followed further.
    Cut,
}

impl Chain<'_> {
    /// The chain as a sentence.
    pub(crate) fn sentence(&self) -> String {
        let mut text = String::new();
        for (step, wait) in self.waits.iter().enumerate() {
            match step {
                0 => text.push_str(&quoted(wait.claim())),
                _ => {
                    // This wait's holder is in the way of the one before.
                    let previous = self.waits[step - 1];
                    let holder = wait.claim().holder.id();
                    let (before, _) = previous.in_the_way();
                    let found = before.into_iter().find(|one| one.claim.holder.id() == holder);
                    text.push_str(&found.map(named).unwrap_or_default());
                    text.push_str(", who");
                }
            }
            text.push_str(&format!(" waits for `{}`", escape(wait.line.name.as_str())));
            text.push_str(if step + 1 < self.waits.len() { ", " } else { "" });
        }
        if !self.before.is_empty() {
            let names: Vec<String> = self.before.iter().map(|one| named(*one)).collect();
            text.push_str(&format!(", {}", names.join(", ")));
        }
        if self.more > 0 {
            text.push_str(&format!(" and {} more", self.more));
        }
        match self.end {
            End::Free => {}
            End::Cycle { .. } => text.push_str(": a cycle"),
            End::Cut => text.push_str(", who waits too"),
        }
        text
    }
}

fn quoted(claim: &ClaimView) -> String {
    format!("`{}`", escape(claim.holder.label()))
}

fn named(before: Before<'_>) -> String {
    let word = if before.holds { "held by" } else { "behind" };
    let (holder, purpose) = (quoted(before.claim), purpose_words(before.claim));
    match fence(before.claim) {
        Some(fence) => format!("{word} {holder} (fence {fence}){purpose}"),
        None => format!("{word} {holder}{purpose}"),
    }
}

/// The number of a claim; a Redlock has none for claims that wait.
pub(crate) fn fence(claim: &ClaimView) -> Option<String> {
    (claim.fence != 0).then(|| claim.fence.to_string())
}

/// One claim that waits, and the claims in its way, in the contract's form.
#[derive(Debug, Serialize)]
pub(crate) struct Edge {
    name: String,
    holder: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    fence: Option<String>,
    ahead: usize,
    #[serde(rename = "for")]
    what_for: Vec<InTheWay>,
    /// How many more are in its way than `for` names.
    #[serde(skip_serializing_if = "is_zero")]
    more: usize,
    cycle: bool,
}

#[derive(Debug, Serialize)]
struct InTheWay {
    holder: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    fence: Option<String>,
    held: bool,
}

fn is_zero(count: &usize) -> bool {
    *count == 0
}

impl Edge {
    fn of(wait: Wait<'_>, cycle: bool) -> Self {
        let (before, more) = wait.in_the_way();
        let what_for = before.into_iter().map(|one| InTheWay {
            holder: one.claim.holder.label().to_owned(),
            fence: fence(one.claim),
            held: one.holds,
        });
        Self {
            name: wait.line.name.as_str().to_owned(),
            holder: wait.claim().holder.label().to_owned(),
            fence: fence(wait.claim()),
            ahead: wait.ahead(),
            what_for: what_for.collect(),
            more,
            cycle,
        }
    }
}

/// The lines that can be reached from one line, which is the first.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    pub(crate) lines: Vec<LineView>,
    /// Whether no bound left anything out.
    pub(crate) whole: bool,
    /// The store's error, if one stopped the search.
    pub(crate) trouble: Option<Error>,
}

/// Follows the edges from one line through the store, with an exchange for each holder. It asks
/// about at most [`HOLDERS_MAX`], and ends after `time` with the lines found so far. Some stores
/// have no index by holder, and read every line for each of them.
pub(crate) async fn gather(client: &Client, start: LineView, time: Duration) -> Gathered {
    let mut gathered = Gathered { lines: vec![start], whole: true, trouble: None };
    let followed = tokio::time::timeout(time, follow_all(client, &mut gathered)).await;
    match followed {
        Ok(Ok(())) => {}
        Ok(Err(error)) => (gathered.whole, gathered.trouble) = (false, Some(error)),
        Err(_late) => gathered.whole = false,
    }
    gathered
}

async fn follow_all(client: &Client, gathered: &mut Gathered) -> leasehold::Result<()> {
    let mut seen: HashSet<HolderId> = HashSet::new();
    let mut ahead: VecDeque<(HolderId, usize)> = VecDeque::new();
    let mut enqueue = |line: &LineView, depth, ahead: &mut VecDeque<_>| {
        let fresh = concerned(line).filter(|holder| seen.insert(*holder));
        ahead.extend(fresh.map(|holder| (holder, depth)));
    };
    enqueue(&gathered.lines[0], 0, &mut ahead);
    let mut asked = 0;
    while let Some((holder, depth)) = ahead.pop_front() {
        if asked >= HOLDERS_MAX || depth >= DEPTH_MAX {
            gathered.whole = false;
            break;
        }
        asked += 1;
        let query = Query { limit: LINES_OF_HOLDER_MAX, ..Query::holder(holder) };
        let page = client.admin().inspect(&query).await?;
        gathered.whole &= page.next.is_none();
        for line in page.lines {
            let waits = line.waiting.iter().any(|claim| claim.holder.id() == holder);
            let known = gathered.lines.iter().any(|known| known.name == line.name);
            if waits && !known {
                enqueue(&line, depth + 1, &mut ahead);
                gathered.lines.push(line);
            }
        }
    }
    Ok(())
}

/// The holders whose own waits belong to the picture of a line: those of its leases, and of writers
/// that wait in front of readers.
fn concerned(line: &LineView) -> impl Iterator<Item = HolderId> {
    let held = line.held.iter();
    let shared = line.held.iter().all(|claim| claim.mode == Mode::Shared);
    let writers = line.waiting.iter().filter(move |claim| shared && claim.mode != Mode::Shared);
    held.take(BEFORE_MAX).chain(writers.take(BEFORE_MAX)).map(|claim| claim.holder.id())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use leasehold::Holder;
    use leasehold::claim::Note;
    use leasehold::error::Kind;

    /// A claim of the holder with this label, which is its identity too.
    pub(crate) fn claim(label: &str, fence: u64, mode: Mode, seconds: u64) -> ClaimView {
        let id =
            label.bytes().fold(7_u128, |id, byte| id.wrapping_mul(257).wrapping_add(byte.into()));
        ClaimView {
            holder: Holder::known(HolderId(id), label).expect("a good label"),
            fence: fence.into(),
            mode,
            age: Duration::from_secs(seconds),
            remaining: Duration::from_secs(20),
            note: Note::default(),
            closed: false,
        }
    }

    /// An exclusive line: the first label holds, the others wait; fences from 1 on.
    pub(crate) fn line(name: &str, labels: &[&str]) -> LineView {
        let claims = labels.iter().zip(1..);
        let mut held: Vec<ClaimView> =
            claims.map(|(label, fence)| claim(label, fence, Mode::Exclusive, 5)).collect();
        let waiting = held.split_off(1.min(held.len()));
        LineView { name: Name::new(name).expect("a good name"), kind: Kind::Lock, held, waiting }
    }

    fn sentences(lines: &[LineView]) -> Vec<String> {
        let graph = Graph::new(lines);
        graph.chains(&lines[0]).0.iter().map(Chain::sentence).collect()
    }

    #[test]
    fn each_waiter_waits_for_who_holds() {
        let told = sentences(&[line("a", &["w1", "w2", "w3"])]);
        let expected = [
            "`w2` waits for `a`, held by `w1` (fence 1)",
            "`w3` waits for `a`, held by `w1` (fence 1)",
        ];
        assert_eq!(told, expected);
    }

    #[test]
    fn a_holder_that_waits_elsewhere_is_followed() {
        let lines = [line("a", &["w1", "w2"]), line("b", &["w3", "w1"])];
        let expected = "`w2` waits for `a`, held by `w1` (fence 1), \
                        who waits for `b`, held by `w3` (fence 1)";
        assert_eq!(sentences(&lines), [expected]);
    }

    #[test]
    fn a_cycle_is_called_one() {
        let lines = [line("b", &["w1", "w2"]), line("a", &["w2", "w1"])];
        let expected = "`w2` waits for `b`, held by `w1` (fence 1), \
                        who waits for `a`, held by `w2` (fence 1): a cycle";
        assert_eq!(sentences(&lines), [expected]);
        let edges = Graph::new(&lines).edges(&lines[0]);
        let edges: Vec<_> = edges.iter().map(|edge| (edge.name.as_str(), edge.cycle)).collect();
        assert_eq!(edges, [("b", true), ("a", true)]);
    }

    #[test]
    fn waiter_for_a_cycle_is_not_in_it() {
        let lines = [line("c", &["w1", "w9"]), line("b", &["w1", "w2"]), line("a", &["w2", "w1"])];
        let told = sentences(&lines);
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].starts_with("`w9` waits for `c`, held by `w1`"), "{told:?}");
        assert!(told[0].ends_with("held by `w1` (fence 1): a cycle"), "{told:?}");
        let edges = Graph::new(&lines).edges(&lines[0]);
        let cycles: Vec<bool> = edges.iter().map(|edge| edge.cycle).collect();
        assert_eq!(cycles, [false, true, true]);
    }

    #[test]
    fn a_holder_that_waits_for_its_own_name_is_a_cycle() {
        let told = sentences(&[line("a", &["w1", "w1"])]);
        assert_eq!(told, ["`w1` waits for `a`, held by `w1` (fence 1): a cycle"]);
    }

    #[test]
    fn a_reader_waits_for_the_writer_ahead_and_not_for_other_readers() {
        let mut lines = [line("a", &["r1", "w", "r2"])];
        lines[0].held[0].mode = Mode::Shared;
        lines[0].waiting[1].mode = Mode::Shared;
        let told = sentences(&lines);
        assert_eq!(told[0], "`w` waits for `a`, held by `r1` (fence 1)");
        let behind = "`r2` waits for `a`, behind `w` (fence 2), who waits for `a`, \
                      held by `r1` (fence 1)";
        assert_eq!(told[1], behind);
    }

    #[test]
    fn claims_without_a_number_are_told_apart() {
        let mut lines = [line("a", &["r1", "w", "r2"])];
        lines[0].held[0].mode = Mode::Shared;
        lines[0].waiting[1].mode = Mode::Shared;
        lines[0].waiting.iter_mut().for_each(|claim| claim.fence = 0_u64.into());
        let told = sentences(&lines);
        assert!(told[1].starts_with("`r2` waits for `a`, behind `w`, who waits"), "{told:?}");
        let edges = Graph::new(&lines).edges(&lines[0]);
        assert_eq!(edges.len(), 2);
        assert!(edges.iter().all(|edge| edge.fence.is_none()));
    }

    #[test]
    fn without_waiters_the_holders_own_waits_are_told() {
        let lines = [line("a", &["w1"]), line("b", &["w2", "w1"])];
        assert_eq!(sentences(&lines), ["`w1` waits for `b`, held by `w2` (fence 1)"]);
        assert!(sentences(&lines[..1]).is_empty());
    }

    #[test]
    fn many_holders_are_counted_and_not_all_named() {
        let permits = Mode::Permits { take: 1, of: 40 };
        let mut pool = line("pool", &[]);
        pool.held = (0..40).map(|fence| claim(&format!("h{fence}"), fence, permits, 1)).collect();
        pool.waiting = vec![claim("w", 41, permits, 1)];
        let told = sentences(&[pool]);
        assert_eq!(told.len(), 1);
        assert!(told[0].ends_with("held by `h15` (fence 15) and 24 more"), "{told:?}");
    }

    #[test]
    fn a_long_line_and_a_long_chain_have_bounds() {
        let labels: Vec<String> = (0..5_000).map(|number| format!("w{number}")).collect();
        let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
        let long = line("a", &labels);
        let (chains, left_out) = Graph::new([&long]).chains(&long);
        assert_eq!((chains.len(), left_out), (CHAINS_MAX, 4_999 - CHAINS_MAX));
        let lines: Vec<LineView> = (0..20)
            .map(|number| line(&format!("n{number:02}"), &[labels[number + 1], labels[number]]))
            .collect();
        let told = sentences(&lines);
        assert_eq!(told[0].matches("waits for").count(), DEPTH_MAX);
        assert!(told[0].ends_with("who waits too"), "{told:?}");
    }

    #[test]
    fn names_and_labels_cannot_forge_the_sentence() {
        let told = sentences(&[line("a\u{1b}[2J\nb", &["w1", "w2"])]);
        assert!(!told[0].contains('\u{1b}') && !told[0].contains('\n'), "{told:?}");
    }
}
