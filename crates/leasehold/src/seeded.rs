//! Faults of the past that the torture test puts back, to show that it finds them.
//!
//! Without the feature `seeded` there are none, and the compiler takes the question away. With it,
//! the environment names the one fault of the process.

/// A fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(dead_code, reason = "the engines of the build decide which faults there are")]
pub(crate) enum Seeded {
    /// A bell grants a claim that has lost its place.
    BellWithoutPlace,
    /// A sweep takes a claim out while its waiter hears that it is in line.
    SweepWhileAsked,
    /// A heartbeat judges a claim by a line that was read before the claim had its place.
    LineFromBefore,
    /// A server whose slot moves begins a script, and stops it in the middle.
    ScriptWhileSlotMoves,
    /// A release whose answer was lost is answered as if the lease was lost before.
    LostReleaseAnswer,
    /// The time of a lease counts from the answer to its claim, not from the request.
    GrantFromAnswer,
    /// The time of a lease counts from the answer to its renewal, not from the request.
    RenewalFromAnswer,
    /// The end of one stay in line forgets the next stay, so a claim has two places.
    SweepOfAnotherStay,
    /// A name that stays closed still belongs to its last owner.
    ClosedNameIsOwned,
    /// A name stays closed for as long as its session lasts.
    ClosedForTheSession,
    /// A session ends before the span for which a name was to stay closed.
    SpanBeyondTheSession,
}

/// Whether this process has the fault.
#[cfg(not(feature = "seeded"))]
#[inline(always)]
pub(crate) const fn seeded(_fault: Seeded) -> bool {
    false
}

/// Whether this process has the fault.
#[cfg(feature = "seeded")]
pub(crate) fn seeded(fault: Seeded) -> bool {
    use std::sync::LazyLock;

    static NAME: LazyLock<Option<String>> =
        LazyLock::new(|| std::env::var("LEASEHOLD_SEEDED").ok());
    let name = match fault {
        Seeded::BellWithoutPlace => "bell-without-place",
        Seeded::SweepWhileAsked => "sweep-while-asked",
        Seeded::LineFromBefore => "line-from-before",
        Seeded::ScriptWhileSlotMoves => "script-while-slot-moves",
        Seeded::LostReleaseAnswer => "lost-release-answer",
        Seeded::GrantFromAnswer => "grant-from-answer",
        Seeded::RenewalFromAnswer => "renewal-from-answer",
        Seeded::SweepOfAnotherStay => "sweep-of-another-stay",
        Seeded::ClosedNameIsOwned => "closed-name-is-owned",
        Seeded::ClosedForTheSession => "closed-for-the-session",
        Seeded::SpanBeyondTheSession => "span-beyond-the-session",
    };
    NAME.as_deref() == Some(name)
}
