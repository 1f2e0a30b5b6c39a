//! Backups that are restored: fences go back, and what becomes of that.

use crate::UnlessHeld;
use crate::client::Client;
use crate::engine::Bumped;
use crate::fencing::GuardedFile;
use crate::options::LockOptions;

use super::*;

impl Lab {
    async fn client(&self) -> Client {
        crate::connect(format!("sqlite:{}", self.path().display())).await.expect("it opens")
    }

    /// A copy of the store as it is now, made as a backup is: by SQLite.
    fn back_up(&self, name: &str) -> PathBuf {
        let copy = self.folder.path().join(name);
        let db = Connection::open(self.path()).expect("the store");
        db.execute("VACUUM INTO ?1", [copy.display().to_string()]).expect("a copy");
        copy
    }

    /// Puts a copy in the place of the store, which nobody may have open.
    fn put_back(&self, copy: &Path) {
        for file in ["locks.db-wal", "locks.db-shm"] {
            let _absent = std::fs::remove_file(self.folder.path().join(file));
        }
        std::fs::copy(copy, self.path()).expect("put back");
    }

    /// Sets the store back to a copy while clients have it open, as SQLite's own restore does.
    fn set_back(&self, copy: &Path) {
        let db = Connection::open(self.path()).expect("the store");
        db.busy_timeout(Duration::from_secs(10)).expect("patience");
        db.execute("ATTACH ?1 AS old", [copy.display().to_string()]).expect("the copy");
        db.execute_batch(
            "BEGIN IMMEDIATE; \
             DELETE FROM store; INSERT INTO store SELECT * FROM old.store; \
             DELETE FROM claims; INSERT INTO claims SELECT * FROM old.claims; COMMIT",
        )
        .expect("set back");
    }
}

/// A lease taken and given back; its fence.
async fn turn(client: &Client, name: &str) -> Result<u64> {
    let lease = client.mutex(name).lock().await?;
    let fence = lease.fence();
    lease.release().await.map(|_released| fence.as_u64())
}

/// Some of them, one after the other; the last one's fence.
async fn turns(client: &Client, name: &str, count: usize) -> u64 {
    let mut last = 0;
    for _ in 0..count {
        last = turn(client, name).await.expect("a turn");
    }
    last
}

fn is_refused(guard: &GuardedFile, fence: u64) -> bool {
    match guard.write(fence, b"x") {
        Ok(()) => false,
        Err(error) => error.refused().map(|_| true).expect("refused for its fence"),
    }
}

#[tokio::test]
async fn f129_restored_file_gives_old_fences_until_its_epoch_is_bumped() {
    let lab = Lab::new();
    let guard = GuardedFile::new(lab.folder.path().join("guarded"));
    let client = lab.client().await;
    turns(&client, "n", 3).await;
    let copy = lab.back_up("backup.db");
    let last = turns(&client, "n", 5).await;
    assert!(!is_refused(&guard, last));
    client.close().await.expect("closed");
    drop(client);

    lab.put_back(&copy);
    let client = lab.client().await;
    let again = turn(&client, "n").await.expect("nobody here knows better");
    assert!(again <= last, "fences went back");
    assert!(is_refused(&guard, again), "and what checks them refuses");
    let bumped = client.admin().bump_epoch(None).await.expect("bumped");
    let Bumped::Raised { before, from } = bumped else { panic!("{bumped:?}") };
    assert!(before <= last && last < from.as_u64(), "{bumped:?}");
    let new = turn(&client, "n").await.expect("a turn");
    assert!(new >= from.as_u64() && !is_refused(&guard, new), "and they are accepted again");

    // The backup knows nothing of the bump; the clock does.
    client.close().await.expect("closed");
    drop(client);
    lab.put_back(&copy);
    let client = lab.client().await;
    assert!(is_refused(&guard, turn(&client, "n").await.expect("a turn")));
    client.admin().bump_epoch(None).await.expect("bumped");
    let newest = turn(&client, "n").await.expect("a turn");
    assert!(newest > new && !is_refused(&guard, newest), "{newest} after {new}");
}

