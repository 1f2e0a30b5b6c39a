//! Messages while this process waits for a lock, or for the store itself.
//!
//! A terminal in whose foreground this process is shows one line, kept up to date. Without a
//! terminal, standard error gets a line after five seconds and then one a minute, so that the log
//! of a job says why it stands still. It reads the line of the name and changes nothing.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::io::{self, IsTerminal as _};
use std::time::{Duration, Instant};

use leasehold::engine::LineView;
use leasehold::{Client, Error, Holder, Name};
use rustix::termios;

use crate::duration;
use crate::exit;
use crate::lines;
use crate::out::Voice;
use crate::text;

/// Shorter waits are not worth a flicker.
const FIRST_AFTER: Duration = Duration::from_millis(150);
const EVERY: Duration = Duration::from_secs(1);

/// A server far away takes that long to connect to, and nobody waits for it.
const CONNECTING_FIRST_AFTER: Duration = Duration::from_secs(1);

/// Shorter waits are not worth a line in a log.
const LOG_FIRST_AFTER: Duration = Duration::from_secs(5);
const LOG_EVERY: Duration = Duration::from_secs(60);

/// The width of a terminal that does not say its own.
const WIDTH_UNKNOWN: usize = 80;

/// The display of one wait.
#[derive(Debug)]
pub(crate) struct Waiting {
    voice: Voice,
    begun: Instant,
    name: RefCell<Option<Name>>,
    /// The last answer of the store, if it could not serve.
    trouble: RefCell<Option<String>>,
    drawn: Cell<bool>,
}

impl Waiting {
    pub(crate) fn new(voice: Voice) -> Self {
        let (name, trouble, drawn) = Default::default();
        Self { voice, begun: Instant::now(), name, trouble, drawn }
    }

    /// This name is asked for from now on.
    pub(crate) fn turn_to(&self, name: &Name) {
        self.name.replace(Some(name.clone()));
        self.trouble.replace(None);
    }

    /// The store answered that it cannot serve now, and is asked again.
    pub(crate) fn failed(&self, error: &Error) {
        self.trouble.replace(Some(error.with_sources()));
    }

    /// Says what is waited for until it is dropped.
    pub(crate) async fn show(&self, client: &Client) -> Infallible {
        self.say(Some(client), FIRST_AFTER).await
    }

    /// The same while the client connects.
    pub(crate) async fn show_connecting(&self) -> Infallible {
        self.say(None, CONNECTING_FIRST_AFTER).await
    }

    async fn say(&self, client: Option<&Client>, first_after: Duration) -> Infallible {
        if self.voice.quiet {
            return std::future::pending().await;
        }
        if !io::stderr().is_terminal() {
            let first_after = if self.voice.verbose { FIRST_AFTER } else { LOG_FIRST_AFTER };
            return self.log(client, [first_after, LOG_EVERY], |line| self.voice.tell(line)).await;
        }
        tokio::time::sleep(first_after).await;
        loop {
            if in_foreground() {
                let line = self.line(client).await;
                self.draw(&line);
            }
            tokio::time::sleep(EVERY).await;
        }
    }

    async fn log(
        &self,
        client: Option<&Client>,
        [first_after, every]: [Duration; 2],
        say: impl Fn(&str),
    ) -> Infallible {
        tokio::time::sleep(first_after).await;
        loop {
            say(&self.line(client).await);
            tokio::time::sleep(every).await;
        }
    }

    /// Takes the line off the terminal again.
    pub(crate) fn clear(&self) {
        if self.drawn.replace(false) {
            exit::say_all("\r\u{1b}[K");
        }
    }

    async fn line(&self, client: Option<&Client>) -> String {
        let waited = duration::human(self.begun.elapsed());
        let name = self.name.borrow().clone();
        let (Some(client), Some(name)) = (client, name) else {
            return format!("waiting for the store since {waited}") + &self.trouble();
        };
        match client.line(&name).await {
            Ok(line) => {
                let line = describe(&name, line.as_ref(), client.holder(), self.begun.elapsed());
                line + &self.trouble()
            }
            Err(Error::Unreachable { .. }) => {
                format!("store unreachable, still waiting for `{name}` since {waited}")
            }
            Err(error) => format!("waiting for `{name}` since {waited}: {error}"),
        }
    }

    fn trouble(&self) -> String {
        self.trouble.borrow().as_ref().map(|trouble| format!(": {trouble}")).unwrap_or_default()
    }

    fn draw(&self, line: &str) {
        let width = termios::tcgetwinsize(io::stderr())
            .ok()
            .map(|size| usize::from(size.ws_col))
            .filter(|columns| *columns > 0)
            .unwrap_or(WIDTH_UNKNOWN);
        // One column stays free: some terminals wrap when the last one is written.
        let line = text::escape(&text::redact(&format!("leasehold: {line}")));
        let line = text::cut(&line, width - 1);
        exit::say_all(&format!("\r{line}\u{1b}[K"));
        self.drawn.set(true);
    }
}

impl Drop for Waiting {
    /// Also a signal may end the wait.
    fn drop(&mut self) {
        self.clear();
    }
}

/// The most important words come first: a narrow terminal cuts the rest.
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
        [one] => format!(
            "; held by `{}`{} for {}",
            one.holder.label(),
            lines::purpose_words(one),
            duration::human(one.age)
        ),
        [one, others @ ..] => format!(
            "; held by `{}` and {} more{}",
            one.holder.label(),
            others.len(),
            lines::purpose_words(one)
        ),
    };
    waiting + &place + &held
}

fn in_foreground() -> bool {
    termios::tcgetpgrp(io::stderr()).is_ok_and(|group| group == rustix::process::getpgrp())
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold::memory::Memory;

    #[tokio::test]
    async fn log_goes_on_for_as_long_as_the_wait() {
        const LINES: usize = 3;
        let memory = Memory::new();
        let client = |label| Client::builder().label(label).engine(memory.clone());
        let [holder, waiter] = ["w1", "w2"].map(|label| client(label).expect("a client"));
        let _lease = holder.mutex("x").lock().await.expect("granted");
        let waiting = Waiting::new(Voice { json: false, quiet: false, verbose: false });
        waiting.turn_to(&Name::new("x").expect("a name"));
        let (said, mut lines) = tokio::sync::mpsc::unbounded_channel();
        let say = |line: &str| said.send(line.to_owned()).expect("it is read");
        let read = async {
            for _ in 0..LINES {
                let line = lines.recv().await.expect("another line");
                assert!(line.starts_with("waiting for `x` since "), "{line}");
                assert!(line.contains("; held by `w1` for "), "{line}");
            }
        };
        let spans = [Duration::from_millis(1); 2];
        tokio::select! {
            never = waiting.log(Some(&waiter), spans, say) => match never {},
            () = read => {}
        }
    }
}
