//! Limits: the client refuses what breaks a rule before it sends anything, and keeps what just
//! fits.

use std::sync::Arc;
use std::time::Duration;

use leasehold::claim::{Holder, Note, Ttl};
use leasehold::error::Invalid;
use leasehold::layer::chaos::{Chaos, Verb};
use leasehold::{Client, Error, Lease, LockOptions, Mode, Name, Released, Result, UnlessHeld};

use super::harness::{Harness, LONG};
use super::support::{Outcome, line, soon};

super::cases! {
    bad_names_are_refused_unsent,
    ttls_out_of_bounds_are_refused_unsent,
    long_notes_are_refused_unsent,
    bad_permits_are_refused_unsent: permits,
    modes_that_the_store_lacks_are_refused_unsent,
    bad_holds_are_refused_unsent,
    bad_labels_and_settings_are_refused,
    largest_note_and_label_are_kept_whole,
    extreme_ttls_are_kept: ttl_per_claim,
    fractions_of_a_millisecond_are_not_lost_to_the_holder: ttl_per_claim & detach,
}

/// A refusal by rule; the client sent nothing.
#[track_caller]
fn refused(chaos: &Chaos, asked: &Result<Lease>) -> Invalid {
    let Err(Error::Invalid(invalid)) = asked else { panic!("the rule let through {asked:?}") };
    for verb in [Verb::Claim, Verb::Wait, Verb::Renew, Verb::Release] {
        assert_eq!(chaos.calls(verb), 0, "{verb:?} was sent");
    }
    invalid.clone()
}

async fn bad_names_are_refused_unsent(lab: Arc<dyn Harness>) -> Outcome {
    let (client, chaos) = lab.troubled().await?;
    let long = "n".repeat(Name::BYTES_MAX + 1);
    let wide = "名".repeat(Name::BYTES_MAX / 3 + 1);
    let huge = "n".repeat(10 * 1024);
    let table = [
        (String::new(), Invalid::NameEmpty),
        ("a\0b".into(), Invalid::NameHasNul),
        ("\0".into(), Invalid::NameHasNul),
        (long, Invalid::NameTooLong { bytes: 513 }),
        (wide, Invalid::NameTooLong { bytes: 513 }),
        (huge, Invalid::NameTooLong { bytes: 10_240 }),
    ];
    for (name, expected) in table {
        assert_eq!(refused(&chaos, &client.mutex(&name).lock().await), expected);
        let tried = client.mutex(&name).try_lock().await.unless_held();
        assert!(matches!(tried, Err(Error::Invalid(_))), "{tried:?}");
        assert!(client.line(&name).await.is_err());
    }
    Ok(())
}

