//! The model of `top`: rows from lines, their order, the filter, the chosen name.
//!
//! Pure: readings come in as values, and the present instant as an argument. `view.rs` draws the
//! model, and `reader.rs` reads the store.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::engine::{BrokenLine, ClaimView, LineView, Totals};
use leasehold::error::Kind;
use leasehold::{Name, Purpose, RunState};

use super::picture::{self, Branch};
use super::rates::Rates;
use crate::duration::human;
use crate::lines;
use crate::text::escape;
use crate::waits::Graph;

/// Longer waits deserve a look.
pub(crate) const LONG: Duration = Duration::from_secs(10);
/// Longer waits deserve a call.
pub(crate) const VERY_LONG: Duration = Duration::from_secs(60);

/// The longest filter: as long as a name may be.
const FILTER_MAX: usize = 512;

/// One reading of the store.
#[derive(Debug)]
pub(crate) struct Reading {
    pub(crate) at: Instant,
    /// In name order.
    pub(crate) lines: Vec<LineView>,
    /// Names whose records cannot be read.
    pub(crate) broken: Vec<BrokenLine>,
    /// Whether there are more names than these.
    pub(crate) more: bool,
    /// The lines that can be reached from the chosen one, if `lines` has not all lines.
    pub(crate) around: Vec<LineView>,
    /// Set if the engine can count, and the view shows all names.
    pub(crate) totals: Option<Totals>,
    pub(crate) rates: Option<Rates>,
}

/// A failure to read the store.
#[derive(Debug, Clone)]
pub(crate) struct Trouble {
    pub(crate) message: String,
    pub(crate) since: Instant,
}

/// How much a line matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Tone {
    Quiet,
    Plain,
    Long,
    Alarm,
}

impl Tone {
    pub(crate) fn of_wait(wait: Option<Duration>) -> Self {
        match wait {
            Some(wait) if wait >= VERY_LONG => Tone::Alarm,
            Some(wait) if wait >= LONG => Tone::Long,
            _ => Tone::Plain,
        }
    }

    /// The mark that shows the tone without colours.
    pub(crate) fn mark(self) -> &'static str {
        match self {
            Tone::Quiet | Tone::Plain => "",
            Tone::Long => " !",
            Tone::Alarm => " !!",
        }
    }
}

/// The columns of the table.
pub(crate) const COLUMNS: [&str; 8] =
    ["NAME", "MODE", "HELD BY", "HELD FOR", "LEFT", "FENCE", "WAITING", "LONGEST"];

/// One name in the table.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub(crate) name: Name,
    /// By the columns.
    pub(crate) cells: [String; 8],
    pub(crate) tone: Tone,
    /// The index of its line in the reading.
    pub(crate) line: usize,
    /// The keys for sorting.
    waiting: usize,
    longest: Option<Duration>,
    held_for: Option<Duration>,
    left: Option<Duration>,
}

impl Row {
    fn of((index, line): (usize, &LineView)) -> Self {
        // No work runs under claims that are past.
        let (past, held): (Vec<_>, Vec<_>) =
            line.held.iter().partition(|claim| claim.purpose().is_past());
        let first = held.first().copied();
        let longest = line.waiting.iter().map(|claim| claim.age).max();
        let held_by = match held.as_slice() {
            [] => String::new(),
            [one] => escape(one.holder.label()),
            [one, others @ ..] => format!("{} +{}", escape(one.holder.label()), others.len()),
        };
        let span = |span: Option<Duration>| span.map(human).unwrap_or_default();
        let held_for = first.filter(|claim| !claim.is_foreign()).map(|claim| claim.age);
        let soonest = past.iter().map(|claim| claim.remaining).min();
        let left = first.map(|claim| claim.remaining).or(soonest);
        let unknown = |known: Option<String>| {
            let said = known.or_else(|| first.map(|_| "?".to_owned()));
            said.unwrap_or_default()
        };
        let tone = Tone::of_wait(longest);
        let cells = [
            escape(line.name.as_str()),
            mode(line),
            held_by,
            unknown(held_for.map(human)),
            span(left),
            unknown(first.and_then(lines::known_fence).map(|fence| fence.to_string())),
            match line.waiting.len() {
                0 => String::new(),
                count => count.to_string(),
            },
            span(longest) + tone.mark(),
        ];
        let (name, waiting) = (line.name.clone(), line.waiting.len());
        Self { name, cells, tone, line: index, waiting, longest, held_for, left }
    }
}

