//! What only this engine has: the file, its boots, its flushes and its pipes.
//!
//! Everything an engine has in common with others is in the conformance suite.

#[path = "bell_tests.rs"]
mod bell;
#[path = "restore_tests.rs"]
mod restore;

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rusqlite::Connection;

use super::*;
use crate::clock::VirtualClock;
use crate::engine::ClaimView;
use crate::error::Kind;
use crate::rule::claim::{Mode, Note, Token};
use crate::rule::name::Name;

struct Lab {
    folder: tempfile::TempDir,
}

impl Lab {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().expect("a folder for the test") }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("locks.db")
    }

    fn open(&self) -> Sqlite {
        Sqlite::open(self.path()).expect("the file can be opened")
    }

    fn open_boot(&self, boot_id: &str) -> Sqlite {
        let boot_id = Some(boot_id.to_owned());
        let settings = Settings { boot_id, ..Settings::default() };
        Sqlite::open_with(self.path(), settings).expect("the file can be opened")
    }

    fn refusal(&self) -> String {
        Sqlite::open(self.path()).expect_err("it must be refused").to_string()
    }
}

fn claim(name: &str) -> Claim {
    Claim {
        key: ClaimKey { name: Name::new(name).expect("a good name"), token: Token::random() },
        mode: Mode::Exclusive,
        holder: Holder::fresh(),
        note: Note::default(),
        ttl: Duration::from_secs(600),
        patience: Duration::from_secs(600),
        join: true,
    }
}

async fn fence(engine: &Sqlite, claim: &Claim) -> u64 {
    match engine.claim(claim).await.expect("an answer") {
        Standing::Held { fence, .. } => fence,
        other => panic!("it should hold: {other:?}"),
    }
}

fn mode(path: &Path) -> u32 {
    path.metadata().expect("it is there").permissions().mode() & 0o777
}

#[tokio::test]
async fn the_file_and_its_companions_are_for_their_owner_only() {
    let lab = Lab::new();
    let engine = lab.open();
    let first = claim("n");
    fence(&engine, &first).await;
    let waiting = engine.claim(&claim("n")).await;
    assert!(matches!(waiting, Ok(Standing::Queued { .. })), "so that there is a mailbox");
    for companion in ["locks.db", "locks.db-wal", "locks.db-shm"] {
        assert_eq!(mode(&lab.folder.path().join(companion)), 0o600, "{companion}");
    }
    let bells = lab.folder.path().join("locks.db.bells");
    assert_eq!(mode(&bells), 0o700);
    let pipes: Vec<PathBuf> =
        bells.read_dir().expect("a folder").flatten().map(|pipe| pipe.path()).collect();
    assert_eq!(pipes.len(), 1);
    assert_eq!(mode(&pipes[0]), 0o600);
    engine.close().await.expect("closing works");
    assert_eq!(bells.read_dir().expect("a folder").count(), 0, "the mailbox goes with the client");
}

#[test]
fn a_symbolic_link_is_refused() {
    let lab = Lab::new();
    let real = lab.folder.path().join("real.db");
    std::fs::write(&real, "").expect("a file");
    std::os::unix::fs::symlink(&real, lab.path()).expect("a link");
    assert!(lab.refusal().contains("symbolic link"));
}

#[test]
fn file_with_two_names_is_refused_under_both() {
    let lab = Lab::new();
    drop(lab.open());
    let other = lab.folder.path().join("other.db");
    std::fs::hard_link(lab.path(), &other).expect("a link");
    assert!(lab.refusal().contains("share its folder"));
    let error = Sqlite::open(&other).expect_err("it must be refused").to_string();
    assert!(error.contains("2 names"), "{error}");
    std::fs::remove_file(other).expect("it is ours");
    lab.open();
}

#[test]
fn a_folder_that_everybody_may_write_to_is_refused_unless_it_is_sticky() {
    let lab = Lab::new();
    let set = |mode| {
        let rights = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(lab.folder.path(), rights).expect("rights can be set");
    };
    set(0o777);
    assert!(lab.refusal().contains("everybody may replace files"));
    set(0o1777);
    lab.open();
}

#[test]
fn a_missing_folder_and_a_folder_as_file_are_refused_with_advice() {
    let lab = Lab::new();
    let missing = lab.folder.path().join("missing").join("locks.db");
    let error = Sqlite::open(missing).expect_err("no folder").to_string();
    assert!(error.contains("create the folder first"), "{error}");
    let error = Sqlite::open(lab.folder.path()).expect_err("a folder").to_string();
    assert!(error.contains("not a regular file"), "{error}");
}

