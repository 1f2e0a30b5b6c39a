//! PostgreSQL: what its engines have in common, and the engines.
//!
//! `table` keeps lines in tables and runs the verbs as SQL functions; `advisory` has the server's
//! own locks, on sessions kept for them. From a URL to settings, and
//! from settings to a connection, is here; what is said over it is the engines' business.

pub(crate) mod advisory;
mod bounded;
mod dial;
mod failure;
mod install;
mod link;
mod own;
mod passfile;
mod sealed;
mod settings;
mod table;
mod tls;

pub use advisory::Advisory;
pub use table::LeaseTable;
