//! Help texts beside the options: examples for every command, and rules that no option tells. No
//! line is longer than a terminal of 80 columns.

/// How a help text is laid out. Examples come first, because most readers look for one.
pub(crate) const TEMPLATE: &str = "\
{about-with-newline}
{usage-heading} {usage}

{before-help}{all-args}{after-help}";

/// The text around the options of a command.
pub(crate) struct Help {
    pub(crate) examples: &'static str,
    pub(crate) notes: &'static str,
}

pub(crate) const TOP: Help = Help {
    examples: "\
Examples:
  leasehold run deploy -- ./deploy.sh        one at a time for this user
  leasehold run -n cron:report -- ./report   skip it if it still runs
  leasehold list                             who holds what, who waits",
    notes: "\
Stores (--url or LEASEHOLD_URL):
  memory:                             this process only, to try things out
  sqlite:PATH                         a file, for all processes of one machine
  redis://HOST                        one Redis; rediss:// with TLS
  redis+sentinel://HOST,HOST/MASTER   a Redis that Sentinel watches over
  redis+cluster://HOST,HOST           a Redis Cluster
  redlock://HOST,HOST,HOST            a majority of independent Redis servers
  postgres://HOST/DATABASE            a table of leases in PostgreSQL
  postgres+advisory://HOST/DATABASE   the advisory locks of PostgreSQL
  etcd://HOST,HOST                    etcd; etcds:// with TLS
  zk://HOST,HOST                      ZooKeeper; zks:// with TLS

A URL with a password goes into LEASEHOLD_URL or a file for --url-file, never
into an argument.

Exit status:
  of `run`: the command's own, or 128 + signal
  64 wrong usage     69 store unreachable      75 held by someone else
  76 lost while the command ran
  77 not the holder's handle     78 configuration",
};

pub(crate) const RUN: Help = Help {
    examples: "\
Examples:
  leasehold run deploy -- ./deploy.sh --fast
  leasehold run -n cron:report -- ./report           give up at once (75)
  leasehold run -w 5m db:migrate -- ./migrate        wait at most five minutes
  leasehold run --permits 1/4 encoder -- ffmpeg …    four at a time
  leasehold run --shared config -- ./read-config     with other readers
  leasehold run a b -- ./move a b                    both or none
  leasehold run -n --hold-at-least 50s cron:tick -- ./tick    once a minute",
    notes: "\
Durations are whole numbers with ms, s, m, h or d, as in 500ms, 1h30m or 7d.
Without -n or -w it waits in the queue for as long as it takes.

The command runs without a shell, in a process group of its own, with standard
input passed on; only the command writes to standard output. It finds
LEASEHOLD_NAME, LEASEHOLD_FENCE and LEASEHOLD_HANDLE in its environment, with a
line for each lock, in sorted order, and LEASEHOLD_HOLDER. LEASEHOLD_FENCE is
the fencing token: hand it to what the lock protects, and let that refuse
smaller numbers.

When the lock cannot be kept, the command's group gets TERM, then KILL before
the lease's safe end. When somebody took it, there is no safe end to wait for:
KILL follows within half a second. --hold-at-most sends TERM when its time is
up and KILL a grace later; the lock is kept until then. A command suspended
with ^Z is not renewed: it loses the lock after the ttl, and is ended, not
resumed, if it comes back later.

--on-lost CMD runs CMD with `sh -c` after that, in a process group of its own.
It finds the lost lock in LEASEHOLD_NAME and LEASEHOLD_FENCE, and in
LEASEHOLD_LOST_CAUSE one of: expired, unreachable, stopped, evicted, taken,
removed, replaced, closed. LEASEHOLD_LOST_REASON has the reason of a
force-release. The status is 76 whatever CMD's own is.",
};

pub(crate) const ACQUIRE: Help = Help {
    examples: "\
Examples:
  handle=$(leasehold acquire --ttl 10m deploy) || exit
  echo \"$handle\" | leasehold renew -
  echo \"$handle\" | leasehold release -
  leasehold acquire --json -w 30s deploy",
    notes: "\
Prints one handle for each lock, in sorted order. A handle is like a password:
it proves who owns the lock. Nobody renews the lock: it ends after --ttl unless
`renew` is called in time. It waits only with -w. Prefer `run`, which renews
and gives back by itself.

The handle carries --hold-at-least and --hold-at-most. `release` makes it stale,
and keeps the name closed until --hold-at-least is over. `renew` never extends
a lease past --hold-at-most.",
};

