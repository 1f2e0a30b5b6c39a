//! The scripts, each a constant text and its digest, and the calls of them.

use std::sync::LazyLock;

use redis::Cmd;

use super::keys::Keys;

/// A script as the server knows it.
#[derive(Debug)]
pub(super) struct Script {
    text: String,
    digest: String,
}

/// Works on a server that has no memory left, because it frees some or needs none.
const WITHOUT_MEMORY: &str = "#!lua flags=allow-oom\n";
const READS_ONLY: &str = "#!lua flags=no-writes\n";
const WRITES: &str = "#!lua\n";

const LINE: &str = include_str!("scripts/line.lua");

pub(super) static CLAIM: LazyLock<Script> =
    LazyLock::new(|| Script::new(WRITES, include_str!("scripts/claim.lua")));
pub(super) static RENEW: LazyLock<Script> =
    LazyLock::new(|| Script::new(WITHOUT_MEMORY, include_str!("scripts/renew.lua")));
pub(super) static RELEASE: LazyLock<Script> =
    LazyLock::new(|| Script::new(WITHOUT_MEMORY, include_str!("scripts/release.lua")));
pub(super) static EVICT: LazyLock<Script> =
    LazyLock::new(|| Script::new(WITHOUT_MEMORY, include_str!("scripts/evict.lua")));
pub(super) static VIEW: LazyLock<Script> =
    LazyLock::new(|| Script::new(READS_ONLY, include_str!("scripts/view.lua")));

impl Script {
    fn new(flags: &str, text: &str) -> Self {
        let text = format!("{flags}{}", text.replace("-- @line\n", LINE));
        let digest = redis::Script::new(&text).get_hash().to_owned();
        Self { text, digest }
    }
}

/// One call of a script.
#[derive(Debug)]
pub(super) struct Call {
    script: &'static Script,
    keys: Keys,
    arguments: Vec<String>,
}

impl Call {
    pub(super) fn new(script: &'static Script, keys: Keys, arguments: Vec<String>) -> Self {
        Self { script, keys, arguments }
    }

    /// The command that names the script by its digest.
    pub(super) fn by_digest(&self) -> Cmd {
        self.command("EVALSHA", &self.script.digest)
    }

    /// The command that brings the script along, for a server that does not know it yet.
    pub(super) fn by_text(&self) -> Cmd {
        self.command("EVAL", &self.script.text)
    }

    fn command(&self, verb: &str, script: &str) -> Cmd {
        let Keys(keys) = &self.keys;
        let mut command = redis::cmd(verb);
        command.arg(script).arg(keys.len()).arg(&keys[..]).arg(&self.arguments);
        command
    }
}
