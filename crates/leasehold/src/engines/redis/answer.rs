//! What the scripts answer, made into the library's words.

use std::time::Duration;

use redis::Value;

use crate::clock::Moment;
use crate::engine::{ClaimView, Event, EventKind, LineView};
use crate::error::Kind;
use crate::rule::claim::{Holder, HolderId, Mode, Note, Place, Released, Standing, Token};
use crate::rule::fence::Fence;
use crate::rule::line::{Entry, Line};
use crate::rule::name::Name;

use super::keys::Layout;

/// What a lock that is not ours is shown as held by.
const FOREIGN: &str = "a client of another library";

/// The kind of event that has a reason behind it.
const EVICTED: &str = "evicted";

/// An answer that no script of ours gives.
#[derive(Debug)]
pub(super) struct Odd;

/// What `claim.lua` and `renew.lua` answer.
#[derive(Debug)]
pub(super) enum Answer {
    Stands(Standing),
    Mismatch(Kind),
    Full,
}

/// An answer's parts, read one after the other.
pub(super) struct Parts(std::vec::IntoIter<Value>);

impl Parts {
    pub(super) fn of(value: Value) -> Result<Self, Odd> {
        match value {
            Value::Array(parts) => Ok(Self(parts.into_iter())),
            _ => Err(Odd),
        }
    }

    fn bytes(&mut self) -> Result<Vec<u8>, Odd> {
        match self.0.next() {
            Some(Value::BulkString(bytes)) => Ok(bytes),
            Some(Value::SimpleString(text)) => Ok(text.into_bytes()),
            _ => Err(Odd),
        }
    }

    pub(super) fn text(&mut self) -> Result<String, Odd> {
        String::from_utf8(self.bytes()?).map_err(|_| Odd)
    }

    /// A number, sent as one or as text.
    pub(super) fn number<T: std::str::FromStr + TryFrom<i64>>(&mut self) -> Result<T, Odd> {
        match self.0.next() {
            Some(Value::Int(number)) => T::try_from(number).map_err(|_| Odd),
            Some(Value::BulkString(text)) => {
                std::str::from_utf8(&text).ok().and_then(|text| text.parse().ok()).ok_or(Odd)
            }
            _ => Err(Odd),
        }
    }

    pub(super) fn millis(&mut self) -> Result<Duration, Odd> {
        Ok(Duration::from_millis(self.number::<i64>()?.max(0) as u64))
    }

    /// A number of milliseconds, or an empty text for none.
    pub(super) fn optional_millis(&mut self) -> Result<Option<Duration>, Odd> {
        match self.0.as_slice().first() {
            Some(Value::BulkString(text)) if text.is_empty() => self.text().map(|_| None),
            _ => self.millis().map(Some),
        }
    }

