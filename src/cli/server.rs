//! Access to a running `berth run`, for commands that ask it: at an address, or through the API server.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use clap::Args;
use reqwest::{Certificate, Client, RequestBuilder, Response, Url};

use super::cluster::ClusterOptions;
use super::failure::Failure;
use super::tunnel::{self, Tunnel};

const CONNECT: Duration = Duration::from_secs(10);

/// How to reach a process at `--server`.
#[derive(Debug, Clone, Default, Args)]
pub struct ServerAccess {
    /// File with a bearer token of someone who may get the path, as from `kubectl create token`; only over HTTPS.
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// File with certificates that the process must be certified by.
    #[arg(long, value_name = "FILE", requires = "server", conflicts_with = "insecure_skip_tls_verify")]
    pub certificate_authority: Option<PathBuf>,
    /// Do not check the certificate of the process: for a connection that `kubectl port-forward` made.
    #[arg(long, requires = "server")]
    pub insecure_skip_tls_verify: bool,
}

/// A process that can be asked.
pub struct ServerClient {
    /// What it is called in messages.
    pub name: String,
    server: Url,
    client: Client,
    token: Option<String>,
    /// The way to it, which has tokens.
    tunnel: Option<Tunnel>,
}

impl ServerAccess {
    /// Prepares requests to the process at `server`; `None`: the leading one in the cluster. `timeout`: that of a whole answer; `None`: it
    /// may go on for ever.
    pub async fn reach(
        &self,
        server: Option<&Url>,
        cluster: &ClusterOptions,
        timeout: Option<Duration>,
    ) -> Result<ServerClient, Failure> {
        if let Some(server) = server {
            return self.client(server, timeout);
        }
        let tunnel = tunnel::open(cluster).await?;
        // The API server makes sure where the tunnel ends.
        let access = ServerAccess { insecure_skip_tls_verify: true, ..self.clone() };
        let client = access.client(&tunnel.server, timeout)?;
        let name = format!("berth in namespace {}", cluster.berth_namespace);
        Ok(ServerClient { name, tunnel: Some(tunnel), ..client })
    }

    /// Prepares requests to `server`.
    pub fn client(&self, server: &Url, timeout: Option<Duration>) -> Result<ServerClient, Failure> {
        let token = self.token(server)?;
        // A proxy would not reach a port on this machine.
        let mut client = Client::builder().no_proxy().connect_timeout(CONNECT);
        if let Some(timeout) = timeout {
            client = client.timeout(timeout);
        }
        if let Some(file) = &self.certificate_authority {
            let bytes = std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
            let certificates = Certificate::from_pem_bundle(&bytes)
                .with_context(|| format!("{} has no certificates", file.display()))?;
            client = client.tls_certs_only(certificates);
        }
        if self.insecure_skip_tls_verify {
            client = client.tls_danger_accept_invalid_certs(true);
        }
        let client = client.build().context("cannot create an HTTP client")?;
        Ok(ServerClient { name: server.to_string(), server: server.clone(), client, token, tunnel: None })
    }

    /// Returns the token to send to `server`.
    fn token(&self, server: &Url) -> Result<Option<String>, Failure> {
        let Some(file) = &self.token_file else { return Ok(None) };
        if server.scheme() != "https" {
            return Err(Failure::Input(anyhow!("a token is only sent over HTTPS, and --server is {server}")));
        }
        let token =
            std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        Ok(Some(token.trim().to_owned()))
    }
}

impl ServerClient {
    /// Gets this path.
    pub async fn get(&self, path: &str, query: &[(&str, &str)]) -> Result<Response> {
        self.send(self.client.get(self.url(path, query)?)).await
    }

    /// Posts a body to this path.
    pub async fn post(&self, path: &str, query: &[(&str, &str)], body: String) -> Result<Response> {
        self.send(self.client.post(self.url(path, query)?).body(body)).await
    }

    /// Reads the rest of an answer.
    pub async fn text(&self, answer: Response) -> Result<String> {
        let text = answer.text().await.with_context(|| format!("the answer of {} broke off", self.name))?;
        Ok(text.trim().to_owned())
    }

    fn url(&self, path: &str, query: &[(&str, &str)]) -> Result<Url> {
        let url = self.server.join(path);
        let mut url = url.with_context(|| format!("{} is no address of a server", self.server))?;
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        Ok(url)
    }

    async fn send(&self, mut request: RequestBuilder) -> Result<Response> {
        request = match (&self.token, &self.tunnel) {
            (Some(token), _) => request.bearer_auth(token),
            (None, Some(tunnel)) => request.bearer_auth(tunnel.token().await?),
            (None, None) => request,
        };
        let problem = || self.tunnel.as_ref().and_then(Tunnel::problem);
        request.send().await.map_err(|error| match problem() {
            Some(problem) => anyhow!("cannot ask {}: {problem}", self.name),
            None => anyhow::Error::from(error).context(format!("cannot ask {}", self.name)),
        })
    }
}
