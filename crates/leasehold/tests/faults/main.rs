//! Faults of a holder's own process, one test for each row of docs/faults.txt: its number is in the
//! name. Also the promises of types, observers, retries and the blocking interface.
//!
//! The conformance suite tests what depends on the engine alone. These tests put the library above
//! the engines under stress, on every engine of this build.

mod callbacks;
mod cancel;
mod deadlock;
mod holder;
mod interface;
mod keeper;
mod support;
mod threads;