    pub(super) fn holder(&mut self) -> Result<Option<Holder>, Odd> {
        let (id, label) = (self.text()?, self.text()?);
        match (id.as_str(), label.as_str()) {
            ("", "") => Ok(None),
            ("", _) => Ok(Some(foreign())),
            _ => holder(&id, &label).map(Some),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.len() == 0
    }
}

pub(super) fn holder(id: &str, label: &str) -> Result<Holder, Odd> {
    let id = u128::from_str_radix(id, 16).map_err(|_| Odd)?;
    Holder::known(HolderId(id), label).map_err(|_| Odd)
}

fn foreign() -> Holder {
    Holder::known(HolderId(0), FOREIGN).unwrap_or_else(|_| Holder::fresh())
}

/// How a claim stands that asked for `ttl`, and how many leases were found expired on the way.
pub(super) fn standing(value: Value, ttl: Duration) -> Result<(Answer, u64), Odd> {
    if let Value::BulkString(fence) = &value {
        let fence = std::str::from_utf8(fence).ok().and_then(|fence| fence.parse().ok());
        let held = Standing::Held { fence: fence.ok_or(Odd)?, remaining: ttl };
        return Ok((Answer::Stands(held), 0));
    }
    let mut parts = Parts::of(value)?;
    let verdict = parts.text()?;
    if verdict == "held" {
        let (fence, remaining) = (parts.number()?, parts.millis()?);
        return Ok((Answer::Stands(Standing::Held { fence, remaining }), parts.number()?));
    }
    let (count, retry_in) = (parts.number::<i64>()?, parts.millis()?);
    let expired = parts.number()?;
    let ahead = usize::try_from(count).map_err(|_| Odd)?;
    let answer = match verdict.as_str() {
        "queued" => {
            let place = Place::new(parts.number()?);
            Answer::Stands(Standing::Queued { place, ahead, retry_in })
        }
        "out" => Answer::Stands(Standing::Out { ahead, retry_in, by: parts.holder()? }),
        "mismatch" => Answer::Mismatch(kind(u32::try_from(count).map_err(|_| Odd)?)),
        "full" => Answer::Full,
        _ => return Err(Odd),
    };
    Ok((answer, expired))
}

/// The server's clock in microseconds, where `claim.lua` shows it.
pub(super) fn shown_clock(value: &Value) -> Option<u64> {
    let Value::Array(parts) = value else { return None };
    match is_queued(parts) {
        true => text_number(parts.get(5)?),
        false => text_number(parts.get(4)?),
    }
}

fn is_queued(parts: &[Value]) -> bool {
    matches!(parts.first(), Some(Value::BulkString(verdict)) if verdict == b"queued")
}

fn text_number(value: &Value) -> Option<u64> {
    match value {
        Value::BulkString(text) => std::str::from_utf8(text).ok()?.parse().ok(),
        _ => None,
    }
}

/// The server's clock in microseconds, and how a claim stands.
pub(super) fn renewed(value: Value, ttl: Duration) -> Result<(u64, Answer, u64), Odd> {
    let mut parts = Parts::of(value)?;
    let (seconds, micros): (u64, u64) = (parts.number()?, parts.number()?);
    let (answer, expired) = standing(parts.0.next().ok_or(Odd)?, ttl)?;
    Ok((seconds.saturating_mul(1_000_000).saturating_add(micros), answer, expired))
}

/// The fences of claims that were all granted; `None` if none was.
pub(super) fn fences(value: Value) -> Result<Option<Vec<u64>>, Odd> {
    match value {
        Value::Nil => Ok(None),
        Value::Array(fences) => {
            let mut parts = Parts::of(Value::Array(fences))?;
            let mut numbers = Vec::new();
            while !parts.is_empty() {
                numbers.push(parts.number()?);
            }
            Ok(Some(numbers))
        }
        _ => Err(Odd),
    }
}

pub(super) fn kind(capacity: u32) -> Kind {
    match capacity {
        Mode::LOCK_CAPACITY => Kind::Lock,
        of => Kind::Permits { of },
    }
}

/// What became of a released claim, and how many leases were found expired on the way.
pub(super) fn released(value: Value) -> Result<(Released, u64), Odd> {
    if value == Value::Int(1) {
        return Ok((Released::Released, 0));
    }
    let mut parts = Parts::of(value)?;
    let (verdict, expired) = (parts.text()?, parts.number()?);
    let released = match verdict.as_str() {
        "released" => Released::Released,
        "expired" => Released::AlreadyExpired,
        "taken" => Released::TakenBy(parts.holder()?.ok_or(Odd)?),
        _ => return Err(Odd),
    };
    Ok((released, expired))
}

/// Who was evicted, and how many leases were found expired on the way.
pub(super) fn evicted(value: Value) -> Result<(Vec<Holder>, u64), Odd> {
    let mut parts = Parts::of(value)?;
    let expired = parts.number()?;
    let mut evicted = Vec::new();
    while !parts.is_empty() {
        evicted.extend(parts.holder()?);
    }
    Ok((evicted, expired))
}

/// A line as others may see it; `None` if nobody is in it.
pub(super) fn view(value: Value, name: &Name) -> Result<Option<(LineView, Line<()>)>, Odd> {
    let mut parts = Parts::of(value)?;
    let now = moment(parts.number()?);
    let state = parts.text()?;
    let (left, capacity) = (parts.millis()?, parts.number()?);
    let mut entries = Vec::new();
    while !parts.is_empty() {
        let (token, text) = (parts.text()?, parts.text()?);
        let (lapses, granted) = (parts.number()?, parts.text()?);
        let entry = entry(&token, &text, capacity, (moment(lapses), &granted))?;
        // Without its lock key a lease is none.
        if state == "ours" || entry.granted.is_none() {
            entries.push(entry);
        }
    }
    entries.sort_by_key(|entry| entry.fence);
    let mut line = Line::from_iter(entries);
    // A claim lives through the millisecond in which it lapses.
    line.expire(Moment::from_nanos(now.as_nanos() - 1));
    let view = line.view(name, now);
    if state != "foreign" {
        return Ok(view.map(|view| (view, line)));
    }
    let held = vec![ClaimView {
        holder: foreign(),
        fence: Fence::from(0),
        mode: Mode::Exclusive,
        age: Duration::ZERO,
        remaining: left,
        note: Note::default(),
        closed: false,
    }];
    let (kind, waiting) = match view {
        Some(view) => (view.kind, view.held.into_iter().chain(view.waiting).collect()),
        None => (Kind::Lock, Vec::new()),
    };
    Ok(Some((LineView { name: name.clone(), kind, held, waiting }, line)))
}

fn moment(millis: u64) -> Moment {
    Moment::from_nanos(millis.saturating_mul(1_000_000))
}

fn entry(
    token: &str,
    text: &str,
    capacity: u32,
    (expires, granted): (Moment, &str),
) -> Result<Entry<()>, Odd> {
    let mut fields = text.splitn(7, '\n');
    let mut next = || fields.next().ok_or(Odd);
    let fence = next()?.parse().map_err(|_| Odd)?;
    let joined = next()?.parse().map_err(|_| Odd)?;
    let units = next()?.parse().map_err(|_| Odd)?;
    let id = next()?;
    let _mailbox = next()?;
    let label = next()?;
    let note = Note::new(next()?).map_err(|_| Odd)?;
    Ok(Entry {
        fence,
        token: Token::from_bytes(from_hex(token).ok_or(Odd)?),
        mode: mode(units, capacity),
        holder: holder(id, label)?,
        note,
        joined: moment(joined),
        granted: granted.parse().ok().map(moment),
        expires,
        bell: (),
    })
}

fn mode(units: u32, capacity: u32) -> Mode {
    match (units, capacity) {
        (Mode::LOCK_CAPACITY, Mode::LOCK_CAPACITY) => Mode::Exclusive,
        (_, Mode::LOCK_CAPACITY) => Mode::Shared,
        (take, of) => Mode::Permits { take, of },
    }
}

/// Sixteen bytes as the store keeps them.
pub(super) fn hex(bytes: &[u8; 16]) -> Hex {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = [0; 32];
    for (place, byte) in text.chunks_exact_mut(2).zip(bytes) {
        place[0] = DIGITS[usize::from(byte >> 4)];
        place[1] = DIGITS[usize::from(byte & 15)];
    }
    Hex(text)
}

/// Hexadecimal digits.
pub(super) struct Hex([u8; 32]);

impl AsRef<[u8]> for Hex {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl std::fmt::Display for Hex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(std::str::from_utf8(&self.0).map_err(|_| std::fmt::Error)?)
    }
}

