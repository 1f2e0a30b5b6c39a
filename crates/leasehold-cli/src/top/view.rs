//! Draws the model: header, table, picture, keys; and the same once as plain text.
//!
//! The view works at any size. If columns or lines do not fit, it leaves out the least important
//! ones first. Colours only repeat the marks and words.

use std::time::{Duration, Instant};

use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Clear, Paragraph, Widget as _};

use super::model::{COLUMNS, Model, Tone};
use crate::duration::human;
use crate::text::{cut, escape, redact, width as text_width};

/// The order in which columns are left out without room: mode, fence, left, held for, held by,
/// longest. The name and the number of waiters stay.
const DROPPED: [usize; 6] = [1, 5, 4, 3, 2, 7];
/// Columns of numbers.
const RIGHT: [usize; 5] = [3, 4, 5, 6, 7];
/// The name of a lock, and its holder: these share the remaining width.
const NAME: usize = 0;
const HELD_BY: usize = 2;
/// With fewer columns than this a name says little.
const NAME_MIN: usize = 12;
const HELD_BY_MIN: usize = 8;
const GAP: usize = 2;
/// The mark before the chosen row.
const POINTER: &str = "> ";

/// From this height on there is room for totals and for keys.
const HEIGHT_ROOMY: u16 = 8;
/// From this height on there is room for the picture.
const HEIGHT_PICTURE: u16 = 14;

const KEYS: &str = "? help  q quit  arrows move  enter picture  / filter  s sort  p pause  r read";

const HELP: [&str; 16] = [
    "q, Esc, ^C        end",
    "up, down, j, k    move",
    "PgUp, PgDn        move by a page",
    "Home, End, g, G   first, last",
    "Enter             show or hide the picture",
    "J, K              scroll the picture",
    "/                 filter: part of a name, or ^ and its beginning",
    "s                 sort by contention, held for, left, name",
    "p, space          pause; nothing is read meanwhile",
    "r                 read now",
    "^Z                suspend",
    "?, h              this help",
    "",
    "!  waits 10s or longer     !!  waits a minute or longer",
    "<- a cycle: who waits for each other, as far as lines that",
    "are read one after another can tell",
];

/// Whether colours may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Theme {
    pub(crate) colours: bool,
}

impl Theme {
    /// The theme that the environment asks for: <https://no-color.org>.
    pub(crate) fn of_environment() -> Self {
        let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        Self { colours: !unwanted && !dumb }
    }

    fn style(self, tone: Tone) -> Style {
        let colour = |colour| if self.colours { Style::new().fg(colour) } else { Style::new() };
        match tone {
            Tone::Plain => Style::new(),
            Tone::Quiet => colour(Color::DarkGray),
            Tone::Long => colour(Color::Yellow),
            Tone::Alarm => colour(Color::Red).add_modifier(Modifier::BOLD),
        }
    }
}

/// The state that one drawing keeps for the next.
#[derive(Debug)]
pub(crate) struct View {
    theme: Theme,
    /// The first row that was drawn.
    first: usize,
}

/// The parts of the screen, from top to bottom; some may have no height.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Parts {
    title: Rect,
    totals: Rect,
    trouble: Rect,
    table: Rect,
    picture: Rect,
    keys: Rect,
}

fn parts(area: Rect, model: &Model) -> Parts {
    let roomy = area.height >= HEIGHT_ROOMY;
    let (mut top, mut bottom) = (area.y, area.bottom());
    let mut from_top = |wanted: bool| {
        let height = u16::from(wanted && top < bottom);
        top += height;
        Rect { y: top - height, height, ..area }
    };
    let title = from_top(true);
    let totals = from_top(roomy);
    let trouble = from_top(model.trouble.is_some());
    let keys_height = u16::from((roomy || model.typing.is_some()) && bottom - top > 1);
    bottom -= keys_height;
    let keys = Rect { y: bottom, height: keys_height, ..area };
    let with_picture = model.with_picture && area.height >= HEIGHT_PICTURE;
    // Half of what is left, or less if the picture or the table needs less.
    let left = bottom - top;
    let wanted = u16::try_from(model.picture.len() + 1).unwrap_or(u16::MAX);
    let rows = u16::try_from(model.rows.len() + 1).unwrap_or(u16::MAX);
    let picture_height = match with_picture && !model.picture.is_empty() {
        true => wanted.min((left / 2).max(left.saturating_sub(rows))),
        false => 0,
    };
    bottom -= picture_height;
    let picture = Rect { y: bottom, height: picture_height, ..area };
    let table = Rect { y: top, height: bottom - top, ..area };
    Parts { title, totals, trouble, table, picture, keys }
}

