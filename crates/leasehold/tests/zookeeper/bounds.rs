//! Times that no session of the servers lasts for: the client refuses them at once.

use std::time::{Duration, Instant};

use leasehold::engine::{Engine as _, Unattended as _};
use leasehold::error::Config;
use leasehold::zookeeper::ZooKeeper;
use leasehold::{Client, Error, LockOptions, Outcome, Result, Unit, UnlessHeld};
use leasehold_testkit::{Server, Zookeeper, bare};

use super::support::*;

/// Three quarters of the longest session.
const FITS: Duration = Duration::from_secs(3);
const TOO_LONG: Duration = Duration::from_millis(3_001);

async fn server() -> Server {
    let server = Zookeeper::new().setting("maxSessionTimeout", "4000");
    server.start().await.expect("a server")
}

#[track_caller]
fn refused<T: std::fmt::Debug>(asked: Result<T>) {
    let Err(Error::Config(ref config @ Config::NotKept { longest, .. })) = asked else {
        panic!("not refused: {asked:?}");
    };
    assert_eq!(longest, FITS);
    assert!(config.to_string().contains("`maxSessionTimeout`"), "{config}");
}

async fn run(client: &Client, every: Duration) -> Result<Outcome<(), String>> {
    client.once("bounds", every).run(async |_| Ok(())).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn time_that_no_session_lasts_for_is_refused_and_nothing_stays_taken() {
    let server = server().await;
    let client = client(server.url()).await;
    refused(client.check_unrenewed(TOO_LONG).await);
    refused(run(&client, TOO_LONG).await);
    refused(client.rate_limiter("bounds", 1, TOO_LONG).try_acquire().await);
    refused(client.rate_limiter("bounds", 1, TOO_LONG).acquire().await);
    refused(
        client.mutex("bounds").options(LockOptions::new().hold_at_least(TOO_LONG)).lock().await,
    );
    refused(
        client
            .mutex("bounds")
            .options(LockOptions::new().hold_at_least(TOO_LONG))
            .try_lock()
            .await
            .unless_held(),
    );
    refused(
        client.mutex("bounds").ttl(TOO_LONG).options(LockOptions::new().renew(false)).lock().await,
    );
    let delay = Duration::from_millis(1);
    refused(
        client
            .mutex("bounds")
            .ttl(FITS)
            .options(LockOptions::new().lock_delay(delay).renew(false))
            .lock()
            .await,
    );
    refused(
        client.mutex("bounds").ttl(FITS).options(LockOptions::new().lock_delay(delay)).lock().await,
    );
    assert_eq!(claims(&server), [""; 0]);
    let lease = client.mutex("bounds").ttl(TOO_LONG).lock().await.expect("it is renewed");
    refused(lease.detach().await);
    until_empty(&server).await;
    let lease = client.mutex("bounds").ttl(FITS).lock().await.expect("free");
    refused(client.adopt_with(&lease.handle(), TOO_LONG).await.expect("it is held").detach().await);
    drop(lease);
    until_empty(&server).await;
    leaves_nothing(&server, [client]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn engine_refuses_to_keep_a_name_closed_for_longer_than_a_session() {
    let server = server().await;
    let [owner, other] = [server.url(); 2].map(|url| async move { ZooKeeper::open(url).await });
    let (owner, other) = (owner.await.expect("one"), other.await.expect("one"));
    let claim = bare::claim("closed");
    owner.claim(&claim).await.expect("an answer");
    for store in [&owner, &other] {
        refused(store.keep_closed(&claim.key, TOO_LONG).await);
    }
    owner.release(&[claim.key]).await.expect("an answer");
    close([&owner, &other]).await;
    leaves_nothing(&server, []).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claim_that_a_session_can_outlast_is_kept_for_its_time() {
    let server = server().await;
    let other = client(server.url()).await;
    let taken = |name| other.mutex(name).ttl(FITS);
    // The client of each of these is gone at once.
    let begun = Instant::now();
    let one = client(server.url()).await;
    assert!(matches!(run(&one, FITS).await.expect("it fits"), Outcome::Ran(Ok(()))));
    let unit = one.rate_limiter("unit", 1, FITS).try_acquire().await.expect("it fits");
    assert_eq!(unit, Unit::Taken);
    let held = one
        .mutex("held")
        .options(LockOptions::new().hold_at_least(FITS))
        .lock()
        .await
        .expect("it fits");
    held.release().await.expect("an answer");
    let left = one.mutex("left").ttl(FITS).lock().await.expect("free");
    drop(left.detach().await.expect("it fits"));
    soon("the close", one.close()).await.expect("an answer");
    while begun.elapsed() < FITS {
        let again = run(&other, FITS).await.expect("an answer");
        let unit = other.rate_limiter("unit", 1, FITS).try_acquire().await.expect("an answer");
        let held = taken("held").try_lock().await.unless_held().expect("an answer");
        let left = taken("left").try_lock().await.unless_held().expect("an answer");
        let free = matches!(again, Outcome::Ran(_)) || unit == Unit::Taken;
        let free = free || held.is_some() || left.is_some();
        assert!(!free || begun.elapsed() >= FITS, "{again:?} {unit:?} {held:?} {left:?}");
    }
    until_empty(&server).await;
    leaves_nothing(&server, [other]).await;
}
