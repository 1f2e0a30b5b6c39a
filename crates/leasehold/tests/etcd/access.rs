//! Users, passwords and certificates.

use std::io::Write as _;
use std::process::Stdio;
use std::time::{Duration, SystemTime};

use leasehold::{Client, Error, Lease, LeaseState, LostCause, Released, UnlessHeld, connect};
use leasehold_testkit::{Certificates, Etcd, Proxy, Renewals, Server};

use super::support::*;

/// The login of the root user, for etcd's own command.
const ROOT: &str = "--user=root:top";

/// A server with a root user and one that may use the keys below `app/`.
async fn guarded() -> Server {
    let server = server().await;
    let orders: &[&[&str]] = &[
        &["user", "add", "root:top"],
        &["user", "grant-role", "root", "root"],
        &["role", "add", "app"],
        &["role", "grant-permission", "app", "readwrite", "app/", "--prefix=true"],
        &["user", "add", "me:hush hush"],
        &["user", "grant-role", "me", "app"],
        &["user", "add", "you:quiet"],
        &["user", "grant-role", "you", "app"],
        &["auth", "enable"],
    ];
    for order in orders {
        // Some versions already have the role of root.
        let done = etcdctl(&endpoint(&server)).args(*order).output().expect("etcdctl runs");
        let error = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(done.status.success(), "{order:?}: {error}");
    }
    server
}

/// Runs etcd's own command as root on a guarded server.
fn root(server: &Server, words: &[&str]) {
    ctl(&endpoint(server), &[&[ROOT], words].concat());
}

