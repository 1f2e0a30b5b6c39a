//! Claims and releases of different names, sent as one transaction.
//!
//! A server spends more on each request than on what it asks for. So a few exchanges are on their
//! way at a time; what comes meanwhile is kept, and goes out together as soon as one of them is
//! answered. Who is alone loses nothing by it, and the more there are the more go together.
//!
//! A transaction is done as a whole or not at all. If a part of it fails, nothing was done, and
//! each of its requests is sent again by itself: only the one that it concerns hears of it. All in
//! it have the same number, so no two of them are ever about the same line.
//!
//! The driver does this, and not whoever asks, because it decides what goes out when. What is
//! given up while it is kept is not sent, and what is asked about a line goes out behind what is
//! kept for it: so one that is not found then will not come to be, as `ask.rs` needs it.

use std::collections::VecDeque;

use super::session::{Asked, Reply, Trouble};
use super::wire::{Odd, Out, Request, code, split_parts};

/// Exchanges on their way before others are kept.
pub(super) const WIDTH: usize = 4;
/// Requests in one transaction.
const REQUESTS_MAX: usize = 32;
/// Bytes of one transaction, well below what servers read (`jute.maxbuffer`: a megabyte) and one
/// request with the longest name and note.
const BYTES_MAX: usize = 128 << 10;
/// Requests that are kept. Those beyond go out by themselves.
const KEPT_MAX: usize = 1_024;

/// What is to be sent as soon as it may.
#[derive(Default)]
pub(super) struct Keep {
    kept: VecDeque<Asked>,
    /// Those that were in a transaction that failed.
    alone: VecDeque<Asked>,
}

impl Keep {
    pub(super) fn is_empty(&self) -> bool {
        self.kept.is_empty() && self.alone.is_empty()
    }

    /// Keeps a request that may go with others, if there is room; else it comes back.
    pub(super) fn keep(&mut self, asked: Asked) -> Option<Asked> {
        if asked.line.is_none() || self.kept.len() >= KEPT_MAX {
            return Some(asked);
        }
        self.kept.push_back(asked);
        None
    }

    /// Gives up what may go out on no other connection than the one that broke.
    pub(super) fn give_up_bound(&mut self, trouble: &Trouble) {
        for kept in [&mut self.kept, &mut self.alone] {
            let (bound, free) =
                std::mem::take(kept).into_iter().partition(|asked| asked.only_on.is_some());
            *kept = free;
            let bound: VecDeque<Asked> = bound;
            bound.into_iter().for_each(|asked| tell(asked, Err(trouble.clone())));
        }
    }

    /// Keeps requests that are not to go with others again.
    pub(super) fn keep_alone(&mut self, asked: Vec<Asked>) {
        self.alone.extend(asked);
    }

    /// What goes out before a request about the same line.
    pub(super) fn before(&mut self, request: &Request) -> Vec<Bundle> {
        let server_alerts =
            |asked: &Asked| asked.line.as_deref().is_some_and(|l| request.is_about(l));
        let mut first = Vec::new();
        for kept in [&mut self.alone, &mut self.kept] {
            if kept.iter().any(server_alerts) {
                let (about, others) = std::mem::take(kept).into_iter().partition(server_alerts);
                (first, *kept) = (join(first, about), others);
            }
        }
        first.into_iter().filter_map(Bundle::of).collect()
    }

    /// What goes out by itself, or if there is room for another exchange the next to go together.
    pub(super) fn next(&mut self, has_room: bool) -> Option<Bundle> {
        while let Some(asked) = self.alone.pop_front() {
            if let Some(bundle) = Bundle::of(asked) {
                return Some(bundle);
            }
        }
        if !has_room {
            return None;
        }
        let mut chosen = Bundle::default();
        let mut left = VecDeque::new();
        while let Some(asked) = self.kept.pop_front() {
            if chosen.asked.len() == REQUESTS_MAX || chosen.body.0.len() >= BYTES_MAX {
                left.push_back(asked);
                break;
            }
            // What is about the same line as one that stays behind stays behind that.
            let is_free =
                |asked: &Asked| !left.iter().any(|other: &Asked| other.line == asked.line);
            if is_free(&asked) {
                left.extend(chosen.add(asked));
            } else {
                left.push_back(asked);
            }
        }
        left.append(&mut self.kept);
        self.kept = left;
        (!chosen.asked.is_empty()).then_some(chosen)
    }
}

