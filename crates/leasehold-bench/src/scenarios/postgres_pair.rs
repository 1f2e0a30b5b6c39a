//! The pair in PostgreSQL's lease table: lock a free name and give it back. Beside it, a plain
//! upsert and delete of one row over the same kind of connection, prepared beforehand.
//!
//! Commits wait for the disk. A plain pair flushes the log twice. A release needs no flush, because
//! a lost release only delays the next holder. So the floor is the same pair with a delete that
//! does not wait for the disk.

use leasehold_testkit::servers;
use tokio_postgres::Statement;

use crate::Result;
use crate::contender::{Contender, Role};
use crate::progress::Progress;
use crate::raw::postgres::Postgres;
use crate::report::Report;
use crate::scenarios::Setting;
use crate::scenarios::pair::{self, Base, Ours, RELEASED, each};

const RAW: &str = "plain upsert + delete";
const ONE_FLUSH: &str = "plain upsert + delete that is not flushed";
const BASE: Base = Base {
    store: "PostgreSQL",
    heading: "pair",
    name: RAW,
    label: RAW,
    most: &[(RELEASED, 0.6)],
    floors: &[(RELEASED, ONE_FLUSH)],
};

const TABLE: &str = "CREATE TABLE bench_locks (
    name text PRIMARY KEY, holder text NOT NULL, expires timestamptz NOT NULL)";
const UPSERT: &str = "INSERT INTO bench_locks VALUES ($1, $2, now() + interval '30 s')
    ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, expires = excluded.expires";
const DELETE: &str = "DELETE FROM bench_locks WHERE name = $1 AND holder = $2";
const DELETE_LATE: &str = "DELETE FROM bench_locks WHERE name = $1 AND holder = $2
    RETURNING set_config('synchronous_commit', 'off', true)";

pub(crate) fn run(setting: &Setting, progress: &mut Progress) -> Result<Report> {
    let server = servers::Postgres::new().fsync(true).setting("synchronous_commit", "on");
    let server = server.start_blocking()?;
    let runtime = &tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let client = runtime.block_on(leasehold::connect(server.url()))?;
    let raw = &runtime.block_on(Raw::open(server.url()))?;
    let ours = Ours::new(runtime, &client);
    let mut report = Report::default();
    let pairs = setting.either(50, 100);
    let mut contenders = ours.alone(pairs);
    for (name, delete) in [(RAW, &raw.delete), (ONE_FLUSH, &raw.delete_late)] {
        contenders.push(Contender::new(Role::Limit, name, move || {
            runtime.block_on(each(pairs, async || raw.pair(delete).await))
        }));
    }
    pair::alone(contenders, setting.either(5, 30), &BASE, (progress, &mut report))?;
    Ok(report)
}

/// A table of rows that a program could use as locks.
struct Raw {
    postgres: Postgres,
    upsert: Statement,
    delete: Statement,
    delete_late: Statement,
}

impl Raw {
    async fn open(url: &str) -> Result<Self> {
        let postgres = Postgres::connect(url).await?;
        let client = &postgres.client;
        client.batch_execute(TABLE).await?;
        let (upsert, delete) = (client.prepare(UPSERT).await?, client.prepare(DELETE).await?);
        let delete_late = client.prepare(DELETE_LATE).await?;
        Ok(Self { postgres, upsert, delete, delete_late })
    }

    async fn pair(&self, delete: &Statement) -> Result<()> {
        let (name, holder) = ("order:42:settle", "0123456789abcdef0123456789abcdef");
        let client = &self.postgres.client;
        client.execute(&self.upsert, &[&name, &holder]).await?;
        client.execute(delete, &[&name, &holder]).await?;
        Ok(())
    }
}
