//! The number of a lease, as users meet it.
//!
//! The waist and the engines count with plain numbers. The number becomes a [`Fence`] where a user
//! reads it: in a lease, a handle, a view of a claim, an event, or an answer to an administrator.

use std::fmt;

/// A fencing token: greater than the fence of every lease granted on the same name before.
///
/// Hand it to the resource that the lock protects, and let the resource refuse smaller ones, as the
/// guards in the module `fencing` do. A fence is a number: print it, send it as a
/// `u64`, or bind it to SQL as an `i64`.
///
/// ```
/// use leasehold::Fence;
///
/// let fence = Fence::from(42);
/// assert_eq!(fence.to_string(), "42");
/// assert_eq!((u64::from(fence), fence.as_i64()), (42, 42));
/// assert!(fence < Fence::from(43));
/// ```
///
/// The default is 0, which is smaller than the fence of every lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Fence(u64);

impl Fence {
    /// The number.
    pub const fn as_u64(self) -> u64 {
        self.0
    }

    /// The number for stores whose numbers have a sign, such as a `bigint` column. Stores give out
    /// fences below 2^62, so it is the same number. A greater one, which no store gave out, becomes
    /// the greatest `i64`.
    pub const fn as_i64(self) -> i64 {
        if self.0 > i64::MAX as u64 { i64::MAX } else { self.0 as i64 }
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<u64> for Fence {
    fn from(number: u64) -> Self {
        Self(number)
    }
}

impl From<Fence> for u64 {
    fn from(fence: Fence) -> Self {
        fence.0
    }
}

/// A fence that came as a number, such as from a row, compares with one that did not.
impl PartialEq<u64> for Fence {
    fn eq(&self, other: &u64) -> bool {
        self.0 == *other
    }
}

/// As the comparison for equality.
impl PartialOrd<u64> for Fence {
    fn partial_cmp(&self, other: &u64) -> Option<std::cmp::Ordering> {
        self.0.partial_cmp(other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fence_that_no_store_gave_out_stays_the_greatest_as_a_signed_number() {
        assert_eq!(Fence::from((1 << 62) - 1).as_i64(), (1 << 62) - 1);
        assert_eq!(Fence::from(u64::MAX).as_i64(), i64::MAX);
    }
}