#[test]
fn what_is_no_database_of_ours_is_refused_and_left_alone() {
    let lab = Lab::new();
    let text = "this is not a database, but long enough to be mistaken for one. ".repeat(20);
    std::fs::write(lab.path(), &text).expect("a file");
    assert!(lab.refusal().contains("not a database"));
    assert_eq!(std::fs::read_to_string(lab.path()).expect("still there"), text);

    let lab = Lab::new();
    let foreign = Connection::open(lab.path()).expect("a database");
    foreign.execute_batch("CREATE TABLE mine (a)").expect("a table");
    assert!(lab.refusal().contains("another program"));
    foreign.pragma_update(None, "user_version", 7).expect("a version");
    assert!(lab.refusal().contains("another program"));
}

#[test]
fn a_file_of_a_later_layout_is_refused() {
    let lab = Lab::new();
    drop(lab.open());
    let db = Connection::open(lab.path()).expect("a database");
    db.pragma_update(None, "user_version", 2).expect("a version");
    assert!(lab.refusal().contains("layout 2"));
}

#[tokio::test]
async fn trigger_is_another_layout_and_does_nothing_to_a_client_that_has_the_file_open() {
    let lab = Lab::new();
    let engine = lab.open();
    let db = Connection::open(lab.path()).expect("a database");
    let trigger = "CREATE TRIGGER greedy AFTER INSERT ON claims BEGIN DELETE FROM claims; END";
    db.execute_batch(trigger).expect("a trigger");
    let first = claim("n");
    fence(&engine, &first).await;
    let second = engine.claim(&claim("n")).await;
    assert!(matches!(second, Ok(Standing::Queued { .. })), "{second:?}");
    assert!(lab.refusal().contains("the trigger `greedy`"));
    db.execute_batch("DROP TRIGGER greedy; ANALYZE").expect("it is ours");
    lab.open();
    db.execute_batch("CREATE TABLE more (a)").expect("a table");
    assert!(lab.refusal().contains("the table `more`"));
}

#[tokio::test]
async fn claim_that_cannot_be_read_hides_no_other_and_is_found_and_removed() {
    for damage in [
        "expires = 'abc'",
        "token = x'00'",
        "label = char(27)",
        "note = x'ff'",
        "holder = 'me'",
        "mode = 9",
        "mode = 2, take = 2, \"of\" = 1",
        "fence = -1",
        "fence = 'one'",
        "mailbox = x''",
    ] {
        let lab = Lab::new();
        let engine = lab.open();
        let (good, bad) = (claim("a"), claim("b"));
        fence(&engine, &good).await;
        fence(&engine, &bad).await;
        let db = Connection::open(lab.path()).expect("a database");
        db.execute_batch(&format!("UPDATE claims SET {damage} WHERE name = 'b'")).expect(damage);
        let page = engine.inspect(&Query::all()).await.expect(damage);
        let held: Vec<(&str, &str)> = page
            .lines
            .iter()
            .map(|line| (line.name.as_str(), line.held[0].holder.label()))
            .collect();
        assert_eq!(held, [("a", good.holder.label())], "{damage}");
        let broken: Vec<&str> = page.broken.iter().map(|line| line.name.as_str()).collect();
        assert_eq!(broken, ["b"], "{damage}");
        assert_eq!(engine.totals().await.expect(damage).active, 1, "{damage}");
        // What cannot be read is held by nobody, and given to nobody.
        let refused = engine.claim(&claim("b")).await.expect_err(damage).to_string();
        assert!(refused.contains("doctor"), "{refused}");
        let renewals = [&good, &bad].map(|claim| {
            let (key, ttl) = (claim.key.clone(), claim.ttl);
            Renewal { key, ttl, patience: ttl }
        });
        let renewed = engine.renew(&renewals).await.expect(damage);
        assert!(matches!(renewed[..], [Ok(Standing::Held { .. }), Err(_)]), "{renewed:?}");
        let name = bad.key.name.clone();
        let (by, reason) = (Holder::fresh(), "broken".into());
        let mut order = Eviction { name, fences: Vec::new(), unreadable: false, by, reason };
        assert_eq!(engine.evict(&order).await.expect(damage).len(), 0, "{damage}");
        order.unreadable = true;
        assert_eq!(engine.evict(&order).await.expect(damage).len(), 1, "{damage}");
        fence(&engine, &claim("b")).await;
    }
}

