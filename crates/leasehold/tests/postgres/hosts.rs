//! Several hosts in one URL: the client uses the primary, in whatever order the URL names them.

use std::net::SocketAddr;

use leasehold::{Released, UnlessHeld, connect};
use leasehold_testkit::Postgres;

use crate::support::{LONG, advisory_on, database, fresh_schema, server};

/// URLs of one new store, with another host alone, before the server's and behind it.
fn urls(beside: SocketAddr) -> [[String; 2]; 2] {
    let primary = server().address();
    let hosts = [format!("{beside},{primary}"), format!("{primary},{beside}")];
    let (schema, database) = (fresh_schema(), database(&advisory_on(server())).to_owned());
    [
        hosts.clone().map(|hosts| format!("postgres://postgres@{hosts}/postgres?schema={schema}")),
        hosts.map(|hosts| format!("postgres+advisory://postgres@{hosts}/{database}")),
    ]
}

async fn the_primary_is_used(beside: SocketAddr) {
    for [first, last] in urls(beside) {
        let one = connect(&first).await.expect("connected, with the primary named last");
        let two = connect(&last).await.expect("connected, with the primary named first");
        assert_eq!(one.info().store_id, two.info().store_id);
        let lease = one.mutex("n").ttl(LONG).lock().await.expect("a lease");
        assert!(two.mutex("n").try_lock().await.unless_held().expect("an answer").is_none());
        let fence = lease.fence();
        assert_eq!(lease.release().await.expect("an answer"), Released::Released);
        let next = two.mutex("n").ttl(LONG).lock().await.expect("a lease");
        assert!(next.fence() > fence);
    }
}

#[tokio::test]
async fn a_host_where_nothing_listens_is_passed_over() {
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = nobody.local_addr().expect("an address");
    drop(nobody);
    the_primary_is_used(address).await;
}

#[tokio::test]
async fn a_host_that_only_follows_is_passed_over() {
    let standby = Postgres::new().start().await.expect("a server");
    standby.shut_down().expect("it ends");
    std::fs::write(standby.folder().join("pg/standby.signal"), "").expect("written");
    standby.launch().expect("it starts");
    standby.wait_ready().await.expect("it answers");
    the_primary_is_used(standby.address()).await;
}

#[tokio::test]
async fn a_host_that_says_nothing_is_passed_over() {
    // The system completes these connections, and no program accepts them.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    the_primary_is_used(silent.local_addr().expect("an address")).await;
}
