//! What only the PostgreSQL engines have: their servers, connections, proxies, SQL functions and
//! schema, and what goes wrong with them. Rows of the fault catalogue have their id in the name.
//!
//! What every engine has in common is in the conformance suite, which also has the rows about
//! waiters that die or leave (F112, F114, F115).
#![cfg(feature = "postgres")]

mod advisory_access;
mod advisory_grants;
mod advisory_interop;
mod advisory_network;
mod advisory_pooler;
mod advisory_server;
mod advisory_sessions;
mod advisory_threads;
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
