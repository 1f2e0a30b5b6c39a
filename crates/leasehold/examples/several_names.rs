//! Two names at once: taken in sorted order, so that two transfers never wait for each other.

use leasehold::{Client, Lease, Result};

/// Takes all the names or none. Whoever sorts takes the first name first, like everybody else.
async fn lock_all(client: &Client, names: &[&str]) -> Result<Vec<Lease>> {
    let mut sorted = names.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    let mut leases = Vec::with_capacity(sorted.len());
    for name in sorted {
        // If one fails, the leases taken so far are dropped, and with that given back.
        leases.push(client.mutex(name).lock().await?);
    }
    Ok(leases)
}

async fn transfer(client: Client, from: &str, to: &str) -> Result<()> {
    let leases = lock_all(&client, &[from, to]).await?;
    let fences: Vec<u64> = leases.iter().map(Lease::fence).collect();
    tokio::task::yield_now().await;
    // Waiting for the second name takes time: look at both before the work begins.
    assert!(leases.iter().all(Lease::is_held));
    println!("moved 10 from {from} to {to} with fences {fences:?}");
    for lease in leases {
        lease.release().await?;
    }
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let client = leasehold::connect("memory:").await?;
    // In opposite directions at the same time: without the order this would be a deadlock.
    let there = transfer(client.clone(), "account:7", "account:9");
    let back = transfer(client.clone(), "account:9", "account:7");
    tokio::try_join!(there, back)?;
    Ok(())
}
