//! A leader on which only the disk of its log stalls: the others replace it, and it does not hear
//! of that.
//!
//! While it waits for its disk it takes no part in the cluster. But it still counts the time of
//! leases and answers clients. Servers before 3.4.31 and 3.5.13 believe it afterwards.

use std::time::Duration;

use leasehold::{Client, Fence, Lease, LeaseState, LostCause, Released};
use leasehold_testkit::{Group, Server, StalledDisk, Worker};

use super::support::*;

/// Long enough for an election on a busy machine, short enough to expire within a test.
const TTL: Duration = Duration::from_secs(8);

/// A cluster, and the member that leads at first.
struct Scene {
    group: Group,
    leader: usize,
}

impl Scene {
    async fn new() -> Self {
        let group = cluster().await;
        let leader = leader(&group);
        Self { group, leader }
    }

    fn leader(&self) -> &Server {
        &self.group.servers()[self.leader]
    }

    fn others(&self) -> impl Iterator<Item = &Server> {
        let servers = self.group.servers().iter().enumerate();
        servers.filter(|(index, _)| *index != self.leader).map(|(_, server)| server)
    }

    /// The addresses of the other members.
    fn rest(&self) -> String {
        self.others().map(endpoint).collect::<Vec<_>>().join(",")
    }

    async fn client_of_the_others(&self) -> Client {
        client(&format!("etcd://{}", self.rest())).await
    }

    /// Stalls the disk of the leader; returns when the leader waits for it and another member
    /// leads.
    ///
    /// The disk of the database does not stall. During a stalled write to it the leader answers no
    /// client.
    async fn stall(&self) -> StalledDisk {
        let pid = self.leader().pid().expect("it runs");
        let stalled = StalledDisk::of(pid, &self.leader().folder().join("data/member/wal"));
        let stalled = stalled.expect("a stall");
        until("a change, and another leader", async || {
            // The leader must log a change, and the change waits for the next leader.
            let put = etcdctl(&self.rest()).args(["put", "filler", ""]).output();
            put.expect("etcdctl").status.success() && stalled.is_felt() && self.is_replaced()
        })
        .await;
        stalled
    }

    /// Closes the clients, and checks that nothing is left, as the old leader sees it.
    async fn ends_empty(&self, clients: &[Client]) {
        ctl(&self.rest(), &["del", "filler"]);
        nothing_is_left(self.leader(), clients).await;
    }

    fn is_replaced(&self) -> bool {
        self.others().any(|server| metric(server, "etcd_server_is_leader") == 1)
    }
}

/// Whether `doctor` reports that these servers believe a leader that was replaced.
async fn believes_old_leaders(client: &Client) -> bool {
    let findings = client.admin().examine().await.expect("an answer");
    findings.iter().any(|finding| {
        finding.subject == "version" && finding.found.contains("a leader that was replaced")
    })
}

/// The fence of the holder.
async fn fence_in_store(client: &Client, name: &str) -> Option<Fence> {
    let line = client.line(name).await.expect("a line")?;
    line.held.first().map(|claim| claim.fence)
}

/// The release of the lost lease does not release the next one.
async fn harms_nobody(lost: Lease, next: Lease) {
    assert_ne!(soon("an answer", lost.release()).await.ok(), Some(Released::Released));
    let before = next.deadline();
    until("a renewal", async || {
        assert!(next.is_held(), "the next was lost as well");
        next.deadline() > before
    })
    .await;
    assert_eq!(soon("an answer", next.release()).await.expect("one"), Released::Released);
}

/// The new leader renews a lease whose time the old leader still counts. The old one takes it for
/// expired, and has it ended as soon as its disk works again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f93_lease_that_a_leader_with_a_stalled_disk_ends_is_lost_at_the_next_renewal() {
    let scene = Scene::new().await;
    let [one, two] = [scene.client_of_the_others().await, scene.client_of_the_others().await];
    let is_believed = believes_old_leaders(&two).await;
    let lease = one.mutex("stalled").ttl(TTL).lock().await.expect("it is free");
    let fence = lease.fence();
    let stalled = scene.stall().await;
    let begun = lease.deadline();
    until("renewals by another leader, and what the old one makes of it", async || {
        assert_ne!(lease.state(), LeaseState::Lost, "the lease was lost");
        // No client asks the old leader for anything else.
        let ends_it = metric(scene.leader(), "etcd_server_proposals_pending") > 0;
        (ends_it || !is_believed) && lease.deadline().since(begun) > TTL
    })
    .await;
    assert_eq!(fence_in_store(&two, "stalled").await, Some(fence));
    // It waits with a lease that the old leader does not know.
    let mut waiter = Waiter::start(two.request("stalled").ttl(TTL));
    until_waiting(&two, "stalled", 1).await;
    assert!(lease.is_held() && waiter.is_waiting(), "two hold at once");
    stalled.heal().expect("no stall");
    if is_believed {
        let next = waiter.granted().await;
        assert!(next.fence() > fence);
        let known = lease.deadline();
        assert_eq!(soon("the loss", lease.lost()).await, LostCause::TakenBy(two.holder().clone()));
        // One renewal may have been in flight; another would have moved the end by more.
        assert!(lease.deadline().since(known) < TTL, "it was renewed although it was gone");
        harms_nobody(lease, next).await;
        scene.ends_empty(&[one, two]).await;
        return;
    }
    let awake = lease.deadline();
    until("two more renewals", async || {
        assert!(lease.is_held() && waiter.is_waiting(), "these servers keep leases that live");
        lease.deadline().since(awake) > TTL
    })
    .await;
    assert_eq!(fence_in_store(&two, "stalled").await, Some(fence));
    assert_eq!(soon("an answer", lease.release()).await.expect("one"), Released::Released);
    assert!(waiter.granted().await.fence() > fence);
    scene.ends_empty(&[one, two]).await;
}

/// The old leader acknowledges the renewals of its own clients, and the new leader hears of none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f93_renewals_that_only_a_leader_with_a_stalled_disk_hears_of_keep_nothing() {
    let scene = Scene::new().await;
    let [one, two] = [client(scene.leader().url()).await, scene.client_of_the_others().await];
    let is_believed = believes_old_leaders(&two).await;
    let lease = one.mutex("stalled").ttl(TTL).lock().await.expect("it is free");
    let ids = lease_ids(scene.leader());
    let stalled = scene.stall().await;
    let mut waiter = Waiter::start(two.request("stalled").ttl(TTL));
    until_waiting(&two, "stalled", 1).await;
    if is_believed {
        let mut keep = etcdctl(&endpoint(scene.leader()));
        keep.args(["lease", "keep-alive", "--once", &ids[0]]);
        let said = Worker::spawn(keep).expect("etcdctl").next_line(EVENT_MAX).await;
        let said = said.expect("a line").expect("a line");
        assert!(said.contains("keepalived with TTL"), "{said}");
    }
    let next = waiter.granted().await;
    assert_eq!(lease.state(), LeaseState::Lost, "two hold at once");
    assert_eq!(soon("the loss", lease.lost()).await, LostCause::Unreachable);
    assert!(next.fence() > lease.fence());
    stalled.heal().expect("no stall");
    harms_nobody(lease, next).await;
    scene.ends_empty(&[one, two]).await;
}
