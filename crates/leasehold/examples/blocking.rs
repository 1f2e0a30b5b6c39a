//! The same locks for threads, in a program without an asynchronous runtime.

use std::thread;
use std::time::Duration;

use leasehold::TryLockError;

fn main() -> leasehold::Result<()> {
    let folder = std::env::temp_dir().join(format!("leasehold-threads-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder of our own");
    let url = format!("sqlite:{}", folder.join("locks.db").display());
    let tally = folder.join("tally");

    thread::scope(|scope| {
        let workers = (0..4).map(|worker| {
            let (url, tally) = (&url, &tally);
            scope.spawn(move || -> leasehold::Result<()> {
                let client = leasehold::blocking::connect(url)?;
                for _ in 0..5 {
                    let lease = client.mutex("tally").lock()?;
                    // Read, change, write: without the lock some of these would be overwritten.
                    let count = std::fs::read_to_string(tally).unwrap_or_default();
                    let count: u32 = count.parse().unwrap_or(0);
                    std::fs::write(tally, (count + 1).to_string()).expect("room on the disk");
                    println!("worker {worker} wrote {} with fence {}", count + 1, lease.fence());
                    lease.release()?;
                }
                client.close()
            })
        });
        let workers: Vec<_> = workers.collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("no worker panics"))
    })?;

    let count = std::fs::read_to_string(&tally).expect("it was written");
    assert_eq!(count, "20", "nothing was lost");

    let client = leasehold::blocking::connect("memory:")?;
    let _held = client.mutex("busy").lock()?;
    match client.mutex("busy").lock_within(Duration::from_millis(50)) {
        Ok(lease) => println!("fence {}", lease.fence()),
        Err(TryLockError::Held(held)) => println!("after 50 ms, {held}"),
        Err(error) => return Err(error.into()),
    }
    std::fs::remove_dir_all(&folder).expect("nobody else uses it");
    Ok(())
}
