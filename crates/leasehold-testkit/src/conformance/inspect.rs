//! Reading lines: who holds, who waits, in pages, and never a token.

use std::fmt::Write;
use std::sync::Arc;

use leasehold::claim::{Holder, Mode, Standing};
use leasehold::engine::Query;
use leasehold::error::Kind;
use leasehold::{Client, Fence, Lease, Name};

use super::harness::{Harness, LONG};
use super::support::{Outcome, Waiter, claim, line, until_free};

super::cases! {
    note_and_label_are_seen_by_others,
    token_is_never_shown,
    line_shows_holders_and_waiters_in_order: fifo,
    pages_come_in_name_order_and_miss_nothing,
    prefix_selects_names_byte_by_byte,
    holder_selects_the_lines_it_is_in,
    expired_claims_are_not_shown: ttl_per_claim,
    reading_changes_nothing,
}

async fn note_and_label_are_seen_by_others(lab: Arc<dyn Harness>) -> Outcome {
    let name = "inspect:note";
    let one = lab.client_with(Client::builder().label("report é 1")).await?;
    let two = lab.client().await?;
    let lease = one.mutex(name).ttl(LONG).note("pid 7, \"quoted\"\n{json: 'ü'}").lock().await?;
    let waiter = two.request(name).ttl(LONG).note("next");
    let waiter = Waiter::queue(&one, name, waiter, 0).await?;
    let seen = line(&two, name).await?;
    assert_eq!((seen.name.as_str(), seen.kind), (name, Kind::Lock));
    let held = &seen.held[0];
    assert_eq!(held.holder.label(), "report é 1");
    assert_eq!(held.holder.id(), one.holder().id());
    assert_eq!(held.note.as_str(), "pid 7, \"quoted\"\n{json: 'ü'}");
    assert_eq!((held.fence, held.mode), (lease.fence(), Mode::Exclusive));
    assert!(held.remaining <= LONG && held.remaining > LONG / 2, "{held:?}");
    assert!(held.age < LONG, "{held:?}");
    assert_eq!(seen.waiting[0].note.as_str(), "next");
    assert_eq!(seen.waiting[0].holder.label(), two.holder().label());
    drop(waiter);
    Ok(())
}

async fn token_is_never_shown(lab: Arc<dyn Harness>) -> Outcome {
    let name = "inspect:token";
    let engine = lab.engine().await?;
    let mut asked = claim(name, Mode::Exclusive, LONG)?;
    asked.holder = Holder::labelled("somebody")?;
    assert!(matches!(engine.claim(&asked).await?, Standing::Held { .. }));
    let page = engine.inspect(&Query::name(asked.key.name.clone())).await?;
    let mut hex = String::new();
    for byte in asked.key.token.as_bytes() {
        write!(hex, "{byte:02x}")?;
    }
    let decimal = format!("{:?}", asked.key.token.as_bytes());
    let shown = format!("{page:?}").to_lowercase();
    assert!(shown.contains("somebody"));
    assert!(!shown.contains(&hex) && !shown.contains(&decimal), "{shown}");
    engine.release(&[asked.key]).await?;
    Ok(())
}

async fn line_shows_holders_and_waiters_in_order(lab: Arc<dyn Harness>) -> Outcome {
    let name = "inspect:order";
    let [one, two, three] = lab.clients().await?;
    let lease = one.mutex(name).ttl(LONG).lock().await?;
    let _first = Waiter::queue(&one, name, two.request(name).ttl(LONG), 0).await?;
    let _second = Waiter::queue(&one, name, three.request(name).ttl(LONG), 1).await?;
    let seen = line(&three, name).await?;
    let fences: Vec<Fence> = seen.held.iter().chain(&seen.waiting).map(|seen| seen.fence).collect();
    assert!(fences.is_sorted_by(|one, next| one < next), "{fences:?}");
    assert_eq!(seen.held[0].fence, lease.fence());
    let waiting: Vec<&Holder> = seen.waiting.iter().map(|seen| &seen.holder).collect();
    assert_eq!(waiting, [two.holder(), three.holder()]);
    Ok(())
}

async fn hold_all(client: &Client, names: &[String]) -> leasehold::Result<Vec<Lease>> {
    let mut leases = Vec::new();
    for name in names {
        leases.push(client.mutex(name).ttl(LONG).lock().await?);
    }
    Ok(leases)
}

async fn names_of(client: &Client, mut query: Query) -> leasehold::Result<Vec<String>> {
    let mut names = Vec::new();
    loop {
        let page = client.admin().inspect(&query).await?;
        assert!(page.lines.len() <= query.page_lines());
        names.extend(page.lines.iter().map(|line| line.name.as_str().to_owned()));
        let Some(next) = page.next else { return Ok(names) };
        assert_eq!(page.lines.len(), query.page_lines(), "only a full page has another after it");
        assert_eq!(Some(&next), page.lines.last().map(|line| &line.name));
        query.after = Some(next);
    }
}

