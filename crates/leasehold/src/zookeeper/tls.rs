//! TLS to a server that must prove who it is. There is no way to turn that off but doing without.

use std::fmt;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::address::{TlsFiles, bad};
use crate::error::Result;

/// Makes TLS connections that check the server's certificate and its name.
#[derive(Clone)]
pub(super) struct Tls(TlsConnector);

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls")
    }
}

impl Tls {
    /// Trusts the given authorities, or those of the system.
    pub(super) fn new(files: &TlsFiles) -> Result<Tls> {
        // Named here: a program may have several, and then none is the default.
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| bad("ca", &format!("cannot be used: {error}")))?
            .with_root_certificates(roots(files)?);
        let config = match &files.identity {
            None => config.with_no_client_auth(),
            Some((chain, key)) => {
                let refuse = |error| bad("cert", &format!("cannot be used: {error}"));
                let chain = certificates("cert", chain)?;
                let key = PrivateKeyDer::from_pem_slice(key)
                    .map_err(|error| bad("key", &format!("has no key in PEM: {error}")))?;
                config.with_client_auth_cert(chain, key).map_err(refuse)?
            }
        };
        Ok(Tls(TlsConnector::from(Arc::new(config))))
    }

    pub(super) async fn connect(
        &self,
        host: &str,
        stream: TcpStream,
    ) -> std::io::Result<TlsStream<TcpStream>> {
        let name = ServerName::try_from(host.to_owned()).map_err(std::io::Error::other)?;
        self.0.connect(name, stream).await
    }
}

fn roots(files: &TlsFiles) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    match &files.ca {
        Some(pem) => {
            for certificate in certificates("ca", pem)? {
                let added = roots.add(certificate);
                added.map_err(|error| bad("ca", &format!("cannot be used: {error}")))?;
            }
        }
        None => {
            // Some of a system's many may be odd; without any, no server will be trusted.
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    Ok(roots)
}

fn certificates(option: &str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>> {
    let found: std::result::Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match found {
        Ok(certificates) if !certificates.is_empty() => Ok(certificates),
        _ => Err(bad(option, "has no certificate in PEM")),
    }
}