/// Gives a user another password, as root. The server then forgets its logins.
fn set_password(server: &Server, user: &str, password: &str) {
    let mut command = etcdctl(&endpoint(server));
    command.args([ROOT, "user", "passwd", user, "--interactive=false"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("etcdctl");
    let mut input = child.stdin.take().expect("it is piped");
    writeln!(input, "{password}").expect("it reads");
    drop(input);
    assert!(child.wait().expect("it ends").success());
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
    let mut waiter = Waiter::start(two.request("job").ttl(LONG));
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
    nothing_is_left_for(&server, &[ROOT], &[one, two]).await;
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
    nothing_is_left(&server, &[client]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f99_login_that_the_server_forgot_is_renewed_while_the_lease_is_held() {
    let server = guarded().await;
    let client = client(&url(&server, "me:hush%20hush", "app/")).await;
    let lease = client.mutex("job").ttl(Duration::from_secs(8)).lock().await.expect("free");
    // A server keeps its logins in memory.
    server.restart().await.expect("it starts again");
    let before = lease.deadline();
    until("a renewal", async || {
        assert_ne!(lease.state(), LeaseState::Lost);
        lease.deadline() > before
    })
    .await;
    assert_eq!(lease.state(), LeaseState::Held);
    assert_eq!(soon("an answer", lease.release()).await.expect("one"), Released::Released);
    nothing_is_left_for(&server, &[ROOT], &[client]).await;
}

/// The release of the lost lease does not release the next one.
async fn harms_nobody(lost: Lease, next: Lease) {
    assert_ne!(soon("an answer", lost.release()).await.ok(), Some(Released::Released));
    assert!(next.is_held());
    assert_eq!(soon("an answer", next.release()).await.expect("one"), Released::Released);
}

/// Takes the login of a holder for which another user waits, and checks that it loses in time.
async fn loses_with_its_login(take: impl AsyncFn(&Server)) {
    let server = guarded().await;
    let (one, seen) = Renewals::of(&url(&server, "you:quiet", "app/")).await.expect("a connection");
    let two = client(&url(&server, "me:hush%20hush", "app/")).await;
    let lease = one.mutex("job").ttl(Duration::from_secs(3)).lock().await.expect("free");
    let mut waiter = Waiter::start(two.request("job").ttl(LONG));
    until_waiting(&two, "job", 1).await;
    take(&server).await;
    let next = waiter.granted().await;
    assert_eq!(lease.state(), LeaseState::Lost, "two hold at once");
    let cause = soon("the loss", lease.lost()).await;
    assert!(matches!(cause, LostCause::Expired | LostCause::Unreachable), "{cause:?}");
    assert!(next.fence() > lease.fence());
    let failures = seen.failures();
    let said = "does not accept this user and password";
    assert!(failures.iter().any(|failure| failure.contains(said)), "{failures:?}");
    assert!(!failures.iter().any(|failure| failure.contains("quiet")), "{failures:?}");
    let refused =
        soon("an answer", one.mutex("job").try_lock()).await.unless_held().expect_err("nobody");
    assert!(!refused.is_transient() && refused.to_string().contains(said), "{refused}");
    harms_nobody(lease, next).await;
    nothing_is_left_for(&server, &[ROOT], &[one, two]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f99_lease_of_a_user_who_was_deleted_is_lost_before_the_next_is_granted() {
    loses_with_its_login(async |server| root(server, &["user", "delete", "you"])).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f99_lease_of_a_user_with_another_password_is_lost_before_the_next_is_granted() {
    loses_with_its_login(async |server| {
        set_password(server, "you", "another");
        // A server keeps its logins in memory.
        server.restart().await.expect("it starts again");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f99_login_that_is_good_again_in_time_keeps_the_lease() {
    let server = guarded().await;
    let one = client(&url(&server, "you:quiet", "app/")).await;
    let two = client(&url(&server, "me:hush%20hush", "app/")).await;
    let lease = one.mutex("job").ttl(Duration::from_secs(10)).lock().await.expect("free");
    let waiter = Waiter::start(two.request("job").ttl(LONG));
    until_waiting(&two, "job", 1).await;
    set_password(&server, "you", "another");
    until("an uncertain lease", async || lease.state() != LeaseState::Held).await;
    assert_eq!(lease.state(), LeaseState::Uncertain);
    set_password(&server, "you", "quiet");
    until("a certain lease", async || lease.state() != LeaseState::Uncertain).await;
    assert_eq!(lease.state(), LeaseState::Held);
    assert!(waiter.is_waiting(), "two hold at once");
    assert_eq!(soon("an answer", lease.release()).await.expect("one"), Released::Released);
    nothing_is_left_for(&server, &[ROOT], &[one, two]).await;
}

/// Closes the clients of a store that only certificates open, and checks that nothing is left in
/// it.
async fn nothing_is_left_within(made: &Certificates, server: &Server, clients: &[Client]) {
    // The client's certificate may have run out by now.
    let (ca, cert, key) = (made.ca(), made.server_certificate(), made.server_key());
    let (ca, cert, key) = (ca.display(), cert.display(), key.display());
    let login = [format!("--cacert={ca}"), format!("--cert={cert}"), format!("--key={key}")];
    nothing_is_left_for(server, &login.each_ref().map(String::as_str), clients).await;
}

/// A connection outlives the certificate with which it was opened; the server refuses the next one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f99_lease_of_a_client_whose_certificate_ran_out_is_lost_before_the_next_is_granted() {
    let life = Duration::from_secs(8);
    let made = Certificates::with_client_valid_for(life).expect("certificates");
    // The last second of the certificate is a whole one.
    let ended = SystemTime::now() + life + Duration::from_secs(1);
    let server = Etcd::new().mutual_tls(&made).start().await.expect("a server");
    let proxy = Proxy::start(server.address()).await.expect("a proxy");
    let ca = made.ca();
    let url = |address: std::net::SocketAddr, cert: &std::path::Path, key: &std::path::Path| {
        let (ca, cert, key) = (ca.display(), cert.display(), key.display());
        format!("etcds://{address}?ca={ca}&cert={cert}&key={key}")
    };
    let far = url(proxy.address(), &made.client_certificate(), &made.client_key());
    let (far, seen) = Renewals::of(&far).await.expect("a connection");
    // A server's certificate also works for a client, and it lasts.
    let near = url(server.address(), &made.server_certificate(), &made.server_key());
    let near = client(&near).await;
    let ttl = Duration::from_secs(3);
    let lease = far.mutex("job").ttl(ttl).lock().await.expect("free");
    let mut waiter = Waiter::start(near.request("job").ttl(LONG));
    until_waiting(&near, "job", 1).await;
    until("the end of the certificate", async || SystemTime::now() > ended).await;
    let before = lease.deadline();
    until("a renewal after it", async || {
        assert!(lease.is_held(), "the connection is still good");
        lease.deadline() > before
    })
    .await;
    proxy.reset_all();
    let next = waiter.granted().await;
    assert_eq!(lease.state(), LeaseState::Lost, "two hold at once");
    assert_eq!(soon("the loss", lease.lost()).await, LostCause::Unreachable);
    assert!(next.fence() > lease.fence());
    let failures = seen.failures();
    assert!(failures.iter().any(|failure| failure.contains("ertificate")), "{failures:?}");
    // Not always: the connection may be gone before the client has read the reason.
    let refused = soon("an answer", far.mutex("job").ttl(ttl).try_lock()).await.unless_held();
    assert!(matches!(&refused, Err(Error::Unreachable { .. })), "{refused:?}");
    harms_nobody(lease, next).await;
    // No client waits for an answer that cannot come.
    nothing_is_left_within(&made, &server, &[far, near]).await;
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
    nothing_is_left_within(&made, &server, &[good]).await;
}