/// A mode that the store has is granted.
async fn modes_that_the_store_lacks_are_refused_unsent(lab: Arc<dyn Harness>) -> Outcome {
    let (client, chaos) = lab.troubled().await?;
    let can = client.info().can;
    let modes = [(can.shared, Mode::Shared), (can.permits, Mode::Permits { take: 1, of: 2 })];
    for (has, mode) in modes {
        let before = chaos.calls(Verb::Claim);
        let name = format!("limits:{has}:{mode:?}");
        match client.request(&name).mode(mode).acquire().await {
            Ok(lease) => {
                assert!(has, "{mode:?}");
                assert_eq!(lease.release().await?, Released::Released);
            }
            Err(Error::Unsupported { engine, .. }) => {
                assert!(!has && chaos.calls(Verb::Claim) == before, "{mode:?}");
                assert_eq!(engine, client.info().engine);
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

async fn ttls_out_of_bounds_are_refused_unsent(lab: Arc<dyn Harness>) -> Outcome {
    let (client, chaos) = lab.troubled().await?;
    let nano = Duration::from_nanos(1);
    let table = [
        Duration::ZERO,
        nano,
        Ttl::MIN - nano,
        Ttl::MAX + nano,
        Duration::from_millis(1 << 63),
        Duration::MAX,
    ];
    for ttl in table {
        let asked = client.mutex("limits:ttl").ttl(ttl).lock().await;
        assert_eq!(refused(&chaos, &asked), Invalid::Ttl { ttl });
    }
    Ok(())
}

async fn long_notes_are_refused_unsent(lab: Arc<dyn Harness>) -> Outcome {
    let (client, chaos) = lab.troubled().await?;
    for text in ["x".repeat(Note::BYTES_MAX + 1), "é".repeat(Note::BYTES_MAX / 2 + 1)] {
        let bytes = text.len();
        let asked = client.mutex("limits:note").note(text).lock().await;
        assert_eq!(refused(&chaos, &asked), Invalid::NoteTooLong { bytes });
    }
    Ok(())
}

async fn bad_permits_are_refused_unsent(lab: Arc<dyn Harness>) -> Outcome {
    let (client, chaos) = lab.troubled().await?;
    for (take, of) in [(0, 0), (0, 3), (4, 3), (1, 0), (1, u32::MAX), (u32::MAX, u32::MAX)] {
        let mode = Mode::Permits { take, of };
        let asked = client.request("limits:permits").mode(mode).acquire().await;
        assert_eq!(refused(&chaos, &asked), Invalid::Permits { take, of });
    }
    Ok(())
}

async fn bad_holds_are_refused_unsent(lab: Arc<dyn Harness>) -> Outcome {
    let (client, chaos) = lab.troubled().await?;
    for span in [Duration::ZERO, Ttl::MAX + Duration::from_nanos(1)] {
        for mutex in [
            client.mutex("limits:hold").options(LockOptions::new().hold_at_most(span)),
            client.mutex("limits:hold").options(LockOptions::new().hold_at_least(span)),
        ] {
            let invalid = refused(&chaos, &mutex.lock().await);
            assert!(matches!(invalid, Invalid::Setting { .. }), "{invalid:?}");
        }
    }
    Ok(())
}

async fn bad_labels_and_settings_are_refused(lab: Arc<dyn Harness>) -> Outcome {
    for label in ["", "a\nb", "\u{7f}", &"l".repeat(Holder::LABEL_BYTES_MAX + 1)] {
        let client = lab.client_with(Client::builder().label(label)).await;
        assert!(matches!(client, Err(Error::Invalid(Invalid::Label))), "{label:?}");
    }
    for percent in [0, 9, 91, 100] {
        let client = lab.client_with(Client::builder().renew_at_percent(percent)).await;
        assert!(matches!(client, Err(Error::Invalid(Invalid::Setting { .. }))), "{percent}");
    }
    Ok(())
}

async fn largest_note_and_label_are_kept_whole(lab: Arc<dyn Harness>) -> Outcome {
    let name = "limits:largest";
    let label = "é".repeat(Holder::LABEL_BYTES_MAX / 2);
    let odd = ('\u{1}'..='\u{7f}').chain(['é', '名', '😀']);
    let note: String = odd.cycle().take(3_000).collect();
    let one = lab.client_with(Client::builder().label(label.as_str())).await?;
    let two = lab.client().await?;
    let long = lab.long().await?;
    let lease = one.mutex(name).ttl(long).note(note.as_str()).lock().await?;
    let seen = line(&two, name).await?;
    assert_eq!(seen.held[0].holder.label(), label);
    assert_eq!(seen.held[0].note.as_str(), note);
    drop(lease);
    let full = "x".repeat(Note::BYTES_MAX);
    let _lease = soon("a grant", two.mutex(name).ttl(long).note(full.as_str()).lock()).await??;
    assert_eq!(line(&one, name).await?.held[0].note.as_str(), full);
    Ok(())
}

async fn extreme_ttls_are_kept(lab: Arc<dyn Harness>) -> Outcome {
    let client = lab.client().await?;
    let lease = client.mutex("limits:long").ttl(Ttl::MAX).lock().await?;
    let seen = line(&client, "limits:long").await?;
    assert!(seen.held[0].remaining > Ttl::MAX - LONG, "{seen:?}");
    let proven = lab.longest().await?.map_or(Ttl::MAX, |longest| longest / 2);
    assert!(lease.time_left() > proven / 100 * 98, "{:?}", lease.time_left());
    let short = Ttl::MIN.max(lab.ttl_floor());
    let mutex = client.mutex("limits:short").ttl(short).options(LockOptions::new().renew(false));
    let lease = soon("a grant", mutex.lock()).await??;
    assert!(lease.time_left() < short);
    soon("the loss", lease.lost()).await?;
    Ok(())
}

async fn fractions_of_a_millisecond_are_not_lost_to_the_holder(lab: Arc<dyn Harness>) -> Outcome {
    let name = "limits:fraction";
    let [one, two] = lab.clients().await?;
    let ttl = lab.brief() + Duration::from_nanos(999_999);
    let lease = one.mutex(name).ttl(ttl).options(LockOptions::new().renew(false)).lock().await?;
    let safe_until = lease.deadline();
    // Detached, so that only the store's clock can free it.
    let handle = lease.detach().await?;
    let next = soon("the end of its ttl", two.mutex(name).ttl(lab.long().await?).lock()).await??;
    let now = leasehold::clock::Clock::now(&leasehold::clock::SystemClock);
    assert!(now > safe_until, "the store rounds up, the holder down");
    assert!(next.fence() > handle.fence());
    Ok(())
}
