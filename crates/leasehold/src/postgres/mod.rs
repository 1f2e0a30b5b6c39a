//! PostgreSQL: what its engines have in common, and the engines.
//!
//! `table` keeps lines in tables and runs the verbs as SQL functions. From a URL to settings, and
//! from settings to a connection, is here; what is said over it is the engines' business.

mod failure;
mod link;
mod passfile;
mod settings;
mod table;
mod tls;

pub use table::LeaseTable;