async fn pages_come_in_name_order_and_miss_nothing(lab: Arc<dyn Harness>) -> Outcome {
    let client = lab.client().await?;
    let mut names: Vec<String> = (0..23).map(|index| format!("inspect:page:{index}")).collect();
    // These sort differently by bytes and by a collation.
    names.extend(
        ["Inspect", "inspect", "inspect:", "zebra", "Zebra", "ähre", "é", "e"].map(Into::into),
    );
    let _leases = hold_all(&client, &names).await?;
    names.sort_unstable();
    for limit in [0, 1, 5, 31, 100] {
        let query = Query { limit, ..Query::all() };
        assert_eq!(names_of(&client, query).await?, names, "pages of {limit}");
    }
    let query = Query { after: Some(Name::new("inspect:page:21")?), ..Query::all() };
    let rest = names_of(&client, query).await?;
    assert_eq!(rest, names[names.iter().position(|name| name == "inspect:page:21").unwrap() + 1..]);
    Ok(())
}

async fn prefix_selects_names_byte_by_byte(lab: Arc<dyn Harness>) -> Outcome {
    let client = lab.client().await?;
    let names = ["job:1", "job:2", "JOB:3", "job", "jobs", "j%", "j_b:4", "j*", "jób", "j\\"];
    let names = names.map(String::from);
    let _leases = hold_all(&client, &names).await?;
    let prefixes =
        ["job:", "job", "j", "J", "j%", "j_", "j*", "jo", "j\\", "", "jó", "k", "job:1", "job:11"];
    for prefix in prefixes {
        let mut expected: Vec<&String> =
            names.iter().filter(|name| name.starts_with(prefix)).collect();
        expected.sort_unstable();
        let query = Query { limit: 2, ..Query::prefix(prefix) };
        let seen = names_of(&client, query).await?;
        assert_eq!(seen.iter().collect::<Vec<_>>(), expected, "{prefix:?}");
    }
    Ok(())
}

async fn holder_selects_the_lines_it_is_in(lab: Arc<dyn Harness>) -> Outcome {
    let [one, two] = lab.clients().await?;
    let names = ["inspect:holder:a", "inspect:holder:b"].map(String::from);
    let _leases = hold_all(&one, &names).await?;
    let _other = two.mutex("inspect:holder:c").ttl(LONG).lock().await?;
    let request = two.request(&names[1]).ttl(LONG);
    let _waiter = Waiter::queue(&one, &names[1], request, 0).await?;
    let query = |client: &Client| Query { limit: 1, ..Query::holder(client.holder().id()) };
    assert_eq!(names_of(&one, query(&one)).await?, names);
    let expected = ["inspect:holder:b", "inspect:holder:c"];
    assert_eq!(names_of(&one, query(&two)).await?, expected, "waiting counts");
    let nobody = Query::holder(Holder::fresh().id());
    assert!(names_of(&one, nobody).await?.is_empty());
    let page = one.admin().inspect(&query(&two)).await?;
    assert_eq!(page.lines[0].held[0].holder, *one.holder(), "the whole line is shown");
    Ok(())
}

async fn expired_claims_are_not_shown(lab: Arc<dyn Harness>) -> Outcome {
    let name = "inspect:expired";
    let (client, engine) = (lab.client().await?, lab.engine().await?);
    let asked = claim(name, Mode::Exclusive, lab.brief())?;
    assert!(matches!(engine.claim(&asked).await?, Standing::Held { .. }));
    until_free(&client, name).await?;
    assert!(client.admin().inspect(&Query::all()).await?.lines.is_empty());
    assert!(client.admin().inspect(&Query::holder(asked.holder.id())).await?.lines.is_empty());
    Ok(())
}

async fn reading_changes_nothing(lab: Arc<dyn Harness>) -> Outcome {
    let name = "inspect:reading";
    let (client, engine) = (lab.client().await?, lab.engine().await?);
    assert!(client.line(name).await?.is_none());
    let asked = claim(name, Mode::Exclusive, LONG)?;
    engine.claim(&asked).await?;
    let first = line(&client, name).await?;
    let second = line(&client, name).await?;
    assert_eq!(first.held[0].fence, second.held[0].fence);
    assert!(second.held[0].remaining <= first.held[0].remaining, "reading is not renewing");
    assert!(second.held[0].age >= first.held[0].age);
    engine.release(&[asked.key]).await?;
    Ok(())
}
