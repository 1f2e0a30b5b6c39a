//! What a person at the terminal sees while a lock is waited for: one line, kept up to date.
//!
//! Drawn on standard error and only when it is a terminal in whose foreground this process is;
//! elsewhere `-v` gives one line when waiting begins. It reads the line of the name and changes
//! nothing.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::io::{self, IsTerminal as _};
use std::time::{Duration, Instant};

use leasehold::engine::LineView;
use leasehold::{Client, Holder, Name};
use rustix::termios;

use crate::duration;
use crate::exit;
use crate::out::Voice;
use crate::text;

/// Shorter waits are not worth a flicker.
const FIRST_AFTER: Duration = Duration::from_millis(150);
const EVERY: Duration = Duration::from_secs(1);

/// The width of a terminal that does not say its own.
const WIDTH_UNKNOWN: usize = 80;

/// The display of one wait.
#[derive(Debug)]
pub(crate) struct Waiting {
    voice: Voice,
    begun: Instant,
    name: RefCell<Option<Name>>,
    drawn: Cell<bool>,
}

impl Waiting {
    pub(crate) fn new(voice: Voice) -> Self {
        let (name, drawn) = (RefCell::new(None), Cell::new(false));
        Self { voice, begun: Instant::now(), name, drawn }
    }

    /// This name is asked for from now on.
    pub(crate) fn turn_to(&self, name: &Name) {
        self.name.replace(Some(name.clone()));
    }

    /// Shows what is waited for until it is dropped.
    pub(crate) async fn show(&self, client: &Client) -> Infallible {
        tokio::time::sleep(FIRST_AFTER).await;
        let terminal = io::stderr().is_terminal();
        loop {
            if terminal && !self.voice.quiet {
                if in_foreground() {
                    let line = self.line(client).await;
                    self.draw(&line);
                }
            } else if self.voice.verbose {
                self.voice.detail(&self.line(client).await);
                return std::future::pending().await;
            } else {
                return std::future::pending().await;
            }
            tokio::time::sleep(EVERY).await;
        }
    }

    /// Takes the line off the terminal again.
    pub(crate) fn clear(&self) {
        if self.drawn.replace(false) {
            exit::say_all("\r\u{1b}[K");
        }
    }

    async fn line(&self, client: &Client) -> String {
        let Some(name) = self.name.borrow().clone() else { return String::new() };
        // A store that cannot be read now is no reason to stop waiting.
        let line = client.show(&name).await.unwrap_or_default();
        describe(&name, line.as_ref(), client.holder(), self.begun.elapsed())
    }

    fn draw(&self, line: &str) {
        let width = termios::tcgetwinsize(io::stderr())
            .ok()
            .map(|size| usize::from(size.ws_col))
            .filter(|columns| *columns > 0)
            .unwrap_or(WIDTH_UNKNOWN);
        // One column stays free: some terminals wrap when the last one is written.
        let line = text::cut(&text::escape(&format!("leasehold: {line}")), width - 1);
        exit::say_all(&format!("\r{line}\u{1b}[K"));
        self.drawn.set(true);
    }
}

/// What matters most comes first: a narrow terminal cuts the rest.
fn describe(name: &Name, line: Option<&LineView>, own: &Holder, waited: Duration) -> String {
    let waiting = format!("waiting for `{name}` since {}", duration::human(waited));
    let Some(line) = line else { return waiting };
    let place = line.waiting.iter().position(|claim| claim.holder.id() == own.id());
    let place = match place {
        None => String::new(),
        Some(0) => ", next in line".to_owned(),
        Some(ahead) => format!(", {ahead} ahead in line"),
    };
    let held = match line.held.as_slice() {
        [] => String::new(),
        [one] => format!("; held by `{}` for {}", one.holder.label(), duration::human(one.age)),
        [one, others @ ..] => {
            format!("; held by `{}` and {} more", one.holder.label(), others.len())
        }
    };
    waiting + &place + &held
}

fn in_foreground() -> bool {
    termios::tcgetpgrp(io::stderr()).is_ok_and(|group| group == rustix::process::getpgrp())
}
