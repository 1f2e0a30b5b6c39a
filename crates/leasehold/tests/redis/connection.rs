//! Ways to a server: TLS, socket files and databases.

use futures_util::StreamExt;
use leasehold::engine::{EventKind, Query};
use leasehold::redis::Redis;
use leasehold::{Error, Released, UnlessHeld};
use leasehold_testkit::fork::in_child;
use leasehold_testkit::{Certificates, servers};

use crate::support::*;

fn with_ca(url: &str, certificates: &Certificates) -> String {
    format!("{url}?connect_timeout_ms=2000&ca={}", certificates.ca().display())
}

async fn refused(url: &str) -> Error {
    soon("a refusal", Redis::open(url)).await.expect_err("this way must not work")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_with_a_known_authority_works_for_every_connection() {
    let certificates = Certificates::new().expect("certificates");
    let server = servers::Redis::new().tls(&certificates).start().await.expect("a server");
    let url = with_ca(server.url(), &certificates);
    let (one, two) = (client(&url).await, client(&url).await);
    let lease = one.mutex("report").ttl(LONG).lock().await.expect("free");
    let waiter = Waiter::queue(&one, &two, "report", 0).await;
    assert_eq!(lease.release().await.expect("an answer"), Released::Released);
    assert!(waiter.granted().await.is_held());
    two.admin().examine().await.expect("doctor gets through");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_is_refused_when_the_authority_or_the_name_is_wrong() {
    let certificates = Certificates::new().expect("certificates");
    let server = servers::Redis::new().tls(&certificates).start().await.expect("a server");
    let url = server.url();
    let unknown = format!("{url}?ca={}", certificates.other_ca().display());
    // Without a `ca` the client asks the system's authorities, which do not know this one.
    for url in [unknown.as_str(), url] {
        let error = refused(url).await;
        assert!(error.with_sources().contains("certificate"), "{error}");
    }
    let elsewhere = Certificates::for_names(&["elsewhere.example"]).expect("certificates");
    let server = servers::Redis::new().tls(&elsewhere).start().await.expect("a server");
    let error = refused(&with_ca(server.url(), &elsewhere)).await;
    assert!(error.with_sources().contains("certificate"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_never_falls_back_to_plain_nor_plain_to_tls() {
    let certificates = Certificates::new().expect("certificates");
    let plain = server().await;
    let commands = || calls(&plain, "info");
    let before = commands();
    let url = plain.url().replace("redis:", "rediss:");
    refused(&with_ca(&url, &certificates)).await;
    assert_eq!(commands() - before, 1, "the count itself is the only command that arrived");
    let secure = servers::Redis::new().tls(&certificates).start().await.expect("a server");
    refused(&secure.url().replace("rediss:", "redis:")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_shows_the_clients_certificate_to_a_server_that_asks() {
    let certificates = Certificates::new().expect("certificates");
    let server = servers::Redis::new().mutual_tls(&certificates).start().await.expect("a server");
    let without = with_ca(server.url(), &certificates);
    refused(&without).await;
    let (cert, key) = (certificates.client_certificate(), certificates.client_key());
    let url = format!("{without}&cert={}&key={}", cert.display(), key.display());
    let (one, two) = (client(&url).await, client(&url).await);
    let lease = one.mutex("report").ttl(LONG).lock().await.expect("free");
    let waiter = Waiter::queue(&one, &two, "report", 0).await;
    lease.release().await.expect("an answer");
    assert!(waiter.granted().await.is_held());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_works_for_a_cluster_and_for_sentinels() {
    let certificates = Certificates::new().expect("certificates");
    let options = servers::Redis::new().tls(&certificates);
    let (cluster, sentinel) = tokio::join!(options.start_cluster(), options.start_sentinel());
    let (cluster, sentinel) = (cluster.expect("a cluster"), sentinel.expect("sentinels"));
    for url in [cluster.url(), sentinel.url()] {
        let (secure, plain) = (with_ca(url, &certificates), url.replace("rediss+", "redis+"));
        let (one, two) = (client(&secure).await, client(&secure).await);
        let lease = one.mutex("report").ttl(LONG).lock().await.expect("free");
        let waiter = Waiter::queue(&one, &two, "report", 0).await;
        lease.release().await.expect("an answer");
        let lease = waiter.granted().await;
        assert_eq!(two.admin().inspect(&Query::all()).await.expect("an answer").lines.len(), 1);
        assert_eq!(lease.release().await.expect("an answer"), Released::Released);
        refused(&format!("{plain}?connect_timeout_ms=1000")).await;
        let unknown = certificates.other_ca();
        refused(&format!("{url}?connect_timeout_ms=1000&ca={}", unknown.display())).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn socket_file_is_a_way_like_any_other() {
    let server = servers::Redis::new().unix_socket().start().await.expect("a server");
    let file = server.folder().join(servers::UNIX_SOCKET);
    let url = format!("redis+unix://{}", file.display());
    let (one, two) = (client(&url).await, client(server.url()).await);
    let lease = one.mutex("report").ttl(LONG).lock().await.expect("free");
    let waiter = Waiter::queue(&one, &two, "report", 0).await;
    lease.release().await.expect("an answer");
    let lease = waiter.granted().await;
    let waiter = Waiter::queue(&two, &one, "report", 0).await;
    lease.release().await.expect("an answer");
    assert!(waiter.granted().await.is_held());
    let other = client(format!("{url}?database=3")).await;
    assert!(other.mutex("report").try_lock().await.unless_held().expect("an answer").is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn databases_share_neither_names_nor_events() {
    let server = server().await;
    let (zero, five) = (client(server.url()).await, client(format!("{}/5", server.url())).await);
    let mut events = zero.admin().watch(&Query::all()).await.expect("a watch");
    let there = five.mutex("report").ttl(LONG).lock().await.expect("free");
    let here = zero.mutex("report").ttl(LONG).try_lock().await.unless_held().expect("an answer");
    let here = here.expect("another database has another line");
    let waiter = Waiter::queue(&five, &five, "report", 0).await;
    let event = soon("an event", events.next()).await.expect("no end").expect("an event");
    assert_eq!((event.kind, event.fence), (EventKind::Granted, here.fence()));
    there.release().await.expect("an answer");
    drop(waiter.granted().await);
    until_free(&five, "report").await;
    assert!(here.is_held());
    here.release().await.expect("an answer");
    let event = soon("an event", events.next()).await.expect("no end").expect("an event");
    assert_eq!(event.kind, EventKind::Released, "nothing of the other database in between");
    assert_ne!(zero.info().store_id, five.info().store_id);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prefixes_share_neither_names_nor_events() {
    let server = server().await;
    let one = client(format!("{}?prefix=one:", server.url())).await;
    let two = client(format!("{}?prefix=two:", server.url())).await;
    let mut events = one.admin().watch(&Query::all()).await.expect("a watch");
    let there = two.mutex("report").ttl(LONG).lock().await.expect("free");
    let here = one
        .mutex("report")
        .ttl(LONG)
        .try_lock()
        .await
        .unless_held()
        .expect("an answer")
        .expect("free");
    let event = soon("an event", events.next()).await.expect("no end").expect("an event");
    assert_eq!((event.kind, event.fence), (EventKind::Granted, here.fence()));
    assert_eq!(two.admin().inspect(&Query::all()).await.expect("an answer").lines.len(), 1);
    assert_eq!(told(&server, &["EXISTS", "one:report", "two:report"]), "2");
    drop((here, there));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn database_that_the_server_does_not_have_is_refused() {
    let server = server().await;
    let error = refused(&format!("{}/99", server.url())).await;
    assert!(!error.is_transient(), "{error:?}");
}

#[test]
fn forked_child_that_drops_a_blocking_client_leaves_the_connections_to_its_parent() {
    let server = servers::Redis::new().start_blocking().expect("a server starts");
    // Far beyond this test: without its socket the parent would wait for all that time.
    let url = format!("{}?timeout_ms=600000", server.url());
    let client = leasehold::blocking::connect(url).expect("the store opens");
    let lease = client.mutex("report").ttl(LONG).lock().expect("free");
    let (client, status) = in_child(client, |client| {
        drop(client);
        0
    })
    .expect("a child");
    assert_eq!(status, Some(0));
    let (sender, answered) = std::sync::mpsc::channel();
    std::thread::spawn(move || sender.send((lease.extend(LONG), client)));
    let (extended, _client) = answered.recv_timeout(EVENT_MAX).expect("an answer");
    extended.expect("it is held");
}