pub(super) fn from_hex(text: &str) -> Option<[u8; 16]> {
    let number = u128::from_str_radix(text, 16).ok().filter(|_| text.len() == 32)?;
    Some(number.to_be_bytes())
}

/// The events of one name, as they come through the channel in one message.
pub(super) fn events(message: &[u8], layout: &Layout) -> Vec<Event> {
    let message = std::str::from_utf8(message).unwrap_or_default();
    let Some((name, mut rest)) = layout.name_before_nul(message) else { return Vec::new() };
    let mut events = Vec::new();
    while !rest.is_empty() {
        // Nothing follows on a reason, which may be any text.
        let (text, behind) = rest.split_once('\0').unwrap_or((rest, ""));
        events.extend(event(&name, text, behind));
        rest = if text.starts_with(EVICTED) { "" } else { behind };
    }
    events
}

fn event(name: &Name, text: &str, reason: &str) -> Option<Event> {
    let (kind, claim) = text.split_once('\n')?;
    let mut fields = claim.splitn(7, '\n');
    let fence: u64 = fields.next()?.parse().ok()?;
    let (id, label) = (fields.nth(2)?, fields.nth(1)?);
    let kind = match kind {
        "queued" => EventKind::Queued,
        "granted" => EventKind::Granted,
        "released" => EventKind::Released,
        "left" => EventKind::Left,
        "expired" => EventKind::Expired,
        "amended" => EventKind::Amended,
        EVICTED => EventKind::Evicted { reason: reason.to_owned() },
        _ => return None,
    };
    Some(Event { kind, name: name.clone(), holder: holder(id, label).ok()?, fence: fence.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_survives_the_way_through_the_store() {
        let token = Token::random();
        let text = hex(token.as_bytes()).to_string();
        assert_eq!(from_hex(&text).map(Token::from_bytes), Some(token));
        assert_eq!(from_hex("short"), None);
    }

    #[test]
    fn an_event_may_have_newlines_in_its_name_and_reason() {
        let layout = Layout::new("lock:".into(), false, 0);
        let message = b"lock:a\nb\0evicted\n7\n1\n1\nab\nbox\npod 1\nnote\n\0why\nnot\0x\ny";
        let events = events(message, &layout);
        let [event] = &events[..] else { panic!("{events:?}") };
        assert_eq!(
            (event.name.as_str(), event.holder.label(), event.fence),
            ("a\nb", "pod 1", 7_u64.into())
        );
        assert_eq!(event.kind, EventKind::Evicted { reason: "why\nnot\0x\ny".into() });
    }

    #[test]
    fn a_message_may_have_two_events_and_its_prefix_a_nul() {
        let layout = Layout::new("a\0b:".into(), false, 0);
        let message =
            b"a\0b:x\0released\n7\n1\n1\nab\nbox\none\n\0granted\n8\n1\n1\nab\nbox\ntwo\n";
        let events = events(message, &layout);
        let told: Vec<_> =
            events.iter().map(|event| (event.name.as_str(), event.fence.as_u64())).collect();
        assert_eq!(told, [("x", 7), ("x", 8)], "{events:?}");
        assert_eq!((&events[0].kind, &events[1].kind), (&EventKind::Released, &EventKind::Granted));
        assert!(super::events(b"mark:1", &layout).is_empty());
        assert!(super::events(b"a\0b:x", &layout).is_empty());
    }
}
