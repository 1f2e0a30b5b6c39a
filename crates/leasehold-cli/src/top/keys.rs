//! Keys: turns the bytes of a terminal into keys, and keys into actions. Pure.
//!
//! An arrow is several bytes that begin as Escape does, and a slow connection may separate them.
//! So a lone Escape stays pending until [`Parser::flush`] reports that no byte followed.

use super::model::Action;

/// A key that was pressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Key {
    Char(char),
    /// A letter with Control.
    Ctrl(char),
    Enter,
    Escape,
    Backspace,
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
    /// A key without a meaning here.
    Other,
}

/// The longest sequence of one key; a longer one is no key.
const SEQUENCE_MAX: usize = 16;

const ESCAPE: u8 = 0x1b;

/// Puts keys together from bytes.
#[derive(Debug, Default)]
pub(crate) struct Parser {
    pending: Vec<u8>,
}

impl Parser {
    /// Takes bytes as they arrived, and returns the keys that are complete.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> Vec<Key> {
        let mut keys = Vec::new();
        for byte in bytes {
            if *byte == ESCAPE && self.pending == [ESCAPE] {
                keys.push(Key::Escape);
                continue;
            }
            self.pending.push(*byte);
            if let Some(key) = complete(&self.pending) {
                self.pending.clear();
                keys.push(key);
            } else if self.pending.len() >= SEQUENCE_MAX {
                self.pending.clear();
                keys.push(Key::Other);
            }
        }
        keys
    }

    /// Whether the beginning of a sequence waits for more bytes.
    pub(crate) fn is_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Ends a sequence that no further byte followed.
    pub(crate) fn flush(&mut self) -> Option<Key> {
        let key = match self.pending.as_slice() {
            [] => None,
            [ESCAPE] => Some(Key::Escape),
            _ => Some(Key::Other),
        };
        self.pending.clear();
        key
    }
}

/// The key of these bytes, if they are complete.
fn complete(bytes: &[u8]) -> Option<Key> {
    match bytes {
        [ESCAPE] | [ESCAPE, b'[' | b'O'] => None,
        [ESCAPE, b'O', letter] => Some(by_letter(*letter)),
        [ESCAPE, b'[', parameters @ .., last @ 0x40..=0x7e] => Some(match last {
            b'~' => by_number(parameters),
            letter => by_letter(*letter),
        }),
        [ESCAPE, b'[', ..] => None,
        [ESCAPE, _] => Some(Key::Other),
        [b'\r' | b'\n'] => Some(Key::Enter),
        [0x7f | 0x08] => Some(Key::Backspace),
        [control @ 1..=26] => Some(Key::Ctrl(char::from(b'a' + control - 1))),
        [0..=0x1f] => Some(Key::Other),
        text => match std::str::from_utf8(text) {
            Ok(text) => text.chars().next().map(Key::Char),
            // The first bytes of a longer character.
            Err(error) if error.error_len().is_none() => None,
            Err(_) => Some(Key::Other),
        },
    }
}

fn by_letter(letter: u8) -> Key {
    match letter {
        b'A' => Key::Up,
        b'B' => Key::Down,
        b'H' => Key::Home,
        b'F' => Key::End,
        _ => Key::Other,
    }
}

fn by_number(parameters: &[u8]) -> Key {
    match parameters {
        b"1" | b"7" => Key::Home,
        b"4" | b"8" => Key::End,
        b"5" => Key::PageUp,
        b"6" => Key::PageDown,
        _ => Key::Other,
    }
}

/// The action of a key while the user types a filter.
pub(crate) fn while_typing(key: Key) -> Option<Action> {
    match key {
        Key::Char(c) => Some(Action::Type(c)),
        Key::Backspace => Some(Action::Erase),
        Key::Ctrl('u') => Some(Action::EraseAll),
        Key::Enter => Some(Action::Accept),
        Key::Escape => Some(Action::Cancel),
        Key::Ctrl('c') => Some(Action::Quit),
        Key::Ctrl('z') => Some(Action::Suspend),
        Key::Up => Some(Action::Up),
        Key::Down => Some(Action::Down),
        _ => None,
    }
}