#[tokio::test]
async fn f129_client_that_lived_through_a_restore_refuses_until_the_epoch_is_bumped() {
    let lab = Lab::new();
    let (client, admin) = (lab.client().await, lab.client().await);
    turns(&client, "n", 3).await;
    let copy = lab.back_up("backup.db");
    let last = turns(&client, "n", 5).await;
    lab.set_back(&copy);
    // By every way to a lease, on every name, as often as it tries.
    for name in ["n", "never seen", "n"] {
        let error = turn(&client, name).await.expect_err("it knows better");
        assert!(matches!(&error, Error::SetBack { known, .. } if *known == last), "{error}");
        assert!(!error.is_transient() && error.to_string().contains("leasehold bump-epoch"));
    }
    assert!(matches!(client.mutex("n").try_lock().await.unless_held(), Err(Error::SetBack { .. })));
    assert!(matches!(client.semaphore("s", 3).acquire().await, Err(Error::SetBack { .. })));
    let many = client.mutexes(["a", "b"]).lock().await;
    assert!(matches!(many, Err(Error::SetBack { .. })), "{many:?}");
    let left = admin.admin().inspect(&Query::all()).await.expect("a page").lines;
    assert!(left.is_empty(), "the claims were given back: {left:?}");
    // Counting on to the old numbers makes nothing better.
    let other = lab.client().await;
    while turn(&other, "n").await.expect("it knows nothing") <= last {}
    assert!(matches!(turn(&client, "n").await, Err(Error::SetBack { .. })));
    admin.admin().bump_epoch(None).await.expect("bumped");
    assert!(turn(&client, "n").await.expect("above all it was told") > last);
}

#[tokio::test]
async fn f129_waiter_that_is_granted_by_a_restored_store_is_refused() {
    let lab = Lab::new();
    let (client, other) = (lab.client().await, lab.client().await);
    let copy = lab.back_up("backup.db");
    turns(&client, "n", 5).await;
    lab.set_back(&copy);
    let lease = other.mutex("n").lock().await.expect("it knows nothing");
    let waiter = tokio::spawn(async move { turn(&client, "n").await });
    while other.line("n").await.expect("a line").is_none_or(|line| line.waiting.is_empty()) {
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
    lease.release().await.expect("given back");
    let granted = tokio::time::timeout(Duration::from_secs(30), waiter).await.expect("it ends");
    assert!(matches!(granted.expect("no panic"), Err(Error::SetBack { .. })));
}

#[tokio::test]
async fn f129_claims_that_waited_long_and_leases_entered_again_are_not_mistaken() {
    let lab = Lab::new();
    let (client, other) = (lab.client().await, lab.client().await);
    let lease = other.mutex("n").lock().await.expect("a lease");
    let waiting = client.clone();
    let waiter = tokio::spawn(async move { waiting.mutex("n").lock().await });
    while other.line("n").await.expect("a line").is_none_or(|line| line.waiting.is_empty()) {
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
    // The same client is told greater fences meanwhile.
    let last = turns(&client, "m", 20).await;
    let again = client.mutex("m").options(LockOptions::new().reentrant());
    let (first, second) = (again.lock().await.expect("in"), again.lock().await.expect("again"));
    assert_eq!(first.fence(), second.fence());
    lease.release().await.expect("given back");
    let granted = tokio::time::timeout(Duration::from_secs(30), waiter).await.expect("it ends");
    let granted = granted.expect("no panic").expect("an old number, and a good one");
    assert!(granted.fence() < last);
}

#[tokio::test]
async fn f129_bump_is_on_the_disk_before_it_is_answered() {
    let lab = Lab::new();
    let engine = lab.open_boot("boot-one");
    fence(&engine, &claim("n")).await;
    let order = Bump { above: 7_000_000, now_us: 5, by: Holder::fresh() };
    let bumped = engine.bump_epoch(&order).await.expect("bumped");
    assert!(matches!(bumped, Bumped::Raised { from, .. } if from == 7_000_001), "{bumped:?}");
    let disk = tempfile::tempdir().expect("a folder");
    for file in ["locks.db", "locks.db-wal"] {
        let (from, to) = (lab.folder.path().join(file), disk.path().join(file));
        std::fs::copy(from, to).expect("a copy");
    }
    assert_eq!(fence(&engine, &claim("m")).await, 7_000_001);
    let settings = Settings { boot_id: Some("boot-two".into()), ..Settings::default() };
    let after = Sqlite::open_with(disk.path().join("locks.db"), settings).expect("it opens");
    assert!(fence(&after, &claim("n")).await > 7_000_001);
}
