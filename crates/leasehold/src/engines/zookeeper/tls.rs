//! TLS over a connection that is open.

use std::fmt;
use std::sync::Arc;

use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::engine::kit::address::TlsFiles;
use crate::engine::kit::tls::{OptionNames, client_config};
use crate::error::Result;

const NAMES: OptionNames = OptionNames { ca: "ca", cert: "cert", key: "key" };

/// Makes TLS connections that check the server's certificate and its name.
#[derive(Clone)]
pub(super) struct Tls(TlsConnector);

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls")
    }
}

impl Tls {
    pub(super) fn new(files: &TlsFiles) -> Result<Tls> {
        Ok(Tls(TlsConnector::from(Arc::new(client_config(files, &NAMES)?))))
    }

    pub(super) async fn connect<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        host: &str,
        stream: S,
    ) -> std::io::Result<TlsStream<S>> {
        let name = ServerName::try_from(host.to_owned()).map_err(std::io::Error::other)?;
        self.0.connect(name, stream).await
    }
}