pub(crate) const RENEW: Help = Help {
    examples: "\
Examples:
  echo \"$handle\" | leasehold renew -
  leasehold renew \"$handle\" --ttl 1h",
    notes: "\
With `-` the handle comes from standard input and stays out of the process
list.",
};

pub(crate) const RELEASE: Help = Help {
    examples: "\
Examples:
  echo \"$handle\" | leasehold release -
  leasehold release \"$handle\"",
    notes: "\
With `-` the handle comes from standard input and stays out of the process
list. A lease that is not held any more is status 77.",
};

pub(crate) const CHECK: Help = Help {
    examples: "\
Examples:
  echo \"$handle\" | leasehold check - || exit
  leasehold check --json \"$handle\"",
    notes: "\
Status 0 if it is held, 77 if it is not. The lease is not touched.",
};

pub(crate) const LIST: Help = Help {
    examples: "\
Examples:
  leasehold list
  leasehold list --prefix job:
  leasehold list --json | jq -r '.[] | select(.waiting != []) | .name'",
    notes: "",
};

pub(crate) const SHOW: Help = Help {
    examples: "\
Examples:
  leasehold show deploy
  leasehold show --json deploy | jq -r '.held[].holder'
  leasehold show --json deploy | jq '.waits[] | select(.cycle)'",
    notes: "\
Below the table it says who waits for whom. It follows holders that wait for
other names themselves. Holders that wait for each other are a cycle.",
};

pub(crate) const STATS: Help = Help {
    examples: "\
Examples:
  leasehold stats
  leasehold stats --json",
    notes: "\
Clients add up their counts every few seconds and when they end.",
};

pub(crate) const WATCH: Help = Help {
    examples: "\
Examples:
  leasehold watch
  leasehold watch deploy
  leasehold watch --json | jq -c 'select(.event == \"expired\")'",
    notes: "",
};

pub(crate) const LIVE: Help = Help {
    examples: "\
Examples:
  leasehold top
  leasehold top --prefix job: --interval 5s
  leasehold top --once                             one picture as text
  leasehold top --json | jq -c '[.active, .waiting]'",
    notes: "\
Names come by contention: most waiting first, then the longest wait. Below the
table is the picture of the chosen name: who holds it, who waits in which
order, and what its holders wait for themselves. ! marks waits of 10s and
longer, !! of a minute and longer; NO_COLOR is respected.

Keys: arrows or j k PgUp PgDn Home End move, Enter shows or hides the picture,
/ filters, s sorts, p pauses, r reads now, ? has them all, q ends.",
};

pub(crate) const FORCE_RELEASE: Help = Help {
    examples: "\
Examples:
  leasehold force-release deploy --reason 'host db3 is gone'
  leasehold force-release encoder --fence 17 --reason 'it hangs'
  leasehold force-release deploy --reason 'cleanup' --yes",
    notes: "\
The holder is not asked. It hears of it at once, with the reason, or at its next
renewal. Until then two may believe that they hold the lock, and only a fence
(fencing token) that is checked keeps them apart. The next fence is greater.
The store keeps who took it, when and why for an hour: `show` shows it.",
};

pub(crate) const STEAL: Help = Help {
    examples: "\
Examples:
  handle=$(leasehold steal deploy --reason 'repair' --ttl 1h) || exit
  echo \"$handle\" | leasehold release -
  leasehold steal deploy --reason 'host db3 is gone' --yes",
    notes: "\
Takes the lock from its holders as `force-release` does, and before those who
wait. They keep their order, and wait on behind this lock. It prints a handle as
`acquire` does. It takes no semaphore (78).",
};

pub(crate) const REVOKE: Help = Help {
    examples: "\
Examples:
  leasehold revoke deploy --within 5m --reason 'maintenance at 22:00'",
    notes: "\
The command of a `run` that holds the lock gets TERM, or the signal that its
--on-revoke names. A program hears of it by `lease.revoke_requested()`. Holders
that still have the lock after --within lose it as by `force-release`.",
};

