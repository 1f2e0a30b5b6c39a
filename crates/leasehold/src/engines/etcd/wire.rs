//! etcd's messages, as far as they are needed: written by hand, so that no build needs `protoc`.
//!
//! Field numbers are those of etcd's `rpc.proto` and `kv.proto`, the same in every version 3.

use prost::{Enumeration, Message, Oneof};

/// Sent before the first key of all.
const FIRST_KEY: &[u8] = &[0];

#[derive(Clone, PartialEq, Message)]
pub(super) struct Header {
    #[prost(uint64, tag = "1")]
    pub(super) cluster_id: u64,
    #[prost(uint64, tag = "2")]
    pub(super) member_id: u64,
    #[prost(int64, tag = "3")]
    pub(super) revision: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct KeyValue {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) key: Vec<u8>,
    #[prost(int64, tag = "2")]
    pub(super) create_revision: i64,
    #[prost(int64, tag = "3")]
    pub(super) mod_revision: i64,
    #[prost(bytes = "vec", tag = "5")]
    pub(super) value: Vec<u8>,
    #[prost(int64, tag = "6")]
    pub(super) lease: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub(super) enum Order {
    None = 0,
    Ascend = 1,
    Descend = 2,
}

/// What ranges are sorted by.
const BY_CREATION: i32 = 2;

#[derive(Clone, PartialEq, Message)]
pub(super) struct RangeRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) range_end: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub(super) limit: i64,
    #[prost(int64, tag = "4")]
    pub(super) revision: i64,
    #[prost(enumeration = "Order", tag = "5")]
    pub(super) sort_order: i32,
    #[prost(int32, tag = "6")]
    pub(super) sort_target: i32,
    #[prost(bool, tag = "8")]
    pub(super) keys_only: bool,
    #[prost(bool, tag = "9")]
    pub(super) count_only: bool,
    #[prost(int64, tag = "12")]
    pub(super) min_create_revision: i64,
    #[prost(int64, tag = "13")]
    pub(super) max_create_revision: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct RangeResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<Header>,
    #[prost(message, repeated, tag = "2")]
    pub(super) kvs: Vec<KeyValue>,
    #[prost(bool, tag = "3")]
    pub(super) more: bool,
    #[prost(int64, tag = "4")]
    pub(super) count: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PutRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) value: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub(super) lease: i64,
    /// Whether the key stays on the lease that it is on.
    #[prost(bool, tag = "6")]
    pub(super) ignore_lease: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PutResponse {}