/// `permits k of N` counts the taken permits, `rate k of N` the spent units.
fn mode(line: &LineView) -> String {
    let purpose = line.held.first().map(ClaimView::purpose);
    match (purpose, line.kind) {
        (Some(Purpose::Once(RunState::Running)), _) => "once".to_owned(),
        (Some(Purpose::Once(state)), _) => format!("once, {}", lines::run_word(&state)),
        (Some(Purpose::Rate), Kind::Permits { of }) => format!("rate {} of {of}", units(line)),
        (_, Kind::Permits { of }) => format!("permits {} of {of}", units(line)),
        _ => lines::mode(line).to_owned(),
    }
}

fn units(line: &LineView) -> u64 {
    line.held.iter().map(|claim| u64::from(claim.mode.units())).sum()
}

/// How many of a line's claims have no work under them any more.
fn past(line: &LineView) -> usize {
    line.held.iter().filter(|claim| claim.purpose().is_past()).count()
}

/// The order of the rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sort {
    Contention,
    HeldFor,
    Left,
    Name,
}

impl Sort {
    fn next(self) -> Self {
        match self {
            Sort::Contention => Sort::HeldFor,
            Sort::HeldFor => Sort::Left,
            Sort::Left => Sort::Name,
            Sort::Name => Sort::Contention,
        }
    }

    pub(crate) fn word(self) -> &'static str {
        match self {
            Sort::Contention => "contention",
            Sort::HeldFor => "held for",
            Sort::Left => "left",
            Sort::Name => "name",
        }
    }

    /// Sorts rows from name order into this order; equal rows stay in name order.
    fn apply(self, rows: &mut [Row]) {
        match self {
            Sort::Contention => rows.sort_by_key(|row| Reverse((row.waiting, row.longest))),
            Sort::HeldFor => rows.sort_by_key(|row| Reverse(row.held_for)),
            Sort::Left => rows.sort_by_key(|row| row.left.unwrap_or(Duration::MAX)),
            Sort::Name => {}
        }
    }
}

/// The action of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    Quit,
    Suspend,
    Redraw,
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
    Picture,
    PictureUp,
    PictureDown,
    Filter,
    Type(char),
    Erase,
    EraseAll,
    Accept,
    Cancel,
    Sort,
    Pause,
    ReadNow,
    Help,
}

/// An order to the reader.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Wish {
    pub(crate) paused: bool,
    /// Goes up each time the user asks to read at once.
    pub(crate) asked: u64,
    pub(crate) chosen: Option<Name>,
}

/// Everything on the screen.
#[derive(Debug)]
pub(crate) struct Model {
    pub(crate) store: String,
    pub(crate) engine: &'static str,
    /// The beginning of all names to show, if not all are wanted.
    pub(crate) prefix: Option<String>,
    pub(crate) interval: Duration,
    pub(crate) reading: Option<Arc<Reading>>,
    pub(crate) trouble: Option<Trouble>,
    /// Sorted and filtered.
    pub(crate) rows: Vec<Row>,
    /// How many characters the widest cell of each column has.
    pub(crate) widths: [usize; 8],
    /// The wait-for picture of the chosen name.
    pub(crate) picture: Vec<Branch>,
    pub(crate) sort: Sort,
    pub(crate) filter: String,
    /// The filter before the present typing; `None` while the user does not type one.
    pub(crate) typing: Option<String>,
    pub(crate) with_picture: bool,
    /// How many lines of the picture are scrolled out at its top.
    pub(crate) scroll: usize,
    pub(crate) help: bool,
    /// How many rows the table had when it was last drawn.
    pub(crate) page: usize,
    /// `None` always chooses the first row.
    chosen: Option<Name>,
    /// The index of the chosen row, which stays chosen if its name is gone.
    at: usize,
    paused: bool,
    asked: u64,
}

impl Model {
    pub(crate) fn new(store: String, engine: &'static str, interval: Duration) -> Self {
        Self {
            store,
            engine,
            prefix: None,
            interval,
            reading: None,
            trouble: None,
            rows: Vec::new(),
            widths: [0; 8],
            picture: Vec::new(),
            sort: Sort::Contention,
            filter: String::new(),
            typing: None,
            with_picture: true,
            scroll: 0,
            help: false,
            page: 1,
            chosen: None,
            at: 0,
            paused: false,
            asked: 0,
        }
    }

