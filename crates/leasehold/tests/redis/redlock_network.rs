//! The network before the nodes of a quorum: cut, slow, one-sided, and losing answers, at a
//! minority and at a majority.

use std::collections::HashSet;
use std::time::Duration;

use leasehold::{Client, Error, LeaseState, LostCause, Released, UnlessHeld};
use leasehold_testkit::servers::Group;
use leasehold_testkit::{AfterLoss, Direction, Proxy, Server};

use crate::redlock::{TTL, counted_everywhere, long_url, memory_only, until_released, url};
use crate::support::*;

/// The script calls of this engine, once the nodes know the scripts.
pub(crate) const CALL: &str = "EVALSHA";

/// The time limit for a node's answer, in tests that wait for longer.
pub(crate) const NODE_TIMEOUT: Duration = Duration::from_millis(300);

/// Three nodes, each behind a proxy.
pub(crate) struct Fronts {
    pub(crate) group: Group,
    pub(crate) proxies: Vec<Proxy>,
}

impl Fronts {
    pub(crate) async fn start() -> Self {
        let group = memory_only(3).await;
        let mut proxies = Vec::new();
        for server in group.servers() {
            proxies.push(proxy(server).await);
        }
        Self { group, proxies }
    }

    /// The url of the nodes over their proxies.
    pub(crate) fn url(&self, options: &str) -> String {
        let hosts: Vec<String> =
            self.proxies.iter().map(|proxy| proxy.address().to_string()).collect();
        format!("redlock://{}?ttl_max_ms=600000&{options}", hosts.join(","))
    }

    /// The proxies before a minority, and before a majority.
    fn parts(&self) -> [&[Proxy]; 2] {
        [&self.proxies[..1], &self.proxies[..2]]
    }

    pub(crate) async fn pass(&self) {
        for proxy in &self.proxies {
            proxy.pass().await.expect("the proxy passes");
        }
    }

    /// A client without proxies.
    pub(crate) async fn bystander(&self) -> Client {
        let bystander = client(long_url(&self.group)).await;
        warm_up(&bystander).await;
        bystander
    }
}

