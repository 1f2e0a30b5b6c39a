//! Many names at once: all of them or none.
//!
//! If the store can change several lines in one exchange, and all names are free, the client takes
//! them in one exchange. Otherwise it takes them one after the other, in the order of their names.
//! So two callers that want the same names never wait for each other. If the client does not get
//! all of them, it keeps none.

use std::time::Duration;

use futures_util::future::select_all;

use crate::client::Client;
use crate::clock::Moment;
use crate::error::{Error, Invalid, LostCause, Result, TryLockError};
use crate::lease::Lease;
use crate::options::LockOptions;
use crate::rule::claim::Standing;
use crate::rule::name::Name;
use crate::runtime::acquire::{ClaimGuard, FIRST_ANSWER, NO_WAIT, Request};
use crate::runtime::refusal::explained;

/// The most names in one exchange, so that an exchange does not hold up the store for long.
const AT_ONCE_MAX: usize = 128;

/// Locks that are taken together; made by [`Client::all`] and [`Client::mutexes`].
///
/// A name that is listed twice is one.
#[derive(Debug, Clone)]
#[must_use = "it does nothing until it is asked for a lease"]
pub struct Multi {
    /// The requests in the order of their names, each name once; or why they are refused.
    requests: std::result::Result<Vec<Request>, Invalid>,
}

impl Multi {
    pub(crate) fn new(requests: impl IntoIterator<Item = Request>) -> Self {
        Self { requests: Self::sorted(requests.into_iter().collect()) }
    }

    fn sorted(requests: Vec<Request>) -> std::result::Result<Vec<Request>, Invalid> {
        let mut named = Vec::with_capacity(requests.len());
        for request in requests {
            named.push((request.name()?, request));
        }
        named.sort_by(|(one, _), (other, _)| one.cmp(other));
        let mut sorted: Vec<Request> = Vec::with_capacity(named.len());
        let mut last: Option<Name> = None;
        for (name, request) in named {
            match sorted.last() {
                Some(before) if last.as_ref() == Some(&name) => {
                    if !before.is_like(&request) {
                        return Err(Invalid::Setting {
                            what: "a name that is listed twice",
                            rule: "asked for in the same mode each time",
                        });
                    }
                }
                _ => sorted.push(request),
            }
            last = Some(name);
        }
        if sorted.is_empty() {
            let (what, rule) = ("names taken together", "at least one");
            return Err(Invalid::Setting { what, rule });
        }
        if !sorted.iter().all(|request| request.client().is_same(sorted[0].client())) {
            let (what, rule) = ("names taken together", "claims of one client");
            return Err(Invalid::Setting { what, rule });
        }
        Ok(sorted)
    }

    /// Sets options of each of them. Other options stay as they are.
    pub fn options(self, options: LockOptions) -> Self {
        let each = |request: Request| request.options(options.clone());
        Self { requests: self.requests.map(|all| all.into_iter().map(each).collect()) }
    }

    /// Waits until the caller holds all of them, for as long as it takes.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future at any point gives back the leases taken so far and leaves every line.
    pub async fn lock(&self) -> Result<Leases> {
        // Without a deadline it always ends with the leases or a failure.
        Ok(Self::lock_until(self.requests()?, None).await?)
    }

    /// Takes them if all are free now; else says which is not, and who holds it.
    ///
    /// # Cancel safety
    ///
    /// As [`lock`](Self::lock).
    pub async fn try_lock(&self) -> Result<Leases, TryLockError> {
        let requests = self.requests()?;
        let keeper = &requests[0].client().inner.keeper;
        explained(keeper, Self::lock_until(requests, Some(NO_WAIT)).await).await
    }

    /// Waits for at most `span` in all. If the caller did not hold all by then, says which name was
    /// in the way, and who holds it.
    ///
    /// # Cancel safety
    ///
    /// As [`lock`](Self::lock).
    pub async fn lock_within(&self, span: Duration) -> Result<Leases, TryLockError> {
        let requests = self.requests()?;
        let keeper = &requests[0].client().inner.keeper;
        let deadline = keeper.clock.now() + span;
        explained(keeper, Self::lock_until(requests, Some(deadline)).await).await
    }

    fn requests(&self) -> Result<&[Request]> {
        self.requests.as_deref().map_err(|invalid| invalid.clone().into())
    }

    async fn lock_until(
        requests: &[Request],
        deadline: Option<Moment>,
    ) -> Result<Leases, TryLockError> {
        match at_once(requests, deadline).await {
            Ok(Some(leases)) => return Ok(Leases { leases }),
            Ok(None) => {}
            Err(error) => return Err(told_apart(requests, error).await.into()),
        }
        // A long wait for the last name may outlast the lease on the first one. The caller has not
        // used that lease yet, so it is enough to begin again, with the same deadline.
        loop {
            let mut leases = Leases { leases: Vec::with_capacity(requests.len()) };
            for request in requests {
                let lease = tokio::select! {
                    biased;
                    _lost = leases.lost() => break,
                    lease = request.acquire_until(deadline) => lease?,
                };
                leases.leases.push(lease);
            }
            if leases.leases.len() == requests.len() && leases.are_held() {
                return Ok(leases);
            }
            tracing::info!("a lease was lost before the last one was granted; beginning again");
        }
    }
}

