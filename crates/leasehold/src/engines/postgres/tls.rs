//! TLS as the driver wants it.

use std::fmt;

use tokio_postgres_rustls::MakeRustlsConnect;

use crate::engine::kit::address::TlsFiles;
use crate::engine::kit::tls::{OptionNames, client_config};
use crate::error::Result;

const NAMES: OptionNames = OptionNames { ca: "sslrootcert", cert: "sslcert", key: "sslkey" };

/// Makes TLS connections that check the server's certificate and its name.
#[derive(Clone)]
pub(super) struct Tls(pub(super) MakeRustlsConnect);

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls")
    }
}

impl Tls {
    pub(super) fn new(files: &TlsFiles) -> Result<Tls> {
        Ok(Tls(MakeRustlsConnect::new(client_config(files, &NAMES)?)))
    }
}
