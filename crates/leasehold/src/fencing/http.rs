//! Fences over HTTP: a header with a fence, and a server's memory of the greatest ones.
//!
//! No HTTP library is needed: a header is a name and a text, a refusal is a status and a reason.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

use super::{Refused, judge};
use crate::rule::fence::Fence;

/// The fence and the resource of a request: `Leasehold-Fence: RESOURCE=FENCE`.
///
/// In the resource, each byte but letters, digits and `-._~:/` becomes `%XX`.
///
/// ```
/// use leasehold::fencing::FenceHeader;
///
/// let header = FenceHeader::new("order:42", 1234);
/// assert_eq!(header.to_string(), "order:42=1234");
/// assert_eq!("order:42=1234".parse(), Ok(header));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct FenceHeader {
    /// The resource of the request.
    pub resource: String,
    /// The fence of the lease under which the client makes it.
    pub fence: Fence,
}

/// A text that is no [`FenceHeader`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a `Leasehold-Fence` header is `RESOURCE=FENCE`; {reason}")]
#[non_exhaustive]
pub struct HeaderError {
    /// What does not fit.
    pub reason: &'static str,
}

impl FenceHeader {
    /// The header's name. HTTP takes any case.
    pub const NAME: &'static str = "Leasehold-Fence";

    /// The longest resource in bytes, as long as the longest name of a lock.
    pub const RESOURCE_BYTES_MAX: usize = 512;

    /// The header for a request under a lease with this fence.
    pub fn new(resource: impl Into<String>, fence: impl Into<Fence>) -> Self {
        Self { resource: resource.into(), fence: fence.into() }
    }
}

impl fmt::Display for FenceHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in self.resource.bytes() {
            match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => write!(f, "{}", char::from(byte))?,
                b'-' | b'.' | b'_' | b'~' | b':' | b'/' => write!(f, "{}", char::from(byte))?,
                byte => write!(f, "%{byte:02X}")?,
            }
        }
        write!(f, "={}", self.fence)
    }
}

impl FromStr for FenceHeader {
    type Err = HeaderError;

    fn from_str(text: &str) -> Result<Self, HeaderError> {
        let bad = |reason| Err(HeaderError { reason });
        let Some((resource, fence)) = text.trim().split_once('=') else {
            return bad("this has no `=`");
        };
        let Some(resource) = decode(resource) else {
            return bad("its resource is no text, or a `%` is not followed by two digits");
        };
        if resource.is_empty() || resource.len() > Self::RESOURCE_BYTES_MAX {
            return bad("its resource must have 1 to 512 bytes");
        }
        if fence.is_empty() || !fence.bytes().all(|byte| byte.is_ascii_digit()) {
            return bad("its fence is no number");
        }
        match fence.parse::<u64>() {
            Ok(fence) => Ok(Self::new(resource, fence)),
            Err(_) => bad("its fence is too large"),
        }
    }
}

fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digit = |byte: u8| char::from(byte).to_digit(16);
                (digit(rest.next()?)? * 16 + digit(rest.next()?)?) as u8
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).ok()
}

/// Why the guard refuses a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HttpRefusal {
    /// It came too late.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// It has no fence header.
    #[error("this needs a `Leasehold-Fence: RESOURCE=FENCE` header")]
    Missing,
    /// Its fence header cannot be read.
    #[error(transparent)]
    Unreadable(#[from] HeaderError),
    /// Its fence is for another resource.
    #[error("the `Leasehold-Fence` header is for `{given}`, and this is `{wanted}`")]
    OtherResource {
        /// The resource in the header.
        given: String,
        /// The resource of the request.
        wanted: String,
    },
    /// The guard remembers as many resources as it may, and this one is new.
    #[error("this server remembers the fences of {limit} resources, and has no room for more")]
    Full {
        /// How many.
        limit: usize,
    },
}

impl HttpRefusal {
    /// The status to answer with; the reason is this value as text.
    pub fn status(&self) -> u16 {
        match self {
            HttpRefusal::Refused(_) => 412,
            HttpRefusal::Missing => 428,
            HttpRefusal::Unreadable(_) | HttpRefusal::OtherResource { .. } => 400,
            HttpRefusal::Full { .. } => 503,
        }
    }
}

