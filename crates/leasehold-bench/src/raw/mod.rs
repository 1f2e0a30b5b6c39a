//! The stores without a lock on top: what the limits are made of, and how quick a store wakes.
//!
//! One module a store. Each can send a word to whoever listens, and listens in a worker process.

pub(crate) mod disk;
pub(crate) mod etcd;
pub(crate) mod postgres;
pub(crate) mod redis;
pub(crate) mod relay;
pub(crate) mod zookeeper;

use std::time::Duration;

use crate::Result;
use crate::contest::Worker;
use crate::machine::now;
use crate::stats::Samples;
use crate::work::Work;

/// Where words are sent that only wake somebody.
pub(crate) const CHANNEL: &str = "bench_wake";

/// The word that ends listening; all others are only heard.
pub(crate) const END: &str = "end";

/// How often in a round something is timed that is done now and then.
const TIMES: usize = 200;

/// How long a worker keeps the lock. What a hand-off is compared with is done as often.
pub(crate) const HOLD: Duration = Duration::from_millis(1);

/// How long it takes from a word that is sent to its arrival in another process, which listens
/// at the store of that kind. Between two of them the sender works.
pub(crate) async fn wake(
    (kind, url): (&str, &str),
    work: Work,
    mut send: impl AsyncFnMut(&str) -> Result<()>,
) -> Result<Samples> {
    let mut listener = Worker::start(&["listen", kind, url])?;
    listener.ready()?;
    let mut sent = Vec::with_capacity(TIMES);
    for _ in 0..TIMES {
        work.run(HOLD).await?;
        sent.push(now());
        send("wake").await?;
    }
    send(END).await?;
    let came = listener.finish()?;
    let came = came.lines().map(str::parse).collect::<std::result::Result<Vec<u64>, _>>()?;
    if came.len() != sent.len() {
        return Err("a message was lost".into());
    }
    Ok(Samples::new(came.iter().zip(&sent).map(|(came, sent)| came - sent).collect()))
}

/// Times what is done once a millisecond, between which there is work.
pub(crate) async fn paced(
    work: Work,
    mut step: impl AsyncFnMut() -> Result<()>,
) -> Result<Samples> {
    let mut spans = Vec::with_capacity(TIMES);
    for _ in 0..TIMES {
        work.run(HOLD).await?;
        let begun = now();
        step().await?;
        spans.push(now() - begun);
    }
    Ok(Samples::new(spans))
}

/// Listens until the end, and hands over when each word came.
pub(crate) async fn listen(kind: &str, url: &str) -> Result<Vec<u64>> {
    match kind {
        "redis" => redis::listen(url).await,
        "postgres" => postgres::listen(url).await,
        "etcd" => etcd::listen(url).await,
        "zookeeper" => zookeeper::listen(url).await,
        _ => Err(format!("nobody can listen at `{kind}`").into()),
    }
}
