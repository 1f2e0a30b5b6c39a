//! Users, passwords and certificates.

use std::time::Duration;

use leasehold::{Error, LeaseState, Released, connect};
use leasehold_testkit::{Certificates, Etcd, Server};

use super::support::*;

/// A server with a root user and one who may use the keys below `app/`.
async fn guarded() -> Server {
    let server = server().await;
    let orders: &[&[&str]] = &[
        &["user", "add", "root:top"],
        &["user", "grant-role", "root", "root"],
        &["role", "add", "app"],
        &["role", "grant-permission", "app", "readwrite", "app/", "--prefix=true"],
        &["user", "add", "me:hush hush"],
        &["user", "grant-role", "me", "app"],
        &["auth", "enable"],
    ];
    for order in orders {
        // The role of root is there already in some versions.
        let done = etcdctl(&endpoint(&server)).args(*order).output().expect("etcdctl runs");
        let error = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(done.status.success(), "{order:?}: {error}");
    }
    server
}

fn url(server: &Server, login: &str, prefix: &str) -> String {
    format!("etcd://{login}@{}?prefix={prefix}", server.address())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn user_with_rights_to_its_prefix_has_locks_and_no_others() {
    let server = guarded().await;
    let one = client(&url(&server, "me:hush%20hush", "app/")).await;
    let two = client(&url(&server, "me:hush%20hush", "app/")).await;
    let lease = one.mutex("job").ttl(LONG).lock().await.expect("free");
    let mut waiter = Waiter::start(two.claim("job").ttl(LONG));
    until_waiting(&one, "job", 1).await;
    lease.release().await.expect("an answer");
    assert_eq!(waiter.granted().await.release().await.expect("one"), Released::Released);
    let outside = connect(url(&server, "me:hush%20hush", "other/")).await;
    match outside {
        Err(Error::Store { cause, transient: false, .. }) => {
            assert!(cause.contains("permission denied"), "{cause}");
        }
        other => panic!("a user without rights came to {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_or_missing_password_is_refused_and_not_repeated() {
    let server = guarded().await;
    for login in ["me:wrong", "nobody:wrong"] {
        let refused = connect(url(&server, login, "app/")).await.expect_err(login);
        assert!(!refused.is_transient(), "{refused}");
        assert!(!refused.to_string().contains("wrong"), "{refused}");
    }
    let refused = connect(format!("etcd://{}", server.address())).await.expect_err("nobody");
    assert!(!refused.is_transient(), "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn password_for_a_cluster_without_users_is_not_needed() {
    let server = server().await;
    let client = client(&url(&server, "me:any", "app/")).await;
    client.mutex("job").lock().await.expect("free").release().await.expect("an answer");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f99_login_that_the_server_forgot_is_renewed_while_the_lease_is_held() {
    let server = guarded().await;
    let client = client(&url(&server, "me:hush%20hush", "app/")).await;
    let lease = client.mutex("job").ttl(Duration::from_secs(8)).lock().await.expect("free");
    // A server keeps its logins in memory.
    server.restart().await.expect("it starts again");
    let before = lease.safe_until();
    until("a renewal", async || {
        assert_ne!(lease.state(), LeaseState::Lost);
        lease.safe_until() > before
    })
    .await;
    assert_eq!(lease.state(), LeaseState::Held);
    assert_eq!(soon("an answer", lease.release()).await.expect("one"), Released::Released);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_are_checked_on_both_sides() {
    let made = Certificates::new().expect("certificates");
    let server = Etcd::new().mutual_tls(&made).start().await.expect("a server");
    let stranger = Certificates::new().expect("certificates");
    let address = |ca: &std::path::Path, of: &Certificates| {
        let (ca, cert, key) = (ca.display(), of.client_certificate(), of.client_key());
        let (cert, key) = (cert.display(), key.display());
        format!("etcds://{}?ca={ca}&cert={cert}&key={key}", server.address())
    };
    let good = client(&address(&made.ca(), &made)).await;
    good.mutex("tls").lock().await.expect("free").release().await.expect("an answer");
    let bad = [
        address(&made.other_ca(), &made),
        address(&made.ca(), &stranger),
        format!("etcds://{}?ca={}", server.address(), made.ca().display()),
        format!("etcd://{}", server.address()),
    ];
    for url in bad {
        let refused = soon("an answer", connect(&url)).await;
        assert!(matches!(refused, Err(Error::Unreachable { .. })), "{url}: {refused:?}");
    }
}
