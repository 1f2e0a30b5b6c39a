//! The part of the Redis protocol that the harness speaks, over TCP or a socket file.
//!
//! It sends one command on each connection and returns the answer as text. The tests bring real
//! clients.

use std::io::{self, BufRead, BufReader, Read, Write};

/// The answers that the harness reads are short; more is a broken stream.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// Nested answers are at most two deep here.
const DEPTH_MAX: usize = 8;

/// Sends one command to the server behind a stream, after logging in with `login` when there is
/// one.
///
/// Lists come back with one item in each line, nothing as an empty text, an error of Redis as an
/// error.
pub(super) fn call(
    stream: impl Read + Write,
    login: Option<(&str, &str)>,
    command: &[&str],
) -> io::Result<String> {
    let mut stream = BufReader::new(stream);
    if let Some((user, password)) = login {
        ask(&mut stream, &["AUTH", user, password])?;
    }
    ask(&mut stream, command)
}

fn ask(stream: &mut BufReader<impl Read + Write>, command: &[&str]) -> io::Result<String> {
    stream.get_mut().write_all(&encode(command))?;
    read_answer(stream, DEPTH_MAX)
}

fn encode(words: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend(format!("${}\r\n{word}\r\n", word.len()).into_bytes());
    }
    bytes
}

fn read_answer(answers: &mut impl BufRead, depth: usize) -> io::Result<String> {
    let mut line = String::new();
    answers.read_line(&mut line)?;
    let Some(line) = line.strip_suffix("\r\n").filter(|line| !line.is_empty()) else {
        return Err(io::ErrorKind::UnexpectedEof.into());
    };
    let (kind, rest) = line.split_at(line.chars().next().map_or(0, char::len_utf8));
    match kind {
        "+" | ":" => Ok(rest.to_owned()),
        "-" => Err(io::Error::other(rest.to_owned())),
        "$" => read_text(answers, rest),
        "*" if depth > 0 => {
            let count: usize = rest.parse().unwrap_or(0);
            let items = (0..count).map(|_| read_answer(answers, depth - 1));
            Ok(items.collect::<io::Result<Vec<String>>>()?.join("\n"))
        }
        _ => Err(io::Error::other(format!("not an answer of Redis: `{line}`"))),
    }
}

fn read_text(answers: &mut impl BufRead, length: &str) -> io::Result<String> {
    // A length of -1 means that there is nothing.
    let Ok(length) = length.parse::<usize>() else { return Ok(String::new()) };
    if length > ANSWER_BYTES_MAX {
        return Err(io::Error::other(format!("answer of {length} bytes is too long")));
    }
    let mut bytes = vec![0; length + 2];
    answers.read_exact(&mut bytes)?;
    bytes.truncate(length);
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(mut bytes: &[u8]) -> io::Result<String> {
        read_answer(&mut bytes, DEPTH_MAX)
    }

    #[test]
    fn every_kind_of_answer_is_read() {
        assert_eq!(answer(b"+PONG\r\n").unwrap(), "PONG");
        assert_eq!(answer(b":12\r\n").unwrap(), "12");
        assert_eq!(answer(b"$5\r\na\r\nb \r\n").unwrap(), "a\r\nb ");
        assert_eq!(answer(b"$-1\r\n").unwrap(), "");
        assert_eq!(answer(b"*2\r\n$1\r\na\r\n*2\r\n:1\r\n:2\r\n").unwrap(), "a\n1\n2");
    }

    #[test]
    fn error_and_cut_answers_are_errors() {
        assert_eq!(answer(b"-NOAUTH no\r\n").unwrap_err().to_string(), "NOAUTH no");
        assert!(answer(b"").is_err());
        assert!(answer(b"$5\r\nab").is_err());
        assert!(answer(b"hello\r\n").is_err());
    }

    #[test]
    fn words_are_sent_with_their_lengths() {
        assert_eq!(encode(&["GET", "a b"]), b"*2\r\n$3\r\nGET\r\n$3\r\na b\r\n");
    }
}
