//! Advisory keys: from a name to the number that PostgreSQL locks, by our own rule or by that of
//! another library, so that its locks and ours exclude each other.
//!
//! There are two spaces of keys that never meet: one number of 64 bits, and a pair of 32 bits
//! each. Nothing here talks to a server.

use std::fmt;
use std::str::FromStr;

use hmac::{Hmac, KeyInit, Mac};
use md5::Md5;
use sha2::{Digest, Sha256};

use crate::error::{Error, Invalid, Result};
use crate::rule::name::Name;

use super::digest::{crc32, hash_text, java_hash};

/// What PostgreSQL locks: a number, or a pair of numbers. The two never collide.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AdvisoryKey {
    /// `pg_advisory_lock(bigint)`.
    Number(i64),
    /// `pg_advisory_lock(integer, integer)`.
    Pair(i32, i32),
}

impl AdvisoryKey {
    /// Waits for the lock inside a transaction, for any PostgreSQL client: committing or rolling
    /// back gives it back.
    ///
    /// ```
    /// use leasehold::{Name, advisory::Keys};
    ///
    /// let key = Keys::Sha256.key(&Name::new("report")?)?;
    /// let statement = key.lock_statement(false);
    /// assert!(statement.starts_with("SELECT pg_advisory_xact_lock("));
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn lock_statement(&self, shared: bool) -> String {
        format!("SELECT pg_advisory_xact_lock{}({self})", suffix(shared))
    }

    /// Takes the lock inside a transaction if it is free; answers whether it did.
    pub fn try_lock_statement(&self, shared: bool) -> String {
        format!("SELECT pg_try_advisory_xact_lock{}({self})", suffix(shared))
    }

    /// The key as `pg_locks` has it: `classid`, `objid` and `objsubid`.
    pub(super) fn columns(self) -> (u32, u32, i16) {
        match self {
            AdvisoryKey::Number(number) => {
                let bits = number as u64;
                ((bits >> 32) as u32, bits as u32, 1)
            }
            AdvisoryKey::Pair(first, second) => (first as u32, second as u32, 2),
        }
    }

    /// The key of a row of `pg_locks`.
    pub(super) fn from_columns(class: u32, object: u32, kind: i16) -> Self {
        match kind {
            2 => AdvisoryKey::Pair(class as i32, object as i32),
            _ => AdvisoryKey::Number((u64::from(class) << 32 | u64::from(object)) as i64),
        }
    }
}

/// As the arguments of PostgreSQL's functions.
impl fmt::Display for AdvisoryKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AdvisoryKey::Number(number) => write!(f, "{number}"),
            AdvisoryKey::Pair(first, second) => write!(f, "{first}, {second}"),
        }
    }
}

fn suffix(shared: bool) -> &'static str {
    if shared { "_shared" } else { "" }
}

/// How a name becomes a key: `?keys=` in the store's URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Keys {
    /// The first 64 bits of SHA-256; ours.
    #[default]
    Sha256,
    /// `with_advisory_lock` for Ruby, without a prefix.
    WithAdvisoryLock,
    /// `django-pglock`.
    DjangoPglock,
    /// `django-pglocks`.
    DjangoPglocks,
    /// The lock component of Symfony.
    Symfony,
    /// `DistributedLock.Postgres` for .NET, with hashing allowed.
    DistributedLock,
    /// `PgAdvisoryLock::new` of `sqlx`.
    Sqlx,
    /// GoodJob, for the text `TABLE-ID`.
    GoodJob,
    /// OpenStack's `tooz`.
    Tooz,
    /// Migrations of Rails, for a database's name.
    Rails,
    /// `golang-migrate`, for `SCHEMA/TABLE/DATABASE`.
    GolangMigrate,
    /// Migrations of `sqlx`, for a database's name.
    SqlxMigrate,
    /// Flyway, for `"SCHEMA"."TABLE"` with its quotes.
    Flyway,
    /// Migrations of Prisma: one key, whatever the name.
    Prisma,
    /// `hashtext(name)`, of 32 bits.
    HashText,
    /// `hashtextextended(name, 0)`.
    HashTextExtended,
    /// The name is the key, in decimal digits.
    Number,
    /// The name is a pair of keys, `A:B`.
    Pair,
}

/// Every convention by the name it has in a URL.
const NAMED: [(&str, Keys); 18] = [
    ("sha256", Keys::Sha256),
    ("with_advisory_lock", Keys::WithAdvisoryLock),
    ("django-pglock", Keys::DjangoPglock),
    ("django-pglocks", Keys::DjangoPglocks),
    ("symfony", Keys::Symfony),
    ("distributedlock", Keys::DistributedLock),
    ("sqlx", Keys::Sqlx),
    ("good_job", Keys::GoodJob),
    ("tooz", Keys::Tooz),
    ("rails", Keys::Rails),
    ("golang-migrate", Keys::GolangMigrate),
    ("sqlx-migrate", Keys::SqlxMigrate),
    ("flyway", Keys::Flyway),
    ("prisma", Keys::Prisma),
    ("hashtext", Keys::HashText),
    ("hashtextextended", Keys::HashTextExtended),
    ("number", Keys::Number),
    ("pair", Keys::Pair),
];

