//! The folder of the pipes, and what goes through them.

use std::fs::{File, Permissions, set_permissions};
use std::io::Read;

use rustix::fs::{CWD, Mode as Rights, mkfifoat};

use super::*;

impl Lab {
    fn bells(&self) -> PathBuf {
        self.folder.path().join("locks.db.bells")
    }

    /// A claim that holds, and one that waits for it on a client of its own.
    async fn contended(&self) -> (Sqlite, Claim, Result<(Sqlite, Claim)>) {
        let (holder, waiter) = (self.open(), self.open());
        let (first, second) = (claim("n"), claim("n"));
        fence(&holder, &first).await;
        let waiting = waiter.claim(&second).await.map(|standing| {
            assert!(matches!(standing, Standing::Queued { .. }), "{standing:?}");
            (waiter, second)
        });
        (holder, first, waiting)
    }
}

fn make_pipe(path: &Path) {
    mkfifoat(CWD, path, Rights::RUSR | Rights::WUSR).expect("a pipe");
}

fn pipes(folder: &Path) -> Vec<PathBuf> {
    folder.read_dir().expect("a folder").flatten().map(|entry| entry.path()).collect()
}

#[tokio::test]
async fn link_in_place_of_the_bells_folder_is_refused_and_its_target_stays_as_it_is() {
    let lab = Lab::new();
    let victim = lab.folder.path().join("victim");
    std::fs::create_dir(&victim).expect("a folder");
    set_permissions(&victim, Permissions::from_mode(0o755)).expect("it is ours");
    let pipe = victim.join("0123456789abcdef");
    make_pipe(&pipe);
    std::os::unix::fs::symlink(&victim, lab.bells()).expect("a link");
    let (holder, first, waiting) = lab.contended().await;
    let error = waiting.expect_err("it must be refused");
    assert!(matches!(error, Error::Config(Config::Refused { .. })), "{error}");
    assert!(error.to_string().contains("is a link"), "{error}");
    // A release writes to no pipe behind the link either, and judges nobody by one.
    let left = claim("n");
    let mailbox = 0x0123_4567_89ab_cdef;
    let line = |verb: &mut Verb<'_>| verb.claim(&left, mailbox, |_, _| Ok(()));
    holder.inner.write(line).await.expect("in line");
    holder.release(&[first.key]).await.expect("released");
    let held = holder.claim(&left).await.expect("an answer");
    assert!(matches!(held, Standing::Held { .. }), "nobody took it out: {held:?}");
    assert_eq!(mode(&victim), 0o755);
    assert!(pipe.exists());
}

#[tokio::test]
async fn client_removes_no_file_that_is_not_a_pipe_with_a_name_of_ours() {
    let lab = Lab::new();
    std::fs::create_dir(lab.bells()).expect("a folder");
    let (ours, pipe) = (lab.bells().join("0123456789abcdef"), lab.bells().join("pipe"));
    let file = lab.bells().join("fedcba9876543210");
    make_pipe(&ours);
    make_pipe(&pipe);
    std::fs::write(&file, "").expect("a file");
    let (_holder, _first, waiting) = lab.contended().await;
    waiting.expect("in line");
    assert!(!ours.exists(), "nobody reads it");
    assert!(pipe.exists() && file.exists());
}

#[tokio::test]
async fn folder_and_pipe_get_the_rights_of_the_database_where_the_client_made_them() {
    let lab = Lab::new();
    drop(lab.open());
    set_permissions(lab.path(), Permissions::from_mode(0o660)).expect("it is ours");
    let (_holder, _first, waiting) = lab.contended().await;
    let _waiting = waiting.expect("in line");
    assert_eq!(mode(&lab.bells()), 0o770);
    let pipes = pipes(&lab.bells());
    assert_eq!(pipes.iter().map(|pipe| mode(pipe)).collect::<Vec<_>>(), [0o660]);

    let lab = Lab::new();
    std::fs::create_dir(lab.bells()).expect("a folder");
    set_permissions(lab.bells(), Permissions::from_mode(0o750)).expect("it is ours");
    let (_holder, _first, waiting) = lab.contended().await;
    let _waiting = waiting.expect("in line");
    assert_eq!(mode(&lab.bells()), 0o750, "somebody else made it");
}

#[tokio::test]
async fn bell_in_a_strange_pipe_tells_the_place_and_not_the_token() {
    let lab = Lab::new();
    let (holder, first, waiting) = lab.contended().await;
    let (waiter, second) = waiting.expect("in line");
    let standing = waiter.claim(&second).await.expect("an answer");
    let Standing::Queued { place, .. } = standing else { panic!("{standing:?}") };
    let pipe = pipes(&lab.bells()).pop().expect("the mailbox of the waiter");
    std::fs::remove_file(&pipe).expect("it is ours");
    make_pipe(&pipe);
    let mut strange = File::options().read(true).write(true).open(&pipe).expect("it opens");
    holder.release(&[first.key]).await.expect("released");
    let mut heard = [0; 24];
    strange.read_exact(&mut heard).expect("a bell");
    let token = second.key.token;
    assert!(!heard.windows(16).any(|part| part == token.as_bytes()), "the token is a secret");
    let mut fence = [0; 8];
    fence.copy_from_slice(&heard[16..]);
    let told = Wake::holds_at(u64::from_be_bytes(fence));
    assert!(matches!(told, Wake::Holds { place: told, .. } if told == place), "{told:?}");
}