impl View {
    pub(crate) fn new(theme: Theme) -> Self {
        Self { theme, first: 0 }
    }

    /// Draws everything, and sets the model's page to the number of rows with room.
    pub(crate) fn draw(&mut self, frame: &mut Frame<'_>, model: &mut Model, now: Instant) {
        let area = frame.area();
        if area.is_empty() {
            return;
        }
        let parts = parts(area, model);
        let buffer = frame.buffer_mut();
        Paragraph::new(self.title(model, now, parts.title.width)).render(parts.title, buffer);
        Paragraph::new(totals(model)).render(parts.totals, buffer);
        if let Some(trouble) = trouble(model, now) {
            let style = self.theme.style(Tone::Alarm);
            Paragraph::new(Line::styled(trouble, style)).render(parts.trouble, buffer);
        }
        self.draw_table(model, parts.table, buffer);
        self.draw_picture(model, parts.picture, buffer);
        Paragraph::new(self.keys(model)).render(parts.keys, buffer);
        model.page = usize::from(parts.table.height.saturating_sub(1)).max(1);
        if model.help {
            self.draw_help(area, buffer);
        }
    }

    /// The store on the left, the age of the reading on the right.
    fn title(&self, model: &Model, now: Instant, width: u16) -> Line<'static> {
        let fresh = freshness(model, now);
        let room = usize::from(width).saturating_sub(text_width(&fresh) + GAP);
        let store = cut(&store(model), room);
        let gap = usize::from(width).saturating_sub(text_width(&store) + text_width(&fresh));
        let bold = Style::new().add_modifier(Modifier::BOLD);
        let tone = if model.is_paused() { Tone::Long } else { Tone::Plain };
        Line::from(vec![
            Span::styled(store, bold),
            Span::raw(" ".repeat(gap)),
            Span::styled(fresh, self.theme.style(tone)),
        ])
    }

    fn draw_table(&mut self, model: &Model, area: Rect, buffer: &mut Buffer) {
        if area.is_empty() {
            return;
        }
        if model.rows.is_empty() {
            let style = self.theme.style(Tone::Quiet);
            return Paragraph::new(Line::styled(nothing(model), style)).render(area, buffer);
        }
        let columns = columns(model, usize::from(area.width).saturating_sub(POINTER.len()));
        let header = Style::new().add_modifier(Modifier::UNDERLINED);
        draw_row("", &COLUMNS, &columns, header, Rect { height: 1, ..area }, buffer);
        let height = usize::from(area.height - 1);
        let chosen = model.chosen_at().unwrap_or(0);
        // The chosen row is always in sight; else the rows stay where they are.
        self.first = self.first.clamp((chosen + 1).saturating_sub(height.max(1)), chosen);
        let rows = model.rows.iter().enumerate().skip(self.first).take(height);
        for (y, (index, row)) in (area.y + 1..).zip(rows) {
            let (pointer, modifier) = match index == chosen {
                true => (POINTER, Modifier::REVERSED),
                false => ("", Modifier::empty()),
            };
            let style = self.theme.style(row.tone).add_modifier(modifier);
            let cells = row.cells.each_ref().map(String::as_str);
            draw_row(pointer, &cells, &columns, style, Rect { y, height: 1, ..area }, buffer);
        }
    }

    fn draw_picture(&self, model: &Model, area: Rect, buffer: &mut Buffer) {
        let (Some(row), false) = (model.chosen_row(), area.is_empty()) else { return };
        let title = format!(" who waits for whom: {} ", row.cells[NAME]);
        let block = Block::new().borders(Borders::TOP).title(title);
        let room = usize::from(block.inner(area).height);
        let scroll = model.scroll.min(model.picture.len().saturating_sub(room));
        let below = model.picture.len().saturating_sub(scroll + room);
        let lines = model
            .picture
            .iter()
            .skip(scroll)
            .take(room)
            .map(|branch| Line::styled(branch.text.as_str(), self.theme.style(branch.tone)));
        let block = match below {
            0 => block,
            _ => block.title(Line::from(format!(" {below} more: J, K ")).right_aligned()),
        };
        Paragraph::new(lines.collect::<Vec<_>>()).block(block).render(area, buffer);
    }

    fn keys(&self, model: &Model) -> Line<'static> {
        if model.typing.is_some() {
            let (shown, all) = (model.rows.len(), model.names().0);
            return Line::from(format!("/{}_  {shown} of {all}", escape(&model.filter)));
        }
        let mut text = String::new();
        if !model.filter.is_empty() {
            let filter = escape(&model.filter);
            text = format!("/{filter}  {} of {}  ", model.rows.len(), model.names().0);
        }
        text.push_str(&format!("by {}  {KEYS}", model.sort.word()));
        Line::styled(text, self.theme.style(Tone::Quiet))
    }

    fn draw_help(&self, area: Rect, buffer: &mut Buffer) {
        let width = area.width.min(66);
        let height = area.height.min(HELP.len() as u16 + 2);
        let (x, y) = ((area.width - width) / 2, (area.height - height) / 2);
        let area = Rect { x: area.x + x, y: area.y + y, width, height };
        Clear.render(area, buffer);
        let block = Block::bordered().title(" keys ");
        let lines: Vec<Line<'_>> = HELP.iter().map(|line| Line::from(*line)).collect();
        Paragraph::new(lines).block(block).render(area, buffer);
    }
}

