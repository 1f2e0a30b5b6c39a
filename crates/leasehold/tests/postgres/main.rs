//! Tests of the PostgreSQL engines alone: their servers, connections, proxies, SQL functions and
//! schema, and their faults. Tests of a row of docs/faults.txt have its number in their name.
//!
//! The conformance suite tests what every engine must do. It also has the rows about waiters that
//! die or leave (F112, F114, F115).
#![cfg(feature = "postgres")]

mod advisory_access;
mod advisory_grants;
mod advisory_interop;
mod advisory_network;
mod advisory_pooler;
mod advisory_server;
mod advisory_sessions;
mod advisory_threads;
mod broken;
mod clock;
mod fencing;
mod hand_over;
mod holder;
mod hosts;
mod line;
mod network;
mod plain;
mod pooler;
mod restore;
mod schema;
mod server;
mod support;
mod warnings;