#[tokio::test]
async fn holders_beside_a_claim_that_cannot_be_read_are_shown_as_holders() {
    let lab = Lab::new();
    let engine = lab.open();
    let permits = |holder: &Holder| {
        let holder = holder.clone();
        Claim { mode: Mode::Permits { take: 1, of: 3 }, holder, ..claim("n") }
    };
    let holders = [(); 4].map(|()| Holder::fresh());
    let fences = [
        fence(&engine, &permits(&holders[0])).await,
        fence(&engine, &permits(&holders[1])).await,
        fence(&engine, &permits(&holders[2])).await,
    ];
    let standing = engine.claim(&permits(&holders[3])).await;
    assert!(matches!(standing, Ok(Standing::Queued { .. })), "{standing:?}");
    let db = Connection::open(lab.path()).expect("a database");
    db.execute("UPDATE claims SET note = x'ff' WHERE fence = ?1", [fences[0] as i64])
        .expect("damaged");
    let page = engine.inspect(&Query::all()).await.expect("a page");
    let labels = |claims: &[ClaimView]| -> Vec<String> {
        claims.iter().map(|claim| claim.holder.label().to_owned()).collect()
    };
    let label = |number: usize| holders[number].label().to_owned();
    assert_eq!(labels(&page.lines[0].held), [label(1), label(2)]);
    assert_eq!(labels(&page.lines[0].waiting), [label(3)]);
    assert_eq!(page.lines[0].kind, Kind::Permits { of: 3 });
    assert_eq!((page.broken.len(), page.broken[0].name.as_str()), (1, "n"));
    let totals = engine.totals().await.expect("totals");
    assert_eq!((totals.active, totals.waiting), (2, 1));
    // An order that names one of them takes nothing else.
    let (name, by, reason) = (page.broken[0].name.clone(), Holder::fresh(), "stuck".into());
    let order = Eviction { name, fences: vec![fences[1]], unreadable: false, by, reason };
    let evicted = engine.evict(&order).await.expect("an answer");
    assert_eq!(evicted, [holders[1].clone()]);
    let page = engine.inspect(&Query::all()).await.expect("a page");
    assert_eq!(labels(&page.lines[0].held), [label(2)]);
    assert_eq!(page.broken.len(), 1);
}

#[tokio::test]
async fn sums_that_are_no_numbers_hide_no_other_sum() {
    let lab = Lab::new();
    let engine = lab.open();
    let counts = Counts { acquired: 3, released: 2, ..Counts::default() };
    engine.tally(&counts).await.expect("counted");
    let db = Connection::open(lab.path()).expect("a database");
    db.execute_batch("UPDATE totals SET acquired = 'many', lost = x'00'").expect("damaged");
    let told = engine.totals().await.expect("totals").counts;
    assert_eq!(told, Counts { acquired: 0, ..counts });
}

#[tokio::test]
async fn claim_on_a_name_that_is_none_is_found() {
    let lab = Lab::new();
    let engine = lab.open();
    fence(&engine, &claim("n")).await;
    let db = Connection::open(lab.path()).expect("a database");
    db.execute_batch("UPDATE claims SET name = ''").expect("damaged");
    let found = engine.examine().await.expect("findings");
    assert!(found.iter().any(|finding| finding.found.contains("nobody can ask")), "{found:?}");
}

#[test]
fn many_may_make_the_file_at_once() {
    let lab = Lab::new();
    let path = lab.path();
    let open = || Sqlite::open(&path).map(|engine| engine.info().store_id);
    let ids: Vec<u128> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..16).map(|_| scope.spawn(open)).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, Result<u128>>| {
            thread.join().expect("no panic").expect("everybody gets in")
        };
        threads.into_iter().map(join).collect()
    });
    assert!(ids.iter().all(|id| *id == ids[0]), "all see one store");
    let left = lab.folder.path().read_dir().expect("a folder").flatten();
    let left: Vec<_> = left.map(|file| file.file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().contains("new-")), "{left:?}");
}

#[tokio::test]
async fn f48_another_boot_voids_every_claim_and_fences_go_on() {
    let lab = Lab::new();
    let before = lab.open_boot("boot-one");
    let mut last = 0;
    for name in ["a", "b", "c"] {
        last = fence(&before, &claim(name)).await;
    }
    let after = lab.open_boot("boot-two");
    assert!(after.inspect(&Query::all()).await.expect("a page").lines.is_empty());
    assert!(fence(&after, &claim("a")).await > last);
}

