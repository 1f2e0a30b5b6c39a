//! The pair on PostgreSQL's advisory locks: lock a free name and give it back, beside
//! `pg_advisory_lock` and `pg_advisory_unlock` as prepared statements on one session.
//!
//! A wake-up on another core takes longer than all the work of a pair. By default the system now
//! and then moves one of the two processes to another core. So this measures both kinds of session
//! with client and server on one core, and with a core for each.

use leasehold_testkit::servers::Postgres;

use crate::Result;
use crate::contender::{Contender, Role};
use crate::machine::{keep_on, own_cores};
use crate::progress::Progress;
use crate::raw::postgres::Session;
use crate::report::Report;
use crate::scenarios::Setting;
use crate::scenarios::pair::{self, Base, Ours, RELEASED, each};

const RAW: &str = "pg_advisory_lock + pg_advisory_unlock";
const FENCED: &str = "the same with a fence";
const SEQUENCE: &str = "leasehold.advisory_fences";
const ONE_CORE: Base = Base {
    store: "advisory locks on one core,",
    heading: "pair, client and server on one core",
    name: RAW,
    label: "raw",
    most: &[(RELEASED, 1.1)],
    floors: &[(RELEASED, FENCED)],
};
const TWO_CORES: Base = Base {
    store: "advisory locks on two cores,",
    heading: "pair, client and server on a core each",
    ..ONE_CORE
};

pub(crate) fn run(setting: &Setting, progress: &mut Progress) -> Result<Report> {
    let cores = own_cores()?;
    let mut report = Report::default();
    let places = [(cores.first(), &ONE_CORE), (cores.get(1), &TWO_CORES)];
    for (core, base) in places {
        if let (Some(client), Some(server)) = (cores.first(), core) {
            keep_on(None, &[*client])?;
            placed(setting, *server, base, (progress, &mut report))?;
        }
    }
    keep_on(None, &cores)?;
    Ok(report)
}

/// The pairs, with a server that stays on a core.
fn placed(
    setting: &Setting,
    core: usize,
    base: &Base,
    (progress, report): (&mut Progress, &mut Report),
) -> Result<()> {
    let server = Postgres::new().fsync(true).start_blocking()?;
    // Its sessions' processes are started by the one that it is.
    keep_on(server.pid(), &[core])?;
    let runtime = &tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let url = advisory_url(server.url());
    let client = runtime.block_on(leasehold::connect(&url))?;
    let session = &runtime.block_on(Session::open(server.url()))?;
    let fenced = &runtime.block_on(Session::fenced(server.url(), SEQUENCE))?;
    let ours = Ours::new(runtime, &client);
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
    pair::alone(contenders, setting.either(5, 40), base, (progress, report))
}

/// The address of a server's advisory locks.
pub(crate) fn advisory_url(url: &str) -> String {
    url.replacen("postgres://", "postgres+advisory://", 1)
}
