//! F05 and F11: a holder whose runtime is blocked, or ended.

use std::time::Duration;

use leasehold::{Lease, Released, UnlessHeld, connect};
use tokio::runtime::{Builder, Runtime};

use crate::support::{fresh_schema, server, soon};

/// A ttl that a client on a busy machine also renews in time.
const BUSY_TTL: Duration = Duration::from_secs(5);

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// Ends when a lease was renewed. No runtime of the test runs meanwhile.
fn block_until_renewed(lease: &Lease) {
    let begun = lease.deadline();
    while lease.deadline() == begun {
        assert!(lease.is_held());
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn f05_a_lease_is_renewed_while_its_runtime_is_blocked() {
    let url = format!("{}?schema={}", server().url(), fresh_schema());
    runtime().block_on(async {
        let client = connect(&url).await.expect("connected");
        let other = connect(&url).await.expect("connected");
        let lease = client.mutex("n").ttl(BUSY_TTL).lock().await.expect("a lease");
        block_until_renewed(&lease);
        assert!(other.mutex("n").try_lock().await.unless_held().expect("an answer").is_none());
        assert_eq!(lease.release().await.expect("an answer"), Released::Released);
    });
}

#[test]
fn f11_a_lease_is_renewed_and_given_back_although_its_runtime_ended() {
    let url = format!("{}?schema={}", server().url(), fresh_schema());
    let first = runtime();
    let lease = first.block_on(async {
        let client = connect(&url).await.expect("connected");
        client.mutex("n").ttl(BUSY_TTL).lock().await.expect("a lease")
    });
    drop(first);
    block_until_renewed(&lease);
    runtime().block_on(async {
        let other = connect(&url).await.expect("connected");
        assert!(other.mutex("n").try_lock().await.unless_held().expect("an answer").is_none());
        // Dropped after its runtime is gone.
        drop(lease);
        drop(soon("a grant", other.mutex("n").lock()).await.expect("a lease"));
    });
}
