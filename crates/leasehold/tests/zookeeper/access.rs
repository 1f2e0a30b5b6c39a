//! Users, passwords, rights and certificates.

use std::time::Duration;

use leasehold::engine::{Level, Query};
use leasehold::layer::retry::RetryPolicy;
use leasehold::{Client, Error, Released, UnlessHeld, connect};
use leasehold_testkit::{Certificates, Peer, PeerKind, Zookeeper};

use super::support::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_users_locks_are_that_users_alone() {
    let server = server().await;
    let url = |login: &str| format!("zk://{login}{}/app", server.address());
    let [one, two] = [client(&url("me:hush%20hush@")).await, client(&url("me:hush%20hush@")).await];
    let lease = one.mutex("job").ttl(LONG).lock().await.expect("free");
    let mut waiter = Waiter::start(two.request("job").ttl(LONG));
    until_waiting(&one, "job", 1).await;
    lease.release().await.expect("an answer");
    let next = waiter.granted().await;
    for login in ["", "me:wrong@", "nobody:wrong@"] {
        let refused = connect(url(login)).await.expect_err("somebody else");
        assert!(matches!(refused, Error::Config(_)), "{login}: {refused:?}");
        assert!(!refused.to_string().contains("wrong"), "{refused}");
    }
    assert_eq!(next.release().await.expect("an answer"), Released::Released);
    leaves_nothing_at(&server, ("/app", Some("me:hush hush")), [one, two]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn store_at_the_root_keeps_off_the_servers_own_node() {
    let server = server().await;
    let url = format!("zk://{}/", server.address());
    let [one, two] = [client(&url).await, client(&url).await];
    for name in ["job", "zookeeper", "zookeeper/quota"] {
        let lease = one.mutex(name).ttl(LONG).lock().await.expect("free");
        let held = claims(&server);
        let at_the_root =
            |path: &String| path.split('/').count() == 3 && !path.starts_with("/zookeeper/");
        assert!(!held.is_empty() && held.iter().all(at_the_root), "{held:?}");
        assert!(two.mutex(name).try_lock().await.unless_held().expect("an answer").is_none());
        let mut waiter = Waiter::start(two.request(name).ttl(LONG));
        until_waiting(&one, name, 1).await;
        let listed = two.admin().inspect(&Query::all()).await.expect("an answer").lines;
        let listed: Vec<&str> = listed.iter().map(|line| line.name.as_str()).collect();
        assert_eq!(listed, [name]);
        lease.release().await.expect("an answer");
        let next = waiter.granted().await;
        assert_eq!(next.release().await.expect("an answer"), Released::Released);
    }
    leaves_nothing_at(&server, ("/", None), [one, two]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn root_that_gives_no_right_to_create_is_a_configuration_error() {
    let server = server().await;
    let mut theirs = Peer::spawn(PeerKind::Kazoo, &[server.url()]).await.expect("a peer");
    assert!(theirs.seal("/").await.expect("an answer"));
    for path in ["", "/", "/app"] {
        let refused = soon("an answer", connect(format!("{}{path}", server.url()))).await;
        assert!(matches!(&refused, Err(Error::Config(_))), "{path}: {refused:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn doctor_finds_rights_that_were_taken_away() {
    let server = server().await;
    let client = client(server.url()).await;
    let rights = async || {
        let findings = client.admin().examine().await.expect("an answer");
        let found = findings.into_iter().filter(|finding| finding.subject == "rights");
        found.map(|finding| (finding.level, finding.advice)).collect::<Vec<_>>()
    };
    assert_eq!(rights().await, [(Level::Good, String::new())]);
    let mut theirs = Peer::spawn(PeerKind::Kazoo, &[server.url()]).await.expect("a peer");
    assert!(theirs.seal("/locks").await.expect("an answer"));
    let found = rights().await;
    let [(Level::Bad, advice)] = found.as_slice() else { panic!("{found:?}") };
    assert!(advice.contains("docs/engines/zookeeper.md"), "{advice}");
    let refused = client.mutex("job").try_lock().await.unless_held();
    assert!(matches!(&refused, Err(Error::Config(_))), "{refused:?}");
    leaves_nothing(&server, [client]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_else_writes_a_claims_node() {
    // A waiter takes a write to a claim's node for its release.
    let server = server().await;
    let client = client(server.url()).await;
    let lease = client.mutex("demo").ttl(LONG).lock().await.expect("free");
    let node = claims(&server).into_iter().find(|node| node.contains("__lock__"));
    let mut theirs = Peer::spawn(PeerKind::Kazoo, &[server.url()]).await.expect("a peer");
    let written = theirs.write(&node.expect("a claim")).await.expect("an answer");
    assert!(!written, "a stranger wrote a claim's node");
    assert!(lease.is_held());
    leaves_nothing(&server, [client]).await;
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
    let before = lease.deadline();
    until("a renewal", async || lease.deadline() > before).await;
    lease.release().await.expect("an answer");
    let findings = good.admin().examine().await.expect("an answer");
    assert!(findings.iter().any(|finding| finding.found.contains("standalone")), "{findings:?}");
    let bad = [
        address(&made.other_ca(), &made),
        address(&made.ca(), &stranger),
        format!("zks://{}?ca={}", server.address(), made.ca().display()),
        format!("zk://{}", server.address()),
    ];
    for url in bad {
        let once = RetryPolicy { times: 0, ..RetryPolicy::default() };
        let refused = soon("an answer", Client::builder().retry(once).connect(&url)).await;
        assert!(matches!(refused, Err(Error::Unreachable { .. })), "{url}: {refused:?}");
    }
    leaves_nothing(&server, [good]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_certificate_that_ran_out_is_refused_and_the_error_says_so() {
    let made = Certificates::with_server_that_ran_out().expect("certificates");
    let server = Zookeeper::new().tls(&made).start().await.expect("a server");
    let url = format!("zks://{}?ca={}", server.address(), made.ca().display());
    let refused = soon("an answer", connect(&url)).await;
    let Err(error @ Error::Unreachable { .. }) = refused else { panic!("{refused:?}") };
    let text = error.to_string();
    assert!(text.contains("certificate") && text.contains("expired"), "{text}");
    assert!(text.contains(&server.address().to_string()), "{text}");
    leaves_nothing(&server, []).await;
}
