//! Servers whose eviction policy changes while clients are connected.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use leasehold::engine::Level;
use leasehold::observe::{Measure, Observer};
use leasehold::{Client, LeaseState, Released};
use leasehold_testkit::{Server, servers};

use crate::redlock::{counted_everywhere, memory_only, url};
use crate::support::*;

/// Checks so often that a test need not wait for a minute.
const SOON: &str = "look_every_ms=20";

/// Reported servers that may evict, and their policies. Clones share one list.
#[derive(Debug, Clone, Default)]
struct Told(Arc<Mutex<Vec<(String, String)>>>);

impl Observer for Told {
    fn observe(&self, measure: &Measure<'_>) {
        if let Measure::MayEvict { server, policy } = *measure {
            self.0.lock().expect("no panic").push((server.to_owned(), policy.to_owned()));
        }
    }
}

impl Told {
    fn all(&self) -> Vec<(String, String)> {
        self.0.lock().expect("no panic").clone()
    }

    async fn client(&self, url: impl AsRef<str>) -> Client {
        let builder = Client::builder().renew_at_percent(20).observer(self.clone());
        soon("a client", builder.connect(url)).await.expect("the store opens")
    }
}

fn set_policy(server: &Server, policy: &str) {
    told(server, &["CONFIG", "SET", "maxmemory-policy", policy]);
}

/// Waits until the client has checked the server twice more, so that one check saw the present
/// policy.
async fn until_looked_at(server: &Server) {
    let before = calls(server, "info");
    // The count itself is a question of the same kind.
    let asked = AtomicU64::new(0);
    until("two looks", async || {
        let asked = 1 + asked.fetch_add(1, Ordering::Relaxed);
        calls(server, "info") >= before + asked + 2
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f62_client_reports_a_later_policy_once_and_doctor_finds_it() {
    let (server, word) = (server().await, Told::default());
    let one = word.client(format!("{}?{SOON}", server.url())).await;
    let lease = one.mutex("report").ttl(LONG).lock().await.expect("free");
    until_looked_at(&server).await;
    assert_eq!(word.all(), [], "it evicts nothing");
    set_policy(&server, "volatile-ttl");
    until("word of it", async || !word.all().is_empty()).await;
    until_looked_at(&server).await;
    let told = word.all();
    assert!(matches!(&told[..], [(_, policy)] if policy == "volatile-ttl"), "once: {told:?}");
    assert!(told[0].0.contains(&server.address().to_string()), "{told:?}");
    let findings = one.admin().examine().await.expect("an answer");
    assert_eq!(about(&findings, "eviction").level, Level::Bad);
    assert_eq!(lease.state(), LeaseState::Held, "telling is all that is done");
    set_policy(&server, "noeviction");
    until_looked_at(&server).await;
    set_policy(&server, "allkeys-random");
    until("word of it again", async || word.all().len() == 2).await;
    assert_eq!(lease.release().await.expect("an answer"), Released::Released);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f62_policy_that_was_allowed_from_the_start_is_no_news() {
    let (server, word) = (server().await, Told::default());
    set_policy(&server, "allkeys-lru");
    let one = word.client(format!("{}?allow_eviction=yes&{SOON}", server.url())).await;
    let _lease = one.mutex("report").ttl(LONG).lock().await.expect("free");
    until_looked_at(&server).await;
    assert_eq!(word.all(), []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f62_check_of_the_policy_costs_a_claim_nothing() {
    let server = server().await;
    let one = client(server.url()).await;
    warm_up(&one).await;
    let before = calls(&server, "info");
    for _ in 0..50 {
        warm_up(&one).await;
    }
    assert_eq!(calls(&server, "info"), before + 1, "only the question that counts them");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f62_right_to_look_that_is_missing_is_no_failure() {
    let (server, word) = (server().await, Told::default());
    told(&server, &["ACL", "SETUSER", "locks", "on", ">secret", "~*", "&*", "+@all"]);
    let url = format!("redis://locks:secret@{}?{SOON}", server.address());
    let one = word.client(url).await;
    let lease = one.mutex("report").ttl(LONG).lock().await.expect("free");
    told(&server, &["ACL", "SETUSER", "locks", "-info"]);
    until("a look that is denied", async || told(&server, &["ACL", "LOG"]).contains("info")).await;
    set_policy(&server, "allkeys-lru");
    warm_up(&one).await;
    assert_eq!((word.all(), lease.state()), (vec![], LeaseState::Held));
    told(&server, &["ACL", "SETUSER", "locks", "+info"]);
    until("word of it", async || !word.all().is_empty()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f62_client_reports_a_later_policy_behind_sentinels() {
    let (group, word) = (servers::Redis::new().start_sentinel().await, Told::default());
    let group = group.expect("it starts");
    let separator = if group.url().contains('?') { '&' } else { '?' };
    let one = word.client(format!("{}{separator}{SOON}", group.url())).await;
    let _lease = one.mutex("report").ttl(LONG).lock().await.expect("free");
    set_policy(group.first_master(), "allkeys-lfu");
    until("word of it", async || !word.all().is_empty()).await;
    assert_eq!(word.all()[0].1, "allkeys-lfu");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f62_client_reports_the_policy_of_one_master_of_a_cluster_with_its_address() {
    let (group, word) = (servers::Redis::new().start_cluster().await, Told::default());
    let group = group.expect("it starts");
    let one = word.client(format!("{}?{SOON}", group.url())).await;
    let _lease = one.mutex("report").ttl(LONG).lock().await.expect("free");
    let server = &group.servers()[1];
    set_policy(server, "allkeys-lru");
    until("word of it", async || !word.all().is_empty()).await;
    assert_eq!(word.all(), [(server.address().to_string(), "allkeys-lru".to_owned())]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f62_client_reports_a_later_policy_of_a_node_with_its_address() {
    let (group, word) = (memory_only(3).await, Told::default());
    let one = word.client(url(&group, &format!("ttl_max_ms=600000&{SOON}"))).await;
    let lease = counted_everywhere(&group, &one).await;
    let node = &group.servers()[1];
    until_looked_at(node).await;
    assert_eq!(word.all(), []);
    set_policy(node, "allkeys-lru");
    until("word of it", async || !word.all().is_empty()).await;
    until_looked_at(node).await;
    assert_eq!(word.all(), [(node.address().to_string(), "allkeys-lru".to_owned())]);
    assert_eq!(lease.state(), LeaseState::Held);
}