/// Writes the cells of one row into their columns.
fn draw_row(
    pointer: &str,
    cells: &[&str; 8],
    columns: &[(usize, usize)],
    style: Style,
    area: Rect,
    buffer: &mut Buffer,
) {
    buffer.set_style(area, style);
    buffer.set_stringn(area.x, area.y, pointer, usize::from(area.width), Style::new());
    let mut offset = POINTER.len();
    for (column, width) in columns {
        let text = Span::raw(cut(cells[*column], *width));
        let space = if RIGHT.contains(column) { width.saturating_sub(text.width()) } else { 0 };
        let x = offset + space;
        if x < usize::from(area.width) {
            let room = (width - space).min(usize::from(area.width) - x);
            let x = area.x.saturating_add(u16::try_from(x).unwrap_or(u16::MAX));
            buffer.set_stringn(x, area.y, &text.content, room, Style::new());
        }
        offset += width + GAP;
    }
}

fn store(model: &Model) -> String {
    let store = escape(&redact(&model.store));
    let prefix = model.prefix.as_ref().map(|prefix| format!("  {}*", escape(prefix)));
    format!("leasehold top  {store} ({}){}", model.engine, prefix.unwrap_or_default())
}

fn freshness(model: &Model, now: Instant) -> String {
    let Some(reading) = &model.reading else { return "reading".to_owned() };
    // The screen is drawn every second; smaller units would only flicker.
    let ago = now.saturating_duration_since(reading.at).as_secs();
    let ago = human(Duration::from_secs(ago)).replace("0ms", "0s");
    match model.is_paused() {
        true => format!("PAUSED, read {ago} ago"),
        false => format!("read {ago} ago, every {}", human(model.interval)),
    }
}

