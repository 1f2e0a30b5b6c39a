//! `etcdctl lock`, which is Go's `concurrency.Mutex`, and the server's own lock service. Each
//! excludes leasehold, and leasehold excludes each.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use leasehold::engine::Query;
use leasehold::{LeaseState, Mode, Released, UnlessHeld};
use leasehold_testkit::Server;
use tokio::task::JoinHandle;

use super::support::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcdctl_waits_for_our_lease_and_gets_the_lock_after_it() {
    let server = server().await;
    let client = client(server.url()).await;
    let lease = client.mutex("demo").ttl(LONG).lock().await.expect("it is free");
    let mut theirs = lock(&server, "demo", 10);
    until_waiting(&client, "demo", 1).await;
    assert!(client.mutex("demo").try_lock().await.unless_held().expect("an answer").is_none());
    assert_eq!(lease.release().await.expect("an answer"), Released::Released);
    let key = locked(&mut theirs).await;
    assert!(key.starts_with("demo/"), "{key}");
    let line = client.line("demo").await.expect("an answer").expect("it is held");
    assert_eq!(line.held[0].holder.label(), "a client of another library");
    assert!(line.held[0].remaining <= Duration::from_secs(10));
    assert!(client.mutex("demo").try_lock().await.unless_held().expect("an answer").is_none());
    theirs.terminate().expect("it runs");
    let lease = soon("our turn", client.mutex("demo").ttl(LONG).lock()).await.expect("a lease");
    lease.release().await.expect("an answer");
    nothing_is_left(&server, &[client]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn we_wait_in_line_with_etcdctl_in_order_of_arrival() {
    let server = server().await;
    let [one, two] = [client(server.url()).await, client(server.url()).await];
    let mut first = lock(&server, "demo", 10);
    locked(&mut first).await;
    let mut second = Waiter::start(one.request("demo").ttl(LONG));
    until_waiting(&one, "demo", 1).await;
    let mut third = lock(&server, "demo", 10);
    until_waiting(&one, "demo", 2).await;
    let mut fourth = Waiter::start(two.request("demo").ttl(LONG));
    until_waiting(&one, "demo", 3).await;
    first.terminate().expect("it runs");
    let lease = second.granted().await;
    assert!(fourth.is_waiting());
    let fence = lease.fence();
    lease.release().await.expect("an answer");
    locked(&mut third).await;
    assert!(fourth.is_waiting());
    third.terminate().expect("it runs");
    let lease = fourth.granted().await;
    assert!(lease.fence() > fence);
    lease.release().await.expect("an answer");
    assert!(claims(&server).is_empty());
    nothing_is_left(&server, &[one, two]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_etcdctl_is_followed_by_us_after_its_ttl() {
    let server = server().await;
    let client = client(server.url()).await;
    let mut theirs = lock(&server, "demo", 2);
    locked(&mut theirs).await;
    let mut waiter = Waiter::start(client.request("demo").ttl(LONG));
    until_waiting(&client, "demo", 1).await;
    theirs.kill().expect("it runs");
    assert_eq!(waiter.granted().await.state(), LeaseState::Held);
    nothing_is_left(&server, &[client]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcdctl_waits_for_all_our_readers_and_stops_later_ones() {
    let server = server().await;
    let [one, two] = [client(server.url()).await, client(server.url()).await];
    let reader = |client: &leasehold::Client| client.request("rw").mode(Mode::Shared).ttl(LONG);
    let first = reader(&one).acquire().await.expect("readers share");
    let second = reader(&two).acquire().await.expect("readers share");
    let mut theirs = lock(&server, "rw", 10);
    until_waiting(&one, "rw", 1).await;
    assert!(
        reader(&one).try_acquire().await.unless_held().expect("an answer").is_none(),
        "a writer waits"
    );
    let mut late = Waiter::start(reader(&one));
    until_waiting(&one, "rw", 2).await;
    first.release().await.expect("an answer");
    assert!(late.is_waiting());
    second.release().await.expect("an answer");
    locked(&mut theirs).await;
    assert!(late.is_waiting());
    theirs.terminate().expect("it runs");
    late.granted().await.release().await.expect("an answer");
    nothing_is_left(&server, &[one, two]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_with_slashes_are_the_same_lock_for_etcdctl() {
    let server = server().await;
    let client = client(server.url()).await;
    for name in ["/my-lock/", "a/b"] {
        let mut theirs = lock(&server, name, 10);
        let key = locked(&mut theirs).await;
        assert!(key.starts_with(&format!("{name}/")), "{key}");
        assert!(client.mutex(name).try_lock().await.unless_held().expect("an answer").is_none());
        // Leasehold's name `a` is another lock, whatever is below it.
        let above = client.mutex("a").ttl(LONG);
        let lease = above.try_lock().await.unless_held().expect("an answer").expect("`a` is free");
        let waited =
            above.lock_within(Duration::from_secs(1)).await.unless_held().expect("an answer");
        assert!(waited.is_none(), "`a` is held");
        lease.release().await.expect("an answer");
        // A client that gave up waiting leaves the line in the background.
        until("an empty line", async || client.line("a").await.expect("an answer").is_none()).await;
        theirs.terminate().expect("it runs");
        drop(soon("our turn", client.mutex(name).lock()).await.expect("a lease"));
    }
    nothing_is_left(&server, &[client]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcdctl_takes_our_names_below_its_own_for_its_own() {
    // That is etcd's rule, not leasehold's: its prefix of `a` holds `a/b` as well.
    let server = server().await;
    let client = client(server.url()).await;
    let below = client.mutex("a/b").ttl(LONG).lock().await.expect("it is free");
    let mut theirs = lock(&server, "a", 10);
    until_waiting(&client, "a", 0).await;
    until("it to be in line", async || claims(&server).len() == 2).await;
    let line = client.line("a").await.expect("an answer").expect("etcdctl is in it");
    assert_eq!(line.held.len(), 1, "to us it holds already");
    below.release().await.expect("an answer");
    locked(&mut theirs).await;
    theirs.terminate().expect("it runs");
    nothing_is_left(&server, &[client]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_of_others_are_listed_and_other_keys_are_not() {
    let server = server().await;
    let client = client(server.url()).await;
    ctl(&endpoint(&server), &["put", "registry/pods/one", "no lock"]);
    let mut theirs = lock(&server, "demo", 10);
    locked(&mut theirs).await;
    let page = client.admin().inspect(&Query::all()).await.expect("an answer");
    let names: Vec<&str> = page.lines.iter().map(|line| line.name.as_str()).collect();
    assert_eq!(names, ["demo"]);
    // But a client that locks a name above such keys has to respect them.
    let pods = client.mutex("registry/pods").try_lock().await.unless_held().expect("an answer");
    assert!(pods.is_none(), "a key in the line is a claim");
    let evicted = client.admin().force_release("demo", "stuck").await.expect("an answer");
    assert_eq!(evicted.len(), 1);
    assert!(client.mutex("demo").try_lock().await.unless_held().expect("an answer").is_some());
    theirs.terminate().expect("it runs");
    ctl(&endpoint(&server), &["del", "registry/pods/one"]);
    nothing_is_left(&server, &[client]).await;
}

/// A session of the lock service: its locks are on a lease, which its client made.
struct Session {
    address: SocketAddr,
    lease: String,
}

impl Session {
    fn new(server: &Server) -> Self {
        let address = server.address();
        let lease = field(&post(address, "/v3/lease/grant", r#"{"TTL":"300"}"#), "ID");
        Self { address, lease }
    }

    /// Asks for the lock. The answer is its key, and comes when the session holds it.
    fn lock(&self, name: &str) -> JoinHandle<String> {
        let (address, name) = (self.address, STANDARD.encode(name));
        let order = format!(r#"{{"name":"{name}","lease":"{}"}}"#, self.lease);
        tokio::task::spawn_blocking(move || field(&post(address, "/v3/lock/lock", &order), "key"))
    }

    fn unlock(&self, key: &str) {
        post(self.address, "/v3/lock/unlock", &format!(r#"{{"key":"{key}"}}"#));
    }

    fn end(self) {
        post(self.address, "/v3/lease/revoke", &format!(r#"{{"ID":"{}"}}"#, self.lease));
    }
}

/// The answer of the server's gateway for JSON.
fn post(address: SocketAddr, path: &str, order: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("a connection");
    let length = order.len();
    write!(stream, "POST {path} HTTP/1.0\r\nContent-Length: {length}\r\n\r\n{order}")
        .expect("a request");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    assert!(answer.split(' ').nth(1) == Some("200"), "{path}: {answer}");
    answer
}

/// A text in an answer.
fn field(answer: &str, name: &str) -> String {
    let rest = answer.split(&format!("\"{name}\":\"")).nth(1).expect(answer);
    rest.split('"').next().expect(answer).to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lock_service_waits_for_our_lease_and_we_wait_for_its_lock() {
    let server = server().await;
    let client = client(server.url()).await;
    let session = Session::new(&server);
    for name in ["demo", "a/b"] {
        let lease = client.mutex(name).ttl(LONG).lock().await.expect("it is free");
        let fence = lease.fence();
        let theirs = session.lock(name);
        until_waiting(&client, name, 1).await;
        assert!(!theirs.is_finished());
        assert_eq!(lease.release().await.expect("an answer"), Released::Released);
        let key = soon("its turn", theirs).await.expect("no panic");
        let plain = STANDARD.decode(&key).expect("a key");
        assert!(plain.starts_with(format!("{name}/").as_bytes()), "{key}");
        let line = client.line(name).await.expect("an answer").expect("it is held");
        assert_eq!(line.held[0].holder.label(), "a client of another library");
        assert!(client.mutex(name).try_lock().await.unless_held().expect("an answer").is_none());
        let mut waiter = Waiter::start(client.request(name).ttl(LONG));
        until_waiting(&client, name, 1).await;
        assert!(waiter.is_waiting());
        session.unlock(&key);
        let lease = waiter.granted().await;
        assert!(lease.fence() > fence);
        lease.release().await.expect("an answer");
    }
    session.end();
    nothing_is_left(&server, &[client]).await;
}
