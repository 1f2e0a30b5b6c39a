//! `top`: a live view of names by contention, with their holders and waiters.
//!
//! Three threads that do not wait for each other: one reads the store (`reader.rs`), one reads the
//! keyboard (`input.rs`). This one draws (`view.rs`) the model (`model.rs`) and handles signals.
//! The terminal itself is `screen.rs`.

mod input;
mod keys;
mod model;
mod picture;
mod rates;
mod reader;
mod screen;
mod view;

use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde::Serialize;
use tokio::sync::{mpsc, watch};

use crate::args;
use crate::exit::{self, Failure, Outcome};
use crate::lines::Line;
use crate::out;
use crate::signals::{self, Signals};
use crate::store::Store;
use crate::text::{self, wall_clock_ago};
use crate::watch::reader_gone;

use self::keys::Key;
use self::model::{Action, Model, Reading, Wish};
use self::rates::Rates;
use self::reader::{News, Reader};
use self::screen::Screen;
use self::view::{Theme, View};

/// How often to draw the screen without an event: its ages are in seconds.
const TICK: Duration = Duration::from_secs(1);

/// How often to check whether this process has the terminal again. A shell that takes a job out of
/// the background sends no signal if the job was never stopped.
const BACKGROUND_TICK: Duration = Duration::from_millis(100);

/// Shows the store until the user ends it.
pub(crate) async fn top(
    top: args::Top,
    json: bool,
    open: impl AsyncFnOnce() -> Result<Store, Failure>,
) -> Outcome {
    if !top.once && !json && !screen::is_there() {
        return Err(Failure::usage("there is no terminal to draw on")
            .hint("`--once` prints one picture as text, `--json` a document in each interval"));
    }
    let mut signals = Signals::catch()?;
    let store = tokio::select! {
        biased;
        signal = signals.ending(|| {}) => return Ok(exit::of_signal(signal as i32)),
        store = open() => store?,
    };
    let reader = Reader::new(store.client.clone(), top.prefix.clone());
    match (top.once, json) {
        (false, false) => Live::new(&top, &store, reader)?.run(&mut signals).await,
        (true, false) => once(&top, &store, reader, &mut signals).await,
        (once, true) => stream(&top, once, &store, reader, &mut signals).await,
    }
}

fn model_of(top: &args::Top, store: &Store) -> Model {
    let info = store.client.info();
    let mut model = Model::new(info.store.clone(), info.engine, top.interval);
    model.prefix.clone_from(&top.prefix);
    model
}

/// Prints one picture as text.
async fn once(
    top: &args::Top,
    store: &Store,
    mut reader: Reader,
    signals: &mut Signals,
) -> Outcome {
    let mut model = model_of(top, store);
    // The second reading knows the most contended name, and reads the lines around it. It is not
    // needed if the first one read all lines.
    let read = async {
        let reading = reader.read(None).await?;
        let whole = !reading.more && top.prefix.is_none();
        model.hear(Some(Arc::new(reading)), None);
        if !whole {
            let chosen = model.wish().chosen;
            let reading = reader.read(chosen.as_ref()).await?;
            model.hear(Some(Arc::new(reading)), None);
        }
        Ok(())
    };
    let read: Result<(), String> = tokio::select! {
        biased;
        signal = signals.ending(|| {}) => return Ok(exit::of_signal(signal as i32)),
        read = read => read,
    };
    read.map_err(|message| Failure::new(exit::UNREACHABLE, message))?;
    out::print(&view::once(&model))?;
    Ok(exit::DONE)
}

/// A reading, as one line of JSON.
#[derive(Debug, Serialize)]
struct Document<'a> {
    at: String,
    engine: &'static str,
    store: String,
    active: u64,
    waiting: u64,
    rates: Option<Rates>,
    /// Whether there are more names than these.
    more: bool,
    names: Vec<Line<'a>>,
}

/// A failed reading, as one line of JSON.
#[derive(Debug, Serialize)]
struct Unread {
    at: String,
    engine: &'static str,
    store: String,
    error: String,
}

/// Prints a document in each interval, or one.
async fn stream(
    top: &args::Top,
    once: bool,
    store: &Store,
    mut reader: Reader,
    signals: &mut Signals,
) -> Outcome {
    let mut reader_gone = std::pin::pin!(reader_gone());
    loop {
        let step = async {
            match reader.read(None).await {
                Ok(reading) => print_reading(top, store, reading)?,
                Err(message) if once => return Err(Failure::new(exit::UNREACHABLE, message)),
                Err(message) => out::print_json(&unread(store, &message))?,
            }
            if !once {
                tokio::time::sleep(top.interval).await;
            }
            Ok(())
        };
        tokio::select! {
            biased;
            signal = signals.ending(|| {}) => return Ok(exit::of_signal(signal as i32)),
            () = &mut reader_gone => return Ok(exit::DONE),
            step = step => step?,
        }
        if once {
            return Ok(exit::DONE);
        }
    }
}

