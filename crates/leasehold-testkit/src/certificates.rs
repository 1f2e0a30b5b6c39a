//! Certificates for servers and clients, from an authority that lives as long as the test.
//!
//! The `servers` module decides which server uses them and how; the tests decide which client does.

use std::fmt::Display;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose, date_time_ymd,
};

use crate::error::{Doing, Error, Result};
use crate::folder::Folder;
use crate::programs::User;

/// The name in the client's certificate.
pub const CLIENT_NAME: &str = "leasehold";

/// The names by which clients reach servers of the harness.
const NAMES: [&str; 2] = ["127.0.0.1", "localhost"];

const CA: &str = "ca.pem";
const OTHER_CA: &str = "other-ca.pem";
const SERVER_CERTIFICATE: &str = "server.pem";
const SERVER_KEY: &str = "server.key";
const CLIENT_CERTIFICATE: &str = "client.pem";
const CLIENT_KEY: &str = "client.key";

/// A private authority, and a certificate each for a server and for a client, as PEM files.
///
/// Keys are PKCS#8. A copy is cheap and has the same files, which are removed with the last copy;
/// a server has files of its own.
#[derive(Clone, Debug)]
pub struct Certificates {
    folder: Arc<Folder>,
}

/// How a server uses certificates.
#[derive(Clone, Debug)]
pub(crate) struct Tls {
    pub(crate) certificates: Certificates,
    /// Whether the server turns a client without a certificate away.
    pub(crate) mutual: bool,
}

/// A server's own copy.
#[derive(Debug)]
pub(crate) struct ServerFiles {
    pub(crate) ca: PathBuf,
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

impl Certificates {
    /// Makes an authority, and a server's certificate for `127.0.0.1` and `localhost`.
    pub fn new() -> Result<Certificates> {
        Certificates::for_names(&NAMES)
    }

    /// Makes an authority, and a server's certificate for other names or addresses than the
    /// servers have, to see that a client checks them.
    pub fn for_names(names: &[&str]) -> Result<Certificates> {
        Certificates::made(names, None, false)
    }

    /// [`new`](Certificates::new), with a client's certificate that runs out after `life`. The last
    /// second of `life` is a whole one.
    pub fn with_client_valid_for(life: Duration) -> Result<Certificates> {
        Certificates::made(&NAMES, Some(life), false)
    }

    /// [`new`](Certificates::new), with a server's certificate that ran out years ago.
    pub fn with_server_that_ran_out() -> Result<Certificates> {
        Certificates::made(&NAMES, None, true)
    }

    fn made(
        names: &[&str],
        client_life: Option<Duration>,
        server_ran_out: bool,
    ) -> Result<Certificates> {
        let folder = Folder::new()?;
        let save = |name: &str, text: &str| write(&folder.path().join(name), text);
        let authority = authority("leasehold tests")?;
        save(CA, &authority.pem())?;
        save(OTHER_CA, &self::authority("somebody else")?.pem())?;
        // Members of a group are clients of each other too.
        let both = [ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let mut server = named("server", names)?;
        if server_ran_out {
            server.not_after = date_time_ymd(2020, 1, 1);
        }
        let (certificate, key) = signed(&authority, server, &both)?;
        save(SERVER_CERTIFICATE, &certificate)?;
        save(SERVER_KEY, &key)?;
        let mut client = named(CLIENT_NAME, &[])?;
        if let Some(life) = client_life {
            let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).map_err(failed)?;
            client.not_after = date_time_ymd(1970, 1, 1) + since_1970 + life;
        }
        let (certificate, key) = signed(&authority, client, &both[1..])?;
        save(CLIENT_CERTIFICATE, &certificate)?;
        save(CLIENT_KEY, &key)?;
        Ok(Certificates { folder: Arc::new(folder) })
    }

    /// The authority that signed the server's and the client's certificate.
    pub fn ca(&self) -> PathBuf {
        self.file(CA)
    }

    /// An authority that signed nothing: a client that trusts only this one must refuse.
    pub fn other_ca(&self) -> PathBuf {
        self.file(OTHER_CA)
    }

    /// The client's certificate, for [`CLIENT_NAME`].
    pub fn client_certificate(&self) -> PathBuf {
        self.file(CLIENT_CERTIFICATE)
    }

    /// The key of the client's certificate.
    pub fn client_key(&self) -> PathBuf {
        self.file(CLIENT_KEY)
    }

    /// The server's certificate, for a server that a test makes itself.
    pub fn server_certificate(&self) -> PathBuf {
        self.file(SERVER_CERTIFICATE)
    }

    /// The key of the server's certificate.
    pub fn server_key(&self) -> PathBuf {
        self.file(SERVER_KEY)
    }

