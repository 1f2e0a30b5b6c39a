//! Claims with values that leasehold did not write.

use leasehold::engine::{Level, Query};

use crate::support::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn record_that_cannot_be_read_is_named_hides_no_other_and_is_cleared() {
    let server = server().await;
    let client = client(server.url()).await;
    let mutex = |name| client.mutex(name).ttl(LONG);
    let others = [mutex("a").lock().await.expect("free"), mutex("z").lock().await.expect("free")];
    for value in ["x", "leasehold 1\nnonsense"] {
        let lease = mutex("report").lock().await.expect("free");
        let keys = claims(&server);
        let key = keys.iter().find(|key| key.starts_with("report/")).expect("its key");
        ctl(&endpoint(&server), &["put", key, value, "--ignore-lease"]);
        let page = client.admin().inspect(&Query::all()).await.expect("the others are shown");
        let shown: Vec<_> =
            page.lines.iter().map(|line| (line.name.as_str(), &line.held)).collect();
        assert_eq!(shown.iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["a", "report", "z"]);
        assert_eq!(shown[1].1[0].holder.label(), "unreadable record");
        let broken: Vec<&str> = page.broken.iter().map(|line| line.name.as_str()).collect();
        assert_eq!(broken, ["report"], "{value:?}");
        let findings = client.admin().examine().await.expect("an answer");
        let record = findings.iter().find(|finding| finding.subject == "record");
        assert!(record.is_some_and(|found| found.level == Level::Bad), "{findings:?}");
        let totals = client.admin().store_stats().await.expect("an answer");
        assert_eq!(totals.active, 3, "{value:?}");
        let evicted = client.admin().force_release("report", "a test").await.expect("an answer");
        assert_eq!(evicted.len(), 1, "{value:?}");
        drop(lease);
        mutex("report").lock().await.expect("free").release().await.expect("an answer");
        assert!(client.admin().broken_lines().await.expect("an answer").is_empty());
    }
    for lease in others {
        lease.release().await.expect("an answer");
    }
    nothing_is_left(&server, &[client]).await;
}
