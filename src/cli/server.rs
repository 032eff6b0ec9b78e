//! Access to a running `berth run`, for commands that ask it.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use clap::Args;
use reqwest::{Certificate, Client, ClientBuilder, RequestBuilder, StatusCode, Url};

use super::failure::Failure;

const CONNECT: Duration = Duration::from_secs(10);

/// How to reach a process at `--server`.
#[derive(Debug, Clone, Default, Args)]
pub struct ServerAccess {
    /// File with a bearer token of someone who may get the path, as from `kubectl create token`; only over HTTPS.
    #[arg(long, value_name = "FILE", requires = "server")]
    pub token_file: Option<PathBuf>,
    /// File with certificates that the process must be certified by.
    #[arg(long, value_name = "FILE", requires = "server", conflicts_with = "insecure_skip_tls_verify")]
    pub certificate_authority: Option<PathBuf>,
    /// Do not check the certificate of the process: for a connection that `kubectl port-forward` made.
    #[arg(long, requires = "server")]
    pub insecure_skip_tls_verify: bool,
}

impl ServerAccess {
    /// Returns a client without a time limit for answers.
    pub fn client(&self) -> Result<ClientBuilder> {
        // A proxy would not reach a port on this machine.
        let mut client = Client::builder().no_proxy().connect_timeout(CONNECT);
        if let Some(file) = &self.certificate_authority {
            let bytes = std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
            let certificates = Certificate::from_pem_bundle(&bytes)
                .with_context(|| format!("{} has no certificates", file.display()))?;
            client = client.tls_certs_only(certificates);
        }
        if self.insecure_skip_tls_verify {
            client = client.tls_danger_accept_invalid_certs(true);
        }
        Ok(client)
    }

    /// Sends one request to `server` and returns the answer.
    pub async fn ask(
        &self,
        server: &Url,
        request: impl FnOnce(Client) -> RequestBuilder,
        timeout: Duration,
    ) -> Result<(StatusCode, String), Failure> {
        let client = self.client()?.timeout(timeout).build().context("cannot create an HTTP client")?;
        let mut request = request(client);
        if let Some(token) = self.token(server)? {
            request = request.bearer_auth(token);
        }
        let answer = request.send().await.with_context(|| format!("cannot ask {server}"))?;
        let status = answer.status();
        let body = answer.text().await.with_context(|| format!("the answer of {server} broke off"))?;
        Ok((status, body.trim().to_owned()))
    }

    /// Returns the token to send to `server`.
    pub fn token(&self, server: &Url) -> Result<Option<String>, Failure> {
        let Some(file) = &self.token_file else { return Ok(None) };
        if server.scheme() != "https" {
            return Err(Failure::Input(anyhow!("a token is only sent over HTTPS, and --server is {server}")));
        }
        let token =
            std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        Ok(Some(token.trim().to_owned()))
    }
}