impl Keys {
    /// The names of all conventions, for messages.
    pub(super) fn known() -> String {
        NAMED.map(|(name, _)| format!("`{name}`")).join(", ")
    }

    /// The name this convention has in a URL.
    pub fn name(self) -> &'static str {
        NAMED.iter().find(|(_, keys)| *keys == self).map_or("sha256", |(name, _)| name)
    }

    /// The key of a name. Fails only where the name is to be a number and is none.
    pub fn key(self, name: &Name) -> Result<AdvisoryKey> {
        use AdvisoryKey::{Number, Pair};
        let (text, bytes) = (name.as_str(), name.as_str().as_bytes());
        let crc = || crc32(bytes);
        Ok(match self {
            Keys::Sha256 => Number(i64::from_be_bytes(head(&Sha256::digest(bytes)))),
            Keys::WithAdvisoryLock => Pair((crc() & 0x7fff_ffff) as i32, 0),
            Keys::DjangoPglock => Number(i64::from_le_bytes(head(&Sha256::digest(bytes)))),
            Keys::DjangoPglocks => Number(i64::from(crc() as i32)),
            Keys::Symfony => Number(i64::from(crc())),
            Keys::DistributedLock => distributed_lock(text),
            Keys::Sqlx => Number(i64::from_le_bytes(head(&hkdf(bytes, SQLX_INFO)))),
            Keys::GoodJob => Number(i64::from_be_bytes(head(&Md5::digest(bytes)))),
            Keys::Tooz => {
                let [first, second, ..] = head(&Md5::digest(bytes));
                Pair(i32::from(first), i32::from(second))
            }
            Keys::Rails => Number(2_053_462_845_i64.wrapping_mul(i64::from(crc()))),
            Keys::GolangMigrate => {
                let sum = crc32(text.replace('/', "\0").as_bytes());
                Number(i64::from(sum.wrapping_mul(1_486_364_155)))
            }
            Keys::SqlxMigrate => Number(0x3d32_ad9e_i64.wrapping_mul(i64::from(crc()))),
            Keys::Flyway => Number(77_431_708_279_161 + i64::from(java_hash(text))),
            Keys::Prisma => Number(72_707_369),
            Keys::HashText => Number(i64::from(hash_text(text) as u32 as i32)),
            Keys::HashTextExtended => Number(hash_text(text) as i64),
            Keys::Number => Number(text.parse().map_err(|_| refused(NUMBER_RULE))?),
            Keys::Pair => {
                let (first, second) = text.split_once(':').ok_or(refused(PAIR_RULE))?;
                let half = |half: &str| half.parse().map_err(|_| refused(PAIR_RULE));
                Pair(half(first)?, half(second)?)
            }
        })
    }

    /// The name to show for a key that nobody gave a name to.
    pub(super) fn name_of(self, key: AdvisoryKey) -> String {
        match (self, key) {
            (Keys::Number, AdvisoryKey::Number(number)) => number.to_string(),
            (Keys::Pair, AdvisoryKey::Pair(first, second)) => format!("{first}:{second}"),
            (_, AdvisoryKey::Number(number)) => format!("advisory:{number}"),
            (_, AdvisoryKey::Pair(first, second)) => format!("advisory:{first}:{second}"),
        }
    }
}

impl FromStr for Keys {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let found = NAMED.iter().find(|(name, _)| *name == text);
        let known = || format!("takes one of {}", Self::known());
        found
            .map(|(_, keys)| *keys)
            .ok_or_else(|| crate::engine::kit::address::bad("keys", &known()))
    }
}

const NUMBER_RULE: &str = "a whole number of 64 bits in decimal digits, as the store's url says";
const PAIR_RULE: &str = "two whole numbers of 32 bits, `A:B`, as the store's url says";
const SQLX_INFO: &[u8] = b"SQLx (Rust) Postgres advisory lock";

fn refused(rule: &'static str) -> Error {
    Error::Invalid(Invalid::Setting { what: "a lock name", rule })
}

fn head(digest: &[u8]) -> [u8; 8] {
    digest[..8].try_into().expect("a digest has more than 8 bytes")
}

/// The first block of HKDF with SHA-256 and no salt.
fn hkdf(secret: &[u8], info: &[u8]) -> Vec<u8> {
    let mac = |key: &[u8], parts: &[&[u8]]| {
        let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("any length is a key");
        parts.iter().for_each(|part| mac.update(part));
        mac.finalize().into_bytes().to_vec()
    };
    let extracted = mac(&[0; 32], &[secret]);
    mac(&extracted, &[info, &[1]])
}

