//! TLS to a server that must prove its identity. No setting turns off that check.

use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use crate::engine::kit::address::{TlsFiles, bad};
use crate::error::Result;

/// The names of the store's options for TLS files, for errors.
pub(crate) struct OptionNames {
    pub(crate) ca: &'static str,
    pub(crate) cert: &'static str,
    pub(crate) key: &'static str,
}

/// Settings that check the server's certificate and its name. Trusts the given authorities, or
/// those of the system.
pub(crate) fn client_config(files: &TlsFiles, names: &OptionNames) -> Result<ClientConfig> {
    // Named here: with several providers in one program, none is the default.
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| bad(names.ca, &format!("cannot be used: {error}")))?
        .with_root_certificates(roots(files, names.ca)?);
    let Some((chain, key)) = &files.identity else { return Ok(config.with_no_client_auth()) };
    let chain = certificates(names.cert, chain)?;
    let key = PrivateKeyDer::from_pem_slice(key)
        .map_err(|error| bad(names.key, &format!("has no key in PEM: {error}")))?;
    let config = config.with_client_auth_cert(chain, key);
    config.map_err(|error| bad(names.cert, &format!("cannot be used: {error}")))
}

fn roots(files: &TlsFiles, option: &str) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    match &files.ca {
        Some(pem) => {
            for certificate in certificates(option, pem)? {
                let added = roots.add(certificate);
                added.map_err(|error| bad(option, &format!("cannot be used: {error}")))?;
            }
        }
        None => {
            // Skips certificates that cannot be read. Without any, it trusts no server.
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
