//! The variables of a command's environment: a line for each lock, the holder, and the store.
//!
//! Refuses names that do not fit into them, before it takes any lock.

use std::process::Command;

use leasehold::{Holder, Lease, Name};

use crate::exit::Failure;
use crate::outer::{OUTER_VARIABLE, Outer};
use crate::store::{self, Store};

/// The most bytes of one variable, with its name before it and a NUL behind it. Linux refuses to
/// start a program with a longer one.
const VARIABLE_BYTES_MAX: usize = 128 * 1024;

/// Room for the name of a variable.
const NAME_BYTES_MAX: usize = 32;

/// Refuses names that do not fit into the variables.
pub(crate) fn check(names: &[Name], outer: &Outer, holder: &Holder) -> Result<(), Failure> {
    if names.len() > 1
        && let Some(name) = names.iter().find(|name| name.as_str().contains('\n'))
    {
        return Err(Failure::usage(format!(
            "`{name}` has a line break in it, and the command finds a line for each name"
        ))
        .hint("take it in a run of its own: `leasehold run A -- leasehold run B -- CMD`"));
    }
    let handles: usize = names.iter().map(|name| handle_bytes(name, holder) + 1).sum();
    let longest = handles.max(outer.with(names).len()) + NAME_BYTES_MAX;
    if longest > VARIABLE_BYTES_MAX {
        return Err(Failure::usage(format!(
            "{} names are too many for one command: it would find a variable of {longest} bytes, \
             and {VARIABLE_BYTES_MAX} is the most",
            names.len()
        ))
        .hint("take fewer names at once, or shorter ones"));
    }
    Ok(())
}

/// The most bytes of the text of a handle: 70 bytes, the label and the name, as Base64.
fn handle_bytes(name: &Name, holder: &Holder) -> usize {
    "lh1_".len() + (70 + holder.label().len() + name.as_str().len()).div_ceil(3) * 4
}

/// Sets the variables in the environment of a command.
pub(crate) fn tell(
    child: &mut Command,
    store: &Store,
    outer: &Outer,
    leases: &[Lease],
    pass_url: bool,
) {
    let names: Vec<Name> = leases.iter().map(|lease| lease.name().clone()).collect();
    let lines =
        |value: fn(&Lease) -> String| leases.iter().map(value).collect::<Vec<_>>().join("\n");
    child
        .env("LEASEHOLD_NAME", lines(|lease| lease.name().as_str().to_owned()))
        .env("LEASEHOLD_FENCE", lines(|lease| lease.fence().to_string()))
        .env("LEASEHOLD_HANDLE", lines(|lease| lease.handle().to_string()))
        .env(store::HOLDER_VARIABLE, store::write_holder(store.client.holder()))
        .env(OUTER_VARIABLE, outer.with(&names));
    tell_store(child, store, pass_url);
}

/// Writes the store's id, by which a `leasehold` inside the command notices another store, and the
/// url if the command is to have it.
pub(crate) fn tell_store(child: &mut Command, store: &Store, pass_url: bool) {
    child
        .env(store::STORE_VARIABLE, store::write_id(&store.client))
        .env_remove(store::URL_VARIABLE)
        .env_remove(store::URL_FILE_VARIABLE);
    if let Some(url) = &store.url
        && pass_url
    {
        child.env(store::URL_VARIABLE, url);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold::memory::Memory;

    #[tokio::test]
    async fn handle_is_as_long_as_it_is_taken_for() {
        let client = Memory::new().client().expect("a client");
        for name in ["a", "ab", "abc", &"n".repeat(512)] {
            let lease = client.mutex(name).lock().await.expect("free");
            let (text, most) =
                (lease.handle().to_string(), handle_bytes(lease.name(), client.holder()));
            assert!(text.len() <= most && text.len() + 3 > most, "{} of {most}", text.len());
        }
    }
}
