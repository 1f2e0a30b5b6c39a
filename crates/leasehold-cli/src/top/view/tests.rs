//! Tests of the screen, cell by cell, at sizes from nothing to roomy.

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::Mode;
use leasehold::engine::{LineView, Totals};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::style::{Color, Modifier};

use super::*;
use crate::top::model::tests::{model, reading};
use crate::top::model::{Action, Reading, Trouble};
use crate::top::rates::Rates;
use crate::waits::tests::{claim, line};

const COLOURS: Theme = Theme { colours: true };
const PLAIN: Theme = Theme { colours: false };

/// Draws once, at the instant of the reading and a little more.
fn frame(model: &mut Model, size: (u16, u16), theme: Theme, later: Duration) -> Buffer {
    let now = model.reading.as_ref().map_or_else(Instant::now, |reading| reading.at) + later;
    let mut terminal = Terminal::new(TestBackend::new(size.0, size.1)).expect("it never fails");
    let mut view = View::new(theme);
    terminal.draw(|frame| view.draw(frame, model, now)).expect("it never fails");
    terminal.backend().buffer().clone()
}

fn lines_of(buffer: &Buffer) -> Vec<String> {
    let row = |y| (0..buffer.area.width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
    (0..buffer.area.height).map(|y| row(y).trim_end().to_owned()).collect()
}

fn screen(model: &mut Model, width: u16, height: u16) -> Vec<String> {
    lines_of(&frame(model, (width, height), PLAIN, Duration::ZERO))
}

fn contended() -> Vec<LineView> {
    let mut deploy = line("deploy", &["worker-1", "worker-2", "worker-3"]);
    deploy.waiting[0].age = Duration::from_secs(75);
    deploy.waiting[1].age = Duration::from_secs(12);
    let permits = Mode::Permits { take: 1, of: 4 };
    let mut pool = line("pool", &[]);
    pool.kind = leasehold::error::Kind::Permits { of: 4 };
    pool.held = vec![claim("encoder-1", 7, permits, 90), claim("encoder-2", 8, permits, 3)];
    vec![deploy, pool, line("migrate", &["worker-4", "worker-1"])]
}

#[test]
fn the_screen_has_header_table_picture_and_keys() {
    let mut model = model(contended());
    let expected = [
        "leasehold top  memory: (memory)                          read 0s ago, every 1s",
        "active 4  waiting 3  names 3",
        "  NAME     MODE            HELD BY       HELD FOR  LEFT  FENCE  WAITING   LONGEST",
        "> deploy   exclusive       worker-1            5s   20s      1        2  1m15s !!",
        "  migrate  exclusive       worker-4            5s   20s      1        1        5s",
        "  pool     permits 2 of 4  encoder-1 +1     1m30s   20s      7",
        "",
        "",
        "",
        " who waits for whom: deploy ────────────────────────────────────────────────────",
        "├─ held by worker-1  fence 1  for 5s, 20s left",
        "│  └─ waits for migrate  5s",
        "│     └─ held by worker-4  fence 1  for 5s, 20s left",
        "├─ waits 1  worker-2  fence 2  since 1m15s !!",
        "└─ waits 2  worker-3  fence 3  since 12s !",
    ];
    let drawn = screen(&mut model, 82, 16);
    assert_eq!(
        drawn[0].split_whitespace().collect::<Vec<_>>().join(" "),
        expected[0].split_whitespace().collect::<Vec<_>>().join(" ")
    );
    assert_eq!(drawn[1..9], expected[1..9]);
    assert!(drawn[9].starts_with(expected[9]), "{}", drawn[9]);
    assert_eq!(drawn[10..15], expected[10..15]);
    assert!(drawn[15].starts_with("by contention  ? help  q quit"), "{}", drawn[15]);
    assert_eq!(model.page, 6);
}

#[test]
fn a_cycle_is_drawn_as_one() {
    let mut model = model(vec![line("a", &["w1", "w2"]), line("b", &["w2", "w1"])]);
    let drawn = screen(&mut model, 80, 24);
    let marked: Vec<&String> = drawn.iter().filter(|line| line.contains("<- a cycle")).collect();
    assert_eq!(marked.len(), 1, "{drawn:#?}");
    assert!(marked[0].contains("held by w1"), "{marked:?}");
}

#[test]
fn no_size_is_too_small() {
    let mut model = model(contended());
    model.trouble = Some(Trouble { message: "gone".to_owned(), since: Instant::now() });
    for typing in [None, Some(String::new())] {
        model.typing = typing;
        for help in [false, true] {
            model.help = help;
            for width in 0..45 {
                for height in 0..18 {
                    frame(&mut model, (width, height), COLOURS, Duration::ZERO);
                }
            }
        }
    }
    let mut empty = Model::new(String::new(), "memory", Duration::from_secs(1));
    for height in 0..18 {
        frame(&mut empty, (20, height), COLOURS, Duration::ZERO);
    }
}

#[test]
fn a_tiny_terminal_shows_names_and_how_many_wait() {
    let mut model = model(contended());
    let drawn = screen(&mut model, 21, 5);
    assert_eq!(drawn[1], "  NAME     WAITING");
    assert_eq!(drawn[2], "> deploy         2");
    assert_eq!(drawn[3], "  migrate        1");
    assert_eq!(drawn[4], "  pool");
}

#[test]
fn columns_go_in_the_order_of_their_worth() {
    let mut model = model(contended());
    let mut header = |width| screen(&mut model, width, 10)[2].trim().to_owned();
    let table = [
        (82, vec!["NAME", "MODE", "HELD BY", "HELD FOR", "LEFT", "FENCE", "WAITING", "LONGEST"]),
        (70, vec!["NAME", "HELD BY", "HELD FOR", "LEFT", "FENCE", "WAITING", "LONGEST"]),
        (58, vec!["NAME", "HELD BY", "HELD FOR", "LEFT", "WAITING", "LONGEST"]),
        (40, vec!["NAME", "HELD BY", "WAITING", "LONGEST"]),
        (30, vec!["NAME", "WAITING", "LONGEST"]),
        (20, vec!["NAME", "WAITING"]),
    ];
    for (width, columns) in table {
        let shown = header(width);
        let words: Vec<&str> = shown.split("  ").filter(|word| !word.is_empty()).collect();
        let words: Vec<&str> = words.iter().map(|word| word.trim()).collect();
        assert_eq!(words, columns, "{width}");
    }
}

#[test]
fn a_long_name_is_cut_with_a_mark_and_leaves_room_for_who_holds() {
    let name = "service:".repeat(20);
    let mut model = model(vec![line(&name, &["worker-with-a-long-label", "w2"])]);
    let drawn = screen(&mut model, 80, 10);
    assert!(drawn[3].contains("service:s") && drawn[3].contains('…'), "{}", drawn[3]);
    assert!(drawn[3].contains("worker-w"), "{}", drawn[3]);
    assert!(drawn[3].ends_with("5s"), "{}", drawn[3]);
}

#[test]
fn trouble_is_told_with_since_when_and_the_last_picture_stays() {
    let mut model = model(contended());
    let at = model.reading.as_ref().expect("a reading").at;
    let message = "the store at redis.example:6379 cannot be reached".to_owned();
    let last = model.reading.clone();
    model.hear(last, Some(Trouble { message, since: at + Duration::from_secs(2) }));
    let drawn = lines_of(&frame(&mut model, (90, 20), PLAIN, Duration::from_secs(14)));
    assert!(drawn[0].ends_with("read 14s ago, every 1s"), "{}", drawn[0]);
    let told = "!! cannot be read since 12s: the store at redis.example:6379 cannot be reached";
    assert_eq!(drawn[2], told);
    assert!(drawn[4].starts_with("> deploy"), "{drawn:#?}");
    let tiny = lines_of(&frame(&mut model, (40, 4), PLAIN, Duration::from_secs(14)));
    assert!(tiny[1].starts_with("!! cannot be read since 12s"), "{tiny:#?}");
}

#[test]
fn colours_repeat_what_marks_say_and_can_be_done_without() {
    let mut model = model(contended());
    let coloured = frame(&mut model, (82, 16), COLOURS, Duration::ZERO);
    assert_eq!(coloured[(2, 3)].fg, Color::Red, "a row with a wait of over a minute");
    assert_eq!(coloured[(2, 5)].fg, Color::Reset, "a row without waits");
    assert_eq!(coloured[(3, 14)].fg, Color::Yellow, "a wait of 12 seconds");
    let plain = frame(&mut model, (82, 16), PLAIN, Duration::ZERO);
    assert!(plain.content.iter().all(|cell| cell.fg == Color::Reset && cell.bg == Color::Reset));
    assert_eq!(lines_of(&plain), lines_of(&coloured));
    assert!(plain[(2, 3)].modifier.contains(Modifier::REVERSED), "the chosen row");
}

#[test]
fn totals_and_rates_come_from_the_store_where_it_counts() {
    let mut model = model(Vec::new());
    let rates = Rates {
        acquired: 12.5,
        released: 12.0,
        contended: 0.3,
        expired: 0.0,
        lost: 0.0,
        over_ms: 30_000,
    };
    let totals = Totals { active: 5_000, waiting: 70, ..Totals::default() };
    let counted = Reading {
        more: true,
        totals: Some(totals),
        rates: Some(rates),
        ..Arc::into_inner(reading(contended())).expect("its only owner")
    };
    model.hear(Some(Arc::new(counted)), None);
    let drawn = screen(&mut model, 160, 20);
    let expected = "active 5000  waiting 70  names: the first 3, there are more (--prefix)  \
                    acquired 12.5/s  released 12/s  contended 0.3/s";
    assert_eq!(drawn[1], expected);
}

#[test]
fn the_chosen_row_is_always_in_sight() {
    let lines = (0..100).map(|number| line(&format!("n{number:03}"), &["h"])).collect();
    let mut model = model(lines);
    for (action, name) in [(Action::End, "> n099"), (Action::Home, "> n000")] {
        model.act(action);
        let drawn = screen(&mut model, 80, 24);
        assert_eq!(drawn.iter().filter(|line| line.starts_with(name)).count(), 1, "{drawn:#?}");
    }
}

#[test]
fn a_long_picture_says_how_much_is_below_and_scrolls() {
    let labels: Vec<String> = (0..50).map(|number| format!("w{number}")).collect();
    let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
    let mut model = model(vec![line("a", &labels)]);
    let drawn = screen(&mut model, 80, 24);
    let title = drawn.iter().position(|line| line.contains("who waits for whom: a"));
    let title = title.expect("a title");
    assert!(drawn[title].contains(" 32 more: J, K"), "{}", drawn[title]);
    assert!(drawn[title + 1].starts_with("├─ held by w0"), "{drawn:#?}");
    model.act(Action::PictureDown);
    assert!(screen(&mut model, 80, 24)[title + 1].starts_with("├─ waits 1  w1"));
}

#[test]
fn states_are_said_in_words() {
    let mut model = model(contended());
    model.act(Action::Pause);
    assert!(screen(&mut model, 80, 10)[0].ends_with("PAUSED, read 0s ago"));
    model.act(Action::Filter);
    "pool".chars().for_each(|c| model.act(Action::Type(c)));
    let drawn = screen(&mut model, 80, 10);
    assert_eq!((drawn[9].as_str(), &drawn[3][..6]), ("/pool_  1 of 3", "> pool"));
    model.act(Action::Accept);
    assert!(screen(&mut model, 80, 10)[9].starts_with("/pool  1 of 3  by contention"));
    model.act(Action::Filter);
    model.act(Action::Type('x'));
    assert_eq!(screen(&mut model, 80, 10)[2], "no name passes the filter");
    model.act(Action::EraseAll);
    model.act(Action::Accept);
    model.act(Action::Sort);
    assert!(screen(&mut model, 80, 10)[9].starts_with("by held for  ? help  q quit"));
    model.act(Action::Help);
    let help = screen(&mut model, 80, 24).join("\n");
    assert!(help.contains("read now") && help.contains("suspend"), "{help}");
    let mut none = crate::top::model::tests::model(Vec::new());
    assert_eq!(screen(&mut none, 80, 10)[2], "nobody holds or waits for anything here");
}

#[test]
fn a_password_in_the_address_is_not_drawn() {
    let mut model = model(contended());
    model.store = "redis://user:secret@redis.example:6379".to_owned();
    let drawn = screen(&mut model, 120, 10).join("\n");
    assert!(drawn.contains("redis.example:6379") && !drawn.contains("secret"), "{drawn}");
    assert!(!once(&model).contains("secret"));
}

#[test]
fn wide_characters_and_control_characters_stay_in_their_cells() {
    let mut evil = line("evil\u{1b}[2J\nname", &["w1", "w2"]);
    evil.held[0].note = leasehold::claim::Note::new("bell\u{7}").expect("a note");
    let mut model = model(vec![evil, line(&"錠".repeat(60), &["h"])]);
    for width in 1..90 {
        let drawn = screen(&mut model, width, 20).join("");
        assert!(!drawn.chars().any(char::is_control), "{drawn:?}");
    }
}

#[test]
fn wide_name_that_fits_is_shown_whole() {
    let mut model = model(vec![line("ロック:注", &["h"])]);
    // Each wide character fills two cells, of which the second is blank.
    let drawn = screen(&mut model, 80, 20).join("\n").replace(' ', "");
    assert!(drawn.contains("ロック:注exclusive"), "{drawn}");
}

#[test]
fn one_picture_as_text_is_whole() {
    let text = once(&model(contended()));
    let expected = "leasehold top  memory: (memory)\n\
        active 4  waiting 3  names 3\n\n\
        NAME     MODE            HELD BY       HELD FOR  LEFT  FENCE  WAITING  LONGEST\n\
        deploy   exclusive       worker-1      5s        20s   1      2        1m15s !!\n\
        migrate  exclusive       worker-4      5s        20s   1      1        5s\n\
        pool     permits 2 of 4  encoder-1 +1  1m30s     20s   7\n\n\
        who waits for whom: deploy\n\
        ├─ held by worker-1  fence 1  for 5s, 20s left\n";
    assert!(text.starts_with(expected), "{text}");
    assert!(text.ends_with("└─ waits 2  worker-3  fence 3  since 12s !\n"), "{text}");
}
