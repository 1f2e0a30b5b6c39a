//! The pair in Redis: lock a name nobody else wants and give it back, beside two bare round trips
//! over the same kind of connection, and beside what people type by hand.
//!
//! Also with 64 tasks at a time on names of their own: there the server's one thread and the
//! client's are the limit, not the way between them.

use leasehold_testkit::servers::Redis;
use redis::aio::MultiplexedConnection;

use crate::Result;
use crate::contender::{Contender, Role};
use crate::progress::Progress;
use crate::report::Report;
use crate::scenarios::Setting;
use crate::scenarios::pair::{self, Base, DROPPED, Ours, RELEASED, TASKS, each, rate};

const BARE: &str = "two bare round trips (PING)";
const RAW: &str = "SET NX PX + DEL";
const BY_HAND: &str = "SET NX PX + script that compares and deletes";

const BASE: Base = Base {
    store: "Redis",
    name: BARE,
    label: "two bare round trips",
    most: &[(RELEASED, 1.15), (DROPPED, 0.6)],
};

pub(crate) fn run(setting: &Setting, progress: &mut Progress) -> Result<Report> {
    let server = Redis::new().start_blocking()?;
    let runtime = &tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let client = runtime.block_on(leasehold::connect(server.url()))?;
    let bare = redis::Client::open(server.url())?;
    let bare = &runtime.block_on(bare.get_multiplexed_async_connection())?;
    let ours = Ours::new(runtime, &client);
    let mut report = Report::default();

    let pairs = setting.either(200, 500);
    let mut contenders = ours.alone(pairs);
    contenders.extend([
        Contender::new(Role::Limit, BARE, move || {
            runtime.block_on(each(pairs, async || ping_twice(bare.clone()).await))
        }),
        Contender::new(Role::Limit, RAW, move || {
            runtime.block_on(each(pairs, async || set_and_delete(bare.clone(), "raw").await))
        }),
        Contender::new(Role::Rival, BY_HAND, move || {
            runtime.block_on(each(pairs, async || by_hand(bare.clone()).await))
        }),
    ]);
    pair::alone(contenders, setting.either(10, 40), &BASE, (&mut *progress, &mut report))?;

    let pairs = setting.either(20, 100);
    let keys: Vec<String> = (0..TASKS).map(|task| format!("raw:{task}")).collect();
    let raw = Contender::new(Role::Limit, RAW, move || {
        runtime.block_on(rate(pairs, async |task| set_and_delete(bare.clone(), &keys[task]).await))
    });
    let (rounds, least) = (setting.either(10, 30), (BASE.store, 0.9));
    pair::together(ours.together(pairs), raw, rounds, least, (progress, &mut report))?;
    Ok(report)
}

async fn ping_twice(mut bare: MultiplexedConnection) -> Result<()> {
    for _ in 0..2 {
        redis::cmd("PING").exec_async(&mut bare).await?;
    }
    Ok(())
}

async fn set_and_delete(mut bare: MultiplexedConnection, key: &str) -> Result<()> {
    let mut set = redis::cmd("SET");
    set.arg(key).arg("0123456789abcdef0123456789abcdef").arg("NX").arg("PX").arg(30_000);
    set.exec_async(&mut bare).await?;
    Ok(redis::cmd("DEL").arg(key).exec_async(&mut bare).await?)
}

async fn by_hand(mut bare: MultiplexedConnection) -> Result<()> {
    let (key, token) = ("by hand", "0123456789abcdef0123456789abcdef");
    let mut set = redis::cmd("SET");
    set.arg(key).arg(token).arg("NX").arg("PX").arg(30_000).exec_async(&mut bare).await?;
    let compare = "if redis.call('GET', KEYS[1]) == ARGV[1] then \
                   return redis.call('DEL', KEYS[1]) else return 0 end";
    let script = redis::Script::new(compare);
    Ok(script.key(key).arg(token).invoke_async(&mut bare).await?)
}