pub(crate) const RESIZE: Help = Help {
    examples: "\
Examples:
  leasehold resize encoder --permits 8
  leasehold resize --json encoder --permits 2",
    notes: "\
The limit of a semaphore is what its users say. Once it is changed here, those
who still say the old one are refused (78) until they say the new one, or
nobody is in line any more. It cannot be lowered below what is held, or below
the largest request in the queue (75).",
};

pub(crate) const BUMP_EPOCH: Help = Help {
    examples: "\
Examples:
  leasehold bump-epoch
  leasehold bump-epoch --above 1234567          above a fence that a log shows
  leasehold bump-epoch --json | jq -r .from",
    notes: "\
Run it once after a restore, before work goes on. A backup takes the count of
fences (fencing tokens) back, and what checks them then refuses the new ones,
or mistakes them for old ones that were given out twice. The new ones begin at
the clock, above all that were ever given out, also by an earlier bump that the
backup took back. Leases, and those who wait, stay as they are; running it
twice, or without a restore, does no harm. Fences on Redis and Redlock begin at
the clock by themselves.",
};

pub(crate) const ELECT: Help = Help {
    examples: "\
Examples:
  leasehold elect scheduler -- ./scheduler
  leasehold elect --payload 10.0.0.7:8080 scheduler -- ./scheduler
  leasehold elect --ttl 5s scheduler -- ./scheduler",
    notes: "\
Waits until it leads, runs the command, and campaigns again when the command
ends or leadership is lost; ends by a signal only, which goes to the command
first. The command finds the same in its environment as that of `run`;
LEASEHOLD_FENCE is the number of the term. Hand it to what the leader acts on
and let it refuse smaller numbers.

When leadership cannot be kept, the command's group gets TERM, then KILL before
the lease's safe end: nobody acts as the leader after it.",
};

pub(crate) const LEADER: Help = Help {
    examples: "\
Examples:
  leasehold leader scheduler
  leasehold leader --json scheduler | jq -r '.leader.payload'
  leasehold leader --watch scheduler",
    notes: "\
Prints the leader's label, its term and its payload. Status 75 if nobody leads.",
};

pub(crate) const ONCE: Help = Help {
    examples: "\
Examples:
  leasehold once nightly --every 12h -- ./report
  leasehold once --retry-failed sync --every 55m -- ./sync
  leasehold once --again nightly --every 12h -- ./report
  leasehold once --list
  leasehold once --json nightly --every 12h -- ./report",
    notes: "\
The period begins with a run and counts on the store's clock, so it does not
matter what the clocks of the machines say. Status: the command's own; 0 if
somebody else runs it or has run it in this period. A line on standard error
then says who, when, and how it ended.

If the machine that runs the job dies, another may start it after --ttl. A run
that failed counts, unless --retry-failed is given. In a crontab, write a
period that is a little shorter than the time between two starts: `--every 55m`
for every hour.",
};

pub(crate) const RATE: Help = Help {
    examples: "\
Examples:
  leasehold rate api --limit 100 --per 1m && curl https://api.example.com
  leasehold rate -w 30s mails --limit 5 --per 1s
  leasehold rate --json mails --limit 5 --per 1s | jq .due_in_ms",
    notes: "\
At most so many units are taken in any window of the period, over all
machines, on the store's clock. A unit cannot be given back. Status 0 with a
unit, 75 without; then standard error says when the next one is due.",
};

pub(crate) const DOCTOR: Help = Help {
    examples: "\
Examples:
  leasehold doctor
  leasehold doctor --json",
    notes: "\
Status 0 if no promise is broken, 78 otherwise.",
};

pub(crate) const INIT: Help = Help {
    examples: "\
Examples:
  leasehold init
  sudo leasehold init --system
  leasehold init --print > schema.sql",
    notes: "",
};

pub(crate) const COMPLETIONS: Help = Help {
    examples: "\
Examples:
  source <(leasehold completions bash)                     in ~/.bashrc
  source <(leasehold completions zsh)                      in ~/.zshrc
  leasehold completions fish > ~/.config/fish/completions/leasehold.fish",
    notes: "\
The shell then asks `leasehold` for commands, options and the names of locks.
Names come from the store of LEASEHOLD_URL, or from the default store, and only
if it answers within 200ms.",
};

pub(crate) const MAN: Help = Help {
    examples: "\
Examples:
  leasehold man /usr/local/share/man/man1 && man leasehold-run
  leasehold man target/man",
    notes: "",
};
