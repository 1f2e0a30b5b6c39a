//! A member that is cut off from the others and lives on, with clients that reach no other.
//!
//! A leader that was cut off still answers renewals until it notices that no member follows it.

use std::time::Duration;

use leasehold::layer::retry::RetryPolicy;
use leasehold::{Client, Lease, LeaseState, LostCause, Released, UnlessHeld};
use leasehold_testkit::{Etcd, Server, SplitCluster};

use super::support::*;

/// The ttl of leases on the minority's side: short enough to end within a test.
const BRIEF: Duration = Duration::from_secs(3);
/// The ttl of leases on the majority's side.
const TTL: Duration = Duration::from_secs(12);

/// The role of the member that is to be cut off.
#[derive(Clone, Copy, PartialEq)]
enum Role {
    Leader,
    Follower,
}

struct Scene {
    cluster: SplitCluster,
    alone: usize,
}

impl Scene {
    async fn new(role: Role) -> Self {
        let cluster = Etcd::new().start_split_cluster().await.expect("a cluster");
        let members = cluster.group().servers().len();
        let alone = match role {
            Role::Leader => leader(cluster.group()),
            Role::Follower => (leader(cluster.group()) + 1) % members,
        };
        Self { cluster, alone }
    }

    fn alone(&self) -> &Server {
        &self.cluster.group().servers()[self.alone]
    }

    fn others(&self) -> impl Iterator<Item = &Server> {
        let all = self.cluster.group().servers().iter().enumerate();
        all.filter(|(index, _)| *index != self.alone).map(|(_, server)| server)
    }

    /// A client of the member that is to be cut off, and one of the others.
    async fn clients(&self) -> [Client; 2] {
        let rest: Vec<String> = self.others().map(endpoint).collect();
        [client(self.alone().url()).await, client(&format!("etcd://{}", rest.join(","))).await]
    }

    /// A client of the member that is to be cut off; it does not stop waiting during the partition.
    async fn patient_client(&self) -> Client {
        let retry = RetryPolicy { times: 1_000, within: Duration::MAX, ..RetryPolicy::default() };
        let builder = Client::builder().retry(retry);
        builder.connect(self.alone().url()).await.expect("a connection")
    }

    /// Checks that the member lives without the others, and they without it.
    async fn is_split(&self) {
        let leads = |server: &Server| metric(server, "etcd_server_is_leader");
        until("a leader on the side of the many, and none on that of the few", async || {
            let none = metric(self.alone(), "etcd_server_has_leader") == 0;
            none && leads(self.alone()) == 0 && self.others().map(leads).sum::<u64>() == 1
        })
        .await;
    }
}

async fn renewed(lease: &Lease) {
    let before = lease.deadline();
    until("a renewal", async || {
        assert_ne!(lease.state(), LeaseState::Lost, "the lease was lost");
        lease.deadline() > before
    })
    .await;
}

async fn given_back(lease: Lease) {
    assert_eq!(soon("an answer", lease.release()).await.expect("one"), Released::Released);
}

/// A client on the minority's side holds `locks` locks; a client of the majority waits for one of
/// them. A client of the minority also waits for a lock of the majority.
async fn few_lose_and_many_go_on(role: Role, locks: usize) {
    let scene = Scene::new(role).await;
    let [few, many] = scene.clients().await;
    let patient = scene.patient_client().await;
    let mut leases = Vec::new();
    for number in 0..locks {
        let mutex = few.mutex(format!("parted:{number}")).ttl(BRIEF);
        leases.push(mutex.lock().await.expect("free"));
    }
    let kept = many.mutex("kept").ttl(TTL).lock().await.expect("free");
    let mut far = Waiter::start(patient.request("kept").ttl(TTL));
    until_waiting(&many, "kept", 1).await;
    let mut waiter = Waiter::start(many.request("parted:0").ttl(TTL));
    until_waiting(&many, "parted:0", 1).await;
    // Several renewals, so that with many locks the client renews some without a look.
    for _ in 0..3 {
        renewed(&leases[0]).await;
    }
    assert!(waiter.is_waiting(), "two hold at once");
    scene.cluster.cut_off(scene.alone);
    let next = waiter.granted().await;
    for lease in &leases {
        assert_eq!(lease.state(), LeaseState::Lost, "two hold at once");
        let cause = soon("the loss", lease.lost()).await;
        // Expired if its end came before that of the first renewal that failed.
        assert!(matches!(cause, LostCause::Unreachable | LostCause::Expired), "{cause:?}");
    }
    assert!(next.fence() > leases[0].fence());
    scene.is_split().await;
    let refused = soon("an answer", few.mutex("other").try_lock()).await.unless_held();
    assert!(matches!(&refused, Err(error) if error.is_transient()), "{refused:?}");
    renewed(&kept).await;
    assert!(far.is_waiting(), "two hold at once");
    scene.cluster.heal().await.expect("it passes");
    // Members seldom try to reach each other; a client tries for a while.
    until("a leader for the member that is back", async || {
        metric(scene.alone(), "etcd_server_has_leader") == 1
    })
    .await;
    given_back(soon("the way back", few.mutex("other").lock()).await.expect("a lease")).await;
    for lease in leases {
        assert_ne!(soon("an answer", lease.release()).await.ok(), Some(Released::Released));
    }
    renewed(&next).await;
    given_back(next).await;
    assert!(far.is_waiting() && kept.is_held(), "two hold at once");
    given_back(kept).await;
    given_back(far.granted().await).await;
    nothing_is_left(scene.alone(), &[few, patient, many]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f91_clients_of_a_follower_that_is_cut_off_alive_lose_before_the_others_go_on() {
    few_lose_and_many_go_on(Role::Follower, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f91_clients_of_a_leader_that_is_cut_off_alive_lose_before_the_others_go_on() {
    few_lose_and_many_go_on(Role::Leader, 1).await;
}

/// So many that a renewal does not look at each of them: the client relies on the leader's answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f91_many_leases_that_a_leader_keeps_alone_are_lost_before_the_others_go_on() {
    few_lose_and_many_go_on(Role::Leader, 150).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f91_client_that_reaches_both_sides_keeps_what_it_has() {
    for role in [Role::Leader, Role::Follower] {
        let scene = Scene::new(role).await;
        let [_, many] = scene.clients().await;
        // The client may first ask the member that is about to be cut off.
        let both = client(scene.cluster.group().url()).await;
        let lease = both.mutex("kept").ttl(TTL).lock().await.expect("free");
        let mut waiter = Waiter::start(many.request("kept").ttl(TTL));
        until_waiting(&many, "kept", 1).await;
        scene.cluster.cut_off(scene.alone);
        scene.is_split().await;
        renewed(&lease).await;
        scene.cluster.heal().await.expect("it passes");
        renewed(&lease).await;
        assert!(waiter.is_waiting(), "two hold at once");
        given_back(lease).await;
        given_back(waiter.granted().await).await;
        nothing_is_left(scene.alone(), &[both, many]).await;
    }
}
