//! The stores without a lock on top: the steps of the limits, and the time to wake a listener.
//!
//! One module for each store. Each can send a word to listeners, and listen in a worker process.

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

/// The channel of words that only wake a listener.
pub(crate) const CHANNEL: &str = "bench_wake";

/// The word that ends listening.
pub(crate) const END: &str = "end";

/// How often a round times a step that it does now and then.
const TIMES: usize = 200;

/// How long a worker keeps the lock. The limits of a hand-off are measured at the same pace.
pub(crate) const HOLD: Duration = Duration::from_millis(1);

/// The time from sending a word until another process, which listens at this kind of store, hears
/// it. Between two words the sender works.
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

/// Times a step that is done once a millisecond, with work in between.
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

/// Listens until the end, and returns when each word came.
pub(crate) async fn listen(kind: &str, url: &str) -> Result<Vec<u64>> {
    match kind {
        "redis" => redis::listen(url).await,
        "postgres" => postgres::listen(url).await,
        "etcd" => etcd::listen(url).await,
        "zookeeper" => zookeeper::listen(url).await,
        _ => Err(format!("nobody can listen at `{kind}`").into()),
    }
}
