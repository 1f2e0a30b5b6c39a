//! Messages of clients to the holders of leases, and their text.
//!
//! A message is a hint. The holder's client then renews the lease at once, and the answer to that
//! says whether the lease is gone. So a forged message takes no lease away.

use std::time::Duration;

use crate::engine::Eviction;
use crate::rule::name::Name;

/// The most bytes of a reason in a message; a longer one is cut.
const REASON_MAX: usize = 1_024;

/// The most fences in one message.
const FENCES_MAX: usize = 64;

/// The form of the text.
const VERSION: &str = "1";

/// A message to the clients that hold a name with one of these fences.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct HolderMessage {
    /// What it says.
    pub kind: MessageKind,
    /// The name.
    pub name: Name,
    /// The fences of the leases that it is about.
    pub fences: Vec<u64>,
    /// The label of the client that sent it.
    pub by: String,
    /// Why.
    pub reason: String,
}

/// What a message says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum MessageKind {
    /// An administrator took the leases.
    Evicted,
    /// An administrator asks for the leases, and takes them after this time.
    Revoked {
        /// How long the holders have.
        within: Duration,
    },
}

impl MessageKind {
    fn text(self) -> String {
        match self {
            MessageKind::Evicted => "evicted".into(),
            MessageKind::Revoked { within } => format!("revoked={}", within.as_millis()),
        }
    }

    fn of_text(text: &str) -> Option<Self> {
        if text == "evicted" {
            return Some(MessageKind::Evicted);
        }
        let within = Duration::from_millis(text.strip_prefix("revoked=")?.parse().ok()?);
        Some(MessageKind::Revoked { within })
    }
}

impl HolderMessage {
    /// The most bytes of its text. Each store carries that many in one message.
    pub const BYTES_MAX: usize = 4_000;

    /// The messages that tell the holders of an eviction. Locks of other libraries have no fence,
    /// and nobody hears for them.
    pub fn of_eviction(order: &Eviction) -> Vec<Self> {
        Self::about(MessageKind::Evicted, order)
    }

    /// The messages that ask the holders for what the order is about, and say how long they have.
    pub fn of_revocation(order: &Eviction, within: Duration) -> Vec<Self> {
        Self::about(MessageKind::Revoked { within }, order)
    }

    fn about(kind: MessageKind, order: &Eviction) -> Vec<Self> {
        let fences: Vec<u64> = order.fences.iter().copied().filter(|fence| *fence != 0).collect();
        let message = |fences: &[u64]| Self {
            kind,
            name: order.name.clone(),
            fences: fences.to_vec(),
            by: order.by.label().to_owned(),
            reason: cut(&order.reason),
        };
        fences.chunks(FENCES_MAX).map(message).collect()
    }

    /// The message as text, without a NUL byte.
    pub fn to_text(&self) -> String {
        let Self { kind, name, fences, by, reason } = self;
        let fences = fences.iter().map(u64::to_string).collect::<Vec<_>>().join(",");
        let (kind, name) = (kind.text(), name.as_str());
        let (name_length, by_length) = (name.len(), by.len());
        format!("{VERSION} {kind} {fences} {name_length} {by_length} {name}{by}{reason}")
    }

    /// Reads a text; `None` if it is no message that this version knows.
    pub fn of_text(text: &str) -> Option<Self> {
        let mut words = text.splitn(6, ' ');
        let version = words.next()?;
        let kind = MessageKind::of_text(words.next()?)?;
        let fences: Option<Vec<u64>> =
            words.next()?.split(',').map(|fence| fence.parse().ok()).collect();
        let name_length: usize = words.next()?.parse().ok()?;
        let by_length: usize = words.next()?.parse().ok()?;
        let rest = words.next()?;
        let (name, rest) = rest.split_at_checked(name_length)?;
        let (by, reason) = rest.split_at_checked(by_length)?;
        (version == VERSION).then_some(Self {
            kind,
            name: Name::new(name).ok()?,
            fences: fences?,
            by: by.to_owned(),
            reason: reason.to_owned(),
        })
    }
}

/// As much of a reason as a message carries.
fn cut(reason: &str) -> String {
    let starts = reason.char_indices().map(|(at, _)| at).chain([reason.len()]);
    let end = starts.take_while(|at| *at <= REASON_MAX).last().unwrap_or(0);
    reason[..end].replace('\0', "")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule::claim::Holder;

    fn order(fences: &[u64], reason: &str) -> Eviction {
        Eviction {
            name: Name::new("a name, with\n2 lines").expect("good"),
            fences: fences.to_vec(),
            unreadable: false,
            by: Holder::labelled("ada on é").expect("good"),
            reason: reason.into(),
        }
    }

    #[test]
    fn message_is_read_as_it_was_written() {
        for reason in ["", "host db3 is gone", " 1 evicted 7 1 1 x"] {
            let messages = HolderMessage::of_eviction(&order(&[7, u64::MAX], reason));
            assert_eq!(messages[0].reason, reason);
            let read: Vec<_> =
                messages.iter().map(|m| HolderMessage::of_text(&m.to_text())).collect();
            assert_eq!(read, messages.into_iter().map(Some).collect::<Vec<_>>());
        }
    }

    #[test]
    fn message_that_asks_for_a_lease_says_how_long_there_is() {
        let within = Duration::from_millis(30_500);
        let message = HolderMessage::of_revocation(&order(&[7], "maintenance"), within).remove(0);
        let read = HolderMessage::of_text(&message.to_text()).expect("a message");
        assert_eq!(read.kind, MessageKind::Revoked { within });
        assert_eq!(read, message);
    }

    #[test]
    fn message_is_bounded_and_many_fences_are_several() {
        let fences = vec![u64::MAX; FENCES_MAX + 1];
        let mut order = order(&fences, &"é\0".repeat(REASON_MAX));
        order.name = Name::new("n".repeat(Name::BYTES_MAX)).expect("good");
        order.by = Holder::labelled("l".repeat(Holder::LABEL_BYTES_MAX)).expect("good");
        let messages = HolderMessage::of_eviction(&order);
        assert_eq!(messages.iter().map(|m| m.fences.len()).collect::<Vec<_>>(), [FENCES_MAX, 1]);
        for message in messages {
            let text = message.to_text();
            assert!(text.len() <= HolderMessage::BYTES_MAX, "{}", text.len());
            assert!(!text.contains('\0'));
        }
    }

    #[test]
    fn nobody_hears_for_a_lock_without_a_fence() {
        assert!(HolderMessage::of_eviction(&order(&[0], "")).is_empty());
    }

    #[test]
    fn text_of_another_form_is_no_message() {
        let good = HolderMessage::of_eviction(&order(&[7], "why")).remove(0).to_text();
        for bad in ["", "1", "1 evicted", "1 evicted 7 99 1 n", "1 evicted x 1 1 nb", &good[2..]] {
            assert_eq!(HolderMessage::of_text(bad), None, "{bad}");
        }
        assert_eq!(HolderMessage::of_text(&good.replacen('1', "2", 1)), None);
        assert_eq!(HolderMessage::of_text(&good.replacen("evicted", "praised", 1)), None);
        assert_eq!(HolderMessage::of_text("1 evicted 7 1 1 éé"), None, "no character boundary");
    }
}
