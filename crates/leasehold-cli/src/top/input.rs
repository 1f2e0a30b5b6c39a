//! Reads the keyboard on a thread of its own.

use std::os::fd::AsFd as _;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use tokio::sync::mpsc;

use super::keys::{Key, Parser};
use super::screen;
use crate::exit::{self, Failure};

/// The most keys that wait here. The terminal keeps further ones.
const KEYS_MAX: usize = 64;

/// The bytes of one key arrive within this time, even over a slow connection.
const SEQUENCE_WAIT: Duration = Duration::from_millis(50);

/// While this process is in the background, the shell gets the keys, and the kernel stops a process
/// that reads them. So this process checks again after this time.
const BACKGROUND_WAIT: Duration = Duration::from_millis(100);

const GONE: PollFlags = PollFlags::HUP.union(PollFlags::ERR).union(PollFlags::NVAL);

/// Starts to read; the channel ends when the terminal is gone.
pub(crate) fn start() -> Result<mpsc::Receiver<Key>, Failure> {
    let (sender, keys) = mpsc::channel(KEYS_MAX);
    std::thread::Builder::new()
        .name("leasehold-keys".to_owned())
        .spawn(move || read(&sender))
        .map_err(|error| Failure::new(exit::UNREACHABLE, format!("cannot start: {error}")))?;
    Ok(keys)
}

fn read(keys: &mpsc::Sender<Key>) {
    let stdin = std::io::stdin();
    let mut parser = Parser::default();
    let mut buffer = [0; 256];
    loop {
        let wait = Timespec::try_from(SEQUENCE_WAIT).ok().filter(|_| parser.is_pending());
        let mut files = [PollFd::from_borrowed_fd(stdin.as_fd(), PollFlags::IN)];
        let read = match poll(&mut files, wait.as_ref()) {
            Ok(0) => Ok(parser.flush().into_iter().collect()),
            Ok(_) if files[0].revents().intersects(GONE) => return,
            Ok(_) if !screen::is_ours() => {
                std::thread::sleep(BACKGROUND_WAIT);
                Ok(Vec::new())
            }
            Ok(_) => match rustix::io::read(stdin.as_fd(), &mut buffer) {
                // The terminal went away.
                Ok(0) => return,
                Ok(count) => Ok(parser.feed(&buffer[..count])),
                Err(error) => Err(error),
            },
            Err(error) => Err(error),
        };
        match read {
            Ok(pressed) => {
                let pressed: Vec<Key> = pressed;
                if pressed.into_iter().any(|key| keys.blocking_send(key).is_err()) {
                    return;
                }
            }
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(_) => return,
        }
    }
}
