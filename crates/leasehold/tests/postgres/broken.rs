//! Rows that leasehold never writes. Listings name them, they hide no other line, and an
//! administrator can clear them.

use leasehold::engine::{Level, Query};
use leasehold::{UnlessHeld, connect};

use crate::support::{
    LONG, advisory_on, fresh_schema, granted, plain, server, until_waiting, waiter,
};

/// Changes to a claim that is alone in its line, and to one of several claims.
const ALONE: [&str; 7] = [
    "lines SET label = ''",
    "lines SET label = NULL",
    "lines SET label = E'\\x1b[31m'",
    "lines SET fence = -5",
    "lines SET expires = 'infinity'",
    "lines SET granted = '-infinity'",
    "lines SET note = repeat('x', 5000)",
];
const IN_LINE: [&str; 5] = [
    "claims SET label = ''",
    "claims SET expires = 'infinity'",
    "claims SET holder = 'x'",
    "lines SET capacity = -1",
    "claims SET note = repeat('x', 5000)",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_that_cannot_be_read_is_named_and_hides_no_other_line() {
    let schema = fresh_schema();
    let client = connect(format!("{}?schema={schema}", server().url())).await.expect("connected");
    let _before = client.mutex("a").ttl(LONG).lock().await.expect("free");
    let _behind = client.mutex("z").ttl(LONG).lock().await.expect("free");
    let cases = ALONE.iter().map(|how| (how, false)).chain(IN_LINE.iter().map(|how| (how, true)));
    for (number, (how, in_line)) in cases.enumerate() {
        // A late event of the case before is about the name before.
        let name = format!("n{number}");
        let lease = client.mutex(&name).ttl(LONG).lock().await.expect("free");
        let fence = lease.fence();
        let next = in_line.then(|| waiter(client.request(&name).ttl(LONG)));
        if in_line {
            until_waiting(&client, &name, 1).await;
        }
        let (table, change) = how.split_once(' ').expect("a table");
        let spoil = format!("UPDATE {schema}.{table} {change} WHERE name = '{name}'");
        server().sql(&spoil).expect(how);
        let page = client.admin().inspect(&Query::all()).await.expect(how);
        let names: Vec<&str> = page.lines.iter().map(|line| line.name.as_str()).collect();
        assert_eq!(names, ["a", "z"], "{how}");
        let broken: Vec<&str> = page.broken.iter().map(|line| line.name.as_str()).collect();
        assert_eq!(broken, [name.as_str()], "{how}");
        client.admin().store_stats().await.expect(how);
        let findings = client.admin().examine().await.expect(how);
        assert!(findings.iter().any(|finding| finding.subject == "record"), "{how}");
        // Then the next in line holds the name, or the line is gone with all its waiters.
        client.admin().force_release(&name, "a test").await.expect(how);
        if let Some(next) = next {
            client.admin().force_release(&name, "a test").await.expect(how);
            next.abort();
        }
        drop(lease);
        let next = granted(waiter(client.request(&name).ttl(LONG))).await;
        assert!(next.fence() > fence || how.contains("fence"), "{how}");
        next.release().await.expect("an answer");
    }
}

#[tokio::test]
async fn answer_that_cannot_be_read_names_the_column_and_the_cause() {
    for (columns, cause) in [
        ("1::bigint AS acquired", "a row without `released`"),
        ("1::bigint AS acquired, NULL::bigint AS released", "a null in `released`"),
        ("'1'::text AS acquired", "another type in `acquired`"),
    ] {
        let schema = fresh_schema();
        let url = format!("{}?schema={schema}", server().url());
        let client = connect(url).await.expect("connected");
        let function = format!("{schema}.totals()");
        let table = format!("CREATE TABLE {schema}.odd AS SELECT {columns}");
        let spoil = format!(
            "{table}; DROP FUNCTION {function}; CREATE FUNCTION {function} \
             RETURNS SETOF {schema}.odd LANGUAGE sql AS $$ SELECT * FROM {schema}.odd $$"
        );
        server().sql(&spoil).expect(cause);
        let error = client.admin().store_stats().await.expect_err("an answer of another shape");
        assert!(error.to_string().contains(cause), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn line_without_the_claims_that_it_counts_can_be_cleared() {
    let schema = fresh_schema();
    let client = connect(format!("{}?schema={schema}", server().url())).await.expect("connected");
    let lease = client.mutex("n").ttl(LONG).lock().await.expect("free");
    let next = waiter(client.request("n").ttl(LONG));
    until_waiting(&client, "n", 1).await;
    next.abort();
    server().sql(&format!("DELETE FROM {schema}.claims WHERE name = 'n'")).expect("deleted");
    client.admin().force_release("n", "a test").await.expect("any name can be cleared");
    let next = client.mutex("n").try_lock().await.unless_held().expect("an answer").expect("free");
    next.release().await.expect("an answer");
    drop(lease);
}

#[tokio::test]
async fn doctor_says_what_it_found_although_lines_cannot_be_read() {
    let schema = fresh_schema();
    let client = connect(format!("{}?schema={schema}", server().url())).await.expect("connected");
    let spoil = format!("DROP FUNCTION {schema}.inspect(text, text, text, bytea, integer)");
    server().sql(&spoil).expect("dropped");
    let error = client.admin().broken_lines().await.expect_err("no lines").to_string();
    let findings = client.admin().examine().await.expect("findings");
    let record = findings.iter().find(|finding| finding.subject == "record").expect("a finding");
    assert!(record.level == Level::Bad && record.found.contains(&error), "{record:?}");
    assert!(findings.iter().any(|finding| finding.subject == "trial"), "{findings:?}");
}

#[tokio::test]
async fn name_that_is_none_hides_no_other_page() {
    let schema = fresh_schema();
    let client = connect(format!("{}?schema={schema}", server().url())).await.expect("connected");
    let mut leases = Vec::new();
    for name in ["a", "b", "b2", "c", "d", "e"] {
        leases.push(client.mutex(name).ttl(LONG).lock().await.expect("free"));
    }
    let spoil =
        format!("UPDATE {schema}.lines SET name = rpad(name, 600, 'x') WHERE name LIKE 'b%'");
    server().sql(&spoil).expect("spoilt");
    for limit in 1..=4 {
        let mut query = Query { limit, ..Query::all() };
        let mut names = Vec::new();
        loop {
            let page = client.admin().inspect(&query).await.expect("a page");
            assert!(page.lines.len() <= limit, "{page:?}");
            names.extend(page.lines.iter().map(|line| line.name.to_string()));
            match page.next {
                Some(next) => query.after = Some(next),
                None => break,
            }
        }
        assert_eq!(names, ["a", "c", "d", "e"], "{limit} at a time");
    }
}

/// What is done to what a session wrote about an advisory lock.
const ADVISORY: [&str; 8] = [
    "label = ''",
    "label = E'\\x1b[31m'",
    "holder = 'x'",
    "note = repeat('x', 5000)",
    "fence = -5",
    "since = '-infinity'",
    "expires = 'infinity'",
    "name = ''",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_of_an_advisory_lock_that_cannot_be_read_is_named_and_hides_no_other_lock() {
    let url = advisory_on(server());
    let client = connect(&url).await.expect("connected");
    let others = connect(&url).await.expect("connected");
    let _before = others.mutex("a").ttl(LONG).lock().await.expect("free");
    let _behind = others.mutex("z").ttl(LONG).lock().await.expect("free");
    let database = plain(&url).await;
    for (number, how) in ADVISORY.iter().enumerate() {
        let name = format!("n{number}");
        // To take a lock away ends its session, and whatever else is on it.
        let holder = connect(&url).await.expect("connected");
        let lease = holder.mutex(&name).ttl(LONG).lock().await.expect("free");
        // It is written by then.
        client.line(&name).await.expect(how).expect("held");
        let spoil = format!("UPDATE leasehold.advisory_claims SET {how} WHERE name = '{name}'");
        assert_eq!(database.execute(&spoil, &[]).await.expect(how), 1, "{how}");
        let page = client.admin().inspect(&Query::all()).await.expect(how);
        let held = |name: &str| {
            let line = page.lines.iter().find(|line| line.name.as_str() == name);
            line.and_then(|line| line.held.first()).map(|held| held.holder.clone())
        };
        let other = Some(others.holder().clone());
        assert_eq!((held("a"), held("z")), (other.clone(), other), "{how}");
        let shown = page.broken[0].name.clone();
        assert_eq!(page.broken.len(), 1, "{how}: {page:?}");
        // Without a name, it is shown by its key.
        assert!(shown.as_str() == name || how.starts_with("name"), "{how}: {shown}");
        assert_eq!(client.admin().store_stats().await.expect(how).active, 3, "{how}");
        let findings = client.admin().examine().await.expect(how);
        assert!(findings.iter().any(|finding| finding.subject == "record"), "{how}");
        let line = client.line(&name).await.expect(how).expect("it is held");
        assert_eq!(line.held.len(), 1, "{how}");
        let taken = client.admin().force_release(&shown, "a test").await.expect(how);
        assert_eq!(taken.len(), 1, "{how}");
        client.mutex(&name).ttl(LONG).lock().await.expect("free").release().await.expect(how);
        assert!(client.admin().broken_lines().await.expect(how).is_empty(), "{how}");
        drop(lease);
    }
}
