//! Two names at once, all or none: two transfers in opposite directions never wait for each other.

use leasehold::{Client, Result};

async fn transfer(client: Client, from: &str, to: &str) -> Result<()> {
    let accounts = client.mutexes([from, to]).lock().await?;
    let fences: Vec<u64> = accounts.iter().map(|lease| lease.fence().as_u64()).collect();
    tokio::task::yield_now().await;
    assert!(accounts.are_held());
    println!("moved 10 from {from} to {to} with fences {fences:?}");
    accounts.release().await
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let client = leasehold::connect("memory:").await?;
    let there = transfer(client.clone(), "account:7", "account:9");
    let back = transfer(client.clone(), "account:9", "account:7");
    tokio::try_join!(there, back)?;
    Ok(())
}
