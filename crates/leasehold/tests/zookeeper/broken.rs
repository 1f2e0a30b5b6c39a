//! Claims with data that leasehold did not write.

use leasehold::engine::{Level, Query};
use leasehold::{Client, Mode, connect};
use leasehold_testkit::servers::make_znode;

use crate::support::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn record_that_cannot_be_read_is_named_hides_no_other_and_is_cleared() {
    let server = server().await;
    let client = client(server.url()).await;
    let mutex = |name| client.mutex(name).ttl(LONG);
    let others = [mutex("a").lock().await.expect("free"), mutex("z").lock().await.expect("free")];
    for (number, data) in ["x", "leasehold 1\nnonsense"].into_iter().enumerate() {
        // The name's node stays for a while. No other client may write to a claim's node, so this
        // makes one.
        mutex("report").lock().await.expect("free").release().await.expect("an answer");
        let id = "0123456789abcdef0123456789abcdef-0123456789abcdef";
        let node = format!("/locks/report/lh-{id}__lock__000000010{number}");
        make_znode(server.address(), &node, data).await.expect("made");
        let page = client.admin().inspect(&Query::all()).await.expect("the others are shown");
        let shown: Vec<_> =
            page.lines.iter().map(|line| (line.name.as_str(), &line.held)).collect();
        assert_eq!(shown.iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["a", "report", "z"]);
        assert_eq!(shown[1].1[0].holder.label(), "unreadable record");
        let broken: Vec<&str> = page.broken.iter().map(|line| line.name.as_str()).collect();
        assert_eq!(broken, ["report"], "{data:?}");
        let findings = client.admin().examine().await.expect("an answer");
        let record = findings.iter().find(|finding| finding.subject == "record");
        assert!(record.is_some_and(|found| found.level == Level::Bad), "{findings:?}");
        assert_eq!(
            client.admin().store_stats().await.expect("they are counted").active,
            3,
            "{data:?}"
        );
        let evicted = client.admin().force_release("report", "a test").await.expect("an answer");
        assert_eq!(evicted.len(), 1, "{data:?}");
        mutex("report").lock().await.expect("free").release().await.expect("an answer");
        assert!(client.admin().broken_lines().await.expect("an answer").is_empty());
    }
    for lease in others {
        lease.release().await.expect("an answer");
    }
    leaves_nothing(&server, [client]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn name_that_a_client_may_not_read_is_named_and_hides_no_other() {
    let server = server().await;
    let client = client(server.url()).await;
    let shared = |client: &Client| client.request("beside").mode(Mode::Shared).ttl(LONG);
    let mine = shared(&client).acquire().await.expect("free");
    // Nodes of a user are that user's to read: a claim beside another, and a whole name.
    let url = format!("zk://me:secret@{}/locks", server.address());
    let theirs = connect(url).await.expect("connected");
    let _beside = shared(&theirs).acquire().await.expect("free for readers");
    let _report = theirs.mutex("report").ttl(LONG).lock().await.expect("free");
    let last = client.mutex("z").ttl(LONG).lock().await.expect("free");
    let page = client.admin().inspect(&Query::all()).await.expect("the others are shown");
    let shown: Vec<(&str, usize)> =
        page.lines.iter().map(|line| (line.name.as_str(), line.held.len())).collect();
    assert_eq!(shown, [("beside", 2), ("z", 1)]);
    let broken: Vec<&str> = page.broken.iter().map(|line| line.name.as_str()).collect();
    assert_eq!(broken, ["beside", "report"]);
    assert_eq!(client.admin().store_stats().await.expect("they are counted").active, 3);
    let findings = client.admin().examine().await.expect("an answer");
    assert_eq!(findings.iter().filter(|finding| finding.subject == "record").count(), 2);
    // Pages count names, whatever can be read of them.
    let first = client.admin().inspect(&Query { limit: 1, ..Query::all() }).await.expect("a page");
    let next = client.admin().inspect(&Query { limit: 1, after: first.next, ..Query::all() }).await;
    let next = next.expect("a page");
    assert_eq!((next.lines.len(), next.broken[0].name.as_str()), (0, "report"));
    assert_eq!(next.next.as_ref().map(|name| name.as_str()), Some("report"));
    for lease in [mine, last] {
        lease.release().await.expect("an answer");
    }
}
