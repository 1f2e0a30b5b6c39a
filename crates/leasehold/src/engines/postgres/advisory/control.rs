//! The engine's own connection: for everything that is not a lock.
//!
//! Reading who has what, cancelling a wait and ending a session must not wait behind a lock, and
//! must work while every session waits for one.

use std::sync::Arc;

use tokio_postgres::Row;

use crate::error::{Error, Result};

use super::super::failure;
use super::super::link::{Argument, Link};
use super::super::table::schema::{creation, forbidden};
use super::{Inner, schema};

#[derive(Debug, Default)]
pub(super) struct Control {
    link: tokio::sync::Mutex<Option<Arc<Link>>>,
}

impl Inner {
    /// The connection, made anew if it broke.
    pub(super) async fn control(&self) -> Result<Arc<Link>> {
        let mut link = self.control.link.lock().await;
        if let Some(link) = link.as_ref().filter(|link| link.is_usable()) {
            return Ok(Arc::clone(link));
        }
        let settings = Arc::clone(&self.settings);
        let opened = self.deck.run(async move { Link::open(&settings).await }).await;
        let opened = Arc::new(opened.map_err(|_| Error::task_ended(&self.settings.store))??);
        *link = Some(Arc::clone(&opened));
        Ok(opened)
    }

    /// Sends a statement on it.
    pub(super) async fn ask(
        &self,
        statement: &str,
        arguments: &[Argument<'_>],
    ) -> Result<Vec<Row>> {
        let link = self.control().await?;
        let answer = link.try_query(&self.settings, statement, arguments).await?;
        answer.map_err(|error| match failure::is_uninstalled(&error) && self.is_right_missing() {
            true => forbidden(&self.settings, &creation(&self.settings)),
            false => schema::explained(&self.settings, error),
        })
    }

    /// Whether the store was not found, and would have been installed but for a right.
    fn is_right_missing(&self) -> bool {
        self.settings.install && self.found.get().is_none()
    }

    /// Closes it.
    pub(super) async fn close_control(&self) {
        *self.control.link.lock().await = None;
    }
}
