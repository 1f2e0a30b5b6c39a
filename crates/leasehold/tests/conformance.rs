//! The conformance suite on every engine of this build: one test per engine and case.
//!
//! What is tested is in `leasehold_testkit::conformance`; here are only the stores to test it on.
//! A case that an engine's capabilities rule out is not listed for it.

use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold::Result;
use leasehold::claim::Ttl;
use leasehold::engine::Engine;
use leasehold::memory::Memory;
use leasehold_testkit::conformance::{CASES, Case, Failure, Harness, run, worker};
use libtest_mimic::{Arguments, Failed, Trial};

fn main() -> ExitCode {
    worker::run_if_asked();
    let arguments = Arguments::from_args();
    let all = ENGINES.iter().flat_map(|(engine, make)| trials(engine, *make)).collect();
    libtest_mimic::run(&arguments, all).exit_code()
}

/// Makes an empty store.
type Make = fn() -> std::result::Result<Arc<dyn Harness>, Failure>;

const ENGINES: &[(&str, Make)] = &[
    ("memory", || Ok(Arc::new(MemoryStore(Memory::new())))),
    #[cfg(feature = "sqlite")]
    ("sqlite", || Ok(Arc::new(sqlite::SqliteStore::new()?))),
];

fn trials(engine: &str, make: Make) -> Vec<Trial> {
    let can = runtime().block_on(async {
        let store = make().expect("an empty store");
        store.engine().await.expect("a connection to an empty store").info().can
    });
    let cases = CASES.iter().filter(|case| (case.needs)(&can));
    let named = |case: &Case| format!("{engine}::{}", case.name);
    cases.map(|case| Trial::test(named(case), move || test(case, make))).collect()
}

fn test(case: &'static Case, make: Make) -> std::result::Result<(), Failed> {
    let ran = runtime().block_on(async { run(case, make()?).await });
    ran.map_err(Failed::from)
}

fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(2).enable_all().build().expect("a runtime for one case")
}

#[derive(Debug)]
struct MemoryStore(Memory);

#[async_trait]
impl Harness for MemoryStore {
    async fn engine(&self) -> Result<Arc<dyn Engine>> {
        Ok(Arc::new(self.0.clone()))
    }

    fn url(&self) -> Option<String> {
        None
    }

    fn ttl_floor(&self) -> Duration {
        Ttl::MIN
    }

    fn worker(&self) -> Option<Command> {
        None
    }
}

#[cfg(feature = "sqlite")]
mod sqlite {
    //! A store in a file of its own, which every connection opens anew.

    use super::*;
    use leasehold::sqlite::Sqlite;
    use tempfile::TempDir;

    #[derive(Debug)]
    pub(super) struct SqliteStore(TempDir);

    impl SqliteStore {
        pub(super) fn new() -> std::result::Result<Self, Failure> {
            Ok(Self(TempDir::new()?))
        }
    }

    #[async_trait]
    impl Harness for SqliteStore {
        async fn engine(&self) -> Result<Arc<dyn Engine>> {
            Ok(Arc::new(Sqlite::open(self.0.path().join("locks.db"))?))
        }

        fn url(&self) -> Option<String> {
            Some(format!("sqlite:{}", self.0.path().join("locks.db").display()))
        }

        fn ttl_floor(&self) -> Duration {
            Ttl::MIN
        }

        fn worker(&self) -> Option<Command> {
            Some(Command::new(std::env::current_exe().expect("this program is a file")))
        }
    }
}
