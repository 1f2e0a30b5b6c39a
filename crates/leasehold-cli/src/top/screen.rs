//! Turns the terminal into a screen, and restores it at every end of the view.
//!
//! This leaves raw mode and the alternate screen when the [`Screen`] is dropped. It also does so
//! when the drawing thread panics, before it prints the message. KILL cannot be caught, and leaves
//! the terminal as it is. Then the user needs `reset`.

use std::io::{self, BufWriter, IsTerminal as _, Stdout, Write};
use std::sync::{Mutex, Once, PoisonError};
use std::thread::ThreadId;

use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::execute;
use ratatui::crossterm::style::ResetColor;
use ratatui::crossterm::terminal::{Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen};
use ratatui::layout::Rect;
use ratatui::{Frame, Terminal, TerminalOptions, Viewport};
use rustix::termios::{self, OptionalActions, Termios};

/// The size of a terminal that does not report its own.
const SIZE_UNKNOWN: (u16, u16) = (80, 24);

/// The settings to restore, and the drawing thread; `None` while there is no screen.
static BEFORE: Mutex<Option<(Termios, ThreadId)>> = Mutex::new(None);

/// A terminal that is used as a screen.
#[derive(Debug)]
pub(crate) struct Screen {
    terminal: Terminal<CrosstermBackend<BufWriter<Stdout>>>,
}

impl Screen {
    /// Takes over the terminal, also again after another process had it.
    pub(crate) fn enter() -> io::Result<Self> {
        restore_on_panic();
        let present = termios::tcgetattr(io::stdin())?;
        let mut raw = present.clone();
        raw.make_raw();
        before().get_or_insert((present, std::thread::current().id()));
        termios::tcsetattr(io::stdin(), OptionalActions::Now, &raw)?;
        execute!(io::stdout(), EnterAlternateScreen, Hide, Clear(ClearType::All))?;
        Ok(Self { terminal: terminal()? })
    }

    /// Begins again, with the present size of the terminal.
    pub(crate) fn renew(&mut self) -> io::Result<()> {
        execute!(io::stdout(), Clear(ClearType::All))?;
        self.terminal = terminal()?;
        Ok(())
    }

    pub(crate) fn draw(&mut self, draw: impl FnOnce(&mut Frame<'_>)) -> io::Result<()> {
        self.terminal.draw(draw).map(|_drawn| ())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

fn terminal() -> io::Result<Terminal<CrosstermBackend<BufWriter<Stdout>>>> {
    let (width, height) = size();
    let viewport = Viewport::Fixed(Rect::new(0, 0, width, height));
    let backend = CrosstermBackend::new(BufWriter::new(io::stdout()));
    Terminal::with_options(backend, TerminalOptions { viewport })
}

fn size() -> (u16, u16) {
    match termios::tcgetwinsize(io::stdout()) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col, size.ws_row),
        _ => SIZE_UNKNOWN,
    }
}

/// Restores the terminal, if this process took it over.
pub(crate) fn restore() {
    let Some((settings, _)) = before().take() else { return };
    // Fails only if the terminal is gone, and then there is nothing to restore.
    let _screen = leave(&mut io::stdout());
    let _settings = termios::tcsetattr(io::stdin(), OptionalActions::Now, &settings);
}

fn leave(terminal: &mut impl Write) -> io::Result<()> {
    execute!(terminal, ResetColor, LeaveAlternateScreen, Show)
}

fn before() -> std::sync::MutexGuard<'static, Option<(Termios, ThreadId)>> {
    BEFORE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Restores the terminal at a panic, so that the message is readable and the shell usable. Only the
/// drawing thread counts: if another one panics, the drawing thread goes on or ends by itself.
fn restore_on_panic() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let next = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let own = before().as_ref().is_some_and(|(_, id)| *id == std::thread::current().id());
            if own {
                restore();
            }
            next(panic);
        }));
    });
}

/// Whether this process may draw: a terminal listens to one process group at a time.
pub(crate) fn is_ours() -> bool {
    termios::tcgetpgrp(io::stdin()).is_ok_and(|group| group == rustix::process::getpgrp())
}

/// Whether there is a terminal to draw on and to type at.
pub(crate) fn is_there() -> bool {
    io::stdin().is_terminal() && io::stdout().is_terminal()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    use std::fs::File;
    use std::io::Read as _;
    use std::process::{Command, Stdio};

    const OWN_NAME: &str = "top::screen::tests::a_panic_gives_the_terminal_back";
    const AT_A_TERMINAL: &str = "LEASEHOLD_TEST_PANICS";

    /// The test runs itself once more, at a terminal of its own, and panics there.
    #[test]
    fn a_panic_gives_the_terminal_back() {
        if std::env::var_os(AT_A_TERMINAL).is_some() {
            let _screen = Screen::enter().expect("a terminal");
            panic!("on purpose");
        }
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
        grantpt(&master).expect("granted");
        unlockpt(&master).expect("unlocked");
        let path = ptsname(&master, Vec::new()).expect("it has a name").into_string();
        let path = path.expect("plain text");
        let side = || {
            let side = File::options().read(true).write(true).open(&path).expect("opened");
            Stdio::from(side)
        };
        let before = termios::tcgetattr(&master).expect("a terminal has settings");
        let own = std::env::current_exe().expect("a test is a program");
        let status = Command::new(own)
            .args(["--exact", OWN_NAME, "--nocapture"])
            .env(AT_A_TERMINAL, "1")
            .stdin(side())
            .stdout(side())
            .stderr(side())
            .status()
            .expect("it starts");
        assert!(!status.success());
        let after = termios::tcgetattr(&master).expect("a terminal has settings");
        assert_eq!(before.local_modes, after.local_modes);
        assert_eq!(before.input_modes, after.input_modes);
        assert_eq!(before.output_modes, after.output_modes);
        let mut bytes = Vec::new();
        // It ends with an error, because the other side is closed.
        let _gone = File::from(master).read_to_end(&mut bytes);
        let text = String::from_utf8_lossy(&bytes);
        let at = |part: &str| text.find(part).unwrap_or_else(|| panic!("no {part:?} in {text:?}"));
        let (entered, left) = (at("\u{1b}[?1049h"), at("\u{1b}[?1049l"));
        assert!(entered < left && left < at("on purpose"), "{text:?}");
        assert!(left < at("\u{1b}[?25h"), "the cursor is shown: {text:?}");
    }
}
