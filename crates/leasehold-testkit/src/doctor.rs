//! What `doctor` finds in a store.

use leasehold::connect;
use leasehold::engine::Level;

use crate::waiting::soon;

/// The findings about a subject: the level and the text of each.
pub async fn found(url: &str, subject: &str) -> Vec<(Level, String)> {
    let client = soon("a client", connect(url)).await.expect("the store opens");
    let findings = soon("findings", client.admin().examine()).await.expect("an answer");
    let about = findings.into_iter().filter(|finding| finding.subject == subject);
    about.map(|finding| (finding.level, finding.found)).collect()
}

/// One finding, as [`found`] returns it.
pub fn one(level: Level, found: &str) -> Vec<(Level, String)> {
    vec![(level, found.to_owned())]
}
