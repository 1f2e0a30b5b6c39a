//! etcd without a lock on top: a few messages, over the same transport as leasehold's.
//!
//! Field numbers are those of etcd's `rpc.proto` and `kv.proto`.

use std::io::{Read, Write};
use std::net::TcpStream;

use futures_util::{StreamExt, stream};
use leasehold_testkit::Server;
use prost::Message;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{IntoRequest, Status};
use tonic_prost::ProstCodec;

use super::{CHANNEL, END};
use crate::Result;
use crate::machine::now;
use crate::stats::Samples;
use crate::work::Work;

#[derive(Clone, PartialEq, Message)]
struct Put {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct Delete {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
}

/// Writes a key if there is none.
#[derive(Clone, PartialEq, Message)]
struct Txn {
    #[prost(message, optional, tag = "1")]
    compare: Option<Compare>,
    #[prost(message, optional, tag = "2")]
    then: Option<Then>,
}

/// Holds if the key was created at this revision; 0 means that it does not exist.
#[derive(Clone, PartialEq, Message)]
struct Compare {
    #[prost(int32, tag = "2")]
    target: i32,
    #[prost(bytes = "vec", tag = "3")]
    key: Vec<u8>,
    #[prost(int64, optional, tag = "5")]
    created: Option<i64>,
}

#[derive(Clone, PartialEq, Message)]
struct Then {
    #[prost(message, optional, tag = "2")]
    put: Option<Put>,
}

/// An answer whose content is left unread.
#[derive(Clone, PartialEq, Message)]
struct Done {}

#[derive(Clone, PartialEq, Message)]
struct Watch {
    #[prost(message, optional, tag = "1")]
    create: Option<Delete>,
}

#[derive(Clone, PartialEq, Message)]
struct Watched {
    #[prost(message, repeated, tag = "11")]
    events: Vec<Event>,
}

#[derive(Clone, PartialEq, Message)]
struct Event {
    #[prost(message, optional, tag = "2")]
    kv: Option<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct KeyValue {
    #[prost(bytes = "vec", tag = "5")]
    value: Vec<u8>,
}

/// A connection; clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Etcd {
    channel: Channel,
}

impl Etcd {
    pub(crate) async fn connect(url: &str) -> Result<Self> {
        let address = url.replacen("etcd://", "http://", 1);
        let endpoint = Endpoint::from_shared(address)?.tcp_nodelay(true);
        Ok(Self { channel: endpoint.connect().await? })
    }

    pub(crate) async fn put(&self, key: &str, value: &str) -> Result<()> {
        let request = Put { key: key.into(), value: value.into() };
        Ok(self.ask("/etcdserverpb.KV/Put", request).await?)
    }

    /// The same if the key does not exist: the least request that makes a lock.
    pub(crate) async fn put_if_absent(&self, key: &str, value: &str) -> Result<()> {
        let compare = Compare { target: CREATED, key: key.into(), created: Some(0) };
        let put = Put { key: key.into(), value: value.into() };
        let request = Txn { compare: Some(compare), then: Some(Then { put: Some(put) }) };
        Ok(self.ask("/etcdserverpb.KV/Txn", request).await?)
    }

    pub(crate) async fn delete(&self, key: &str) -> Result<()> {
        Ok(self.ask("/etcdserverpb.KV/DeleteRange", Delete { key: key.into() }).await?)
    }

    async fn ask<Q: Message + 'static>(
        &self,
        path: &'static str,
        request: Q,
    ) -> std::result::Result<(), Status> {
        let mut grpc = Grpc::new(self.channel.clone());
        grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
        let codec = ProstCodec::<Q, Done>::default();
        let path = PathAndQuery::from_static(path);
        grpc.unary(request.into_request(), path, codec).await.map(|_answer| ())
    }
}

/// The time from a put until a watcher in another process hears of it.
pub(crate) async fn wake(url: &str, work: Work) -> Result<Samples> {
    let etcd = Etcd::connect(url).await?;
    super::wake(("etcd", url), work, async |word| etcd.put(CHANNEL, word).await).await
}

pub(super) async fn listen(url: &str) -> Result<Vec<u64>> {
    let etcd = Etcd::connect(url).await?;
    let mut grpc = Grpc::new(etcd.channel);
    grpc.ready().await?;
    // A request stream that ends would end the watch.
    let create = Watch { create: Some(Delete { key: CHANNEL.into() }) };
    let requests = stream::iter([create]).chain(stream::pending());
    let path = PathAndQuery::from_static("/etcdserverpb.Watch/Watch");
    let codec = ProstCodec::<Watch, Watched>::default();
    let mut messages = grpc.streaming(requests.into_request(), path, codec).await?.into_inner();
    // The first message confirms the watch.
    messages.message().await?.ok_or("the watch was refused")?;
    println!("ready");
    let mut came = Vec::new();
    while let Some(message) = messages.message().await? {
        let at = now();
        for kv in message.events.into_iter().filter_map(|event| event.kv) {
            if kv.value == END.as_bytes() {
                return Ok(came);
            }
            came.push(at);
        }
    }
    Err("the watch ended".into())
}

/// How many proposals the server has committed.
pub(crate) fn proposals(server: &Server) -> Result<u64> {
    let mut stream = TcpStream::connect(server.address())?;
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let line = text.lines().find_map(|line| line.strip_prefix(COMMITTED));
    let count = line.ok_or("etcd does not tell its proposals")?.trim().parse::<f64>()?;
    Ok(count as u64)
}

/// The target of a comparison: the revision of a key's creation.
const CREATED: i32 = 1;

const COMMITTED: &str = "etcd_server_proposals_committed_total ";
