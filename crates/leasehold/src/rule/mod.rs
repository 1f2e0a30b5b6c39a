//! The rule of a line, and the nouns it is stated in. No clock and no I/O.

pub mod claim;
pub mod deadlock;
pub(crate) mod fence;
pub mod line;
pub(crate) mod name;
pub(crate) mod wait_notice;