/// The action of a key at other times.
pub(crate) fn command(key: Key) -> Option<Action> {
    match key {
        Key::Char('q') | Key::Escape | Key::Ctrl('c') => Some(Action::Quit),
        Key::Char('k') | Key::Up => Some(Action::Up),
        Key::Char('j') | Key::Down => Some(Action::Down),
        Key::PageUp | Key::Ctrl('b') => Some(Action::PageUp),
        Key::PageDown | Key::Ctrl('f') => Some(Action::PageDown),
        Key::Home | Key::Char('g') => Some(Action::Home),
        Key::End | Key::Char('G') => Some(Action::End),
        Key::Char('K') => Some(Action::PictureUp),
        Key::Char('J') => Some(Action::PictureDown),
        Key::Enter => Some(Action::Picture),
        Key::Char('/') => Some(Action::Filter),
        Key::Char('s') => Some(Action::Sort),
        Key::Char('p' | ' ') => Some(Action::Pause),
        Key::Char('r') => Some(Action::ReadNow),
        Key::Char('?' | 'h') => Some(Action::Help),
        Key::Ctrl('l') => Some(Action::Redraw),
        Key::Ctrl('z') => Some(Action::Suspend),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_as_terminals_send_them() {
        let table: [(&[u8], &[Key]); 16] = [
            (b"q", &[Key::Char('q')]),
            (b"\x1b[A", &[Key::Up]),
            (b"\x1bOB", &[Key::Down]),
            (b"\x1b[5~\x1b[6~", &[Key::PageUp, Key::PageDown]),
            (b"\x1b[H\x1b[F", &[Key::Home, Key::End]),
            (b"\x1b[1~\x1b[4~", &[Key::Home, Key::End]),
            (b"\x1b[1;5A", &[Key::Up]),
            (b"\x1b[3~", &[Key::Other]),
            (b"\r", &[Key::Enter]),
            (b"\x7f", &[Key::Backspace]),
            (b"\x03", &[Key::Ctrl('c')]),
            ("jé".as_bytes(), &[Key::Char('j'), Key::Char('é')]),
            (b"\x1bx", &[Key::Other]),
            (b"\xff", &[Key::Other]),
            (b"\x1b\x1b[A", &[Key::Escape, Key::Up]),
            (b"", &[]),
        ];
        for (bytes, keys) in table {
            let mut parser = Parser::default();
            assert_eq!(parser.feed(bytes), keys, "{bytes:?}");
            assert!(!parser.is_pending(), "{bytes:?}");
        }
    }

    #[test]
    fn an_arrow_that_comes_in_pieces_is_no_escape() {
        let mut parser = Parser::default();
        assert!(parser.feed(b"\x1b").is_empty());
        assert!(parser.is_pending());
        assert!(parser.feed(b"[").is_empty());
        assert_eq!(parser.feed(b"A"), [Key::Up]);
        assert!(parser.feed(b"\x1b").is_empty());
        assert_eq!(parser.flush(), Some(Key::Escape));
        assert_eq!(parser.flush(), None);
    }

    #[test]
    fn noise_ends() {
        let mut parser = Parser::default();
        let noise = [b"\x1b[".as_slice(), &[b'1'; 100]].concat();
        assert!(parser.feed(&noise).contains(&Key::Other));
        parser.flush();
        assert_eq!(parser.feed(b"q"), [Key::Char('q')]);
    }

    #[test]
    fn a_filter_takes_letters_that_are_commands_elsewhere() {
        for letter in ['q', 'j', '?', ' '] {
            assert_eq!(while_typing(Key::Char(letter)), Some(Action::Type(letter)));
            assert!(!matches!(command(Key::Char(letter)), None | Some(Action::Type(_))));
        }
        assert_eq!(while_typing(Key::Escape), Some(Action::Cancel));
        assert_eq!(command(Key::Escape), Some(Action::Quit));
    }
}
