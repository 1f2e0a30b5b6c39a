//! What is etcd's alone: the clients of others, the faults of a cluster, and what things cost.
//!
//! What every engine must do is in the conformance suite. Faults have their number from
//! docs/safety.md in the name.

mod access;
mod cluster;
mod cost;
mod crowd;
mod doctor;
mod events;
mod exchanges;
mod interop;
mod leases;
mod left;
mod network;
mod partition;
mod restore;
mod reuse;
mod stall;
mod support;