/// Numbers in hexadecimal are taken as they are, short names are packed, others are hashed.
fn distributed_lock(name: &str) -> AdvisoryKey {
    /// The longest name that fits 63 bits with 7 for each letter.
    const PACKED_MAX: usize = 9;
    let hex = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if name.len() == 16 && hex(name) {
        let number = u64::from_str_radix(name, 16).expect("16 hexadecimal digits");
        return AdvisoryKey::Number(number as i64);
    }
    if let Some((first, second)) = name.split_once(',')
        && (first.len(), second.len()) == (8, 8)
        && hex(first)
        && hex(second)
    {
        let half = |half| u32::from_str_radix(half, 16).expect("8 hexadecimal digits") as i32;
        return AdvisoryKey::Pair(half(first), half(second));
    }
    if name.is_ascii() && name.len() <= PACKED_MAX {
        let letters = name.bytes().fold(0_u64, |packed, byte| packed << 7 | u64::from(byte)) << 1;
        let filled = (name.len()..PACKED_MAX).fold(letters, |packed, _| packed << 7 | 0x7f);
        return AdvisoryKey::Pair((filled >> 32) as i32, filled as i32);
    }
    let digest = sha1_smol::Sha1::from(name).digest().bytes();
    AdvisoryKey::Number(i64::from_le_bytes(head(&digest)))
}

#[cfg(test)]
mod tests {
    use super::AdvisoryKey::{Number, Pair};
    use super::*;

    fn key(keys: &str, name: &str) -> AdvisoryKey {
        let keys: Keys = keys.parse().expect("a convention");
        keys.key(&Name::new(name).expect("a name")).expect("a key")
    }

    #[test]
    fn keys_are_those_of_the_libraries_they_are_named_after() {
        for (keys, name, expected) in [
            ("with_advisory_lock", "my-lock", Pair(1_153_040_885, 0)),
            ("django-pglock", "my-lock", Number(6_170_642_704_201_584_368)),
            ("django-pglocks", "my-lock", Number(-994_442_763)),
            ("symfony", "my-lock", Number(3_300_524_533)),
            ("distributedlock", "my-lock", Pair(-605_720_883, -118_112_257)),
            ("distributedlock", "orders:42:settle", Number(-7_919_611_190_636_742_434)),
            ("sqlx", "my-lock", Number(-7_577_905_956_304_869_515)),
            ("good_job", "my-lock", Number(-1_323_429_866_322_628_863)),
            ("tooz", "my-lock", Pair(237, 162)),
            ("rails", "mydb", Number(586_353_752_304_064_290)),
            ("golang-migrate", "public/schema_migrations/mydb", Number(2_103_762_914)),
            ("sqlx-migrate", "mydb", Number(293_176_876_009_260_204)),
            ("flyway", "\"public\".\"flyway_schema_history\"", Number(77_433_833_903_597)),
            ("prisma", "anything", Number(72_707_369)),
        ] {
            assert_eq!(key(keys, name), expected, "{keys} {name}");
        }
    }

    #[test]
    fn hexadecimal_names_of_distributedlock_are_taken_as_they_are() {
        assert_eq!(key("distributedlock", "00000000000000ff"), Number(255));
        assert_eq!(key("distributedlock", "ffffffff,0000000a"), Pair(-1, 10));
    }

    #[test]
    fn our_own_key_is_the_head_of_sha256() {
        // printf my-lock | sha256sum
        let expected = i64::from_be_bytes(6_170_642_704_201_584_368_i64.to_le_bytes());
        assert_eq!(key("sha256", "my-lock"), Number(expected));
        assert_eq!(Keys::default().name(), "sha256");
    }

    #[test]
    fn names_that_are_numbers_must_be_numbers() {
        assert_eq!(key("number", "-42"), Number(-42));
        assert_eq!(key("number", "9223372036854775807"), Number(i64::MAX));
        assert_eq!(key("pair", "-1:7"), Pair(-1, 7));
        for (keys, name) in [
            ("number", "report"),
            ("number", "9223372036854775808"),
            ("number", "1.5"),
            ("pair", "1"),
            ("pair", "1:2:3"),
            ("pair", "1:2147483648"),
        ] {
            let keys: Keys = keys.parse().expect("a convention");
            let refused = keys.key(&Name::new(name).expect("a name"));
            assert!(matches!(refused, Err(Error::Invalid(Invalid::Setting { .. }))), "{name}");
        }
    }

    #[test]
    fn an_unknown_convention_is_answered_with_the_known_ones() {
        let error = "md4".parse::<Keys>().expect_err("unknown").to_string();
        assert!(NAMED.iter().all(|(name, _)| error.contains(name)), "{error}");
    }

    #[test]
    fn keys_survive_the_columns_of_pg_locks() {
        for key in [Number(-1), Number(i64::MIN), Number(7 << 40 | 9), Pair(-5, 7), Pair(0, 0)] {
            let (class, object, kind) = key.columns();
            assert_eq!(AdvisoryKey::from_columns(class, object, kind), key);
        }
    }

    #[test]
    fn statements_name_the_key_and_the_mode() {
        assert_eq!(Number(-3).lock_statement(false), "SELECT pg_advisory_xact_lock(-3)");
        assert_eq!(
            Pair(1, -2).try_lock_statement(true),
            "SELECT pg_try_advisory_xact_lock_shared(1, -2)"
        );
    }
}
