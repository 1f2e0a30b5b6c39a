//! Users, passwords, rights and certificates.

use std::time::Duration;

use leasehold::{Error, Released, connect};
use leasehold_testkit::{Certificates, Peer, PeerKind, Zookeeper};

use super::support::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_users_locks_are_that_users_alone() {
    let server = server().await;
    let url = |login: &str| format!("zk://{login}{}/app", server.address());
    let [one, two] = [client(&url("me:hush%20hush@")).await, client(&url("me:hush%20hush@")).await];
    let lease = one.mutex("job").ttl(LONG).lock().await.expect("free");
    let mut waiter = Waiter::start(two.claim("job").ttl(LONG));
    until_waiting(&one, "job", 1).await;
    lease.release().await.expect("an answer");
    let next = waiter.granted().await;
    for login in ["", "me:wrong@", "nobody:wrong@"] {
        let refused = connect(url(login)).await.expect_err("somebody else");
        assert!(matches!(refused, Error::Config(_)), "{login}: {refused:?}");
        assert!(!refused.to_string().contains("wrong"), "{refused}");
    }
    assert_eq!(next.release().await.expect("an answer"), Released::Released);
    one.close().await.expect("an answer");
    two.close().await.expect("an answer");
    until_empty(&server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_else_writes_a_claims_node() {
    // That it was written tells whoever waits that it was given back.
    let server = server().await;
    let client = client(server.url()).await;
    let lease = client.mutex("demo").ttl(LONG).lock().await.expect("free");
    let node = claims(&server).into_iter().find(|node| node.contains("__lock__"));
    let mut theirs = Peer::spawn(PeerKind::Kazoo, &[server.url()]).await.expect("a peer");
    let written = theirs.write(&node.expect("a claim")).await.expect("an answer");
    assert!(!written, "a stranger wrote a claim's node");
    assert!(lease.is_held());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_are_checked_on_both_sides() {
    let made = Certificates::new().expect("certificates");
    let server = Zookeeper::new().mutual_tls(&made).start().await.expect("a server");
    let stranger = Certificates::new().expect("certificates");
    let address = |ca: &std::path::Path, of: &Certificates| {
        let (ca, cert, key) = (ca.display(), of.client_certificate(), of.client_key());
        let (cert, key) = (cert.display(), key.display());
        format!("zks://{}?ca={ca}&cert={cert}&key={key}", server.address())
    };
    let good = client(&address(&made.ca(), &made)).await;
    let lease = good.mutex("tls").ttl(Duration::from_secs(3)).lock().await.expect("free");
    let before = lease.safe_until();
    until("a renewal", async || lease.safe_until() > before).await;
    lease.release().await.expect("an answer");
    let findings = good.examine().await.expect("an answer");
    assert!(findings.iter().any(|finding| finding.found.contains("standalone")), "{findings:?}");
    let bad = [
        address(&made.other_ca(), &made),
        address(&made.ca(), &stranger),
        format!("zks://{}?ca={}", server.address(), made.ca().display()),
        format!("zk://{}", server.address()),
    ];
    for url in bad {
        let refused = soon("an answer", connect(&url)).await;
        assert!(matches!(refused, Err(Error::Unreachable { .. })), "{url}: {refused:?}");
    }
}
