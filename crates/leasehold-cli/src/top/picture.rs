//! The wait-for picture of one name as a tree. Pure.
//!
//! Below the name stand its holders, then its waiters, in order. Below a holder stand the names
//! that it waits for, below them the claims in its way, and so on. A holder that comes up again
//! further down closes a cycle.

use leasehold::Purpose;
use leasehold::claim::HolderId;
use leasehold::engine::{ClaimView, LineView};

use super::model::Tone;
use crate::duration::human;
use crate::lines::run_word;
use crate::text::{cut, escape};
use crate::waits::{Before, DEPTH_MAX, Graph, Wait, fence};

/// The most lines of a picture: more than a person reads.
const BRANCHES_MAX: usize = 200;
/// The most waiting claims to draw.
const WAITING_MAX: usize = 100;
/// The most holders to draw, with their own waits.
const HELD_MAX: usize = 64;
/// The columns for a note.
const NOTE_WIDTH: usize = 60;

/// One line of the picture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Branch {
    pub(crate) text: String,
    pub(crate) tone: Tone,
}

/// A node before it is drawn.
#[derive(Debug)]
struct Node {
    text: String,
    tone: Tone,
    below: Vec<Node>,
}

impl Node {
    fn leaf(text: String, tone: Tone) -> Self {
        Self { text, tone, below: Vec::new() }
    }
}

/// Draws the picture of one line.
pub(crate) fn draw(graph: &Graph<'_>, line: &LineView) -> Vec<Branch> {
    let mut room = BRANCHES_MAX;
    let mut nodes = Vec::new();
    for claim in line.held.iter().take(HELD_MAX) {
        let mut path = vec![claim.holder.id()];
        let below = waits_of(graph, claim.holder.id(), &mut path, &mut room);
        nodes.push(Node { text: held(claim), tone: Tone::Plain, below });
    }
    left_out(&mut nodes, line.held.len(), HELD_MAX, "hold it");
    for (place, claim) in line.waiting.iter().enumerate().take(WAITING_MAX) {
        let tone = Tone::of_wait(Some(claim.age));
        nodes.push(Node::leaf(waiting(place, claim) + tone.mark(), tone));
    }
    left_out(&mut nodes, line.waiting.len(), WAITING_MAX, "wait");
    let mut branches = Vec::new();
    flatten(&nodes, "", &mut branches);
    branches
}

fn left_out(nodes: &mut Vec<Node>, count: usize, limit: usize, what: &str) {
    if count > limit {
        nodes.push(Node::leaf(format!("… {} more {what}", count - limit), Tone::Quiet));
    }
}

/// The waits of a holder, with the claims in its way.
fn waits_of(
    graph: &Graph<'_>,
    holder: HolderId,
    path: &mut Vec<HolderId>,
    room: &mut usize,
) -> Vec<Node> {
    let mut nodes = Vec::new();
    for wait in graph.waits_of(holder) {
        if *room == 0 {
            break;
        }
        *room -= 1;
        let age = wait.claim().age;
        let tone = Tone::of_wait(Some(age));
        let name = escape(wait.line.name.as_str());
        let text = format!("waits for {name}  {}{}", human(age), tone.mark());
        nodes.push(Node { text, tone, below: in_the_way(graph, *wait, path, room) });
    }
    nodes
}

fn in_the_way(
    graph: &Graph<'_>,
    wait: Wait<'_>,
    path: &mut Vec<HolderId>,
    room: &mut usize,
) -> Vec<Node> {
    let (before, more) = wait.in_the_way();
    let count = before.len() + more;
    let mut nodes = Vec::new();
    for one in before {
        if *room == 0 {
            break;
        }
        *room -= 1;
        nodes.push(hindrance(graph, one, path, room));
    }
    let drawn = nodes.len();
    left_out(&mut nodes, count, drawn, "are in its way");
    nodes
}

/// A claim in the way, with its holder's own waits, unless it closes a cycle.
fn hindrance(
    graph: &Graph<'_>,
    one: Before<'_>,
    path: &mut Vec<HolderId>,
    room: &mut usize,
) -> Node {
    let holder = one.claim.holder.id();
    let text = match one.holds {
        true => held(one.claim),
        false => format!("behind {}", claim_text(one.claim)),
    };
    if path.contains(&holder) {
        return Node::leaf(format!("{text}  <- a cycle"), Tone::Alarm);
    }
    if path.len() >= DEPTH_MAX {
        let goes_on = if graph.waits_of(holder).is_empty() { "" } else { "  …" };
        return Node::leaf(text + goes_on, Tone::Plain);
    }
    path.push(holder);
    let below = waits_of(graph, holder, path, room);
    path.pop();
    Node { text, tone: Tone::Plain, below }
}

fn held(claim: &ClaimView) -> String {
    let (age, left) = (human(claim.age), human(claim.remaining));
    let note = note(claim);
    let holder = escape(claim.holder.label());
    match claim.purpose() {
        Purpose::Rate => return format!("spent by {holder}  {age} ago, back in {left}"),
        Purpose::Once(state) if claim.purpose().is_past() => {
            let word = run_word(&state);
            return format!("ran by {holder}  {age} ago ({word}), the period ends in {left}");
        }
        _ => {}
    }
    let fence = fence(claim).unwrap_or_else(|| "?".to_owned());
    let age = if claim.is_foreign() { "?".to_owned() } else { age };
    format!("held by {holder}  fence {fence}  for {age}, {left} left{note}")
}

