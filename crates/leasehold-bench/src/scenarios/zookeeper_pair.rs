//! The pair in ZooKeeper: lock a free name and give it back, beside creating and deleting a node
//! over the same kind of connection. Also with 64 tasks at a time on names of their own.
//!
//! Changes wait for the disk, as they do in production.

use leasehold_testkit::servers::Zookeeper as Servers;

use crate::Result;
use crate::contender::{Contender, Role};
use crate::progress::Progress;
use crate::raw::zookeeper::ZooKeeper;
use crate::report::Report;
use crate::scenarios::Setting;
use crate::scenarios::pair::{self, Base, Ours, RELEASED, TASKS, each, rate};

const RAW: &str = "create + delete of an ephemeral node";

const BASE: Base = Base {
    store: "ZooKeeper",
    heading: "pair",
    name: RAW,
    label: "create + delete",
    most: &[(RELEASED, 1.5)],
    floors: &[],
};

pub(crate) fn run(setting: &Setting, progress: &mut Progress) -> Result<Report> {
    let server = Servers::new().fsync(true).start_blocking()?;
    let runtime = &tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let client = runtime.block_on(leasehold::connect(server.url()))?;
    let zookeeper = &runtime.block_on(ZooKeeper::connect(server.url()))?;
    let ours = Ours::new(runtime, &client);
    let mut report = Report::default();

    let pairs = setting.either(50, 100);
    let mut contenders = ours.alone(pairs);
    contenders.push(Contender::new(Role::Limit, RAW, move || {
        runtime.block_on(each(pairs, async || create_and_delete(zookeeper, "/raw").await))
    }));
    pair::alone(contenders, setting.either(5, 30), &BASE, (&mut *progress, &mut report))?;

    let pairs = setting.either(10, 50);
    let keys: Vec<String> = (0..TASKS).map(|task| format!("/raw:{task}")).collect();
    let raw = Contender::new(Role::Limit, RAW, move || {
        runtime.block_on(rate(pairs, async |task| create_and_delete(zookeeper, &keys[task]).await))
    });
    let (rounds, least) = (setting.either(5, 20), (BASE.store, 0.8));
    pair::together(vec![ours.together(pairs), raw], rounds, least, (progress, &mut report))?;
    Ok(report)
}

async fn create_and_delete(zookeeper: &ZooKeeper, key: &str) -> Result<()> {
    zookeeper.create(key, false).await?;
    zookeeper.delete(key).await
}
