//! What the help texts say after the options: examples for every command, and the contract of
//! exit statuses.

pub(crate) const TOP: &str = "\
Examples:
  leasehold run deploy -- ./deploy.sh          one at a time, on this machine
  leasehold run -n cron:report -- ./report     skip it if it still runs
  leasehold list                               who holds what, who waits

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

A url with a password goes into LEASEHOLD_URL or a file for --url-file, never into an argument.

Exit status:
  of `run`: the command's own, or 128 + signal
  64 wrong usage     69 store unreachable      75 held by someone else
  76 lost while the command ran     77 not the holder's handle     78 configuration";

pub(crate) const RUN: &str = "\
Durations are whole numbers with ms, s, m or h, as in 500ms or 1h30m. Without -n or -w it waits for
as long as it takes.

The command runs without a shell, in a process group of its own, with standard input passed on;
standard output is its alone, also with --json. It finds LEASEHOLD_NAME, LEASEHOLD_FENCE and
LEASEHOLD_HANDLE in its environment, with a line for each lock, in sorted order, and
LEASEHOLD_HOLDER. Hand LEASEHOLD_FENCE to what the lock protects and let it refuse smaller numbers.

When the lock cannot be kept, the command's group gets TERM, then KILL before the lease's safe end.
When somebody took it, there is no safe end to wait for: KILL follows within half a second.
--hold-at-most sends TERM when its time is up and KILL a grace later; the lock is kept until then.
A command suspended with ^Z is not renewed: it loses the lock after the ttl, and is ended, not
resumed, if it comes back later.

Examples:
  leasehold run deploy -- ./deploy.sh --fast
  leasehold run -n cron:report -- ./report             give up at once if it is held (75)
  leasehold run -w 5m db:migrate -- ./migrate          wait five minutes at most
  leasehold run --permits 1/4 encoder -- ffmpeg …      four at a time
  leasehold run --shared config -- ./read-config       with other readers, without writers
  leasehold run a b -- ./move a b                      both or none
  leasehold run -n --hold-at-least 50s cron:tick -- ./tick   once a minute over all its users";

pub(crate) const ACQUIRE: &str = "\
Prints one handle for each lock, in sorted order. Whoever has a handle owns the lock: treat it like
a password. Nobody renews it: it ends after --ttl unless `renew` is called in time. Does not wait
unless -w says so. Prefer `run`, which renews and gives back by itself.

--hold-at-least and --hold-at-most travel in the handle: `release` keeps the lock until the former
is over, `renew` never extends it past the latter.

Examples:
  handle=$(leasehold acquire --ttl 10m deploy) || exit
  echo \"$handle\" | leasehold renew -
  echo \"$handle\" | leasehold release -
  leasehold acquire --json -w 30s deploy";

pub(crate) const RENEW: &str = "\
With `-` the handle comes from standard input and stays out of the process list.

Examples:
  echo \"$handle\" | leasehold renew -
  leasehold renew \"$handle\" --ttl 1h";

pub(crate) const RELEASE: &str = "\
With `-` the handle comes from standard input and stays out of the process list. A lease that is
not held any more is status 77.

Examples:
  echo \"$handle\" | leasehold release -
  leasehold release \"$handle\"";

pub(crate) const CHECK: &str = "\
Status 0 if it is held, 77 if it is not. The lease is not touched.

Examples:
  echo \"$handle\" | leasehold check - || exit
  leasehold check --json \"$handle\"";

pub(crate) const LIST: &str = "\
Examples:
  leasehold list
  leasehold list --prefix job:
  leasehold list --json | jq -r '.[] | select(.waiting != []) | .name'";

pub(crate) const SHOW: &str = "\
Below the table it says who waits for whom, and follows holders that wait for other names
themselves; whoever waits for each other is called a cycle.

Examples:
  leasehold show deploy
  leasehold show --json deploy | jq -r '.held[].holder'
  leasehold show --json deploy | jq '.waits[] | select(.cycle)'";

pub(crate) const STATS: &str = "\
Clients add up their counts every few seconds and when they end.

Examples:
  leasehold stats
  leasehold stats --json";

pub(crate) const WATCH: &str = "\
Examples:
  leasehold watch
  leasehold watch deploy
  leasehold watch --json | jq -c 'select(.event == \"expired\")'";

