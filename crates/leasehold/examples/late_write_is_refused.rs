//! The classic story: a holder is paused, its lease runs out, another one works, and the first
//! one's late write is refused by the file itself.
//!
//! The pause takes no time here: the store's clock is moved by hand, and the keeper of the paused
//! holder is held off, as it would be on a machine that sleeps.

use std::time::Duration;

use leasehold::fencing::GuardedFile;
use leasehold::memory::Memory;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::temp_dir().join(format!("leasehold-late-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let report = GuardedFile::new(folder.join("report.txt"));
    let (memory, clock) = Memory::virtual_time();

    let slow = memory.client()?;
    let lease = slow.mutex("report").ttl(Duration::from_secs(30)).lock().await?;
    let late_fence = lease.fence();
    assert!(lease.is_held());
    println!("the first holder has fence {late_fence}, is about to write, and is paused");
    memory.pause(slow.holder());
    clock.advance(Duration::from_secs(31));

    let quick = memory.client()?;
    let next = quick.mutex("report").lock().await?;
    report.write(next.fence(), b"by the second holder")?;
    println!("the second holder has fence {} and writes", next.fence());

    // The first one wakes up. Its next instruction is the write: it looks at no clock.
    memory.resume(slow.holder());
    let refused = report.write(late_fence, b"late").expect_err("a newer lease was here");
    println!("the first holder's write: {refused}");
    assert_eq!(refused.refused().map(|refused| refused.highest), Some(next.fence()));
    assert!(report.read(late_fence).is_err(), "it may not read either: it would act on it");
    assert_eq!(report.read(next.fence())?, b"by the second holder");

    next.release().await?;
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}
