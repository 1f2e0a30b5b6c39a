//! What is ZooKeeper's alone: the clients of others, the faults of an ensemble, and what things
//! cost.
//!
//! What every engine must do is in the conformance suite. Faults have their number from
//! docs/safety.md in the name.

mod access;
mod amend;
mod clock;
mod cost;
mod doctor;
mod ended;
mod ensemble;
mod interop;
mod network;
mod notices;
mod permits;
mod restore;
mod sessions;
mod shortened;
mod support;
mod together;
