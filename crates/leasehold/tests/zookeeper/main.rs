//! Tests of ZooKeeper alone: the clients of others, the faults of an ensemble, and the cost of
//! operations.
//!
//! The conformance suite tests what every engine must do. Faults have their number from
//! docs/faults.txt in the name.

mod access;
mod amend;
mod bounds;
mod broken;
mod clock;
mod closing;
mod cost;
mod doctor;
mod ended;
mod ensemble;
mod interop;
mod late;
mod network;
mod notices;
mod permits;
mod restart;
mod restore;
mod sessions;
mod shortened;
mod support;
mod together;
