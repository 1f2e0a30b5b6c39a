//! The scripts, each a constant text and its digest, and the calls of them.

use std::sync::LazyLock;

use redis::{Arg, Cmd, RedisWrite};

use super::keys::{Keys, WITHOUT_FENCE};

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

/// Words of the longest command, and bytes of keys that are not long.
const ARGUMENTS_MAX: usize = 20;
const KEYS_BYTES: usize = 384;

const LINE: &str = include_str!("scripts/line.lua");
const QUORUM_TIME: &str = include_str!("scripts/quorum/time.lua");
const QUORUM_DRAW: &str = include_str!("scripts/quorum/draw.lua");
const QUORUM_LINE: &str = include_str!("scripts/quorum/line.lua");

pub(super) static CLAIM: LazyLock<Script> =
    LazyLock::new(|| Script::new(WRITES, include_str!("scripts/claim.lua")));
pub(super) static CLAIM_ALL: LazyLock<Script> =
    LazyLock::new(|| Script::new(WRITES, include_str!("scripts/claim_all.lua")));
pub(super) static RENEW: LazyLock<Script> =
    LazyLock::new(|| Script::new(WITHOUT_MEMORY, include_str!("scripts/renew.lua")));
pub(super) static RELEASE: LazyLock<Script> =
    LazyLock::new(|| Script::new(WITHOUT_MEMORY, include_str!("scripts/release.lua")));
pub(super) static KEEP_CLOSED: LazyLock<Script> =
    LazyLock::new(|| Script::new(WITHOUT_MEMORY, include_str!("scripts/keep_closed.lua")));
pub(super) static EVICT: LazyLock<Script> =
    LazyLock::new(|| Script::new(WITHOUT_MEMORY, include_str!("scripts/evict.lua")));
pub(super) static STEAL: LazyLock<Script> =
    LazyLock::new(|| Script::new(WRITES, include_str!("scripts/steal.lua")));
pub(super) static AMEND: LazyLock<Script> =
    LazyLock::new(|| Script::new(WRITES, include_str!("scripts/amend.lua")));
pub(super) static RESIZE: LazyLock<Script> =
    LazyLock::new(|| Script::new(WRITES, include_str!("scripts/resize.lua")));
pub(super) static VIEW: LazyLock<Script> =
    LazyLock::new(|| Script::new(READS_ONLY, include_str!("scripts/view.lua")));

pub(super) static ANNOUNCE: LazyLock<Script> =
    LazyLock::new(|| Script::new(WRITES, include_str!("scripts/announce.lua")));

/// The scripts of a node of a quorum.
pub(super) mod quorum {
    use super::*;

    macro_rules! scripts {
        ($($name:ident: $flags:ident $file:literal),* $(,)?) => {$(
            pub(in super::super) static $name: LazyLock<Script> = LazyLock::new(|| {
                let text = include_str!(concat!("scripts/quorum/", $file, ".lua"));
                Script::of_quorum($flags, text)
            });
        )*};
    }

    scripts! {
        ENTER: WRITES "enter",
        RAISE: WITHOUT_MEMORY "raise",
        GIVE_WAY: WITHOUT_MEMORY "give_way",
        KEEP: WITHOUT_MEMORY "keep",
        LEAVE: WITHOUT_MEMORY "leave",
        KEEP_CLOSED: WITHOUT_MEMORY "keep_closed",
        EVICT: WITHOUT_MEMORY "evict",
        VIEW: READS_ONLY "view",
        PASSPORT: READS_ONLY "passport",
        CEILING: READS_ONLY "ceiling",
        ADMIT: WRITES "admit",
    }
}

impl Script {
    fn new(flags: &str, text: &str) -> Self {
        Self::complete(format!("{flags}{}", text.replace("-- @line\n", LINE)))
    }

    /// A script of a node of a quorum.
    fn of_quorum(flags: &str, text: &str) -> Self {
        let text = text.replace("-- @time\n", QUORUM_TIME).replace("-- @draw\n", QUORUM_DRAW);
        let text = text.replace("-- @line\n", QUORUM_LINE);
        Self::complete(format!("{flags}{text}"))
    }

    fn complete(text: String) -> Self {
        let digest = redis::Script::new(&text).get_hash().to_owned();
        Self { text, digest }
    }
}

/// One call of a script.
#[derive(Debug)]
pub(super) struct Call {
    script: &'static Script,
    /// The command that names the script by its digest.
    pub(super) command: Cmd,
}

impl Call {
    /// A call without arguments, with room for so many bytes of them.
    pub(super) fn new<const COUNT: usize>(
        script: &'static Script,
        keys: &Keys<COUNT>,
        room: usize,
    ) -> Self {
        Self::with_keys(script, keys, COUNT, room)
    }

    /// A call that gives out no fence, without arguments.
    pub(super) fn without_fence(script: &'static Script, keys: &Keys, room: usize) -> Self {
        Self::with_keys(script, keys, WITHOUT_FENCE, room)
    }

    /// Names the first `count` keys, and behind them the absent key.
    fn with_keys<const COUNT: usize>(
        script: &'static Script,
        keys: &Keys<COUNT>,
        count: usize,
        room: usize,
    ) -> Self {
        let mut command = Cmd::with_capacity(ARGUMENTS_MAX, room + KEYS_BYTES);
        let absent = keys.absent();
        let named = count + usize::from(absent.is_some());
        command.arg("EVALSHA").arg(&script.digest).arg(named);
        for key in keys.iter().take(count).chain(absent) {
            command.write_arg(key.as_bytes());
        }
        Self { script, command }
    }

    /// A call about several names, without arguments. Not in a Cluster, where they are in several
    /// slots.
    pub(super) fn of_many(script: &'static Script, names: &[Keys], room: usize) -> Self {
        let mut command =
            Cmd::with_capacity(ARGUMENTS_MAX * names.len(), room + KEYS_BYTES * names.len());
        let keys: Vec<&str> = names.iter().flat_map(Keys::iter).collect();
        command.arg("EVALSHA").arg(&script.digest).arg(keys.len());
        for key in keys {
            command.write_arg(key.as_bytes());
        }
        Self { script, command }
    }

    /// Adds an argument.
    pub(super) fn text(mut self, argument: impl AsRef<[u8]>) -> Self {
        self.command.write_arg(argument.as_ref());
        self
    }

    /// Adds an argument as it is shown.
    pub(super) fn shown(mut self, argument: impl std::fmt::Display) -> Self {
        self.command.write_arg_fmt(argument);
        self
    }

    /// The command that brings the script along, for a server that does not know it yet.
    pub(super) fn by_text(&self) -> Cmd {
        let mut command = redis::cmd("EVAL");
        command.arg(&self.script.text);
        for argument in self.command.args_iter().skip(2) {
            if let Arg::Simple(argument) = argument {
                command.write_arg(argument);
            }
        }
        command
    }
}