#[tokio::test]
async fn f104_after_power_loss_no_fence_comes_again() {
    let lab = Lab::new();
    let engine = lab.open_boot("boot-one");
    let disk = tempfile::tempdir().expect("a folder");
    let mut mark = 0;
    let mut highest = 0;
    // The disk is what was there after the last flush; everything later is lost with the power.
    for _ in 0..(file::FENCE_BLOCK * 3) {
        let claim = claim("n");
        highest = fence(&engine, &claim).await;
        engine.release(&[claim.key]).await.expect("released");
        let head = store::head(&engine.inner.front()).expect("a head");
        if head.fence_mark != mark {
            mark = head.fence_mark;
            for file in ["locks.db", "locks.db-wal"] {
                let (from, to) = (lab.folder.path().join(file), disk.path().join(file));
                std::fs::copy(from, to).expect("a copy");
            }
        }
        assert!(highest <= mark as u64, "no fence above what was flushed");
    }
    assert!(mark > file::FENCE_BLOCK, "the mark was raised on the way");
    let settings = Settings { boot_id: Some("boot-two".into()), ..Settings::default() };
    let after = Sqlite::open_with(disk.path().join("locks.db"), settings).expect("it opens");
    assert!(fence(&after, &claim("n")).await > highest);
}

#[test]
fn the_mark_is_written_with_a_full_flush_and_nothing_else_is() {
    let lab = Lab::new();
    let engine = lab.open();
    let db = engine.inner.front();
    let synchronous = |db: &Connection| -> i32 {
        db.pragma_query_value(None, "synchronous", |row| row.get(0)).expect("a value")
    };
    assert_eq!(synchronous(&db), 1, "normal: the log is flushed when it is written back");
    file::flushed(&db, |db| {
        assert_eq!(synchronous(db), 2, "full: flushed at the commit");
        Ok(())
    })
    .expect("committed");
    assert_eq!(synchronous(&db), 1);
}

#[tokio::test]
async fn a_replaced_file_is_noticed_by_claims_and_leases() {
    let lab = Lab::new();
    let client = crate::connect(format!("sqlite:{}", lab.path().display())).await.expect("opens");
    let ttl = Duration::from_secs(2);
    let lease = client.mutex("n").ttl(ttl).lock().await.expect("granted");
    for file in ["locks.db", "locks.db-wal", "locks.db-shm"] {
        std::fs::remove_file(lab.folder.path().join(file)).expect("removed");
    }
    lab.open();
    assert!(matches!(client.mutex("m").lock().await, Err(Error::Replaced { .. })));
    assert_eq!(lease.lost().await, crate::LostCause::Replaced);
}

#[tokio::test]
async fn f101_a_busy_file_is_waited_for_and_then_refused_as_transient() {
    let lab = Lab::new();
    let busy_timeout = Duration::from_millis(50);
    let settings = Settings { busy_timeout, ..Settings::default() };
    let engine = Sqlite::open_with(lab.path(), settings).expect("opens");
    let other = Connection::open(lab.path()).expect("a connection");
    other.execute_batch("BEGIN IMMEDIATE").expect("it writes");
    let error = engine.claim(&claim("n")).await.expect_err("busy");
    assert!(error.is_transient() && error.to_string().contains("busy"), "{error}");
    assert!(engine.release_now(&claim("n").key).is_none(), "not on the spot either");
    other.execute_batch("COMMIT").expect("done");
    fence(&engine, &claim("n")).await;
}

#[tokio::test]
async fn a_waiter_whose_pipe_nobody_reads_is_passed_over_at_once() {
    let lab = Lab::new();
    let (engine, dying) = (lab.open(), lab.open());
    let (first, dead, last) = (claim("n"), claim("n"), claim("n"));
    fence(&engine, &first).await;
    dying.claim(&dead).await.expect("in line");
    engine.claim(&last).await.expect("in line");
    // What a killed process leaves behind: a pipe without a reader.
    let pipe =
        lab.folder.path().join(format!("locks.db.bells/{:016x}", dying.inner.bells.mailbox()));
    dying.inner.bells.close();
    let rights = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rights).expect("a pipe");
    engine.release(&[first.key]).await.expect("released");
    let woken = tokio::time::timeout(Duration::from_secs(20), engine.wait(&last.key)).await;
    assert!(matches!(woken, Ok(Ok(Wake::Holds { .. }))), "{woken:?}");
    assert!(pipe.exists());
    let next = lab.open();
    next.claim(&claim("n")).await.expect("in line, with a mailbox");
    assert!(!pipe.exists(), "a new mailbox sweeps the dead ones up");
}

