//! Tests of etcd alone: the clients of others, the faults of a cluster, and the cost of operations.
//!
//! The conformance suite tests what every engine must do. Faults have their number from
//! docs/faults.txt in the name.

mod access;
mod broken;
mod closing;
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
mod stale;
mod stall;
mod support;
