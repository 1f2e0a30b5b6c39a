//! Faults of a holder's own process, one test per row of the catalogue: the row's id is in the
//! name. Also the promises of types, observers, retries and the blocking interface.
//!
//! What depends on the engine alone is in the conformance suite; here the library above the
//! engines is put under stress, on every engine of this build.

mod cancel;
mod deadlock;
mod holder;
mod interface;
mod keeper;
mod support;
mod threads;
