//! Protects a payment twice: the lock keeps two workers apart, and the ledger checks the fence.
//!
//! The second half matters when a worker is paused for longer than its lease: it wakes up and
//! still believes that it holds the lock. Here the store's clock is moved by hand, so that the
//! pause takes no time.

use std::time::Duration;

use leasehold::Fence;
use leasehold::memory::Memory;

/// What the lock protects. It remembers the greatest fence it has seen and refuses smaller ones;
/// in SQL that is `UPDATE … SET fence = $1 WHERE id = $2 AND fence <= $1`.
#[derive(Debug, Default)]
struct Order {
    fence: Fence,
    paid_cents: u64,
}

impl Order {
    fn pay(&mut self, cents: u64, fence: Fence) -> Result<(), String> {
        if fence < self.fence {
            return Err(format!("fence {fence} is old; {} was here already", self.fence));
        }
        self.fence = fence;
        self.paid_cents += cents;
        Ok(())
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> leasehold::Result<()> {
    let (store, clock) = Memory::virtual_time();
    let (slow, quick) = (store.client()?, store.client()?);
    let mut order = Order::default();

    // The first worker takes the lock, and is then paused before it can pay.
    store.pause(slow.holder());
    let old = slow.mutex("order:42:settle").ttl(Duration::from_secs(30)).lock().await?;
    println!("slow worker holds the lock with fence {}", old.fence());
    clock.advance(Duration::from_secs(31));

    // Its lease ran out, so the second worker gets the lock, with a greater fence, and pays.
    let new = quick.mutex("order:42:settle").lock().await?;
    order.pay(1999, new.fence()).expect("the newest fence is good");
    println!("quick worker paid with fence {}", new.fence());
    new.release().await?;

    // The first worker goes on where it was. It has not looked at its lease; the ledger has.
    let late = order.pay(1999, old.fence());
    println!("slow worker was refused: {}", late.expect_err("an old fence is refused"));
    assert!(!old.is_held(), "had it asked its lease, it would have known");
    assert_eq!(order.paid_cents, 1999, "paid once");
    Ok(())
}
