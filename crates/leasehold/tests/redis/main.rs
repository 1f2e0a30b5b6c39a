//! The Redis engine on real servers: faults, bad input, rights, limits and clients of other
//! libraries.
//!
//! The conformance suite, which also runs on Redis, tests what every engine must do. These tests
//! are about faults of Redis alone. A test of a row of docs/faults.txt has the row's number in its
//! name.

mod support;

mod broken_line;
mod clock;
mod cluster;
mod connection;
mod cost;
mod eviction;
mod fences;
mod fencing;
mod interop;
mod layout;
mod long_line;
mod memory;
mod network;
mod redlock;
mod redlock_access;
mod redlock_broken;
mod redlock_crash;
mod redlock_fences;
mod redlock_leaving;
mod redlock_limits;
mod redlock_network;
mod redlock_server;
mod redlock_waiting;
mod refusals;
mod replicas;
mod restart;
mod restore;
mod rights;
mod sentinel;
mod server;
mod waiting;
