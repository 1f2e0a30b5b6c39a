//! Finds the sentences of a Rust source: its comments, and its texts for people.
//!
//! A small lexer, because a comment may stand in a string and a quote in a comment. What is wrong
//! with a sentence is left to the parent.

/// The parts of a source that people read.
#[derive(Debug, Default)]
pub(crate) struct Source {
    /// Comments, by the line of their first word. Lines that follow one another are one comment.
    pub(crate) comments: Vec<Text>,
    /// String literals that have a space in them.
    pub(crate) texts: Vec<Text>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Text {
    pub(crate) line: usize,
    pub(crate) text: String,
}

/// Reads a source up to its unit tests.
pub(crate) fn read(source: &str) -> Source {
    let end = source.find("\n#[cfg(test)]\nmod ").unwrap_or(source.len());
    let mut lexer = Lexer { rest: &source[..end], line: 1, found: Source::default(), last: None };
    while !lexer.rest.is_empty() {
        lexer.step();
    }
    lexer.found
}

struct Lexer<'a> {
    rest: &'a str,
    line: usize,
    found: Source,
    /// The marker and the line of the comment that was read last.
    last: Option<(&'a str, usize)>,
}

impl<'a> Lexer<'a> {
    fn step(&mut self) {
        let rest = self.rest;
        if rest.starts_with("//") {
            return self.comment();
        }
        if let Some(hashes) = raw_string(rest) {
            let begin = hashes + 2;
            let close = format!("\"{}", "#".repeat(hashes));
            let length = rest[begin..].find(&close).unwrap_or(rest.len() - begin);
            let text = rest[begin..begin + length].to_owned();
            self.text(text);
            return self.skip(begin + length + close.len());
        }
        if rest.starts_with('"') {
            return self.string();
        }
        self.skip(character(rest));
    }

    fn comment(&mut self) {
        let end = self.rest.find('\n').unwrap_or(self.rest.len());
        let whole = &self.rest[..end];
        let marker = ["//!", "///", "//"].into_iter().find(|marker| whole.starts_with(marker));
        let marker = marker.unwrap_or("//");
        let text = whole[marker.len()..].strip_prefix(' ').unwrap_or(&whole[marker.len()..]);
        match self.found.comments.last_mut() {
            Some(comment) if self.last == Some((marker, self.line - 1)) => {
                comment.text.push('\n');
                comment.text.push_str(text);
            }
            _ => self.found.comments.push(Text { line: self.line, text: text.to_owned() }),
        }
        self.last = Some((marker, self.line));
        self.skip(end);
    }

    fn string(&mut self) {
        let mut text = String::new();
        let mut characters = self.rest.char_indices().skip(1).peekable();
        let mut end = self.rest.len();
        while let Some((at, character)) = characters.next() {
            match character {
                '"' => {
                    end = at + 1;
                    break;
                }
                '\\' => match characters.next() {
                    // The text goes on at the next word.
                    Some((_, '\n')) => {
                        while characters.next_if(|(_, c)| c.is_whitespace()).is_some() {}
                    }
                    Some((_, 'n')) => text.push('\n'),
                    Some((_, escaped)) => text.push(escaped),
                    None => {}
                },
                character => text.push(character),
            }
        }
        self.text(text);
        self.skip(end);
    }

    fn text(&mut self, text: String) {
        if text.contains(' ') {
            self.found.texts.push(Text { line: self.line, text: without_values(&text) });
        }
    }

    fn skip(&mut self, bytes: usize) {
        let (read, rest) = self.rest.split_at(bytes.min(self.rest.len()));
        self.line += read.matches('\n').count();
        self.rest = rest;
    }
}

/// The number of `#` of a raw string that begins here.
fn raw_string(rest: &str) -> Option<usize> {
    let hashes = rest.strip_prefix('r')?.find(|c| c != '#')?;
    rest[1 + hashes..].starts_with('"').then_some(hashes)
}

/// The bytes of a character literal, a word or another character, none of which has a quote for us.
fn character(rest: &str) -> usize {
    let first = rest.chars().next().map_or(1, char::len_utf8);
    if let Some(escaped) = rest.strip_prefix("'\\") {
        // The character behind the backslash may be a quote itself.
        return escaped.get(1..).and_then(|rest| rest.find('\'')).map_or(first, |at| at + 4);
    }
    if let Some(literal) = rest.strip_prefix('\'') {
        let length = literal.chars().next().map_or(0, char::len_utf8);
        return if literal[length..].starts_with('\'') { length + 2 } else { first };
    }
    // A word at once, so that the `r` of `for` begins no raw string.
    let word = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
    word.max(first)
}

/// The text with `CODE` in the place of each value that is formatted into it.
fn without_values(text: &str) -> String {
    let mut read = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('{') {
        read.push_str(before);
        match after.split_once('}') {
            Some((value, after)) if !value.contains(' ') => {
                read.push_str("CODE");
                rest = after;
            }
            _ => rest = after,
        }
    }
    read.push_str(rest);
    read
}

#[test]
fn comments_and_texts_are_told_apart() {
    let source = r##"//! A header
//! of two lines.

/// Doc.
fn f<'a>() {
    // Why.
    let a = "no // comment {x:?} \
        here"; let b = '"'; let c = '\'';
    for r in [r#"raw "text""#] {}
    let d = "one";
}
#[cfg(test)]
mod tests {
    // his
}
"##;
    let found = read(source);
    let comments: Vec<_> = found.comments.iter().map(|text| (text.line, &*text.text)).collect();
    assert_eq!(comments, [(1, "A header\nof two lines."), (4, "Doc."), (6, "Why.")]);
    let texts: Vec<_> = found.texts.iter().map(|text| (text.line, &*text.text)).collect();
    assert_eq!(texts, [(7, "no // comment CODE here"), (9, "raw \"text\"")]);
}