pub(crate) const LIVE: &str = "\
Names come by contention: most waiting first, then the longest wait. Below the table is the picture
of the chosen name: who holds it, who waits in which order, and what its holders wait for
themselves. ! marks waits of 10s and longer, !! of a minute and longer; NO_COLOR is respected.

Keys: arrows or j k PgUp PgDn Home End move, Enter shows or hides the picture, / filters, s sorts,
p pauses, r reads now, ? has them all, q ends.

Examples:
  leasehold top
  leasehold top --prefix job: --interval 5s
  leasehold top --once                               one picture as text, for a report
  leasehold top --json | jq -c '[.active, .waiting]'";

pub(crate) const FORCE_RELEASE: &str = "\
The holder is not asked. It hears of it at its next renewal; until then two may believe that they
hold the lock, and only a fence that is checked keeps them apart. The next fence is greater.

Examples:
  leasehold force-release deploy --reason 'host db3 is gone'
  leasehold force-release deploy --reason 'cleanup' --yes";

pub(crate) const RESIZE: &str = "\
The limit of a semaphore is what its users say. Once it is changed here, those who still say the old
one are refused (78) until they say the new one, or nobody is in line any more. It cannot be lowered
below what is held, or what somebody waits for at once (75).

Examples:
  leasehold resize encoder --permits 8
  leasehold resize --json encoder --permits 2";

pub(crate) const BUMP_EPOCH: &str = "\
Run it once after a restore, before work goes on. A backup takes the count of fences back, and what
checks fences then refuses the new ones, or mistakes them for old ones that were given out twice.
The new ones begin at the clock, above all that were ever given out, also by an earlier bump that
the backup took back. Leases, and those who wait, stay as they are; running it twice, or without a
restore, does no harm. Fences on Redis and Redlock begin at the clock by themselves.

Examples:
  leasehold bump-epoch
  leasehold bump-epoch --above 1234567             greater than one that a log or a guard shows
  leasehold bump-epoch --json | jq -r .from";

pub(crate) const ELECT: &str = "\
Waits until it leads, runs the command, and campaigns again when the command ends or leadership is
lost; ends by a signal only, which goes to the command first. The command finds the same in its
environment as that of `run`; LEASEHOLD_FENCE is the number of the term. Hand it to what the leader
acts on and let it refuse smaller numbers.

When leadership cannot be kept, the command's group gets TERM, then KILL before the lease's safe
end: nobody acts as the leader after it.

Examples:
  leasehold elect scheduler -- ./scheduler
  leasehold elect --payload 10.0.0.7:8080 scheduler -- ./scheduler
  leasehold elect --ttl 5s scheduler -- ./scheduler        the next one after five seconds";

pub(crate) const LEADER: &str = "\
Prints the leader's label, its term and its payload. Status 75 if nobody leads.

Examples:
  leasehold leader scheduler
  leasehold leader --json scheduler | jq -r '.leader.payload'
  leasehold leader --watch scheduler";

pub(crate) const ONCE: &str = "\
The period begins with a run and counts on the store's clock, so it does not matter what the clocks
of the machines say. Status: the command's own; 0 if somebody else runs it or has run it in this
period, with a line on standard error that says who, when, and how it ended.

A run whose machine died is taken over by whoever asks next, after --ttl. A run that failed counts,
unless --retry-failed says otherwise. In a crontab, write a period that is a little shorter than the
time between two starts: `--every 55m` for every hour.

Examples:
  leasehold once nightly --every 12h -- ./report
  leasehold once --retry-failed sync --every 55m -- ./sync
  leasehold once --json nightly --every 12h -- ./report";

pub(crate) const RATE: &str = "\
At most so many units are taken in any stretch of the period, over all machines, on the store's
clock. A unit cannot be given back. Status 0 with a unit, 75 without; then standard error says when
the next one is due.

Examples:
  leasehold rate api --limit 100 --per 1m && curl https://api.example.com
  leasehold rate -w 30s mails --limit 5 --per 1s
  leasehold rate --json mails --limit 5 --per 1s | jq .due_in_ms";

pub(crate) const DOCTOR: &str = "\
Status 0 if no promise is broken, 78 otherwise.

Examples:
  leasehold doctor
  leasehold doctor --json";

pub(crate) const INIT: &str = "\
Examples:
  leasehold init
  leasehold init --print > schema.sql";

pub(crate) const COMPLETIONS: &str = "\
Examples:
  leasehold completions bash > ~/.local/share/bash-completion/completions/leasehold
  leasehold completions zsh > ~/.zfunc/_leasehold";
