//! `--load`: loops that keep the processors busy beside the tests.
//!
//! A test that passes only on a quiet machine fails beside them.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::Failure;

/// The number of loops for each processor when `--load` has no number.
const USUAL: usize = 2;

/// More loops than this for each processor leave no time for other programs.
const MOST: usize = 64;

/// Takes `--load` and the number behind it, if there is one, out of a command's arguments.
pub(crate) fn parsed(arguments: &[String]) -> Result<(Option<usize>, Vec<String>), Failure> {
    let (mut load, mut rest) = (None, Vec::new());
    let mut words = arguments.iter().peekable();
    while let Some(word) = words.next() {
        if word != "--load" {
            rest.push(word.clone());
            continue;
        }
        let number = words.peek().and_then(|word| word.parse::<usize>().ok());
        if number.is_some() {
            words.next();
        }
        let number = number.unwrap_or(USUAL);
        if number > MOST {
            let message = format!("`--load` is the loops for each processor, at most {MOST}");
            return Err(Failure::Message(message));
        }
        load = Some(number);
    }
    Ok((load, rest))
}

/// Loops that run until this is dropped.
#[derive(Debug)]
pub(crate) struct Load {
    stops: Arc<AtomicBool>,
}

impl Load {
    /// Starts this many loops for each processor.
    pub(crate) fn start(for_each_processor: usize) -> Load {
        let stops = Arc::new(AtomicBool::new(false));
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        for _ in 0..processors * for_each_processor {
            let stops = Arc::clone(&stops);
            std::thread::spawn(move || {
                let mut count = 0_u64;
                while !stops.load(Ordering::Relaxed) {
                    count = black_box(count.wrapping_add(1));
                }
            });
        }
        Load { stops }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stops.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn load_is_taken_out_of_the_arguments() {
        let parsed = |text| parsed(&words(text)).expect("good arguments");
        assert_eq!(parsed("one --load two"), (Some(USUAL), words("one two")));
        assert_eq!(parsed("one --load 3 two"), (Some(3), words("one two")));
        assert_eq!(parsed("one"), (None, words("one")));
    }

    #[test]
    fn load_that_leaves_no_time_is_refused() {
        assert!(parsed(&words("--load 65")).is_err());
    }
}