fn print_reading(top: &args::Top, store: &Store, reading: Reading) -> Result<(), Failure> {
    let mut model = model_of(top, store);
    let reading = Arc::new(reading);
    model.hear(Some(Arc::clone(&reading)), None);
    let (active, waiting) = model.active_and_waiting();
    let names = model.rows.iter().map(|row| Line::of(&reading.lines[row.line]));
    let names = names.chain(reading.broken.iter().map(Line::broken));
    let document = Document {
        at: wall_clock_ago(Duration::ZERO),
        engine: model.engine,
        store: text::redact(&model.store),
        active,
        waiting,
        rates: reading.rates,
        more: reading.more,
        names: names.collect(),
    };
    Ok(out::print_json(&document)?)
}

fn unread(store: &Store, message: &str) -> Unread {
    let info = store.client.info();
    Unread {
        at: wall_clock_ago(Duration::ZERO),
        engine: info.engine,
        store: text::redact(&info.store),
        error: text::redact(message),
    }
}

/// The full-screen view.
#[derive(Debug)]
struct Live {
    model: Model,
    view: View,
    /// `None` while another process has the terminal.
    screen: Option<Screen>,
    wishes: watch::Sender<Wish>,
    news: watch::Receiver<News>,
    keys: mpsc::Receiver<Key>,
}

impl Live {
    fn new(top: &args::Top, store: &Store, reader: Reader) -> Result<Self, Failure> {
        let (wishes, receiver) = watch::channel(Wish::default());
        Ok(Self {
            model: model_of(top, store),
            view: View::new(Theme::of_environment()),
            screen: None,
            wishes,
            news: reader::start(reader, top.interval, receiver)?,
            keys: input::start()?,
        })
    }

    async fn run(mut self, signals: &mut Signals) -> Outcome {
        loop {
            self.draw()?;
            self.wish();
            let tick = if self.screen.is_some() { TICK } else { BACKGROUND_TICK };
            tokio::select! {
                biased;
                signal = signals.next() => {
                    if let Some(status) = self.obey(signal)? {
                        return Ok(status);
                    }
                }
                key = self.keys.recv() => {
                    let Some(key) = key else {
                        drop(self.screen.take());
                        return Err(Failure::new(exit::OUTPUT, "the terminal went away"));
                    };
                    if self.press_all(key)? {
                        return Ok(exit::DONE);
                    }
                }
                changed = self.news.changed() => {
                    if changed.is_err() {
                        drop(self.screen.take());
                        return Err(Failure::new(exit::UNREACHABLE, "reading the store failed"));
                    }
                    let News { reading, trouble } = self.news.borrow_and_update().clone();
                    self.model.hear(reading, trouble);
                }
                () = tokio::time::sleep(tick) => {}
            }
        }
    }

    fn draw(&mut self) -> Result<(), Failure> {
        // In the background there is no screen. A later check sees that the terminal is ours again.
        if self.screen.is_none() && screen::is_ours() {
            self.screen = Some(Screen::enter()?);
        }
        let (model, view) = (&mut self.model, &mut self.view);
        if let Some(screen) = &mut self.screen {
            screen.draw(|frame| view.draw(frame, model, Instant::now()))?;
        }
        Ok(())
    }

    /// Sends the reader the model's wish if it has changed.
    fn wish(&self) {
        let wish = self.model.wish();
        self.wishes.send_if_modified(|last| {
            let changed = *last != wish;
            *last = wish;
            changed
        });
    }

    /// Handles a signal; returns a status if the signal ends the view.
    fn obey(&mut self, signal: Signal) -> Result<Option<u8>, Failure> {
        match signal {
            Signal::SIGWINCH => self.renew()?,
            Signal::SIGTSTP => self.suspend(false),
            // Another process may have written on the terminal meanwhile.
            Signal::SIGCONT => drop(self.screen.take()),
            Signal::SIGCHLD => {}
            ending => {
                drop(self.screen.take());
                return Ok(Some(exit::of_signal(ending as i32)));
            }
        }
        Ok(None)
    }

    /// Handles all pressed keys before the next drawing; returns whether one ends the view.
    fn press_all(&mut self, first: Key) -> Result<bool, Failure> {
        let mut next = Some(first);
        while let Some(key) = next {
            if self.press(key)? {
                return Ok(true);
            }
            next = self.keys.try_recv().ok();
        }
        Ok(false)
    }

    /// Handles a key; returns whether it ends the view.
    fn press(&mut self, key: Key) -> Result<bool, Failure> {
        // The first key closes the help: a user who presses Escape there wants to go back.
        if self.model.help && key != Key::Ctrl('c') {
            self.model.help = false;
            return Ok(false);
        }
        let action = match self.model.typing {
            Some(_) => keys::while_typing(key),
            None => keys::command(key),
        };
        match action {
            Some(Action::Quit) => return Ok(true),
            Some(Action::Suspend) => self.suspend(true),
            Some(Action::Redraw) => self.renew()?,
            Some(action) => self.model.act(action),
            None => {}
        }
        Ok(false)
    }

    fn renew(&mut self) -> Result<(), Failure> {
        match &mut self.screen {
            Some(screen) => Ok(screen.renew()?),
            None => Ok(()),
        }
    }

    /// Restores the terminal and stops this process; returns when it continues.
    fn suspend(&mut self, whole_group: bool) {
        drop(self.screen.take());
        signals::stop_self(whole_group);
    }
}
