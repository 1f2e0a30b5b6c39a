//! Names: compared byte by byte, whatever a store makes of them.

use std::sync::Arc;

use leasehold::engine::Query;
use leasehold::{Lease, Name, UnlessHeld};

use super::harness::{Harness, LONG};
use super::support::{Outcome, line};

super::cases! {
    names_never_share_state,
    longest_names_are_kept_whole,
    common_text_of_names_is_kept_apart,
}

/// Names that some store folds, trims, escapes, splits or reserves.
const ODD: &[&str] = &[
    "a",
    "A",
    "a ",
    " a",
    "a\t",
    "a\n",
    "a\nb",
    "a\r\nb",
    "aa",
    "b",
    "ä",
    "a\u{308}",
    "é",
    "e\u{301}",
    "ß",
    "ss",
    "İ",
    "i",
    "\u{feff}a",
    "a\u{200b}",
    "😀",
    "名",
    "{a}",
    "{a}b",
    "{a}c",
    "{}",
    "{",
    "}",
    "{b}a",
    "/",
    "/a",
    "a/",
    "a/b",
    "a//b",
    ".",
    "..",
    "../a",
    "\\",
    "%",
    "%00",
    "%61",
    "_",
    "a_b",
    "a%b",
    "'",
    "\"",
    "`",
    "--",
    ";",
    "*",
    "?",
    "[a]",
    "^a$",
    "a:b",
    "a:b:c",
    "a:",
    ":",
    "lock:a",
    "a:fence",
    "a:line",
    "fence",
    "NULL",
    "null",
    "true",
    "0",
    "00",
    "0x0",
    "-1",
    "1e3",
    "1000",
    "$1",
    "${a}",
    "\u{1}",
    "\u{7f}",
    "a\\0b",
    "__proto__",
];

async fn names_never_share_state(lab: Arc<dyn Harness>) -> Outcome {
    let [one, two] = lab.clients().await?;
    let mut leases: Vec<Lease> = Vec::new();
    for name in ODD {
        let lease = one.mutex(name).ttl(LONG).try_lock().await.unless_held()?;
        leases.push(lease.unwrap_or_else(|| panic!("{name:?} was taken by another name")));
    }
    let mut expected: Vec<Name> = ODD.iter().map(Name::new).collect::<Result<_, _>>()?;
    expected.sort();
    let page = one.admin().inspect(&Query::all()).await?;
    let seen: Vec<Name> = page.lines.into_iter().map(|line| line.name).collect();
    assert_eq!(seen, expected);
    while let Some(lease) = leases.pop() {
        let name = lease.name().clone();
        lease.release().await?;
        let again = two.mutex(&name).ttl(LONG).try_lock().await.unless_held()?;
        assert!(again.is_some(), "{name:?} was not freed by its own release");
        if let Some(before) = leases.last() {
            let taken = two.mutex(before.name()).try_lock().await.unless_held()?;
            assert!(taken.is_none(), "{:?} was freed by another name", before.name());
        }
    }
    Ok(())
}

async fn longest_names_are_kept_whole(lab: Arc<dyn Harness>) -> Outcome {
    let client = lab.client().await?;
    let stem = "n".repeat(Name::BYTES_MAX - 1);
    let wide = "名".repeat(Name::BYTES_MAX / 3);
    let names = [stem.clone(), format!("{stem}1"), format!("{stem}2"), wide];
    let mut leases = Vec::new();
    for name in &names {
        leases.push(
            client
                .mutex(name)
                .ttl(LONG)
                .try_lock()
                .await
                .unless_held()?
                .expect("a name of its own"),
        );
        assert_eq!(line(&client, name).await?.name.as_str(), name);
    }
    Ok(())
}

async fn common_text_of_names_is_kept_apart(lab: Arc<dyn Harness>) -> Outcome {
    let [one, two] = lab.clients().await?;
    let long = one.mutex("names:ab").ttl(LONG).lock().await?;
    assert!(two.mutex("names:a").ttl(LONG).try_lock().await.unless_held()?.is_some());
    assert!(two.mutex("names:abc").ttl(LONG).try_lock().await.unless_held()?.is_some());
    assert_eq!(long.release().await?, leasehold::Released::Released);
    assert!(two.mutex("names:ab").try_lock().await.unless_held()?.is_some());
    Ok(())
}