fn join(mut one: Vec<Asked>, two: VecDeque<Asked>) -> Vec<Asked> {
    one.extend(two);
    one
}

/// Requests that are one transaction.
#[derive(Default)]
pub(super) struct Bundle {
    asked: Vec<Asked>,
    /// Their parts as they are sent.
    body: Out,
}

impl Bundle {
    /// One request by itself, if somebody still wants it.
    fn of(asked: Asked) -> Option<Self> {
        let mut bundle = Self::default();
        drop(bundle.add(asked));
        (!bundle.asked.is_empty()).then_some(bundle)
    }

    /// Takes a request, or gives it back if it is about a line that another one is about. What was
    /// given up must not be served later: nobody would know.
    fn add(&mut self, asked: Asked) -> Option<Asked> {
        if asked.reply.is_closed() {
            return None;
        }
        if self.asked.iter().any(|other| other.line == asked.line) {
            return Some(asked);
        }
        asked.request.write_parts(&mut self.body);
        self.asked.push(asked);
        None
    }

    /// Writes it as a transaction.
    pub(super) fn write(&self, out: &mut Out) {
        out.0.extend(&self.body.0);
        Request::write_end(out);
    }

    /// Tells everybody what came of its request, if all of it was done; else those who are to be
    /// sent again come back.
    pub(super) fn settle(self, reply: Reply) -> Result<Vec<Asked>, Odd> {
        let mut asked = self.asked;
        if asked.len() == 1 || reply.code != code::OK {
            for asked in asked {
                tell(asked, Ok(reply.clone()));
            }
            return Ok(Vec::new());
        }
        let counts: Vec<usize> = asked.iter().map(|asked| asked.request.parts()).collect();
        match split_parts(&reply.body, &counts) {
            Ok(Some(bodies)) => {
                for (asked, body) in asked.into_iter().zip(bodies) {
                    tell(asked, Ok(Reply { body, ..reply }));
                }
                Ok(Vec::new())
            }
            Ok(None) => {
                asked.retain(|asked| !asked.reply.is_closed());
                Ok(asked)
            }
            Err(odd) => {
                let trouble = Trouble::Cut(odd.to_string());
                Self { asked, body: self.body }.fail(&trouble);
                Err(odd)
            }
        }
    }

    /// Nobody knows what came of it.
    pub(super) fn fail(self, trouble: &Trouble) {
        for asked in self.asked {
            tell(asked, Err(trouble.clone()));
        }
    }
}

