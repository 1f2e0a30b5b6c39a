//! The Redis engine on real servers: faults, bad input, rights, limits and other people's clients.
//!
//! What every engine must do is in the conformance suite, and runs on Redis there; here is what
//! only Redis can suffer. A test of a row of the catalogue of faults has the row's id in its name.

mod support;

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
