//! Tests of the proxy against an echo server in the same process.

use std::io;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinHandle;

use super::*;

const LIMIT: Duration = Duration::from_secs(30);

/// A server that answers every piece with its name and the same piece.
struct Echo {
    address: SocketAddr,
    received: watch::Receiver<Vec<u8>>,
    task: JoinHandle<()>,
}

impl Echo {
    async fn start(name: &'static str) -> Echo {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, received) = watch::channel(Vec::new());
        let task = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                tokio::spawn(echo(stream, name, sender.clone()));
            }
        });
        Echo { address, received, task }
    }

    async fn wait_received(&mut self, wanted: &[u8]) {
        let received = self.received.wait_for(|received| received == wanted);
        tokio::time::timeout(LIMIT, received).await.unwrap().unwrap();
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn echo(mut stream: TcpStream, name: &str, received: watch::Sender<Vec<u8>>) {
    let mut bytes = [0; 1024];
    while let Ok(count @ 1..) = stream.read(&mut bytes).await {
        received.send_modify(|received| received.extend(&bytes[..count]));
        let answer = [name.as_bytes(), &bytes[..count]].concat();
        if stream.write_all(&answer).await.is_err() {
            return;
        }
    }
}

async fn read_exactly(client: &mut TcpStream, count: usize) -> io::Result<String> {
    let mut bytes = vec![0; count];
    tokio::time::timeout(LIMIT, client.read_exact(&mut bytes)).await??;
    Ok(String::from_utf8(bytes).unwrap())
}

async fn ask(client: &mut TcpStream, question: &str) -> String {
    client.write_all(question.as_bytes()).await.unwrap();
    read_exactly(client, question.len() + 1).await.unwrap()
}

async fn set_up() -> (Echo, Proxy, TcpStream) {
    let echo = Echo::start(">").await;
    let proxy = Proxy::start(echo.address).await.unwrap();
    let client = TcpStream::connect(proxy.address()).await.unwrap();
    (echo, proxy, client)
}

async fn error_of_read(client: &mut TcpStream) -> io::ErrorKind {
    read_exactly(client, 1).await.unwrap_err().kind()
}

#[tokio::test]
async fn bytes_and_closing_pass_both_ways() {
    let (_echo, proxy, mut client) = set_up().await;
    assert_eq!(ask(&mut client, "hello").await, ">hello");
    client.shutdown().await.unwrap();
    assert_eq!(error_of_read(&mut client).await, io::ErrorKind::UnexpectedEof);
    let traffic = proxy.wait_for("the end", LIMIT, |now| now.connections == 0).await.unwrap();
    assert_eq!((traffic.accepted, traffic.replies_lost), (1, 0));
    assert_eq!(traffic.to_server, Flow { forwarded: 5, held: 0, discarded: 0 });
    assert_eq!(traffic.to_client, Flow { forwarded: 6, held: 0, discarded: 0 });
}

#[tokio::test]
async fn blocked_replies_are_held_while_requests_arrive() {
    let (mut echo, proxy, mut client) = set_up().await;
    assert_eq!(ask(&mut client, "a").await, ">a");
    proxy.block(Direction::ToClient);
    client.write_all(b"b").await.unwrap();
    echo.wait_received(b"ab").await;
    let held = proxy.wait_for("a held reply", LIMIT, |now| now.to_client.held == 2).await.unwrap();
    assert_eq!(held.to_client.forwarded, 2);
    proxy.pass().await.unwrap();
    assert_eq!(read_exactly(&mut client, 2).await.unwrap(), ">b");
}

#[tokio::test]
async fn blocked_requests_are_held_and_the_server_sees_nothing() {
    let (mut echo, proxy, mut client) = set_up().await;
    assert_eq!(ask(&mut client, "a").await, ">a");
    proxy.block(Direction::ToServer);
    client.write_all(b"b").await.unwrap();
    proxy.wait_for("a held request", LIMIT, |now| now.to_server.held == 1).await.unwrap();
    assert_eq!(*echo.received.borrow(), b"a");
    proxy.pass().await.unwrap();
    assert_eq!(read_exactly(&mut client, 2).await.unwrap(), ">b");
    echo.wait_received(b"ab").await;
}

#[tokio::test]
async fn new_connection_through_a_partition_reaches_the_server_after_it() {
    let (mut echo, proxy, _first) = set_up().await;
    proxy.block(Direction::Both);
    let mut client = TcpStream::connect(proxy.address()).await.unwrap();
    client.write_all(b"late").await.unwrap();
    proxy.wait_for("the connection", LIMIT, |now| now.accepted == 2).await.unwrap();
    proxy.pass().await.unwrap();
    assert_eq!(read_exactly(&mut client, 5).await.unwrap(), ">late");
    echo.wait_received(b"late").await;
}

#[tokio::test]
async fn lost_reply_resets_the_client_after_the_server_got_the_request() {
    let (mut echo, proxy, mut client) = set_up().await;
    proxy.lose_next_reply(AfterLoss::Reset);
    client.write_all(b"write").await.unwrap();
    assert_eq!(error_of_read(&mut client).await, io::ErrorKind::ConnectionReset);
    echo.wait_received(b"write").await;
    assert_eq!(proxy.traffic().replies_lost, 1);
    let mut again = TcpStream::connect(proxy.address()).await.unwrap();
    assert_eq!(ask(&mut again, "again").await, ">again");
}

#[tokio::test]
async fn lost_reply_can_be_chosen_by_its_request_and_be_silent() {
    let (mut echo, proxy, mut client) = set_up().await;
    proxy.lose_reply_to("SET", AfterLoss::Silence);
    assert_eq!(ask(&mut client, "GET").await, ">GET");
    client.write_all(b"SET").await.unwrap();
    proxy.wait_for("the loss", LIMIT, |now| now.replies_lost == 1).await.unwrap();
    client.write_all(b"GET").await.unwrap();
    echo.wait_received(b"GETSETGET").await;
    let lost = proxy.wait_for("silence", LIMIT, |now| now.to_client.discarded == 8).await.unwrap();
    assert_eq!((lost.replies_lost, lost.to_client.forwarded), (1, 4));
    proxy.reset_all();
    assert_eq!(error_of_read(&mut client).await, io::ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn reset_ends_present_connections_and_not_later_ones() {
    let (_echo, proxy, mut client) = set_up().await;
    assert_eq!(ask(&mut client, "a").await, ">a");
    proxy.reset_all();
    assert_eq!(error_of_read(&mut client).await, io::ErrorKind::ConnectionReset);
    let mut later = TcpStream::connect(proxy.address()).await.unwrap();
    assert_eq!(ask(&mut later, "b").await, ">b");
}

#[tokio::test]
async fn bytes_behind_a_part_are_held_until_all_pass_again() {
    let (_echo, proxy, mut client) = set_up().await;
    proxy.hold_behind("ab");
    client.write_all(b"abc").await.unwrap();
    assert_eq!(read_exactly(&mut client, 3).await.unwrap(), ">ab");
    let held = proxy.wait_for("the rest", LIMIT, |traffic| traffic.to_server.held == 1).await;
    assert_eq!(held.unwrap().to_server.forwarded, 2);
    proxy.pass().await.unwrap();
    assert_eq!(read_exactly(&mut client, 2).await.unwrap(), ">c");
}

#[tokio::test]
async fn refused_connections_are_refused_until_accepted_again() {
    let (_echo, proxy, mut present) = set_up().await;
    assert_eq!(ask(&mut present, "a").await, ">a");
    proxy.refuse_new().await.unwrap();
    let error = TcpStream::connect(proxy.address()).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    assert_eq!(ask(&mut present, "b").await, ">b");
    proxy.accept_new().await.unwrap();
    let mut later = TcpStream::connect(proxy.address()).await.unwrap();
    assert_eq!(ask(&mut later, "c").await, ">c");
}

#[tokio::test]
async fn changed_target_is_for_new_connections() {
    let (_echo, proxy, mut present) = set_up().await;
    assert_eq!(ask(&mut present, "a").await, ">a");
    let other = Echo::start("!").await;
    proxy.set_target(other.address);
    let mut later = TcpStream::connect(proxy.address()).await.unwrap();
    assert_eq!(ask(&mut later, "b").await, "!b");
    assert_eq!(ask(&mut present, "c").await, ">c");
}

#[tokio::test]
async fn target_that_refuses_resets_the_client() {
    let closed = Port::reserve().unwrap();
    let proxy = Proxy::start(closed.address()).await.unwrap();
    let mut client = TcpStream::connect(proxy.address()).await.unwrap();
    assert_eq!(error_of_read(&mut client).await, io::ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn delayed_bytes_arrive_in_order_and_not_earlier() {
    let delay = Duration::from_millis(30);
    let (_echo, proxy, mut client) = set_up().await;
    proxy.delay(Direction::Both, delay);
    let asked_at = std::time::Instant::now();
    assert_eq!(ask(&mut client, "slow").await, ">slow");
    assert!(asked_at.elapsed() >= 2 * delay);
}

#[tokio::test]
async fn idle_connection_is_cut() {
    let (_echo, proxy, mut client) = set_up().await;
    assert_eq!(ask(&mut client, "a").await, ">a");
    proxy.cut_idle(Duration::from_millis(30));
    assert_eq!(error_of_read(&mut client).await, io::ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn dropped_proxy_closes_listener_and_connections() {
    let (_echo, proxy, mut client) = set_up().await;
    assert_eq!(ask(&mut client, "a").await, ">a");
    let address = proxy.address();
    drop(proxy);
    assert!(read_exactly(&mut client, 1).await.is_err());
    let error = TcpStream::connect(address).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
}
