//! Claims and releases of one name each, sent together when a runtime has many on their way.
//!
//! A transaction of several is one proposal and one exchange, and etcd spends more on those than
//! on the keys in it. It compares everything before it writes anything, so no two in a transaction
//! may be about one name: both would find it free. What is about different names is as if each had
//! been sent alone: none of them reads what another writes.
//!
//! Revisions are then shared by claims on different names. Those of one name have different ones.

use std::sync::{Arc, Weak};

use futures_util::future::join_all;
use tonic::Status;

use crate::rule::name::Name;

use super::failure;
use super::gather::{Gather, Parcel};
use super::link::{Links, Patience};
use super::wire::{
    DeleteRequest, DeleteResponse, Done, Header, Op, RequestOp, ResponseOp, TxnRequest, TxnResponse,
};

/// The most that go together. A server counts each and what is inside the largest, and allows 128;
/// with the longest notes they are a tenth of the longest request.
const MOST: usize = 16;

const DELETE: &str = "/etcdserverpb.KV/DeleteRange";

/// A request about one name.
#[derive(Debug, Clone)]
pub(super) struct Single {
    name: Name,
    /// A transaction or a delete.
    op: Op,
}

/// What those of one runtime to one member are gathered in.
pub(super) type Crowd = Gather<Single>;

impl Parcel for Single {
    type Answer = Result<Done, Status>;

    fn goes_with(&self, other: &Self) -> bool {
        self.name != other.name
    }
}

impl Links {
    /// A transaction about a name and no other. If it is the only one that this client has to say
    /// about the name, it may be sent together with others.
    pub(super) async fn txn_of(
        self: &Arc<Self>,
        (name, only): (&Name, bool),
        request: TxnRequest,
    ) -> Result<TxnResponse, Status> {
        if !only {
            return self.txn(&request).await;
        }
        match self.single(Single { name: name.clone(), op: Op::Txn(request) }).await? {
            Done::Txn(answer) => Ok(answer),
            _ => Err(odd()),
        }
    }

    /// Deletes a key of a name, in the same way.
    pub(super) async fn delete_of(
        self: &Arc<Self>,
        (name, only): (&Name, bool),
        key: Vec<u8>,
    ) -> Result<DeleteResponse, Status> {
        let request = DeleteRequest { key };
        if !only {
            return self.try_ask(DELETE, &request).await;
        }
        match self.single(Single { name: name.clone(), op: Op::Delete(request) }).await? {
            Done::Delete(answer) => Ok(answer),
            _ => Err(odd()),
        }
    }

    /// Whether it was kept, sent alone or with others, who asks waits for as long as for any other
    /// request; and one that is given up may yet take effect.
    async fn single(self: &Arc<Self>, single: Single) -> Result<Done, Status> {
        let member = self.current();
        let mut patience = Patience::new(self, member);
        // For each member one: those that wait for a silent one hold up nobody who asks the next.
        let desk = self.desk();
        let crowd = desk.crowd(member, || {
            let links = Arc::downgrade(self);
            Gather::new(MOST, move |singles| carry(Weak::clone(&links), singles))
        });
        let sent = crowd.send(single, async |single: Single| self.alone(&single.op).await);
        let answer = match tokio::time::timeout(self.answer, sent).await {
            Ok(Some(answer)) => answer,
            Ok(None) => return Err(Status::unavailable("the exchange came to no end")),
            Err(_late) => return Err(Status::deadline_exceeded("no answer in time")),
        };
        patience.answered = true;
        answer
    }

    async fn alone(&self, op: &Op) -> Result<Done, Status> {
        match op {
            Op::Txn(request) => self.txn(request).await.map(Done::Txn),
            Op::Delete(request) => self.try_ask(DELETE, request).await.map(Done::Delete),
            Op::Range(_) | Op::Put(_) => Err(odd()),
        }
    }
}

/// Sends several in one transaction. If that is refused because of one of them, nothing was done,
/// and each goes by itself, so that only whose fault it is hears of it.
async fn carry(links: Weak<Links>, singles: Vec<Single>) -> Vec<Result<Done, Status>> {
    let count = singles.len();
    let Some(links) = links.upgrade() else {
        return vec![Err(Status::unavailable("the store was closed")); count];
    };
    if count > 1 {
        let ops = singles.iter().map(|single| RequestOp { op: Some(single.op.clone()) });
        let request = TxnRequest { success: ops.collect(), ..TxnRequest::default() };
        match links.txn(&request).await {
            Ok(answer) => return taken_apart(answer, count),
            Err(status) if !failure::may_be_due_to_one(&status) => {
                return vec![Err(status); count];
            }
            Err(_) => {}
        }
    }
    join_all(singles.iter().map(|single| links.alone(&single.op))).await
}

/// The answers to the single requests, as if each had been sent alone. Only the whole has a
/// revision, and that is the one as of which each is true.
fn taken_apart(answer: TxnResponse, count: usize) -> Vec<Result<Done, Status>> {
    let TxnResponse { header, responses, .. } = answer;
    if responses.len() != count {
        return vec![Err(odd()); count];
    }
    responses.into_iter().map(|response| one(response, header.as_ref())).collect()
}

fn one(response: ResponseOp, header: Option<&Header>) -> Result<Done, Status> {
    match response.done {
        Some(Done::Txn(answer)) => Ok(Done::Txn(TxnResponse { header: header.cloned(), ..answer })),
        Some(done) => Ok(done),
        None => Err(odd()),
    }
}

fn odd() -> Status {
    Status::internal("it does not answer as an etcd server does")
}

#[cfg(test)]
mod tests {
    use super::super::wire::PutResponse;
    use super::*;

    fn deletes(name: &str) -> Single {
        let name = Name::new(name).expect("a name");
        Single { name, op: Op::Delete(DeleteRequest { key: b"k".to_vec() }) }
    }

    #[test]
    fn two_about_one_name_do_not_go_together() {
        assert!(deletes("a").goes_with(&deletes("b")));
        assert!(!deletes("a").goes_with(&deletes("a")));
    }

    #[test]
    fn each_answer_has_the_revision_of_the_whole() {
        let of = |done| ResponseOp { done: Some(done) };
        let (yes, no) = (TxnResponse { succeeded: true, ..Default::default() }, Default::default());
        let header = Some(Header { revision: 7, ..Header::default() });
        let deleted = DeleteResponse { deleted: 1 };
        let responses = vec![of(Done::Txn(yes)), of(Done::Delete(deleted)), of(Done::Txn(no))];
        let answers = taken_apart(TxnResponse { header, responses, succeeded: true }, 3);
        let told = answers.into_iter().map(|answer| match answer {
            Ok(Done::Txn(answer)) => (answer.succeeded, answer.revision()),
            Ok(Done::Delete(answer)) => (answer.deleted == 1, 0),
            other => panic!("{other:?}"),
        });
        assert_eq!(told.collect::<Vec<_>>(), [(true, 7), (true, 0), (false, 7)]);
    }

    #[test]
    fn an_answer_to_fewer_than_asked_is_nobodys() {
        let responses = vec![ResponseOp { done: Some(Done::Put(PutResponse {})) }];
        let answer = TxnResponse { responses, ..Default::default() };
        assert!(taken_apart(answer, 2).iter().all(Result::is_err));
    }
}
