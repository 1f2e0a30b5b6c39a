//! A job that takes longer than its lease: renewed in the background, stopped if that fails.

use std::time::{Duration, Instant};

#[tokio::main(flavor = "current_thread")]
async fn main() -> leasehold::Result<()> {
    let client = leasehold::connect("memory:").await?;
    let begun = Instant::now();

    // A short ttl to see renewal at work; 30 seconds, the default, is right for most jobs.
    let nightly = client.mutex("job:report:nightly").ttl(Duration::from_millis(600));
    let pages = nightly
        .with(async |lease| {
            let mut pages = 0;
            while begun.elapsed() < Duration::from_millis(1_500) {
                // The work is dropped at one of its awaits when the lease is lost.
                tokio::time::sleep(Duration::from_millis(250)).await;
                pages += 1;
                println!("page {pages}, {:>3} ms left", lease.time_left().as_millis());
            }
            pages
        })
        .await?;

    println!("{pages} pages in {:.1} s, on a lease of 0.6 s", begun.elapsed().as_secs_f64());
    client.close().await
}