#[tokio::test]
async fn bell_names_the_place_in_line_that_it_was_rung_for() {
    let lab = Lab::new();
    let engine = lab.open();
    let (first, second) = (claim("n"), claim("n"));
    let held = fence(&engine, &first).await;
    let standing = engine.claim(&second).await.expect("an answer");
    let Standing::Queued { place: present, .. } = standing else { panic!("{standing:?}") };
    let (bells, token) = (&engine.inner.bells, &second.key.token);
    let mut wake = engine.wait(&second.key);
    bells.ring(bells.mailbox(), token, held);
    let early = futures_util::poll!(&mut wake);
    assert!(early.is_pending(), "a bell of another place is not heard: {early:?}");
    bells.ring(bells.mailbox(), token, held + 1);
    let wake = wake.await.expect("a bell");
    assert!(matches!(wake, Wake::Holds { place, .. } if place == present), "{wake:?}");
}

#[tokio::test]
async fn a_connection_of_this_process_keeps_its_locks_when_the_file_is_opened_again() {
    let lab = Lab::new();
    let engine = lab.open();
    fence(&engine, &claim("n")).await;
    let inode = lab.path().metadata().expect("there").ino();
    let held = || {
        let locks = std::fs::read_to_string("/proc/locks").expect("/proc/locks");
        let suffix = format!(":{inode} ");
        locks.lines().filter(|line| line.contains(&suffix)).count()
    };
    assert!(held() > 0, "an open connection has a lock on the file");
    Place::prepare(&lab.path(), false).expect("checked");
    // A thread of the engine may take another one meanwhile. Closing the file drops them all.
    assert!(held() > 0, "the connection lost its locks");
}

#[tokio::test]
async fn f107_only_the_given_clock_decides() {
    let lab = Lab::new();
    let clock = VirtualClock::new();
    let settings = Settings { clock: Arc::new(clock.clone()), ..Settings::default() };
    let engine = Sqlite::open_with(lab.path(), settings).expect("opens");
    let (first, second) = (claim("n"), claim("n"));
    fence(&engine, &first).await;
    clock.advance(Duration::from_secs(599));
    assert!(matches!(engine.claim(&second).await, Ok(Standing::Queued { .. })));
    clock.advance(Duration::from_secs(1));
    fence(&engine, &second).await;
}

#[test]
fn url_options_are_read_and_bad_ones_are_named() {
    let lab = Lab::new();
    let url = |query: &str| format!("//{}{query}", lab.path().display());
    let engine = Sqlite::open_url(&url("?busy_timeout_ms=70&allow_network=yes")).expect("opens");
    assert_eq!(engine.inner.busy_timeout, Duration::from_millis(70));
    for (query, word) in [
        ("?colour=red", "colour"),
        ("?allow_network=maybe", "`yes`"),
        ("?busy_timeout_ms=x", "number"),
    ] {
        let error = Sqlite::open_url(&url(query)).expect_err("refused").to_string();
        assert!(error.contains(word), "{error}");
    }
    assert!(matches!(Sqlite::open_url(""), Err(Error::Config(Config::Url { .. }))));
}

#[tokio::test]
async fn a_watcher_that_is_too_slow_is_told_how_many_events_it_missed() {
    use crate::engine::EventKind;
    use futures_util::StreamExt;

    let lab = Lab::new();
    let engine = lab.open();
    let mut events = engine.watch(&Query::all()).await.expect("a watch");
    for _ in 0..600 {
        let claim = claim("n");
        fence(&engine, &claim).await;
        engine.release(&[claim.key]).await.expect("released");
    }
    let kinds: Vec<EventKind> =
        events.by_ref().take(3).map(|event| event.expect("an event").kind).collect().await;
    assert_eq!(kinds, [EventKind::Missed(176), EventKind::Granted, EventKind::Released]);
}

#[tokio::test]
async fn a_watcher_that_leaves_takes_no_other_of_its_client_along() {
    use crate::engine::EventKind;
    use futures_util::StreamExt;

    let lab = Lab::new();
    let engine = lab.open();
    let leaving = engine.watch(&Query::all()).await.expect("a watch");
    let mut staying = engine.watch(&Query::all()).await.expect("a watch");
    drop(leaving);
    fence(&lab.open(), &claim("n")).await;
    let event = tokio::time::timeout(Duration::from_secs(20), staying.next()).await;
    let event = event.expect("in time").expect("not over").expect("an event");
    assert_eq!(event.kind, EventKind::Granted);
}

#[tokio::test]
async fn a_watch_ends_after_an_error_that_will_not_go_away() {
    use futures_util::StreamExt;

    let lab = Lab::new();
    let engine = lab.open();
    let mut events = engine.watch(&Query::all()).await.expect("a watch");
    std::fs::remove_file(lab.path()).expect("removed");
    assert!(matches!(events.next().await, Some(Err(Error::Replaced { .. }))));
    assert!(events.next().await.is_none());
}
