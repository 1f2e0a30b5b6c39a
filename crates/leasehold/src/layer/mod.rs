//! Engines that wrap engines: retrying, and making trouble for tests.

pub mod chaos;
pub mod retry;