/// The greatest fence that a server has seen for each resource, in memory.
///
/// The check and the work of a request must be one step for all other requests. Otherwise a request
/// could pass the check, pause, and write after a newer one. So [`enter`](Self::enter) returns a
/// [`Turn`] that keeps other requests off the resource until it is dropped. If the server writes to
/// a store, let the store check, too.
///
/// A server that starts again has seen no fence. Save [`snapshot`](Self::snapshot) and
/// [`restore`](Self::restore) it, or keep the fences beside the data.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// use leasehold::fencing::HighestSeen;
///
/// let guard = HighestSeen::new(100_000);
/// let answer = match guard.enter_with("order:42", Some("order:42=7")).await {
///     Ok(turn) => {
///         // The work of the request, and then:
///         drop(turn);
///         (200, "done".to_owned())
///     }
///     Err(refusal) => (refusal.status(), refusal.to_string()),
/// };
/// assert_eq!(answer.0, 200);
/// let late = guard.enter_with("order:42", Some("order:42=6")).await.expect_err("7 was here");
/// assert_eq!(late.status(), 412);
/// # }
/// ```
#[derive(Debug)]
pub struct HighestSeen {
    limit: usize,
    seats: Mutex<HashMap<String, Arc<Seat>>>,
}

#[derive(Debug, Default)]
struct Seat {
    highest: AtomicU64,
    turn: Arc<AsyncMutex<()>>,
}

impl Seat {
    fn highest(&self) -> Fence {
        self.highest.load(Ordering::Acquire).into()
    }
}

/// The right to access a resource until it is dropped.
#[derive(Debug)]
#[must_use = "others are let in as soon as it is dropped"]
pub struct Turn {
    fence: Fence,
    _turn: OwnedMutexGuard<()>,
}

impl Turn {
    /// The fence of the request.
    pub fn fence(&self) -> Fence {
        self.fence
    }
}

impl HighestSeen {
    /// A guard that remembers up to `limit` resources. It refuses one more, and does not forget an
    /// old one: that would let late requests in.
    pub fn new(limit: usize) -> Self {
        Self { limit, seats: Mutex::default() }
    }

    /// A guard that goes on from another one's snapshot.
    pub fn restore(limit: usize, seen: impl IntoIterator<Item = (String, Fence)>) -> Self {
        let seat = |highest: Fence| {
            let highest = AtomicU64::new(highest.as_u64());
            Arc::new(Seat { highest, ..Seat::default() })
        };
        let seats = seen.into_iter().map(|(resource, highest)| (resource, seat(highest)));
        Self { limit, seats: Mutex::new(seats.collect()) }
    }

    /// The greatest fence of each resource.
    pub fn snapshot(&self) -> Vec<(String, Fence)> {
        self.seats().iter().map(|(resource, seat)| (resource.clone(), seat.highest())).collect()
    }

    /// Waits for its turn at the resource; refuses an old fence and remembers a new one.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives up its place; the guard does not remember the fence.
    pub async fn enter(
        &self,
        resource: &str,
        fence: impl Into<Fence>,
    ) -> Result<Turn, HttpRefusal> {
        let fence = fence.into();
        let seat = self.seat(resource)?;
        // Refuses an old fence at once, without waiting.
        judge(resource, fence, seat.highest())?;
        let turn = Arc::clone(&seat.turn).lock_owned().await;
        judge(resource, fence, seat.highest())?;
        seat.highest.store(fence.as_u64(), Ordering::Release);
        Ok(Turn { fence, _turn: turn })
    }

    /// As [`enter`](Self::enter), with the `Leasehold-Fence` header of a request about `resource`.
    pub async fn enter_with(
        &self,
        resource: &str,
        header: Option<&str>,
    ) -> Result<Turn, HttpRefusal> {
        let header: FenceHeader = header.ok_or(HttpRefusal::Missing)?.parse()?;
        if header.resource != resource {
            let (given, wanted) = (header.resource, resource.to_owned());
            return Err(HttpRefusal::OtherResource { given, wanted });
        }
        self.enter(resource, header.fence).await
    }

    /// Forgets a resource whose fences will never be checked again, and that no request uses.
    pub fn forget(&self, resource: &str) {
        self.seats().remove(resource);
    }

    fn seat(&self, resource: &str) -> Result<Arc<Seat>, HttpRefusal> {
        let mut seats = self.seats();
        if let Some(seat) = seats.get(resource) {
            return Ok(Arc::clone(seat));
        }
        if seats.len() >= self.limit {
            return Err(HttpRefusal::Full { limit: self.limit });
        }
        Ok(Arc::clone(seats.entry(resource.to_owned()).or_default()))
    }

