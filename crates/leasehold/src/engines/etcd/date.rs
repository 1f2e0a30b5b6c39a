//! What a member's clock shows. The API for locks does not tell; answers of plain HTTP have a date.

use std::future::poll_fn;
use std::time::{Duration, SystemTime};

use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tonic::body::Body;
use tonic::codegen::Service as _;
use tonic::codegen::http::header::DATE;
use tonic::codegen::http::{HeaderMap, Request};
use tonic::transport::{Channel, Endpoint};

/// A date is exact to this.
const EXACT: Duration = Duration::from_secs(1);

/// The date of an answer; `None` from a member that answers plain HTTP somewhere else.
pub(super) async fn ask(member: &Endpoint, mut channel: Channel) -> Option<SystemTime> {
    let version = format!("{}version", member.uri());
    let request = Request::get(version).body(Body::empty()).ok()?;
    // With TLS a member tells requests apart by what they are, without it by the protocol.
    let headers = match member.uri().scheme_str() {
        Some("https") => {
            poll_fn(|context| channel.poll_ready(context)).await.ok()?;
            channel.call(request).await.ok()?.into_parts().0.headers
        }
        _ => {
            let client = Client::builder(TokioExecutor::new()).build_http();
            client.request(request).await.ok()?.into_parts().0.headers
        }
    };
    read(&headers)
}

fn read(headers: &HeaderMap) -> Option<SystemTime> {
    httpdate::parse_http_date(headers.get(DATE)?.to_str().ok()?).ok()
}

/// How far two clocks are apart at least: one showed this date at a moment when the other was
/// between the other two.
pub(super) fn apart(date: SystemTime, before: SystemTime, after: SystemTime) -> Duration {
    let behind = before.duration_since(date + EXACT).unwrap_or_default();
    let ahead = date.duration_since(after).unwrap_or_default();
    behind.max(ahead)
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use tonic::codegen::http::HeaderValue;

    use super::*;

    #[test]
    fn clocks_are_no_farther_apart_than_a_date_proves() {
        let at = |millis| UNIX_EPOCH + Duration::from_millis(millis);
        for (date, before, after, millis) in [
            (5_000, 5_000, 5_000, 0),
            (5_000, 5_999, 5_999, 0),
            (5_000, 6_100, 6_300, 100),
            (5_000, 4_200, 4_900, 100),
            (5_000, 3_000, 9_000, 0),
        ] {
            let proven = apart(at(date), at(before), at(after));
            assert_eq!(proven, Duration::from_millis(millis), "{date} {before} {after}");
        }
    }

    #[test]
    fn an_answer_without_a_date_tells_nothing() {
        let mut headers = HeaderMap::new();
        assert_eq!(read(&headers), None);
        headers.insert(DATE, HeaderValue::from_static("yesterday"));
        assert_eq!(read(&headers), None);
        headers.insert(DATE, HeaderValue::from_static("Thu, 01 Jan 1970 00:01:00 GMT"));
        assert_eq!(read(&headers), Some(UNIX_EPOCH + Duration::from_secs(60)));
    }
}
