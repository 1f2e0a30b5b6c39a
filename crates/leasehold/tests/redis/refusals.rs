//! Unusable stores: the error, its text, its speed, and the secrets that it must not show.

use std::time::Duration;

use leasehold::error::Config;
use leasehold::redis::Redis;
use leasehold::{Client, Error, Result, UnlessHeld};
use leasehold_testkit::{Server, servers};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

use crate::support::*;

/// In every address below, and in no message.
const PASSWORD: &str = "hush-9-secret";

/// Both time limits together, and some time for a busy machine.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// Connects to an unusable store. The error must come in time and not show the password.
async fn refused(address: &str) -> Error {
    let sign = if address.contains('?') { '&' } else { '?' };
    let url = format!("{address}{sign}connect_timeout_ms=700&timeout_ms=700");
    let opened = tokio::time::timeout(ANSWER_MAX, Redis::open(&url)).await;
    let error = opened.expect("an answer in time").expect_err("this cannot be opened");
    quiet(&error);
    error
}

#[track_caller]
fn quiet(error: &Error) {
    for text in [error.to_string(), format!("{error:?}"), format!("{error:#?}")] {
        assert!(!text.contains(PASSWORD), "{text}");
    }
}

#[track_caller]
fn is_store(error: &Error, transient: bool, word: &str) {
    assert_eq!(error.is_transient(), transient, "{error:?}");
    assert!(matches!(error, Error::Store { .. }), "{error:?}");
    assert!(error.to_string().contains(word), "`{word}` is not in `{error}`");
}

#[track_caller]
fn is_denied(error: &Error, word: &str) {
    assert!(matches!(error, Error::Config(Config::Denied { .. })), "{error:?}");
    assert!(!error.is_transient());
    assert!(error.to_string().contains(word), "`{word}` is not in `{error}`");
}

