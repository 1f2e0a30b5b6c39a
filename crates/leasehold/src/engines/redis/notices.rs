//! What clients say of their long waits: a hash for each holder, with a field for each client.
//!
//! It is no name's companion, so in a Cluster it lies wherever its key falls. It expires as a
//! whole: what one client of a holder said may outlive it while another one speaks, and means
//! nothing then, because its claim is in no line any more.

use std::collections::HashMap;

use redis::FromRedisValue;

use crate::engine::{Notice, Wait};
use crate::error::Result;
use crate::rule::claim::HolderId;

use super::answer::{Odd, hex};
use super::scripts::{ANNOUNCE, Call};
use super::{Inner, millis};

pub(super) async fn announce(inner: &Inner, notice: &Notice) -> Result<()> {
    let keys = inner.layout.notices(notice.holder);
    let text = notice.text();
    let call = Call::new(&ANNOUNCE, &keys, text.len())
        .text(hex(&notice.client.to_be_bytes()))
        .text(text)
        .shown(millis(notice.keep));
    inner.links.call(&call).await.map(|_nothing| ())
}

pub(super) async fn waits_of(inner: &Inner, holder: HolderId) -> Result<Vec<Wait>> {
    let mut question = redis::cmd("HGETALL");
    question.arg(inner.layout.notices(holder).lock());
    let answer = inner.links.run(&question).await?;
    let texts: HashMap<String, String> =
        inner.understood(FromRedisValue::from_redis_value(answer).map_err(|_| Odd))?;
    Ok(texts.values().flat_map(|text| Wait::read(text)).collect())
}
