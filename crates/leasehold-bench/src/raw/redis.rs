//! Redis without a lock on top.

use futures_util::StreamExt;
use leasehold_testkit::Server;

use super::{CHANNEL, END};
use crate::Result;
use crate::machine::now;
use crate::stats::Samples;
use crate::work::Work;

/// The time from a PUBLISH until a subscriber in another process hears it.
pub(crate) async fn wake(url: &str, work: Work) -> Result<Samples> {
    let mut publisher = redis::Client::open(url)?.get_connection()?;
    super::wake(("redis", url), work, async |word| {
        Ok(redis::cmd("PUBLISH").arg(CHANNEL).arg(word).exec(&mut publisher)?)
    })
    .await
}

pub(super) async fn listen(url: &str) -> Result<Vec<u64>> {
    let mut subscription = redis::Client::open(url)?.get_async_pubsub().await?;
    subscription.subscribe(CHANNEL).await?;
    println!("ready");
    let mut messages = subscription.into_on_message();
    let mut came = Vec::new();
    while let Some(message) = messages.next().await {
        let at = now();
        if message.get_payload_bytes() == END.as_bytes() {
            break;
        }
        came.push(at);
    }
    Ok(came)
}

/// How many scripts a server has run.
pub(crate) fn scripts_run(server: &Server) -> Result<u64> {
    let stats = server.redis(&["INFO", "commandstats"])?;
    let calls = |command: &str| {
        let line = stats.lines().find(|line| line.starts_with(command));
        let calls = line.and_then(|line| line.split("calls=").nth(1)?.split(',').next());
        calls.and_then(|calls| calls.parse::<u64>().ok()).unwrap_or(0)
    };
    Ok(calls("cmdstat_evalsha:") + calls("cmdstat_eval:"))
}