/// The error with what the notes tell, if it is about the use of a name.
async fn told_apart(requests: &[Request], error: Error) -> Error {
    let Error::Mismatch { name, .. } = &error else { return error };
    match requests.iter().find(|request| request.name().is_ok_and(|own| own == *name)) {
        Some(request) => request.told_apart(error).await,
        None => error,
    }
}

/// Takes all in one exchange; `None` if not all are free, or the store cannot.
async fn at_once(requests: &[Request], deadline: Option<Moment>) -> Result<Option<Vec<Lease>>> {
    let client = requests[0].client();
    let keeper = &client.inner.keeper;
    let some = 2..=AT_ONCE_MAX;
    let Some(part) = &keeper.parts.claim_many else { return Ok(None) };
    if !some.contains(&requests.len()) || requests.iter().any(Request::is_reentrant) {
        return Ok(None);
    }
    keeper.refuse_fork()?;
    if deadline.is_some() {
        for name in requests.iter().filter_map(|request| request.name().ok()) {
            keeper.own_releases_done(&name).await;
        }
    }
    let begun = keeper.clock.now();
    let mut claims = Vec::with_capacity(requests.len());
    let mut stays = Vec::with_capacity(requests.len());
    for request in requests {
        let (claim, terms) = request.claim(false)?;
        stays.push(ClaimGuard::begin(client, &claim, terms, begun)?);
        claims.push(claim);
    }
    // A try that does not wait in line still waits for the store's answer.
    let until = match deadline {
        None | Some(NO_WAIT) => Moment::NEVER,
        Some(deadline) => deadline.max(begun + FIRST_ANSWER),
    };
    let standings = tokio::select! {
        biased;
        standings = keeper.retry.again(|| part.claim_all(&claims)) => standings?,
        () = keeper.clock.sleep_until(until), if until != Moment::NEVER => {
            return Err(keeper.silent(begun));
        }
    };
    let Some(standings) = standings else {
        stays.into_iter().for_each(ClaimGuard::forget);
        return Ok(None);
    };
    if keeper.is_closed() {
        return Err(Error::Closed);
    }
    let now = keeper.clock.now();
    let mut leases = Vec::with_capacity(requests.len());
    for ((claim, stay), standing) in claims.iter().zip(stays).zip(standings) {
        let Standing::Held { fence, remaining } = standing else { return Ok(None) };
        stay.check(fence)?;
        let Some(due) = stay.claim_state.hold(fence, begun, remaining, now) else {
            let took = now.since(begun);
            return Err(Error::TooSlow { name: claim.key.name.clone(), took });
        };
        leases.push(stay.granted(client, claim, fence, (begun, now, due)));
    }
    Ok(Some(leases))
}

/// Leases that were taken together, in the order of their names.
///
/// Dropping them gives all back.
#[derive(Debug)]
#[must_use = "leases that are dropped are given back at once"]
pub struct Leases {
    leases: Vec<Lease>,
}

impl Leases {
    /// Whether every one of them is held at this instant.
    pub fn are_held(&self) -> bool {
        self.leases.iter().all(Lease::is_held)
    }

    /// The lease on a name.
    pub fn get(&self, name: impl AsRef<str>) -> Option<&Lease> {
        self.leases.iter().find(|lease| lease.name().as_str() == name.as_ref())
    }

    /// The leases in the order of their names.
    pub fn iter(&self) -> std::slice::Iter<'_, Lease> {
        self.leases.iter()
    }

    /// Ends when the first of them is lost, and returns its name and the cause.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect.
    pub async fn lost(&self) -> (Name, LostCause) {
        if self.leases.is_empty() {
            return std::future::pending().await;
        }
        let watches: Vec<_> = self.leases.iter().map(|lease| Box::pin(lease.lost())).collect();
        let (cause, index, _others) = select_all(watches).await;
        (self.leases[index].name().clone(), cause)
    }

    /// Gives all back. The error is that of the first one that failed; the client still gives the
    /// others back.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future finishes it in the background.
    pub async fn release(self) -> Result<()> {
        let releases: Vec<_> = self.leases.into_iter().map(Lease::release).collect();
        let released = futures_util::future::join_all(releases).await;
        released.into_iter().find_map(Result::err).map_or(Ok(()), Err)
    }

    /// The leases, each on its own from now on.
    pub fn into_vec(self) -> Vec<Lease> {
        self.leases
    }
}

impl<'a> IntoIterator for &'a Leases {
    type Item = &'a Lease;
    type IntoIter = std::slice::Iter<'a, Lease>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl Client {
    /// Exclusive locks on several names, all or none.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// let client = leasehold::connect("memory:").await?;
    /// let accounts = client.mutexes(["account:7", "account:3"]).lock().await?;
    /// let fence = accounts.get("account:3").map(leasehold::Lease::fence);
    /// assert!(accounts.are_held() && fence.is_some());
    /// accounts.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn mutexes(&self, names: impl IntoIterator<Item = impl AsRef<str>>) -> Multi {
        Multi::new(names.into_iter().map(|name| self.request(name)))
    }

    /// Claims of this client on several names, each with its own mode and options, all or none.
    pub fn all(&self, requests: impl IntoIterator<Item = Request>) -> Multi {
        Multi::new(requests)
    }
}