    /// Takes the last reading.
    pub(crate) fn hear(&mut self, reading: Option<Arc<Reading>>, trouble: Option<Trouble>) {
        self.reading = reading;
        self.trouble = trouble;
        self.arrange();
    }

    /// Does the action of a key. The caller ends, stops and redraws.
    pub(crate) fn act(&mut self, action: Action) {
        let last = self.rows.len().saturating_sub(1);
        match action {
            Action::Quit | Action::Suspend | Action::Redraw => {}
            Action::Up => self.choose(self.at.saturating_sub(1)),
            Action::Down => self.choose((self.at + 1).min(last)),
            Action::PageUp => self.choose(self.at.saturating_sub(self.page.max(1))),
            Action::PageDown => self.choose((self.at + self.page.max(1)).min(last)),
            Action::Home => self.choose(0),
            Action::End => self.choose(last),
            Action::Picture => self.with_picture = !self.with_picture,
            Action::PictureUp => self.scroll = self.scroll.saturating_sub(1),
            Action::PictureDown => {
                self.scroll = (self.scroll + 1).min(self.picture.len().saturating_sub(1));
            }
            Action::Sort => {
                self.sort = self.sort.next();
                self.arrange();
            }
            Action::Pause => self.paused = !self.paused,
            Action::ReadNow => self.asked += 1,
            Action::Help => self.help = !self.help,
            Action::Filter => self.typing = Some(self.filter.clone()),
            Action::Accept => self.typing = None,
            Action::Type(_) | Action::Erase | Action::EraseAll | Action::Cancel => {
                self.edit(action)
            }
        }
    }

    fn edit(&mut self, action: Action) {
        match action {
            Action::Type(c) if self.filter.len() < FILTER_MAX => self.filter.push(c),
            Action::Erase => {
                self.filter.pop();
            }
            Action::EraseAll => self.filter.clear(),
            Action::Cancel => self.filter = self.typing.take().unwrap_or_default(),
            _ => {}
        }
        self.arrange();
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.paused
    }

    /// The order to the reader.
    pub(crate) fn wish(&self) -> Wish {
        let chosen = self.chosen_row().map(|row| row.name.clone());
        Wish { paused: self.paused, asked: self.asked, chosen }
    }

    /// The index of the chosen row.
    pub(crate) fn chosen_at(&self) -> Option<usize> {
        (!self.rows.is_empty()).then_some(self.at)
    }

    pub(crate) fn chosen_row(&self) -> Option<&Row> {
        self.rows.get(self.at)
    }

    /// How many names the reading has, and whether there are more.
    pub(crate) fn names(&self) -> (usize, bool) {
        self.reading.as_ref().map_or((0, false), |reading| (reading.lines.len(), reading.more))
    }

    /// How many leases and waiting claims there are: by the store's own count, else by the
    /// reading. Claims that are past do not count.
    pub(crate) fn active_and_waiting(&self) -> (u64, u64) {
        let Some(reading) = &self.reading else { return (0, 0) };
        let sum =
            |count: fn(&LineView) -> usize| reading.lines.iter().map(count).sum::<usize>() as u64;
        let (held, waiting) = match reading.totals {
            Some(totals) => (totals.active, totals.waiting),
            None => (sum(|line| line.held.len()), sum(|line| line.waiting.len())),
        };
        (held.saturating_sub(sum(past)), waiting)
    }

    fn choose(&mut self, at: usize) {
        self.at = at;
        self.scroll = 0;
        // Chooses the first row itself and not its name: the most contended name stays in view.
        self.chosen = match at {
            0 => None,
            _ => self.chosen_row().map(|row| row.name.clone()),
        };
        self.draw_picture();
    }

    /// Makes new rows, and finds the chosen one among them.
    fn arrange(&mut self) {
        let Some(reading) = &self.reading else { return };
        let lines = reading.lines.iter().enumerate();
        let shown = lines.filter(|(_, line)| admits(&self.filter, &line.name));
        self.rows = shown.map(Row::of).collect();
        self.sort.apply(&mut self.rows);
        self.widths = COLUMNS.map(str::len);
        for row in &self.rows {
            for (width, cell) in self.widths.iter_mut().zip(&row.cells) {
                *width = (*width).max(crate::text::width(cell));
            }
        }
        self.at = match &self.chosen {
            None => 0,
            Some(name) => {
                let found = self.rows.iter().position(|row| row.name == *name);
                found.unwrap_or_else(|| self.at.min(self.rows.len().saturating_sub(1)))
            }
        };
        self.draw_picture();
    }

