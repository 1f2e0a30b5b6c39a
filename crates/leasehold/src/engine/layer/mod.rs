//! Engines that wrap engines: retrying, sharing connections, and injecting faults for tests.

pub mod chaos;
pub mod retry;
pub(crate) mod shared;
