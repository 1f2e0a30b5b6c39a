//! A client's own work around the engine: wait, renew, give back, and search for deadlocks.

pub(crate) mod acquire;
pub(crate) mod background_release;
pub(crate) mod claim_state;
pub(crate) mod facts;
pub(crate) mod fence_watermark;
pub(crate) mod keeper;
pub(crate) mod listening;
pub(crate) mod pending_release;
pub(crate) mod refusal;
pub(crate) mod registry;
pub(crate) mod scope;
pub(crate) mod search;
pub(crate) mod steal;
pub(crate) mod ticket;
pub(crate) mod trial;
pub(crate) mod wait_outbox;
