//! Locks beyond our prefix: what `doctor` shows of them, so that a wrong prefix is noticed.
//!
//! A lock of another library excludes ours only if both use the same key. Nothing marks such a
//! lock, so this goes by its usual shape: a string with an expiry that holds a random token, or
//! whose key has the word `lock`. A lock that a script sets by hand often holds no random token.

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{RedisResult, Value};

use crate::engine::{Finding, Level, OTHER_LOCKS};

use super::doctor::finding;
use super::keys::is_beyond;
use super::survey::scan;

/// The most exchanges of the scan, of about 1,000 keys each: `doctor` must not take long on a
/// large server, and a key that is there for a moment is missed by a longer look as well.
const PAGES_MAX: usize = 10;

/// The longest token that is looked for, and one more.
const TOKEN_BYTES: usize = 41;

/// A finding if there are any. What the server does not tell this user is not reported.
pub(super) async fn look(server: &mut MultiplexedConnection, prefix: &str) -> Option<Finding> {
    let keys = match keys(server, prefix).await {
        Ok(keys) => keys,
        Err(error) => {
            tracing::debug!(%error, "locks of others were not looked for");
            return None;
        }
    };
    let (first, others) = keys.split_first()?;
    let others = match others.len() {
        0 => String::new(),
        count => format!(" and {count} more"),
    };
    let found = format!("`{first}`{others}, which the prefix `{prefix}` does not reach");
    let advice = "these look like locks of clients with another prefix, or of another library; to \
                  share a lock with them, set `?prefix=` in the url so that both use the same key";
    Some(finding(Level::Warning, OTHER_LOCKS, found, advice))
}

async fn keys(server: &mut MultiplexedConnection, prefix: &str) -> RedisResult<Vec<String>> {
    let (mut cursor, mut found) = (0, Vec::new());
    for _ in 0..PAGES_MAX {
        let mut page = scan(cursor, "*");
        page.arg("TYPE").arg("string");
        let (next, keys): (u64, Vec<Vec<u8>>) = page.query_async(server).await?;
        let keys = keys.into_iter().filter_map(|key| String::from_utf8(key).ok());
        let keys: Vec<String> = keys.filter(|key| is_beyond(prefix, key)).collect();
        if !keys.is_empty() {
            found.extend(locks(server, keys).await?);
        }
        cursor = next;
        if cursor == 0 {
            break;
        }
    }
    found.sort();
    found.dedup();
    Ok(found)
}

/// Those of some keys that are locks by their shape.
async fn locks(server: &mut MultiplexedConnection, keys: Vec<String>) -> RedisResult<Vec<String>> {
    let mut pipeline = redis::Pipeline::with_capacity(2 * keys.len());
    pipeline.ignore_errors();
    for key in &keys {
        pipeline.cmd("PTTL").arg(key);
        pipeline.cmd("GETRANGE").arg(key).arg(0).arg(TOKEN_BYTES - 1);
    }
    let answers = server.req_packed_commands(&pipeline, 0, pipeline.len()).await?;
    let pairs = keys.into_iter().zip(answers.chunks_exact(2));
    let locks = pairs.filter(|(key, answers)| is_lock(key, &answers[0], &answers[1]));
    Ok(locks.map(|(key, _)| key).collect())
}

fn is_lock(key: &str, left_ms: &Value, value: &Value) -> bool {
    let ends = matches!(left_ms, Value::Int(left_ms) if *left_ms > 0);
    let Value::BulkString(value) = value else { return false };
    ends && (is_token(value) || names_lock(key) && value.len() < TOKEN_BYTES)
}

/// Whether one word of a key is `lock`.
fn names_lock(key: &str) -> bool {
    key.split(|c: char| !c.is_ascii_alphabetic()).any(|word| word.eq_ignore_ascii_case("lock"))
}

/// Random bits as a lock has them: 128 in hexadecimal or as a UUID (redis-py, node-redlock, and
/// ours) or in Base64 (redsync), or 160 as they are (rslock) or in hexadecimal or Base64.
fn is_token(value: &[u8]) -> bool {
    let digits = value.iter().filter(|byte| byte.is_ascii_hexdigit()).count();
    let dashes = value.iter().filter(|byte| **byte == b'-').count();
    match value.len() {
        // Text is hardly ever random.
        20 => std::str::from_utf8(value).is_err(),
        24 => is_base64(value, "=="),
        28 => is_base64(value, "="),
        32 | 40 => digits == value.len(),
        36 => digits == 32 && dashes == 4,
        _ => false,
    }
}

/// Whether it is Base64 whose length the padding tells.
fn is_base64(value: &[u8], padding: &str) -> bool {
    let text = value.strip_suffix(padding.as_bytes());
    let is_letter = |byte: &u8| byte.is_ascii_alphanumeric() || b"+/-_".contains(byte);
    text.is_some_and(|text| text.iter().all(is_letter))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_value_is_a_lock_if_its_key_says_so() {
        let is_lock = |key: &str, value: &str, left_ms| {
            is_lock(key, &Value::Int(left_ms), &Value::BulkString(value.as_bytes().to_vec()))
        };
        assert!(is_lock("deploy:lock", "web1:4711", 5_000));
        assert!(is_lock("Lock.deploy", "1", 5_000));
        assert!(!is_lock("deploy", "web1:4711", 5_000));
        assert!(!is_lock("blocked:deploy", "web1:4711", 5_000));
        assert!(!is_lock("deploy:lock", "web1:4711", -1), "it does not end");
        assert!(!is_lock("lock:page", &"x".repeat(TOKEN_BYTES), 5_000), "it is a text");
    }

    #[test]
    fn only_random_bits_look_like_a_token() {
        let tokens = [
            "0123456789abcdef0123456789ABCDEF",
            "123e4567-e89b-12d3-a456-426614174000",
            "q83vEjRWeJCrze8SNFZ4kA==",
            "q83vEjRWeJCrze8SNFZ4kKvN7xI=",
            "0123456789abcdef0123456789abcdef01234567",
        ];
        for token in tokens {
            assert!(is_token(token.as_bytes()), "{token}");
        }
        assert!(is_token(&[0xa5; 20]));
        let others = [
            "",
            "1",
            "0123456789abcdef0123456789abcdef0",
            "{\"user\":1}",
            "hello",
            "507f1f77bcf86cd799439011",
            "twenty letters here.",
            "{\"user\":1,\"since\":1700}==",
        ];
        for other in others {
            assert!(!is_token(other.as_bytes()), "{other}");
        }
    }
}
