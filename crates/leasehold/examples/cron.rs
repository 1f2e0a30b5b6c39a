//! A periodic job on one of many machines: skipped where it runs already, and not started twice.
//!
//! Both "machines" are clients of one file here, because that is as far as an SQLite file goes:
//! all processes of one machine.

use std::time::Duration;

use leasehold::{Client, LockOptions, Result, UnlessHeld};

/// What cron starts everywhere at the same time; true if it ran here.
async fn tick(client: &Client) -> Result<bool> {
    // The job is so short that a clock which is a little late would start it a second time. So
    // the name stays closed for most of the period, however soon the lease is given back.
    let lock = client
        .mutex("cron:tick")
        .options(LockOptions::new().hold_at_least(Duration::from_secs(50)));
    let Some(lease) = lock.try_lock().await.unless_held()? else { return Ok(false) };
    println!("{} ticks, fence {}", client.holder().label(), lease.fence());
    lease.release().await?;
    Ok(true)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let folder = std::env::temp_dir().join(format!("leasehold-cron-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder of our own");
    let url = format!("sqlite:{}", folder.join("locks.db").display());
    let mut ran = 0;
    for machine in ["web1", "web2", "web3"] {
        let client = Client::builder().label(machine).connect(&url).await?;
        match tick(&client).await? {
            true => ran += 1,
            false => println!("{machine} skips: it was somebody else's turn"),
        }
        client.close().await?;
    }
    assert_eq!(ran, 1);
    std::fs::remove_dir_all(&folder).expect("nobody else uses it");
    Ok(())
}
