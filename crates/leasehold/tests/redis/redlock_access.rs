//! Ways to the nodes of a quorum: TLS, passwords, and the rights on the engine's page.

use std::time::Duration;

use leasehold::engine::Query;
use leasehold::error::Config;
use leasehold::{Client, Error, Released, UnlessHeld};
use leasehold_testkit::servers::{self, Group};
use leasehold_testkit::{Certificates, Server};

use crate::redlock::{TTL, counted_everywhere, votes};
use crate::support::*;

const PAGE: &str = include_str!("../../../../docs/engines/redlock.md");
const PASSWORD: &str = "hush";

/// How long a node on probation waits here.
const TTL_MAX: Duration = TTL;

fn url(scheme: &str, login: &str, group: &Group, options: &str) -> String {
    let address = |server: &Server| server.address().to_string();
    let hosts: Vec<String> = group.servers().iter().map(address).collect();
    format!("{scheme}://{login}{}?node_timeout_ms=2000&{options}", hosts.join(","))
}

async fn refused(url: &str) -> Error {
    soon("a refusal", leasehold::connect(url)).await.expect_err("this way must not work")
}

/// A lock, a wait and a hand-over.
async fn works(url: &str) {
    let (one, two) = (client(url).await, client(url).await);
    let lease = one.mutex("report").lock().await.expect("free");
    let waiter = Waiter::start(two.request("report"));
    until_waiting(&one, "report", 1).await;
    assert_eq!(lease.release().await.expect("an answer"), Released::Released);
    assert!(waiter.granted().await.is_held());
    two.admin().examine().await.expect("doctor gets through");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_to_every_node_works_and_is_checked() {
    let certificates = Certificates::new().expect("certificates");
    let options = servers::Redis::new().tls(&certificates);
    let group = options.start_many(3).await.expect("servers start");
    let ca = |file: std::path::PathBuf| format!("ca={}", file.display());
    works(&url("redlocks", "", &group, &ca(certificates.ca()))).await;
    let unknown = ca(certificates.other_ca());
    // Without a `ca` the client asks the system's authorities, which do not know this one.
    for options in [unknown.as_str(), ""] {
        let error = refused(&url("redlocks", "", &group, options)).await;
        assert!(error.with_sources().contains("certificate"), "{error}");
    }
    let elsewhere = Certificates::for_names(&["elsewhere.example"]).expect("certificates");
    let group = servers::Redis::new().tls(&elsewhere).start_many(3).await.expect("servers start");
    let error = refused(&url("redlocks", "", &group, &ca(elsewhere.ca()))).await;
    assert!(error.with_sources().contains("certificate"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_to_nodes_never_falls_back_to_plain_nor_plain_to_tls() {
    let certificates = Certificates::new().expect("certificates");
    let plain = servers::Redis::new().start_many(3).await.expect("servers start");
    let ca = format!("ca={}", certificates.ca().display());
    refused(&url("redlocks", "", &plain, &ca)).await;
    for server in plain.servers() {
        assert_eq!(told(server, &["KEYS", "*"]), "", "nothing was founded");
    }
    let options = servers::Redis::new().tls(&certificates);
    let secure = options.start_many(3).await.expect("servers start");
    refused(&url("redlock", "", &secure, "")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_shows_the_clients_certificate_to_nodes_that_ask() {
    let certificates = Certificates::new().expect("certificates");
    let options = servers::Redis::new().mutual_tls(&certificates);
    let group = options.start_many(3).await.expect("servers start");
    let ca = format!("ca={}", certificates.ca().display());
    refused(&url("redlocks", "", &group, &ca)).await;
    let (cert, key) = (certificates.client_certificate(), certificates.client_key());
    let all = format!("{ca}&cert={}&key={}", cert.display(), key.display());
    works(&url("redlocks", "", &group, &all)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f145_a_wrong_password_at_one_node_is_refused_and_in_no_text() {
    let options = servers::Redis::new().user("locks", PASSWORD, "~* &* +@all");
    let group = options.start_many(3).await.expect("servers start");
    let good = url("redlock", &format!("locks:{PASSWORD}@"), &group, "");
    works(&good).await;
    let client = client(&good).await;
    assert!(!format!("{client:#?}{:?}", client.info()).contains(PASSWORD));
    told(&group.servers()[1], &["ACL", "SETUSER", "locks", "resetpass", ">another"]);
    let error = refused(&good).await;
    assert!(matches!(error, Error::Config(Config::Denied { .. })), "{error:?}");
    let text = format!("{error:?}{error}");
    assert!(text.contains(&group.servers()[1].address().to_string()), "{text}");
    assert!(!text.contains(PASSWORD), "{text}");
}

/// The rules on the page, from the word after the password.
fn rules() -> Vec<String> {
    let command = PAGE.split("```").find(|block| block.contains("ACL SETUSER")).expect("a command");
    let words = command.split_whitespace().filter(|word| *word != "\\");
    let rules = words.skip_while(|word| *word != ">PASSWORD").skip(1);
    rules.map(str::to_owned).collect()
}

fn give(server: &Server, rules: &[String]) {
    let password = format!(">{PASSWORD}");
    let mut command = vec!["ACL", "SETUSER", "locks", "reset", "on", &password];
    command.extend(rules.iter().map(String::as_str));
    told(server, &command);
}

/// All calls of a quorum's client, including the rare ones.
async fn round(group: &Group, one: &Client, two: &Client) {
    let [first, second, third] = group.servers() else { panic!("three nodes") };
    let lease = one.mutex("report").ttl(TTL_MAX).lock().await.expect("free");
    assert!(
        two.mutex("report")
            .ttl(TTL_MAX)
            .try_lock()
            .await
            .unless_held()
            .expect("an answer")
            .is_none()
    );
    let waiters = [two.request("report").ttl(TTL_MAX), two.request("report").ttl(TTL_MAX)];
    let [waiter, left] = waiters.map(Waiter::start);
    until_waiting(one, "report", 2).await;
    until_renewed(&lease).await;
    drop(left);
    until_waiting(one, "report", 1).await;
    assert_eq!(one.admin().inspect(&Query::all()).await.expect("an answer").lines.len(), 1);
    lease.release().await.expect("an answer");
    waiter.granted().await.release().await.expect("an answer");
    // The next renewal gives the claim back to a node that lost it.
    let lease = counted_everywhere(group, one).await;
    let repaired = async || !told(first, &["GET", "lock:report"]).is_empty();
    told(first, &["DEL", "lock:report"]);
    until("the repair", repaired).await;
    one.admin().force_release("report", "a test").await.expect("an answer");
    drop(lease);
    // The client waits for a key of another library.
    for server in [second, third] {
        told(server, &["SET", "lock:foreign", "theirs", "PX", "300"]);
    }
    let lease = one.mutex("foreign").ttl(TTL_MAX).lock().await.expect("a grant");
    lease.release().await.expect("an answer");
    // Counters ahead of the clock, so that the path for clocks that fell back runs.
    for server in group.servers() {
        for counter in told(server, &["KEYS", "leasehold:*fence*"]).lines() {
            told(server, &["SET", counter, "9007199254740993000"]);
        }
    }
    for name in ["report", "foreign"] {
        let lease = one.mutex(name).ttl(TTL_MAX).lock().await.expect("free");
        lease.release().await.expect("an answer");
    }
    // A node that lost all data catches up.
    told(third, &["FLUSHALL"]);
    one.mutex("other").ttl(TTL_MAX).lock().await.expect("free").release().await.expect("known");
    until("all to vote", async || votes(one).await == [true; 3]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn printed_rights_are_enough_for_a_quorum_and_each_is_used() {
    let group = servers::Redis::new().start_many(3).await.expect("servers start");
    let rules = rules();
    for server in group.servers() {
        give(server, &rules);
    }
    let options = format!("ttl_max_ms={}", TTL_MAX.as_millis());
    let url = url("redlock", &format!("locks:{PASSWORD}@"), &group, &options);
    let (one, two) = (early_client(&url).await, client(&url).await);
    round(&group, &one, &two).await;
    for server in group.servers() {
        assert_eq!(told(server, &["ACL", "LOG"]), "", "something was refused and swallowed");
    }
    let commands: Vec<&str> = rules.iter().filter_map(|rule| rule.strip_prefix('+')).collect();
    let used = |command: &&str| group.servers().iter().any(|server| calls(server, command) > 0);
    let idle: Vec<&str> = commands.into_iter().filter(|command| !used(command)).collect();
    assert_eq!(idle, [""; 0], "nothing needs these");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_right_that_a_node_lacks_is_named() {
    let group = servers::Redis::new().start_many(3).await.expect("servers start");
    let mut rules = rules();
    rules.retain(|rule| rule != "+zadd" && rule != "+set");
    for server in group.servers() {
        give(server, &rules);
    }
    let url = url("redlock", &format!("locks:{PASSWORD}@"), &group, "");
    let client = client(&url).await;
    let error = soon("a refusal", client.mutex("report").try_lock())
        .await
        .unless_held()
        .expect_err("no right");
    assert!(matches!(error, Error::Config(Config::Denied { .. })), "{error:?}");
    assert!(!error.is_transient() && !error.to_string().contains(PASSWORD), "{error}");
}