pub(super) fn tell(asked: Asked, answer: Result<Reply, Trouble>) {
    // Whoever asked may not want to know any more.
    drop(asked.reply.send(answer));
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;
    use crate::clock::Moment;

    type Answer = oneshot::Receiver<Result<Reply, Trouble>>;

    fn asked(line: &str) -> (Asked, Answer) {
        let (reply, answer) = oneshot::channel();
        let parts = vec![Request::Delete { path: format!("{line}/a") }];
        let (request, line) = (Request::Multi(parts), Some(line.into()));
        (Asked { request, line, only_on: None, reply }, answer)
    }

    fn lines(bundle: Option<Bundle>) -> Vec<String> {
        let asked = bundle.map(|bundle| bundle.asked).unwrap_or_default();
        asked.into_iter().filter_map(|asked| asked.line).collect()
    }

    fn kept(names: &[&str]) -> (Keep, Vec<Answer>) {
        let mut keep = Keep::default();
        let answers = names.iter().map(|line| {
            let (asked, answer) = asked(line);
            assert!(keep.keep(asked).is_none());
            answer
        });
        let answers = answers.collect();
        (keep, answers)
    }

    #[test]
    fn one_line_is_in_a_transaction_once_and_in_its_order() {
        let (mut keep, _answers) = kept(&["/a", "/b", "/a", "/c", "/a"]);
        assert!(keep.next(false).is_none());
        assert_eq!(lines(keep.next(true)), ["/a", "/b", "/c"]);
        assert_eq!(lines(keep.next(true)), ["/a"]);
        assert_eq!(lines(keep.next(true)), ["/a"]);
        assert!(keep.next(true).is_none());
    }

    #[test]
    fn what_is_given_up_is_not_sent() {
        let (mut keep, mut answers) = kept(&["/a", "/b", "/a"]);
        drop(answers.remove(0));
        assert_eq!(lines(keep.next(true)), ["/b", "/a"]);
        drop(answers);
        let (gone, _) = asked("/c");
        keep.keep_alone(vec![gone]);
        assert!(keep.next(true).is_none());
    }

    #[test]
    fn what_is_bound_to_a_connection_is_given_up_with_it() {
        let (mut keep, mut answers) = kept(&["/a", "/b"]);
        let (mut bound, answer) = asked("/c");
        bound.only_on = Some(1);
        assert!(keep.keep(bound).is_none());
        answers.push(answer);
        keep.give_up_bound(&Trouble::Cut("it broke".into()));
        assert!(matches!(answers[2].try_recv(), Ok(Err(Trouble::Cut(_)))));
        assert_eq!(lines(keep.next(true)), ["/a", "/b"]);
    }

    #[test]
    fn what_is_asked_about_a_line_goes_out_behind_what_is_kept_for_it() {
        let (mut keep, _answers) = kept(&["/a", "/ab", "/a", "/b"]);
        let (again, _answer) = asked("/a");
        keep.keep_alone(vec![again]);
        let paths = ["/a", "/a/x"].map(|path| Request::Children { path: path.into() });
        let first = keep.before(&paths[0]).into_iter().map(|bundle| lines(Some(bundle)));
        assert_eq!(first.collect::<Vec<_>>(), [["/a"], ["/a"], ["/a"]]);
        let (asked, _answer) = asked("/a");
        keep.keep(asked);
        assert_eq!(keep.before(&Request::Multi(paths[1..].to_vec())).len(), 1);
        assert_eq!(lines(keep.next(true)), ["/ab", "/b"]);
    }

    #[test]
    fn a_transaction_is_of_bounded_size_and_the_rest_follows() {
        let names: Vec<String> = (0..REQUESTS_MAX + 1).map(|index| format!("/{index}")).collect();
        let (mut keep, _answers) = kept(&names.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(lines(keep.next(true)).len(), REQUESTS_MAX);
        assert_eq!(lines(keep.next(true)).len(), 1);
        let long = "x".repeat(BYTES_MAX / 2);
        let names = ["a", "b", "c"].map(|end| format!("/{long}{end}"));
        let (mut keep, _answers) = kept(&names.each_ref().map(String::as_str));
        assert_eq!(lines(keep.next(true)).len(), 2);
        assert_eq!(lines(keep.next(true)).len(), 1);
    }

    fn reply(errors: &[i32]) -> Reply {
        let mut body = Out::default();
        for error in errors {
            match error {
                0 => body.int(2).flag(false).int(0),
                error => body.int(-1).flag(false).int(*error).int(*error),
            };
        }
        body.int(-1).flag(true).int(-1);
        Reply { code: 0, zxid: 7, body: body.0, safe_until: Moment::from_nanos(1) }
    }

    #[test]
    fn each_hears_of_its_own_and_if_one_failed_all_are_sent_again() {
        let (mut keep, mut answers) = kept(&["/a", "/b"]);
        let done = keep.next(true).expect("two").settle(reply(&[0, 0]));
        assert!(done.expect("good").is_empty());
        for answer in &mut answers {
            let told = answer.try_recv().expect("an answer").expect("good");
            assert_eq!((told.body, told.zxid), (reply(&[0]).body, 7));
        }
        let (mut keep, mut answers) = kept(&["/a", "/b", "/c"]);
        let bundle = keep.next(true).expect("three");
        drop(answers.pop());
        let again = bundle.settle(reply(&[code::NO_NODE, -2, -2])).expect("good");
        assert!(answers.iter_mut().all(|answer| answer.try_recv().is_err()), "nobody is told");
        keep.keep_alone(again);
        assert_eq!(lines(keep.next(false)), ["/a"]);
        assert_eq!(lines(keep.next(false)), ["/b"]);
        assert!(keep.next(true).is_none(), "the third gave up");
    }

    #[test]
    fn an_answer_of_another_length_leaves_all_unknown() {
        let (mut keep, mut answers) = kept(&["/a", "/b"]);
        assert!(keep.next(true).expect("two").settle(reply(&[0])).is_err());
        for answer in &mut answers {
            assert!(matches!(answer.try_recv(), Ok(Err(Trouble::Cut(_)))));
        }
    }
}