fn login(server: &Server, user: &str) -> String {
    format!("redis://{user}:{PASSWORD}@{}", server.address())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_passwords_are_refused_for_good() {
    let options = servers::Redis::new().password("right").user("app", "right", "~* &* +@all");
    let server = options.start().await.expect("a server starts");
    for user in ["", "default", "app", "nobody"] {
        is_denied(&refused(&login(&server, user)).await, "name and password");
    }
    let unknown = format!("redis://{}", server.address());
    is_denied(&refused(&unknown).await, "it wants a password");
    let right = client(format!("redis://app:right@{}", server.address())).await;
    assert!(!format!("{right:?}").contains("right"), "{right:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn password_for_a_server_that_asks_for_none_is_an_answer_and_not_a_hang() {
    let server = server().await;
    // Redis rejects a password if the default user has none, and says so.
    let error = refused(&login(&server, "")).await;
    assert!(!error.is_transient(), "{error:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_at_the_address_is_unreachable() {
    let port = leasehold_testkit::ports::Port::reserve().expect("a port that nobody uses");
    let addresses = [
        format!("redis://u:{PASSWORD}@{}", port.address()),
        format!("redis+sentinel://u:{PASSWORD}@{}/m", port.address()),
        format!("redis+cluster://u:{PASSWORD}@{}", port.address()),
        format!("redis://u:{PASSWORD}@no-such-host.invalid"),
        "redis+unix:///no/such/socket?database=0".to_owned(),
    ];
    for address in addresses {
        let error = refused(&address).await;
        assert!(matches!(error, Error::Unreachable { .. }), "{address}: {error:?}");
        assert!(error.is_transient());
    }
}

/// Serves each connection in its own way.
async fn fake<F>(serve: impl Fn(TcpStream) -> F + Send + 'static) -> String
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream));
        }
    });
    format!("u:{PASSWORD}@{address}")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_that_is_no_redis_is_refused_for_good() {
    let web = fake(|mut stream| async move {
        let mut request = [0; 512];
        while stream.read(&mut request).await.is_ok_and(|count| count > 0) {
            let answer = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n";
            if stream.write_all(answer).await.is_err() {
                return;
            }
        }
    })
    .await;
    for scheme in ["redis", "redis+cluster", "redis+sentinel"] {
        let path = if scheme.ends_with("sentinel") { "/m" } else { "" };
        let error = refused(&format!("{scheme}://{web}{path}")).await;
        is_store(&error, false, "does not answer as a Redis server does");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_that_echoes_is_refused() {
    let echo = fake(|mut stream| async move {
        let (mut from, mut to) = stream.split();
        let _ended = tokio::io::copy(&mut from, &mut to).await;
    })
    .await;
    let error = refused(&format!("redis://{echo}")).await;
    assert!(matches!(error, Error::Store { transient: false, .. }), "{error:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_that_never_answers_is_unreachable_in_time() {
    let silent = fake(|stream| async move {
        tokio::time::sleep(LONG).await;
        drop(stream);
    })
    .await;
    for scheme in ["redis", "rediss", "redis+cluster", "redis+sentinel"] {
        let path = if scheme.ends_with("sentinel") { "/m" } else { "" };
        let error = refused(&format!("{scheme}://{silent}{path}")).await;
        assert!(matches!(error, Error::Unreachable { .. }), "{scheme}: {error:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_that_hangs_up_is_unreachable() {
    let shy = fake(|stream| async move { drop(stream) }).await;
    for scheme in ["redis", "rediss", "redis+cluster"] {
        let error = refused(&format!("{scheme}://{shy}")).await;
        assert!(matches!(error, Error::Unreachable { .. }), "{scheme}: {error:?}");
    }
}

/// Answers every command with the same line.
async fn monotonous(answer: &'static str) -> String {
    fake(move |stream| async move {
        let mut stream = BufReader::new(stream);
        while let Ok(Some(_)) = read_command(&mut stream).await {
            let line = format!("{answer}\r\n");
            if stream.get_mut().write_all(line.as_bytes()).await.is_err() {
                return;
            }
        }
    })
    .await
}

/// Reads the first word of one command; `None` at the end of the stream.
async fn read_command(stream: &mut BufReader<TcpStream>) -> std::io::Result<Option<String>> {
    let mut first = None;
    let mut line = String::new();
    if stream.read_line(&mut line).await? == 0 {
        return Ok(None);
    }
    let words: usize = line[1..].trim().parse().expect("the driver sends commands");
    for _ in 0..words {
        line.clear();
        stream.read_line(&mut line).await?;
        let length: usize = line[1..].trim().parse().expect("each word has a length");
        let mut word = vec![0; length + 2];
        stream.read_exact(&mut word).await?;
        first.get_or_insert_with(|| String::from_utf8_lossy(&word[..length]).into_owned());
    }
    Ok(first)
}

/// Reports this version of itself, and agrees to everything else.
async fn agreeable(version: &'static str) -> String {
    fake(move |stream| async move {
        let mut stream = BufReader::new(stream);
        while let Ok(Some(command)) = read_command(&mut stream).await {
            let about = format!("redis_version:{version}\r\nrun_id:1\r\n");
            let answer = match command.as_str() {
                "INFO" => format!("${}\r\n{about}\r\n", about.len()),
                _ => "+OK\r\n".to_owned(),
            };
            if stream.get_mut().write_all(answer.as_bytes()).await.is_err() {
                return;
            }
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_before_version_7_is_refused_for_good_and_so_is_such_a_node() {
    for version in ["6.2.14", "5.0", ""] {
        let mut hosts = Vec::new();
        for _ in 0..3 {
            let server = agreeable(version).await;
            hosts.push(server.rsplit_once('@').expect("a login").1.to_owned());
        }
        let quorum = leasehold::connect(format!("redlock://{}", hosts.join(","))).await;
        let errors = [refused(&format!("redis://{}", hosts[0])).await, quorum.expect_err(version)];
        for error in errors {
            assert!(matches!(error, Error::Unsupported { .. }), "{error:?}");
            assert!(!error.is_transient() && error.to_string().contains("7.0"), "{error}");
        }
    }
    // Only the version matters.
    let server = agreeable("7.0.0").await;
    let address = server.rsplit_once('@').expect("a login").1;
    engine(format!("redis://{address}")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_refusal_of_a_server_has_its_kind() {
    let answers = [
        ("-LOADING Redis is loading the dataset in memory", true, "LOADING"),
        ("-BUSY Redis is busy running a script", true, "BUSY"),
        ("-MASTERDOWN Link with MASTER is down", true, "MASTERDOWN"),
        ("-READONLY You can't write against a read only replica.", true, "redis+sentinel"),
        ("-MISCONF Errors writing to the AOF file", true, "disk"),
        ("-OOM command not allowed", true, "memory"),
        ("-CLUSTERDOWN Hash slot not served", true, "CLUSTERDOWN"),
        ("-TRYAGAIN Multiple keys request during rehashing", true, "TRYAGAIN"),
        ("-MOVED 1234 127.0.0.1:1", false, "redis+cluster"),
        ("-ERR something nobody has seen before", false, "nobody has seen"),
    ];
    for (answer, transient, word) in answers {
        let server = monotonous(answer).await;
        let address = server.rsplit_once('@').expect("a login").1;
        is_store(&refused(&format!("redis://{address}")).await, transient, word);
    }
    let denials = [
        ("-NOAUTH Authentication required.", "it wants a password"),
        ("-WRONGPASS invalid username-password pair", "name and password"),
        ("-NOPERM this user has no permissions", "docs/engines/redis.md"),
        ("-ERR ACL failure in script: no permissions", "docs/engines/redis.md"),
    ];
    for (answer, word) in denials {
        let server = monotonous(answer).await;
        let address = server.rsplit_once('@').expect("a login").1;
        is_denied(&refused(&format!("redis://{address}")).await, word);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f54_replica_is_refused() {
    let (master, replica) = (server().await, server().await);
    warm_up(&client(master.url()).await).await;
    told(&replica, &["REPLICAOF", "127.0.0.1", &master.port().to_string()]);
    until("a replica in step", async || {
        told(&replica, &["INFO", "replication"]).contains("master_link_status:up")
    })
    .await;
    is_store(&refused(replica.url()).await, true, "name the master");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f54_server_that_becomes_a_replica_refuses_and_grants_again_as_a_master() {
    let (master, server) = (server().await, server().await);
    let one = plain_client(server.url()).await;
    warm_up(&one).await;
    told(&server, &["REPLICAOF", "127.0.0.1", &master.port().to_string()]);
    let asked: Result<_> = one.mutex("report").try_lock().await.unless_held();
    is_store(&asked.expect_err("a replica"), true, "READONLY");
    told(&server, &["REPLICAOF", "NO", "ONE"]);
    assert!(one.mutex("report").try_lock().await.unless_held().expect("an answer").is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_of_a_cluster_without_slots_is_refused_as_transient() {
    let options = servers::Redis::new().argument("--cluster-enabled").argument("yes");
    let port = leasehold_testkit::ports::Port::reserve().expect("a port");
    let bus = port.number().to_string();
    let options = options.argument("--cluster-port").argument(bus);
    let server = options.start().await.expect("a server starts");
    let address = server.address();
    is_store(&refused(&format!("redis://:@{address}")).await, true, "CLUSTERDOWN");
    let error = refused(&format!("redis+cluster://{address}")).await;
    assert!(error.is_transient(), "{error:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f145_no_secret_is_in_the_debug_text_of_what_is_open() {
    let options = servers::Redis::new().password(PASSWORD);
    let server = options.start().await.expect("a server starts");
    let engine = engine(server.url()).await;
    let client = Client::builder().engine(engine.clone()).expect("a client");
    let lease = client.mutex("report").lock().await.expect("free");
    let token = told(&server, &["GET", "lock:report"]);
    for text in [format!("{engine:?}"), format!("{client:#?}"), format!("{lease:?}")] {
        assert!(!text.contains(PASSWORD) && !text.contains(&token), "{text}");
    }
    assert!(!client.info().store.contains(PASSWORD));
}
