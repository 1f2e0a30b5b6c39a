//! The clocks of real servers jump, stand still, and move by exactly the given time.
//!
//! etcd cannot be reached, which is the clock's documented limit and not tested.

use std::time::Duration;

use leasehold_testkit::{Clock, Postgres, Redis, Server, Zookeeper};

fn time_of_redis(server: &Server) -> Duration {
    let answer = server.redis(&["TIME"]).unwrap();
    let (seconds, micros) = answer.split_once('\n').expect("two numbers");
    let number = |text: &str| text.parse::<u64>().unwrap();
    Duration::from_secs(number(seconds)) + Duration::from_micros(number(micros))
}

fn time_of_postgres(server: &Server) -> Duration {
    let statement = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint";
    Duration::from_micros(server.sql(statement).unwrap().parse().unwrap())
}

#[tokio::test]
async fn clock_of_redis_jumps_and_keys_expire() {
    let clock = Clock::new().unwrap();
    let server = Redis::new().clock(&clock).start().await.unwrap();
    server.redis(&["SET", "name", "value", "PX", "600000"]).unwrap();
    clock.set_ahead(Duration::from_secs(3600)).unwrap();
    assert_eq!(server.redis(&["GET", "name"]).unwrap(), "");
}

#[tokio::test]
async fn frozen_clock_of_redis_stands_still_and_advances_exactly() {
    let clock = Clock::new().unwrap();
    let server = Redis::new().clock(&clock).start().await.unwrap();
    let frozen = clock.freeze();
    server.redis(&["SET", "short", "value", "PX", "1000"]).unwrap();
    server.redis(&["SET", "long", "value", "PX", "2000"]).unwrap();
    // The true time advances by more than both, and the server's own timers run.
    tokio::time::sleep(Duration::from_millis(2100)).await;
    assert_eq!(time_of_redis(&server), frozen);
    assert_eq!(server.redis(&["PTTL", "short"]).unwrap(), "1000");
    assert_eq!(server.redis(&["PTTL", "long"]).unwrap(), "2000");

    clock.advance(Duration::from_millis(1500));
    assert_eq!(server.redis(&["PTTL", "long"]).unwrap(), "500", "in the first command after it");
    assert_eq!(time_of_redis(&server), frozen + Duration::from_micros(1_500_000));
    assert_eq!(server.redis(&["PTTL", "short"]).unwrap(), "-2");
}

/// For a model that counts in milliseconds: Redis keeps a key through the millisecond of its
/// expiry, and has deleted it in the next.
#[tokio::test]
async fn key_of_redis_lives_through_the_millisecond_of_its_expiry() {
    let clock = Clock::new().unwrap();
    let server = Redis::new().clock(&clock).start().await.unwrap();
    clock.freeze_at(Duration::from_millis(1_800_000_000_123));
    server.redis(&["SET", "name", "value", "PX", "1000"]).unwrap();
    clock.advance(Duration::from_millis(999));
    assert_eq!(server.redis(&["PTTL", "name"]).unwrap(), "1");
    clock.advance(Duration::from_millis(1));
    assert_eq!(server.redis(&["PTTL", "name"]).unwrap(), "0");
    clock.advance(Duration::from_micros(999));
    assert_eq!(server.redis(&["GET", "name"]).unwrap(), "value");
    clock.advance(Duration::from_micros(1));
    assert_eq!(server.redis(&["PTTL", "name"]).unwrap(), "-2");
}

/// The test sends each command right after it moved the clock. The server must not answer from a
/// time that it remembers.
#[tokio::test]
async fn every_command_and_script_sees_the_time_of_its_start() {
    const SCRIPT: &str = "local now = redis.call('TIME') \
                          return {now[1], now[2], redis.call('PTTL', KEYS[1])}";
    let clock = Clock::new().unwrap();
    let server = Redis::new().clock(&clock).start().await.unwrap();
    let start = clock.freeze();
    server.redis(&["SET", "name", "value", "PX", "100000"]).unwrap();
    for step in 1..=200_u32 {
        clock.advance(Duration::from_millis(7));
        let passed = Duration::from_millis(7) * step;
        let now = start + passed;
        let left = 100_000 - passed.as_millis();
        let answer = server.redis(&["EVAL", SCRIPT, "1", "name"]).unwrap();
        let (seconds, micros) = (now.as_secs(), now.subsec_micros());
        assert_eq!(answer, format!("{seconds}\n{micros}\n{left}"), "step {step}");
        clock.advance(Duration::from_millis(7));
        assert_eq!(server.redis(&["PTTL", "name"]).unwrap(), (left - 7).to_string());
        clock.freeze_at(now);
    }
}

#[tokio::test]
async fn frozen_clock_of_postgres_stands_still_and_advances_exactly() {
    let clock = Clock::new().unwrap();
    let server = Postgres::new().clock(&clock).start().await.unwrap();
    let frozen = clock.freeze();
    assert_eq!(time_of_postgres(&server), frozen);
    tokio::time::sleep(Duration::from_millis(10)).await;
    assert_eq!(time_of_postgres(&server), frozen);
    clock.advance(Duration::from_millis(1500));
    assert_eq!(time_of_postgres(&server), frozen + Duration::from_micros(1_500_000));
    clock.freeze_at(Duration::from_secs(1_000_000_000));
    let shown = server.sql("SET timezone = 'UTC'; SELECT clock_timestamp(), now()").unwrap();
    assert_eq!(shown, "2001-09-09 01:46:40+00|2001-09-09 01:46:40+00");
}

#[tokio::test]
async fn server_in_java_starts_and_answers_on_a_frozen_clock() {
    let clock = Clock::new().unwrap();
    clock.freeze_at(Duration::from_secs(1_000_000_000));
    let server = Zookeeper::new().clock(&clock).start().await.unwrap();
    server.check_ready().unwrap();
}