fn waiting(place: usize, claim: &ClaimView) -> String {
    format!("waits {}  {}{}", place + 1, claim_text(claim), note(claim))
}

fn claim_text(claim: &ClaimView) -> String {
    let fence = fence(claim).map(|fence| format!("  fence {fence}")).unwrap_or_default();
    format!("{}{fence}  since {}", escape(claim.holder.label()), human(claim.age))
}

fn note(claim: &ClaimView) -> String {
    match claim.note.text() {
        "" => String::new(),
        note => format!("  \"{}\"", cut(&escape(note), NOTE_WIDTH)),
    }
}

/// Draws the branches of a tree, each with the lines of those above it.
fn flatten(nodes: &[Node], above: &str, branches: &mut Vec<Branch>) {
    for (index, node) in nodes.iter().enumerate() {
        let last = index + 1 == nodes.len();
        let (branch, trunk) = if last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
        branches.push(Branch { text: format!("{above}{branch}{}", node.text), tone: node.tone });
        flatten(&node.below, &format!("{above}{trunk}"), branches);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::waits::tests::{claim, line};
    use leasehold::Mode;
    use leasehold::claim::Note;
    use std::time::Duration;

    fn texts(lines: &[LineView]) -> Vec<String> {
        let graph = Graph::new(lines);
        draw(&graph, &lines[0]).into_iter().map(|branch| branch.text).collect()
    }

    #[test]
    fn holders_come_first_then_who_waits_in_order() {
        let mut one = line("a", &["w1", "w2", "w3"]);
        one.held[0].note = Note::new("release 42").expect("a note");
        let expected = [
            "├─ held by w1  fence 1  for 5s, 20s left  \"release 42\"",
            "├─ waits 1  w2  fence 2  since 5s",
            "└─ waits 2  w3  fence 3  since 5s",
        ];
        assert_eq!(texts(&[one]), expected);
    }

    #[test]
    fn waits_of_a_holder_stand_below_it() {
        let lines = [line("a", &["w1", "w2"]), line("b", &["w3", "w1"]), line("c", &["w4", "w3"])];
        let expected = [
            "├─ held by w1  fence 1  for 5s, 20s left",
            "│  └─ waits for b  5s",
            "│     └─ held by w3  fence 1  for 5s, 20s left",
            "│        └─ waits for c  5s",
            "│           └─ held by w4  fence 1  for 5s, 20s left",
            "└─ waits 1  w2  fence 2  since 5s",
        ];
        assert_eq!(texts(&lines), expected);
    }

    #[test]
    fn a_cycle_is_marked_and_ends_the_branch() {
        let lines = [line("a", &["w1", "w2"]), line("b", &["w2", "w1"])];
        let graph = Graph::new(&lines);
        let branches = draw(&graph, &lines[0]);
        let texts: Vec<&str> = branches.iter().map(|branch| branch.text.as_str()).collect();
        let expected = [
            "├─ held by w1  fence 1  for 5s, 20s left",
            "│  └─ waits for b  5s",
            "│     └─ held by w2  fence 1  for 5s, 20s left",
            "│        └─ waits for a  5s",
            "│           └─ held by w1  fence 1  for 5s, 20s left  <- a cycle",
            "└─ waits 1  w2  fence 2  since 5s",
        ];
        assert_eq!(texts, expected);
        assert_eq!(branches[4].tone, Tone::Alarm);
    }

    #[test]
    fn long_waits_are_marked_without_colour() {
        let mut one = line("a", &["w1", "w2", "w3"]);
        one.waiting[0].age = Duration::from_secs(90);
        one.waiting[1].age = Duration::from_secs(12);
        let drawn = texts(&[one]);
        assert!(drawn[1].ends_with("since 1m30s !!"), "{drawn:?}");
        assert!(drawn[2].ends_with("since 12s !"), "{drawn:?}");
    }

    #[test]
    fn a_picture_has_bounds() {
        let labels: Vec<String> = (0..3_000).map(|number| format!("w{number}")).collect();
        let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
        let drawn = texts(&[line("a", &labels)]);
        assert_eq!(drawn.len(), 1 + WAITING_MAX + 1);
        assert_eq!(drawn[drawn.len() - 1], format!("└─ … {} more wait", 2_999 - WAITING_MAX));
        // Each holder waits for all others: each way down is another one.
        let crowd = &labels[..12];
        let shared = |name: String, waiter: usize| {
            let mut one = line(&name, &[]);
            let permits = Mode::Permits { take: 1, of: 12 };
            one.held = crowd.iter().map(|label| claim(label, 1, permits, 1)).collect();
            one.waiting = vec![claim(crowd[waiter], 2, permits, 1)];
            one
        };
        let lines: Vec<LineView> = (0..12).map(|n| shared(format!("n{n:02}"), n)).collect();
        assert!(texts(&lines).len() <= 2 * BRANCHES_MAX);
    }

    #[test]
    fn names_labels_and_notes_cannot_move_the_cursor() {
        let mut lines = [line("a", &["w1"]), line("b\u{1b}[2J", &["w2", "w1"])];
        lines[0].held[0].note = Note::new("x\u{7}\ny").expect("a note");
        let drawn = texts(&lines).join("|");
        assert!(drawn.contains("x\\u{7}\\ny") && drawn.contains("b\\u{1b}[2J"), "{drawn}");
        assert!(!drawn.chars().any(char::is_control), "{drawn:?}");
    }
}