    fn seats(&self) -> MutexGuard<'_, HashMap<String, Arc<Seat>>> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_resource_survives_the_header() {
        for resource in ["a", "order:42", "é 😀=%", "a=b", "\n\r\0", "%41"] {
            let header = FenceHeader::new(resource, u64::MAX);
            let text = header.to_string();
            assert!(text.bytes().all(|byte| byte.is_ascii_graphic()), "{text}");
            assert_eq!(text.parse(), Ok(header));
        }
    }

    #[tokio::test]
    async fn bad_header_is_400_and_a_missing_one_is_428() {
        let guard = HighestSeen::new(10);
        let long = format!("{}=1", "x".repeat(513));
        let bad = [
            "", "a", "=1", "a=", "a=-1", "a=+1", "a=1.5", "a=1=2", "%4=1", "%zz=1", "%ff=1", &long,
        ];
        for text in bad.into_iter().chain(["a=18446744073709551616"]) {
            let refusal = guard.enter_with("a", Some(text)).await.expect_err("no header");
            assert_eq!(refusal.status(), 400, "{text}: {refusal}");
        }
        assert_eq!(guard.enter_with("a", None).await.expect_err("none").status(), 428);
        let other = guard.enter_with("b", Some("a=1")).await;
        assert_eq!(other.expect_err("another").status(), 400);
        assert!(guard.snapshot().is_empty(), "nothing was remembered");
        assert_eq!(guard.enter_with("a", Some(" a=007 ")).await.expect("let in").fence(), 7);
    }

    #[tokio::test]
    async fn an_old_fence_is_412_and_an_equal_one_passes() {
        let guard = HighestSeen::new(10);
        for fence in [5, 5, 8] {
            drop(guard.enter("r", fence).await.expect("not old"));
        }
        let refusal = guard.enter("r", 7).await.expect_err("8 was here");
        assert_eq!(refusal.status(), 412);
        assert!(refusal.to_string().contains("fence 7 is old: 8 was seen for `r`"), "{refusal}");
        drop(guard.enter("other", 1).await.expect("another resource"));
        let again = HighestSeen::restore(10, guard.snapshot());
        assert_eq!(again.enter("r", 7).await.expect_err("remembered"), refusal);
    }

    #[tokio::test]
    async fn a_full_guard_refuses_the_new_and_forgets_nobody() {
        let guard = HighestSeen::new(2);
        drop(guard.enter("a", 5).await.expect("room"));
        drop(guard.enter("b", 5).await.expect("room"));
        assert_eq!(guard.enter("c", 9).await.expect_err("full").status(), 503);
        assert!(guard.enter("a", 4).await.is_err() && guard.enter("a", 6).await.is_ok());
        guard.forget("b");
        drop(guard.enter("c", 9).await.expect("room again"));
    }

    #[tokio::test]
    async fn nobody_is_let_in_while_somebody_else_is_at_it() {
        let guard = HighestSeen::new(1);
        let slow = guard.enter("r", 7).await.expect("let in");
        let mut next = std::pin::pin!(guard.enter("r", 8));
        assert!(futures_util::poll!(&mut next).is_pending(), "7 is at it");
        drop(slow);
        assert_eq!(next.await.expect("let in").fence(), 8);
        assert!(guard.enter("r", 7).await.is_err());
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn among_many_tasks_what_is_let_in_never_goes_back() {
        let guard = Arc::new(HighestSeen::new(1));
        let admitted = Arc::new(Mutex::new(Vec::new()));
        let tasks = (0..8_u64).map(|task| {
            let (guard, admitted) = (Arc::clone(&guard), Arc::clone(&admitted));
            tokio::spawn(async move {
                for round in 0..200_u64 {
                    let fence = round * 8 + task;
                    if let Ok(_turn) = guard.enter("r", fence).await {
                        tokio::task::yield_now().await;
                        admitted.lock().expect("sound").push(fence);
                    }
                }
            })
        });
        for task in tasks.collect::<Vec<_>>() {
            task.await.expect("no panic");
        }
        let admitted = admitted.lock().expect("sound");
        assert!(admitted.is_sorted() && !admitted.is_empty());
    }
}