    /// Copies what a server needs into its folder; PostgreSQL insists that its own user owns the
    /// key.
    pub(crate) fn copy_to(&self, folder: &Path, user: Option<User>) -> Result<ServerFiles> {
        let copy = |name: &str| -> Result<PathBuf> {
            let to = folder.join(name);
            let doing = || format!("copy a certificate to {}", to.display());
            let text = fs::read_to_string(self.file(name)).doing(doing)?;
            write(&to, &text)?;
            if let Some(user) = user {
                chown(&to, Some(user.uid), Some(user.gid)).doing(doing)?;
            }
            Ok(to)
        };
        let certificate = copy(SERVER_CERTIFICATE)?;
        Ok(ServerFiles { ca: copy(CA)?, certificate, key: copy(SERVER_KEY)? })
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

impl ServerFiles {
    /// Puts certificate and key into one file, as Java reads them.
    pub(crate) fn in_one_file(&self) -> Result<PathBuf> {
        let doing = || format!("read the copy {}", self.key.display());
        let key = fs::read_to_string(&self.key).doing(doing)?;
        let certificate = fs::read_to_string(&self.certificate).doing(doing)?;
        let both = self.key.with_extension("both.pem");
        write(&both, &(key + &certificate))?;
        Ok(both)
    }
}

fn authority(name: &str) -> Result<CertifiedIssuer<'static, KeyPair>> {
    let mut parameters = named(name, &[])?;
    parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    CertifiedIssuer::self_signed(parameters, new_key()?).map_err(failed)
}

/// A certificate and its key, both as PEM.
fn signed(
    authority: &CertifiedIssuer<'static, KeyPair>,
    mut parameters: CertificateParams,
    purposes: &[ExtendedKeyUsagePurpose],
) -> Result<(String, String)> {
    parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    parameters.extended_key_usages = purposes.to_vec();
    parameters.use_authority_key_identifier_extension = true;
    let key = new_key()?;
    let certificate = parameters.signed_by(&key, authority).map_err(failed)?;
    Ok((certificate.pem(), key.serialize_pem()))
}

fn named(name: &str, alternatives: &[&str]) -> Result<CertificateParams> {
    let alternatives: Vec<String> = alternatives.iter().map(|name| (*name).to_owned()).collect();
    let mut parameters = CertificateParams::new(alternatives).map_err(failed)?;
    parameters.distinguished_name.push(DnType::CommonName, name);
    Ok(parameters)
}

fn new_key() -> Result<KeyPair> {
    KeyPair::generate().map_err(failed)
}

fn failed(error: impl Display) -> Error {
    let source = io::Error::other(error.to_string());
    Error::Io { doing: "make a certificate".to_owned(), source }
}

/// Only their owner can read the keys; servers refuse others.
fn write(path: &Path, text: &str) -> Result<()> {
    let doing = || format!("write {}", path.display());
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)
        .doing(doing)?;
    file.write_all(text.as_bytes()).doing(doing)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::process::Command;

    /// Asks OpenSSL, which made none of these files.
    fn verifies(authority: &Path, certificate: &Path, more: &[&str]) -> bool {
        let mut command = Command::new("openssl");
        command.arg("verify").args(more).arg("-CAfile").args([authority, certificate]);
        command.output().unwrap().status.success()
    }

    #[test]
    fn certificates_are_signed_by_the_one_authority_for_their_purpose() {
        let made = Certificates::new().unwrap();
        let (server, client) = (made.server_certificate(), made.client_certificate());
        assert!(verifies(&made.ca(), &server, &["-verify_ip", "127.0.0.1"]));
        assert!(verifies(&made.ca(), &server, &["-verify_hostname", "localhost"]));
        assert!(verifies(&made.ca(), &server, &["-purpose", "sslserver"]));
        assert!(verifies(&made.ca(), &client, &["-purpose", "sslclient"]));
        assert!(!verifies(&made.ca(), &client, &["-purpose", "sslserver"]));
        for certificate in [server, client] {
            assert!(!verifies(&made.other_ca(), &certificate, &[]));
        }
    }

    #[test]
    fn certificate_for_another_name_is_not_for_this_machine() {
        let made = Certificates::for_names(&["elsewhere.invalid"]).unwrap();
        let server = made.server_certificate();
        assert!(verifies(&made.ca(), &server, &["-verify_hostname", "elsewhere.invalid"]));
        assert!(!verifies(&made.ca(), &server, &["-verify_ip", "127.0.0.1"]));
    }

    #[test]
    fn server_certificate_that_ran_out_is_good_but_for_that() {
        let made = Certificates::with_server_that_ran_out().unwrap();
        let server = made.server_certificate();
        assert!(!verifies(&made.ca(), &server, &[]));
        assert!(verifies(&made.ca(), &server, &["-no_check_time", "-verify_ip", "127.0.0.1"]));
    }

    #[test]
    fn files_are_for_their_owner_and_go_with_the_last_copy() {
        let made = Certificates::new().unwrap();
        let (copy, key) = (made.clone(), made.server_key());
        assert_eq!(fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600);
        drop(made);
        assert!(key.exists());
        drop(copy);
        assert!(!key.exists());
    }
}