/// How many claims a node has admitted: each writes its line's hash once.
pub(crate) fn claims(server: &Server) -> u64 {
    calls(server, "hset")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f55_release_reaches_a_node_that_was_silent_all_the_time() {
    let group = memory_only(3).await;
    let client = client(url(&group, "ttl_max_ms=600000&node_timeout_ms=60000")).await;
    warm_up(&client).await;
    until_released(group.servers()).await;
    let silent = &group.servers()[1];
    let before = claims(silent);
    silent.stop_process().expect("it stops");
    let lease = soon("a grant", client.mutex("report").ttl(LONG).lock()).await.expect("free");
    let released = soon("an answer", lease.release()).await.expect("known");
    assert_eq!(released, Released::Released);
    silent.continue_process().expect("it goes on");
    until("the claim", async || claims(silent) > before).await;
    until_released(group.servers()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f55_release_reaches_a_node_whose_time_limit_had_passed() {
    let fronts = Fronts::start().await;
    let limit = format!("node_timeout_ms={}", NODE_TIMEOUT.as_millis());
    let client = client(fronts.url(&limit)).await;
    warm_up(&client).await;
    until_released(fronts.group.servers()).await;
    let (silent, node) = (&fronts.proxies[1], &fronts.group.servers()[1]);
    silent.block(Direction::Both);
    let lease = soon("a grant", client.mutex("report").ttl(LONG).lock()).await.expect("free");
    // The claim is in flight to it, on a connection that the client gives up after its time limit.
    tokio::time::sleep(2 * NODE_TIMEOUT).await;
    let released = soon("an answer", lease.release()).await.expect("known");
    assert_eq!(released, Released::Released);
    let claimed = claims(node);
    silent.pass().await.expect("the proxy passes");
    until("the claim", async || claims(node) > claimed).await;
    until_released(fronts.group.servers()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f20_partition_of_a_minority_is_not_noticed_and_of_a_majority_makes_uncertain() {
    let fronts = Fronts::start().await;
    let (one, two) = (early_client(fronts.url("")).await, fronts.bystander().await);
    let lease = one.mutex("report").ttl(TTL).lock().await.expect("free");
    fronts.proxies[0].block(Direction::Both);
    for _ in 0..2 {
        until_renewed(&lease).await;
        assert_eq!(lease.state(), LeaseState::Held);
    }
    fronts.proxies[1].block(Direction::Both);
    until("an uncertain lease", async || lease.state() != LeaseState::Held).await;
    assert_eq!(lease.state(), LeaseState::Uncertain);
    assert!(two.mutex("report").try_lock().await.unless_held().expect("an answer").is_none());
    let before = lease.deadline();
    fronts.pass().await;
    until("a certain lease", async || lease.state() != LeaseState::Uncertain).await;
    assert_eq!(lease.state(), LeaseState::Held);
    assert!(lease.deadline() > before);
    assert_eq!(lease.release().await.expect("an answer"), Released::Released);
}

/// Cuts a holder off from a majority in one way, and checks that another client is granted only
/// after its loss.
async fn cut_off(direction: Direction) {
    let fronts = Fronts::start().await;
    let (one, two) = (client(fronts.url("")).await, fronts.bystander().await);
    let lease = one.mutex("report").ttl(Duration::from_secs(2)).lock().await.expect("free");
    let waiter = Waiter::queue(&two, &two, "report", 0).await;
    for proxy in fronts.parts()[1] {
        proxy.block(direction);
    }
    let next = waiter.granted().await;
    assert_eq!(lease.state(), LeaseState::Lost, "two hold at once");
    let cause = soon("the loss", lease.lost()).await;
    assert_eq!(cause, LostCause::Unreachable);
    assert!(next.fence() > lease.fence());
    fronts.pass().await;
    assert_ne!(lease.release().await.expect("an answer"), Released::Released);
    assert!(next.is_held());
    assert_eq!(next.release().await.expect("an answer"), Released::Released);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f21_partition_of_a_majority_loses_the_lease_before_the_next_grant() {
    cut_off(Direction::Both).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f21_requests_that_do_not_reach_a_majority_lose_the_lease_before_the_next_grant() {
    cut_off(Direction::ToServer).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f22_peer_that_vanished_from_all_nodes_is_followed_after_its_ttl() {
    let fronts = Fronts::start().await;
    let (one, two) = (client(fronts.url("")).await, fronts.bystander().await);
    let lease = one.mutex("report").ttl(Duration::from_secs(1)).lock().await.expect("free");
    let fence = lease.fence();
    // No message of the holder arrives from here on, the end of its connections included.
    for proxy in &fronts.proxies {
        proxy.block(Direction::Both);
    }
    drop((lease, one));
    let next = soon("a grant", two.mutex("report").ttl(LONG).lock()).await.expect("a grant");
    assert!(next.fence() > fence);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f23_lost_claim_answers_at_a_minority_and_a_majority_leave_one_claim_and_no_trace() {
    let fronts = Fronts::start().await;
    let (one, two) = (client(fronts.url("node_timeout_ms=1000")).await, fronts.bystander().await);
    for after in [AfterLoss::Reset, AfterLoss::Silence] {
        for part in fronts.parts() {
            warm_up(&one).await;
            until_released(fronts.group.servers()).await;
            let lost = || part.iter().map(|proxy| proxy.traffic().replies_lost).sum::<u64>();
            let expected = lost() + part.len() as u64;
            for proxy in part {
                proxy.lose_reply_to(CALL, after);
            }
            let lease = soon("a grant", one.mutex("report").ttl(LONG).lock()).await.expect("free");
            // The client does not wait for a minority, so its loss may come after the grant.
            until("the lost answers", async || lost() == expected).await;
            let seen = two.line("report").await.expect("an answer").expect("it is held");
            assert_eq!((seen.held.len(), seen.held[0].fence), (1, lease.fence()), "{after:?}");
            assert_eq!(lease.release().await.expect("an answer"), Released::Released);
            until_released(fronts.group.servers()).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f23_claim_whose_answers_a_majority_lost_is_cleaned_when_nothing_is_tried_again() {
    let fronts = Fronts::start().await;
    let one = plain_client(fronts.url("node_timeout_ms=1000")).await;
    warm_up(&one).await;
    until_released(fronts.group.servers()).await;
    for proxy in fronts.parts()[1] {
        proxy.lose_reply_to(CALL, AfterLoss::Reset);
    }
    let asked = soon("an answer", one.mutex("report").ttl(LONG).lock()).await;
    assert!(matches!(&asked, Err(Error::NoMajority { .. })), "{asked:?}");
    until_released(fronts.group.servers()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f24_lost_release_answers_at_a_minority_and_a_majority_are_harmless() {
    let fronts = Fronts::start().await;
    let (one, two) = (client(fronts.url("node_timeout_ms=1000")).await, fronts.bystander().await);
    for after in [AfterLoss::Reset, AfterLoss::Silence] {
        for part in fronts.parts() {
            warm_up(&one).await;
            let lease = one.mutex("report").ttl(LONG).lock().await.expect("free");
            let waiter = Waiter::queue(&two, &two, "report", 0).await;
            for proxy in part {
                proxy.lose_reply_to(CALL, after);
            }
            let fence = lease.fence();
            let released = soon("an answer", lease.release()).await.expect("an answer");
            assert_eq!(released, Released::Released, "{after:?}");
            let next = waiter.granted().await;
            assert!(next.fence() > fence, "{after:?}");
            assert_eq!(next.release().await.expect("an answer"), Released::Released);
            until_released(fronts.group.servers()).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f26_answers_slower_than_the_ttl_are_not_awaited_from_a_minority_and_refused_from_more() {
    let fronts = Fronts::start().await;
    let one = plain_client(fronts.url("node_timeout_ms=20000")).await;
    warm_up(&one).await;
    let (slow, ttl) = (Duration::from_millis(1_500), Duration::from_millis(600));
    fronts.proxies[0].delay(Direction::ToClient, slow);
    let lease = one.mutex("report").ttl(LONG).lock().await.expect("two are quick");
    assert_eq!(lease.release().await.expect("an answer"), Released::Released);
    fronts.proxies[1].delay(Direction::ToClient, slow);
    let answer = soon("an answer", one.mutex("slow").ttl(ttl).try_lock()).await.unless_held();
    let late = |error: &Error| matches!(error, Error::TooSlow { .. } | Error::NoMajority { .. });
    assert!(answer.as_ref().is_err_and(late), "{answer:?}");
    fronts.pass().await;
    until_released(fronts.group.servers()).await;
    assert_eq!(one.stats().active, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f28_connections_to_nodes_cut_when_idle_are_opened_again() {
    let fronts = Fronts::start().await;
    for proxy in &fronts.proxies {
        proxy.cut_idle(Duration::from_millis(200));
    }
    let (one, waiting) = (early_client(fronts.url("")).await, client(fronts.url("")).await);
    let two = fronts.bystander().await;
    let lease = one.mutex("report").ttl(TTL).lock().await.expect("free");
    let waiter = Waiter::queue(&two, &waiting, "report", 0).await;
    until_renewed(&lease).await;
    until_renewed(&lease).await;
    assert!(lease.is_held() && waiter.is_waiting());
    assert!(fronts.proxies.iter().all(|proxy| proxy.traffic().accepted > 4), "nothing was cut");
    assert_eq!(lease.release().await.expect("an answer"), Released::Released);
    assert!(waiter.granted().await.is_held());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f29_driver_of_a_node_repeats_nothing_by_itself() {
    let fronts = Fronts::start().await;
    let one = plain_client(fronts.url("node_timeout_ms=60000")).await;
    warm_up(&one).await;
    until_released(fronts.group.servers()).await;
    let (proxy, node) = (&fronts.proxies[0], &fronts.group.servers()[0]);
    let mut monitor = Monitor::open(node);
    let mut tokens = HashSet::new();
    for _ in 0..5 {
        let lost = proxy.traffic().replies_lost;
        proxy.lose_reply_to(CALL, AfterLoss::Reset);
        let lease = soon("a grant", one.mutex("report").ttl(LONG).lock()).await.expect("free");
        until("the lost answer", async || proxy.traffic().replies_lost > lost).await;
        assert_eq!(lease.release().await.expect("an answer"), Released::Released);
        until_released(fronts.group.servers()).await;
        let sent = monitor.read(node);
        let calls = sent.iter().filter(|line| !line.contains(" lua] "));
        let calls: Vec<&String> = calls.filter(|line| line.contains("\"lock:report\"")).collect();
        // Ten words before the last one, two of them arguments. A claim has more, and so has a
        // renewal, by which a node that missed the claim gets it.
        let is_release = |line: &&&String| line.matches("\" \"").count() == 10;
        let is_claim = |line: &&&String| line.matches("\" \"").count() > 12;
        let is_text = |line: &&&String| line.contains("\"EVAL\"");
        let claims = calls.iter().filter(|line| is_claim(line) && !is_text(line));
        let claims: Vec<&str> = claims.map(|line| token(line)).collect();
        assert_eq!(claims.len(), 1, "{sent:#?}");
        assert!(tokens.insert(claims[0].to_owned()), "the claim of an earlier round: {sent:#?}");
        let mine = calls.iter().filter(|line| is_release(line) && token(line) == claims[0]);
        let releases: Vec<f64> = mine.map(|line| seconds(line)).collect();
        // The client sends a second release when it finds the claim unanswered only after the first
        // one. It repeats a release that found nothing later, after a pause.
        let at_once = releases.windows(2).filter(|pair| pair[1] - pair[0] < RELEASE_PAUSE);
        assert!(!releases.is_empty() && at_once.count() <= 1, "{sent:#?}");
    }
}

/// The shortest pause before the engine repeats a release by itself, in seconds. A driver would
/// repeat it at once.
const RELEASE_PAUSE: f64 = 0.25;

/// The token in a line of the monitor: 32 hexadecimal digits.
fn token(line: &str) -> &str {
    let is_token = |word: &&str| word.len() == 32 && word.bytes().all(|b| b.is_ascii_hexdigit());
    line.split('"').find(is_token).expect("a call with a token")
}

/// The server's time in a line of the monitor.
fn seconds(line: &str) -> f64 {
    let time = line.trim_start_matches('+').split(' ').next();
    time.and_then(|time| time.parse().ok()).expect("a line begins with the time")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f31_lease_survives_a_change_of_the_addresses_of_all_nodes() {
    let fronts = Fronts::start().await;
    let holder = early_client(fronts.url("")).await;
    let lease = counted_everywhere(&fronts.group, &holder).await;
    let mut new_ways = Vec::new();
    for (front, server) in fronts.proxies.iter().zip(fronts.group.servers()) {
        let new_way = proxy(server).await;
        front.set_target(new_way.address());
        front.reset_all();
        new_ways.push(new_way);
    }
    until_renewed(&lease).await;
    assert_eq!(lease.state(), LeaseState::Held);
    let used = |way: &Proxy| way.traffic().accepted > 0;
    until("all new ways", async || new_ways.iter().all(used)).await;
    assert_eq!(lease.release().await.expect("an answer"), Released::Released);
    until_released(fronts.group.servers()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f31_lease_survives_one_address_that_leads_elsewhere_and_is_lost_with_two() {
    let fronts = Fronts::start().await;
    let (empty, another) = (server().await, server().await);
    let holder = early_client(fronts.url("")).await;
    let lease = counted_everywhere(&fronts.group, &holder).await;
    let lead = |front: &Proxy, to: &Server| {
        front.set_target(to.address());
        front.reset_all();
    };
    lead(&fronts.proxies[0], &empty);
    until("the repair", async || !told(&empty, &["GET", "lock:report"]).is_empty()).await;
    until_renewed(&lease).await;
    assert_eq!(lease.state(), LeaseState::Held);
    // A node on probation takes no new claims.
    let other = holder.mutex("other").ttl(TTL).lock().await.expect("two make a majority");
    assert_eq!(told(&empty, &["EXISTS", "lock:other"]), "0");
    assert_eq!(other.release().await.expect("an answer"), Released::Released);
    lead(&fronts.proxies[1], &another);
    assert_eq!(soon("the loss", lease.lost()).await, LostCause::Removed);
    assert_eq!(told(&another, &["EXISTS", "lock:report"]), "0", "nothing is put back");
}
