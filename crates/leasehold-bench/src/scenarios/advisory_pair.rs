//! The pair on PostgreSQL's advisory locks: lock a name nobody else wants and give it back, beside
//! `pg_advisory_lock` and `pg_advisory_unlock` as prepared statements on one session.

use leasehold_testkit::servers::Postgres;

use crate::Result;
use crate::contender::{Contender, Role};
use crate::progress::Progress;
use crate::raw::postgres::Session;
use crate::report::Report;
use crate::scenarios::Setting;
use crate::scenarios::pair::{self, Base, Ours, RELEASED, each};

const RAW: &str = "pg_advisory_lock + pg_advisory_unlock";
const FENCED: &str = "the same with a fence";
const SEQUENCE: &str = "leasehold.advisory_fences";
const BASE: Base = Base {
    store: "advisory locks,",
    name: RAW,
    label: "raw",
    most: &[(RELEASED, 1.1)],
    floors: &[(RELEASED, FENCED)],
};

pub(crate) fn run(setting: &Setting, progress: &mut Progress) -> Result<Report> {
    let server = Postgres::new().fsync(true).start_blocking()?;
    let runtime = &tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let url = advisory_url(server.url());
    let client = runtime.block_on(leasehold::connect(&url))?;
    let session = &runtime.block_on(Session::open(server.url()))?;
    let fenced = &runtime.block_on(Session::fenced(server.url(), SEQUENCE))?;
    let ours = Ours::new(runtime, &client);
    let mut report = Report::default();
    let pairs = setting.either(100, 200);
    let mut contenders = ours.alone(pairs);
    for (name, session) in [(RAW, session), (FENCED, fenced)] {
        contenders.push(Contender::new(Role::Limit, name, move || {
            runtime.block_on(each(pairs, async || {
                session.lock().await?;
                session.unlock().await
            }))
        }));
    }
    pair::alone(contenders, setting.either(5, 40), &BASE, (progress, &mut report))?;
    Ok(report)
}

/// The address of a server's advisory locks.
pub(crate) fn advisory_url(url: &str) -> String {
    url.replacen("postgres://", "postgres+advisory://", 1)
}