fn totals(model: &Model) -> String {
    let (active, waiting) = model.active_and_waiting();
    let (names, more) = model.names();
    let counted = model.reading.as_ref().is_some_and(|reading| reading.totals.is_some());
    let plus = if more && !counted { "+" } else { "" };
    let mut text = format!("active {active}{plus}  waiting {waiting}{plus}");
    match more {
        true => text.push_str(&format!("  names: the first {names}, there are more (--prefix)")),
        false => text.push_str(&format!("  names {names}")),
    }
    let broken = model.reading.as_ref().map_or(&[][..], |reading| &reading.broken);
    match broken {
        [] => {}
        [one] => text.push_str(&format!("  cannot read {}", escape(one.name.as_str()))),
        [one, rest @ ..] => text.push_str(&format!(
            "  cannot read {} and {} more",
            escape(one.name.as_str()),
            rest.len()
        )),
    }
    if let Some(rates) = model.reading.as_ref().and_then(|reading| reading.rates) {
        text.push_str(if model.prefix.is_some() { "  whole store:" } else { "" });
        text.push_str(&format!("  acquired {}/s", rates.acquired));
        text.push_str(&format!("  released {}/s", rates.released));
        // Shows these only if they are not zero.
        let rare =
            [("contended", rates.contended), ("expired", rates.expired), ("lost", rates.lost)];
        for (what, rate) in rare.into_iter().filter(|(_, rate)| *rate > 0.0) {
            text.push_str(&format!("  {what} {rate}/s"));
        }
    }
    text
}

fn trouble(model: &Model, now: Instant) -> Option<String> {
    let trouble = model.trouble.as_ref()?;
    let since = human(now.saturating_duration_since(trouble.since));
    Some(format!("!! cannot be read since {since}: {}", trouble.message))
}

fn nothing(model: &Model) -> &'static str {
    match &model.reading {
        None => "",
        Some(reading) if !reading.lines.is_empty() => "no name passes the filter",
        Some(_) => "nobody holds or waits for anything here",
    }
}

/// The columns that fit, and how wide each is.
fn columns(model: &Model, room: usize) -> Vec<(usize, usize)> {
    let wanted = model.widths;
    let mut shown: Vec<usize> = (0..COLUMNS.len()).collect();
    let least = |column: usize| match column {
        NAME => wanted[NAME].min(NAME_MIN),
        HELD_BY => wanted[HELD_BY].min(HELD_BY_MIN),
        column => wanted[column],
    };
    let needs = |shown: &[usize]| {
        shown.iter().map(|column| least(*column) + GAP).sum::<usize>().saturating_sub(GAP)
    };
    for dropped in DROPPED {
        if needs(&shown) <= room {
            break;
        }
        shown.retain(|column| *column != dropped);
    }
    let mut spare = room.saturating_sub(needs(&shown));
    let with_name = shown.contains(&HELD_BY);
    let mut widths: Vec<(usize, usize)> =
        shown.into_iter().map(|column| (column, least(column))).collect();
    // First the name, up to two thirds of the spare room; then the holder; then the name again.
    let share = if with_name { spare * 2 / 3 } else { spare };
    for (column, limit) in [(NAME, share), (HELD_BY, usize::MAX), (NAME, usize::MAX)] {
        if let Some((_, width)) = widths.iter_mut().find(|(shown, _)| *shown == column) {
            let more = (wanted[column] - *width).min(spare).min(limit);
            *width += more;
            spare -= more;
        }
    }
    // If not even the name fits, it gets the room that there is.
    if let [(NAME, width), (_, other)] = widths.as_mut_slice() {
        *width = (*width).min(room.saturating_sub(*other + GAP)).max(1);
    }
    widths
}

/// The whole view as plain text: for scripts and for a report.
pub(crate) fn once(model: &Model) -> String {
    let mut text = format!("{}\n{}\n", store(model), totals(model));
    if model.rows.is_empty() {
        return text + nothing(model) + "\n";
    }
    let mut rows = vec![COLUMNS.map(str::to_owned)];
    rows.extend(model.rows.iter().map(|row| row.cells.clone()));
    text.push('\n');
    text.push_str(&crate::table::align(&rows));
    if let Some(row) = model.chosen_row().filter(|_| !model.picture.is_empty()) {
        text.push_str(&format!("\nwho waits for whom: {}\n", row.cells[NAME]));
        for branch in &model.picture {
            text.push_str(&branch.text);
            text.push('\n');
        }
    }
    text
}

#[cfg(test)]
mod tests;