    fn draw_picture(&mut self) {
        self.picture = match (&self.reading, self.rows.get(self.at)) {
            (Some(reading), Some(row)) => picture_of(reading, &reading.lines[row.line]),
            _ => Vec::new(),
        };
        self.scroll = self.scroll.min(self.picture.len().saturating_sub(1));
    }
}

/// The wait-for picture of one name, as far as the reading goes.
fn picture_of(reading: &Reading, line: &LineView) -> Vec<Branch> {
    picture::draw(&Graph::new(reading.lines.iter().chain(&reading.around)), line)
}

/// Whether a name passes the filter: part of it, or with `^` its beginning.
fn admits(filter: &str, name: &Name) -> bool {
    match filter.strip_prefix('^') {
        Some(prefix) => name.as_str().starts_with(prefix),
        None => name.as_str().contains(filter),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::waits::tests::{claim, line};
    use leasehold::Mode;

    pub(crate) fn reading(mut lines: Vec<LineView>) -> Arc<Reading> {
        lines.sort_by(|one, two| one.name.cmp(&two.name));
        Arc::new(Reading {
            at: Instant::now(),
            lines,
            broken: Vec::new(),
            more: false,
            around: Vec::new(),
            totals: None,
            rates: None,
        })
    }

    pub(crate) fn model(lines: Vec<LineView>) -> Model {
        let mut model = Model::new("memory:".to_owned(), "memory", Duration::from_secs(1));
        model.hear(Some(reading(lines)), None);
        model
    }

    fn names(model: &Model) -> Vec<&str> {
        model.rows.iter().map(|row| row.name.as_str()).collect()
    }

    fn chosen(model: &Model) -> &str {
        model.chosen_row().map(|row| row.name.as_str()).unwrap_or_default()
    }

    fn waited(name: &str, waiters: usize, seconds: u64) -> LineView {
        let mut line = line(name, &["h", "w1", "w2", "w3"][..waiters + 1]);
        for claim in &mut line.waiting {
            claim.age = Duration::from_secs(seconds);
        }
        line
    }

    #[test]
    fn the_most_contended_comes_first_then_the_oldest_wait_then_the_name() {
        let lines = vec![
            waited("calm-b", 0, 0),
            waited("calm-a", 0, 0),
            waited("young", 1, 3),
            waited("old", 1, 30),
            waited("crowd", 3, 1),
        ];
        let mut model = model(lines);
        assert_eq!(names(&model), ["crowd", "old", "young", "calm-a", "calm-b"]);
        for _ in 0..3 {
            model.act(Action::Sort);
        }
        assert_eq!(model.sort, Sort::Name);
        assert_eq!(names(&model), ["calm-a", "calm-b", "crowd", "old", "young"]);
        model.act(Action::Sort);
        assert_eq!(model.sort, Sort::Contention);
    }

    #[test]
    fn a_row_tells_what_an_operator_asks_first() {
        let mut crowd = waited("crowd", 2, 75);
        crowd.held[0].fence = 42_u64.into();
        let model = model(vec![crowd]);
        let cells = ["crowd", "exclusive", "h", "5s", "20s", "42", "2", "1m15s !!"];
        assert_eq!(model.rows[0].cells, cells);
        assert_eq!(model.rows[0].tone, Tone::Alarm);
    }

    #[test]
    fn permits_say_how_many_are_taken_and_further_holders_are_counted() {
        let mut pool = line("pool", &[]);
        let permits = |take| Mode::Permits { take, of: 4 };
        pool.kind = Kind::Permits { of: 4 };
        pool.held = vec![claim("a", 1, permits(2), 9), claim("b", 2, permits(1), 3)];
        let model = model(vec![pool]);
        assert_eq!(model.rows[0].cells[1], "permits 3 of 4");
        assert_eq!(model.rows[0].cells[2], "a +1");
        assert_eq!(model.active_and_waiting(), (2, 0));
    }

    #[test]
    fn lock_of_another_library_shows_no_age_and_no_fence() {
        let mut theirs = line("theirs", &["h"]);
        let unknown = leasehold::claim::HolderId(0);
        theirs.held[0].holder = leasehold::Holder::known(unknown, "theirs").expect("a label");
        theirs.held[0].fence = 0_u64.into();
        let model = model(vec![theirs]);
        assert_eq!(model.rows[0].cells[2..6], ["theirs", "?", "20s", "?"]);
    }

    #[test]
    fn the_choice_stays_with_its_name_and_else_with_its_place() {
        let mut model = model(vec![waited("a", 3, 1), waited("b", 2, 1), waited("c", 1, 1)]);
        assert_eq!(chosen(&model), "a");
        model.act(Action::Down);
        assert_eq!(chosen(&model), "b");
        let again = vec![waited("a", 3, 1), waited("b", 0, 1), waited("c", 1, 1)];
        model.hear(Some(reading(again)), None);
        assert_eq!((chosen(&model), model.chosen_at()), ("b", Some(2)));
        model.hear(Some(reading(vec![waited("a", 3, 1), waited("c", 1, 1)])), None);
        assert_eq!((chosen(&model), model.chosen_at()), ("c", Some(1)));
        model.hear(Some(reading(Vec::new())), None);
        assert_eq!((chosen(&model), model.chosen_at()), ("", None));
    }

    #[test]
    fn most_contended_name_is_chosen_by_default() {
        let mut model = model(vec![waited("a", 2, 1), waited("b", 1, 1)]);
        assert_eq!(chosen(&model), "a");
        model.hear(Some(reading(vec![waited("a", 0, 1), waited("b", 1, 1)])), None);
        assert_eq!(chosen(&model), "b");
    }

    #[test]
    fn moving_stops_at_the_ends() {
        let lines = (0..10).map(|number| line(&format!("n{number}"), &["h"])).collect();
        let mut model = model(lines);
        model.page = 4;
        let mut moved = |action| {
            model.act(action);
            model.chosen_at()
        };
        assert_eq!(moved(Action::Up), Some(0));
        assert_eq!(moved(Action::PageDown), Some(4));
        assert_eq!(moved(Action::End), Some(9));
        assert_eq!(moved(Action::Down), Some(9));
        assert_eq!(moved(Action::PageUp), Some(5));
        assert_eq!(moved(Action::Home), Some(0));
        let mut empty = Model::new(String::new(), "memory", Duration::ZERO);
        for action in [Action::Down, Action::End, Action::PageDown, Action::PictureDown] {
            empty.act(action);
            assert_eq!(empty.chosen_at(), None);
        }
    }

    #[test]
    fn a_filter_is_part_of_a_name_or_its_beginning() {
        let lines = ["job:1", "job:2", "other:job"].map(|name| line(name, &["h"]));
        let mut model = model(lines.to_vec());
        let mut typed = |text: &str| {
            model.act(Action::Filter);
            model.act(Action::EraseAll);
            text.chars().for_each(|c| model.act(Action::Type(c)));
            model.act(Action::Accept);
            model.rows.len()
        };
        assert_eq!(typed("job"), 3);
        assert_eq!(typed("^job"), 2);
        assert_eq!(typed("nothing"), 0);
        model.act(Action::Filter);
        model.act(Action::EraseAll);
        assert_eq!(model.rows.len(), 3);
        model.act(Action::Cancel);
        assert_eq!((model.filter.as_str(), model.rows.len()), ("nothing", 0));
    }

    #[test]
    fn a_failed_reading_leaves_the_picture() {
        let mut model = model(vec![waited("a", 1, 1)]);
        let trouble = Trouble { message: "gone".to_owned(), since: Instant::now() };
        let last = model.reading.clone();
        model.hear(last, Some(trouble));
        assert_eq!(names(&model), ["a"]);
        assert!(!model.picture.is_empty());
    }

    #[test]
    fn wishes_tell_the_reader_what_to_do() {
        let mut model = model(vec![waited("a", 1, 1)]);
        let before = model.wish();
        assert_eq!(before.chosen.as_ref().map(Name::as_str), Some("a"));
        model.act(Action::Pause);
        assert!(model.wish().paused);
        model.act(Action::ReadNow);
        assert_ne!(model.wish().asked, before.asked);
    }
}