#[derive(Clone, PartialEq, Message)]
pub(super) struct DeleteRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) key: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct DeleteResponse {
    #[prost(int64, tag = "2")]
    pub(super) deleted: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct RequestOp {
    #[prost(oneof = "Op", tags = "1, 2, 3, 4")]
    pub(super) op: Option<Op>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum Op {
    #[prost(message, tag = "1")]
    Range(RangeRequest),
    #[prost(message, tag = "2")]
    Put(PutRequest),
    #[prost(message, tag = "3")]
    Delete(DeleteRequest),
    #[prost(message, tag = "4")]
    Txn(TxnRequest),
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ResponseOp {
    #[prost(oneof = "Done", tags = "1, 2, 3, 4")]
    pub(super) done: Option<Done>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum Done {
    #[prost(message, tag = "1")]
    Range(RangeResponse),
    #[prost(message, tag = "2")]
    Put(PutResponse),
    #[prost(message, tag = "3")]
    Delete(DeleteResponse),
    #[prost(message, tag = "4")]
    Txn(TxnResponse),
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Compare {
    /// 0 equal, 2 less.
    #[prost(int32, tag = "1")]
    pub(super) result: i32,
    /// 1 creation, 2 modification.
    #[prost(int32, tag = "2")]
    pub(super) target: i32,
    #[prost(bytes = "vec", tag = "3")]
    pub(super) key: Vec<u8>,
    #[prost(oneof = "Against", tags = "5, 6")]
    pub(super) against: Option<Against>,
    #[prost(bytes = "vec", tag = "64")]
    pub(super) range_end: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Oneof)]
pub(super) enum Against {
    #[prost(int64, tag = "5")]
    Created(i64),
    #[prost(int64, tag = "6")]
    Modified(i64),
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TxnRequest {
    #[prost(message, repeated, tag = "1")]
    pub(super) compare: Vec<Compare>,
    #[prost(message, repeated, tag = "2")]
    pub(super) success: Vec<RequestOp>,
    #[prost(message, repeated, tag = "3")]
    pub(super) failure: Vec<RequestOp>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TxnResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<Header>,
    #[prost(bool, tag = "2")]
    pub(super) succeeded: bool,
    #[prost(message, repeated, tag = "3")]
    pub(super) responses: Vec<ResponseOp>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct GrantRequest {
    #[prost(int64, tag = "1")]
    pub(super) ttl: i64,
    #[prost(int64, tag = "2")]
    pub(super) id: i64,
}

/// The answer to a grant and to a keep-alive.
#[derive(Clone, PartialEq, Message)]
pub(super) struct LeaseResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<Header>,
    #[prost(int64, tag = "2")]
    pub(super) id: i64,
    #[prost(int64, tag = "3")]
    pub(super) ttl: i64,
}

/// A keep-alive, a revocation, or a question for how long a lease lives.
#[derive(Clone, PartialEq, Message)]
pub(super) struct LeaseRequest {
    #[prost(int64, tag = "1")]
    pub(super) id: i64,
    /// Whether the keys on it are asked for, too: only by a question.
    #[prost(bool, tag = "2")]
    pub(super) keys: bool,
}

impl LeaseRequest {
    pub(super) fn of(id: i64) -> Self {
        Self { id, keys: false }
    }
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Empty {}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TimeToLive {
    #[prost(int64, tag = "2")]
    pub(super) id: i64,
    #[prost(int64, tag = "3")]
    pub(super) ttl: i64,
    #[prost(int64, tag = "4")]
    pub(super) granted: i64,
    #[prost(bytes = "vec", repeated, tag = "5")]
    pub(super) keys: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct WatchRequest {
    #[prost(message, optional, tag = "1")]
    pub(super) create: Option<WatchCreate>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct WatchCreate {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) range_end: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub(super) start_revision: i64,
    /// 0 leaves out puts.
    #[prost(int32, repeated, tag = "5")]
    pub(super) filters: Vec<i32>,
    #[prost(bool, tag = "6")]
    pub(super) prev_kv: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct WatchResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<Header>,
    #[prost(bool, tag = "3")]
    pub(super) created: bool,
    #[prost(bool, tag = "4")]
    pub(super) canceled: bool,
    #[prost(int64, tag = "5")]
    pub(super) compact_revision: i64,
    #[prost(string, tag = "6")]
    pub(super) cancel_reason: String,
    #[prost(message, repeated, tag = "11")]
    pub(super) events: Vec<KeyEvent>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct KeyEvent {
    /// 0 put, 1 delete.
    #[prost(int32, tag = "1")]
    pub(super) kind: i32,
    #[prost(message, optional, tag = "2")]
    pub(super) kv: Option<KeyValue>,
    #[prost(message, optional, tag = "3")]
    pub(super) before: Option<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct LoginRequest {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) password: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct LoginResponse {
    #[prost(string, tag = "2")]
    pub(super) token: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct StatusResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<Header>,
    #[prost(string, tag = "2")]
    pub(super) version: String,
    #[prost(int64, tag = "3")]
    pub(super) db_size: i64,
    #[prost(uint64, tag = "4")]
    pub(super) leader: u64,
    #[prost(string, repeated, tag = "8")]
    pub(super) errors: Vec<String>,
    #[prost(bool, tag = "10")]
    pub(super) is_learner: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct MemberList {
    #[prost(message, repeated, tag = "2")]
    pub(super) members: Vec<Member>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Member {
    #[prost(uint64, tag = "1")]
    pub(super) id: u64,
    #[prost(bool, tag = "5")]
    pub(super) is_learner: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct AlarmList {
    #[prost(message, repeated, tag = "2")]
    pub(super) alarms: Vec<Alarm>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Alarm {
    #[prost(uint64, tag = "1")]
    pub(super) member: u64,
    /// 1 no space, 2 corrupt.
    #[prost(int32, tag = "2")]
    pub(super) alarm: i32,
}

/// Keys from the first on, up to but not including the second.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) from: Vec<u8>,
    pub(super) to: Vec<u8>,
}

impl Span {
    /// All keys that begin so.
    pub(super) fn prefix(prefix: &[u8]) -> Self {
        let mut to = prefix.to_vec();
        while let Some(last) = to.pop() {
            if last < u8::MAX {
                to.push(last + 1);
                return Self { from: prefix.to_vec(), to };
            }
        }
        // There is nothing behind: up to the end of all keys.
        let from = if prefix.is_empty() { FIRST_KEY } else { prefix };
        Self { from: from.to_vec(), to: FIRST_KEY.to_vec() }
    }
}

impl RangeRequest {
    pub(super) fn one(key: &[u8]) -> Self {
        Self { key: key.to_vec(), ..Self::default() }
    }

    pub(super) fn span(span: &Span) -> Self {
        Self { key: span.from.clone(), range_end: span.to.clone(), ..Self::default() }
    }

    /// In order of creation, at most so many.
    pub(super) fn by_creation(mut self, order: Order, limit: i64) -> Self {
        self.sort_order = order.into();
        self.sort_target = BY_CREATION;
        self.limit = limit;
        self
    }

    pub(super) fn without_values(mut self) -> Self {
        self.keys_only = true;
        self
    }

    pub(super) fn op(self) -> RequestOp {
        RequestOp { op: Some(Op::Range(self)) }
    }
}

pub(super) fn put(key: &[u8], value: &[u8], lease: i64) -> RequestOp {
    let (key, value) = (key.to_vec(), value.to_vec());
    RequestOp { op: Some(Op::Put(PutRequest { key, value, lease, ignore_lease: false })) }
}

/// Writes a key that is there, and leaves it on its lease.
pub(super) fn put_on_same_lease(key: &[u8], value: &[u8]) -> RequestOp {
    let (key, value) = (key.to_vec(), value.to_vec());
    RequestOp { op: Some(Op::Put(PutRequest { key, value, lease: 0, ignore_lease: true })) }
}

pub(super) fn delete(key: &[u8]) -> RequestOp {
    RequestOp { op: Some(Op::Delete(DeleteRequest { key: key.to_vec() })) }
}

impl Compare {
    /// Nothing is there.
    pub(super) fn none_in(span: &Span) -> Self {
        let against = Some(Against::Created(0));
        let (key, range_end) = (span.from.clone(), span.to.clone());
        Self { result: 0, target: 1, key, against, range_end }
    }

    /// Nothing there was created after this revision.
    pub(super) fn none_after(span: &Span, revision: i64) -> Self {
        let against = Some(Against::Created(revision + 1));
        let (key, range_end) = (span.from.clone(), span.to.clone());
        Self { result: 2, target: 1, key, against, range_end }
    }

    /// The key was created at this revision; 0 if it is not there.
    pub(super) fn created(key: &[u8], revision: i64) -> Self {
        let against = Some(Against::Created(revision));
        Self { result: 0, target: 1, key: key.to_vec(), against, range_end: Vec::new() }
    }

    /// The key was last written at this revision; 0 if it is not there.
    pub(super) fn modified(key: &[u8], revision: i64) -> Self {
        let against = Some(Against::Modified(revision));
        Self { result: 0, target: 2, key: key.to_vec(), against, range_end: Vec::new() }
    }
}

impl TxnRequest {
    pub(super) fn op(self) -> RequestOp {
        RequestOp { op: Some(Op::Txn(self)) }
    }

    /// Reads only, all at one revision.
    pub(super) fn reads(reads: Vec<RequestOp>) -> Self {
        Self { success: reads, ..Self::default() }
    }
}

impl TxnResponse {
    pub(super) fn revision(&self) -> i64 {
        self.header.as_ref().map_or(0, |header| header.revision)
    }

    /// The ranges in it, in order.
    pub(super) fn ranges(self) -> impl Iterator<Item = RangeResponse> {
        self.responses.into_iter().filter_map(|response| match response.done {
            Some(Done::Range(range)) => Some(range),
            _ => None,
        })
    }

    /// The transaction inside of it.
    pub(super) fn inner(self) -> Option<TxnResponse> {
        self.responses.into_iter().find_map(|response| match response.done {
            Some(Done::Txn(txn)) => Some(txn),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_before_the_next_key_that_does_not_have_it() {
        assert_eq!(Span::prefix(b"a/").to, b"a0");
        assert_eq!(Span::prefix(&[b'a', 0xff]).to, b"b");
        assert_eq!(Span::prefix(&[0xff]), Span { from: vec![0xff], to: vec![0] });
        assert_eq!(Span::prefix(b""), Span { from: vec![0], to: vec![0] });
    }

    #[test]
    fn a_compare_is_what_etcd_reads() {
        // result, target and the zero revision are left out or explicit as etcd's own client does.
        let bytes = Compare::created(b"k", 7).encode_to_vec();
        assert_eq!(bytes, [0x10, 1, 0x1a, 1, b'k', 0x28, 7]);
    }
}
