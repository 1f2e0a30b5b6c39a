//! An old dump that is restored: fences are above the clock, so an administrator need not do
//! anything.

use leasehold::engine::Bumped;
use leasehold::fencing::HighestSeen;

use crate::support::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f129_fences_go_on_above_all_although_an_old_dump_is_restored() {
    let server = server().await;
    let guard = HighestSeen::new(1);
    let turns = async |count: usize| {
        let client = client(server.url()).await;
        let mut last = 0;
        for _ in 0..count {
            let lease = client.mutex("n").lock().await.expect("free");
            last = lease.fence().as_u64();
            drop(guard.enter("account", last).await.expect("each is the newest"));
            lease.release().await.expect("an answer");
        }
        last
    };
    turns(3).await;
    told(&server, &["SAVE"]);
    let (dump, copy) = (server.folder().join("dump.rdb"), server.folder().join("backup.rdb"));
    std::fs::copy(&dump, &copy).expect("a backup");
    let last = turns(500).await;
    server.kill().expect("it ends");
    std::fs::copy(&copy, &dump).expect("put back");
    server.launch().expect("it starts");
    server.wait_ready().await.expect("it answers");
    assert_ne!(told(&server, &["KEYS", "leasehold:fence:*"]), "", "the old count is there");
    assert!(turns(10).await > last);
    let bumped = client(server.url()).await.admin().bump_epoch(None).await.expect("an answer");
    assert_eq!(bumped, Bumped::Unneeded);
}
