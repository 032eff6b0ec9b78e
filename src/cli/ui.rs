//! `berth ui`: the page of a running `berth run` for a browser on this machine, which cannot send a token by itself.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get;
use clap::Args;
use reqwest::Url;
use tokio::net::TcpListener;

use super::cluster::ClusterOptions;
use super::failure::Failure;
use super::reading::runtime;
use super::server::{ServerAccess, ServerClient};

const EXIT_CODES: &str = "Runs until it is interrupted. Exit codes: 1 the process cannot be asked, or the port is in use; 2 the options are invalid.";

/// Headers of an answer that the browser needs.
const FORWARDED: [HeaderName; 5] = [
    header::CONTENT_TYPE,
    header::CONTENT_SECURITY_POLICY,
    header::X_CONTENT_TYPE_OPTIONS,
    header::REFERRER_POLICY,
    header::CACHE_CONTROL,
];

/// Options of `berth ui`.
#[derive(Debug, Clone, Args)]
#[command(after_help = EXIT_CODES)]
pub struct UiOptions {
    /// Address of the process: its healthAddress on this machine, such as http://127.0.0.1:10261, or its serving.address, such as
    /// https://127.0.0.1:10260 with `kubectl port-forward`. Default: the holder of the Lease in the cluster of the kubeconfig.
    #[arg(long, value_name = "URL")]
    pub server: Option<Url>,
    #[command(flatten)]
    pub access: ServerAccess,
    #[command(flatten)]
    pub cluster: ClusterOptions,
    /// Port of the page on this machine; 0: any that is free.
    #[arg(long, value_name = "PORT", default_value_t = 10_267)]
    pub port: u16,
}

/// What requests are answered with.
struct Source {
    server: ServerClient,
    /// Values of `Host` by which the page was opened: a page of another site, whose name may resolve to this machine, has none of
    /// them.
    hosts: [String; 2],
}

/// Serves the page until it is interrupted.
pub fn ui(options: &UiOptions) -> ExitCode {
    match run(options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.exit(),
    }
}

fn run(options: &UiOptions) -> Result<(), Failure> {
    runtime()?.block_on(async {
        let server = options.access.reach(options.server.as_ref(), &options.cluster, None).await?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, options.port));
        let listener = TcpListener::bind(address).await;
        let listener =
            listener.with_context(|| format!("cannot listen on {address}: give --port another one"))?;
        let port = listener.local_addr().context("the port")?.port();
        let hosts = [format!("127.0.0.1:{port}"), format!("localhost:{port}")];
        let source = Source { server, hosts };
        // Says at once what the browser would say.
        let page = source.server.get("/ui/", &[]).await?;
        let status = page.status();
        if !status.is_success() {
            let body = page.text().await.unwrap_or_default();
            return Err(refused(&source.server.name, status, body.trim()).into());
        }
        println!("the page of {} is at http://127.0.0.1:{port}/ui/ (Ctrl-C ends)", source.server.name);
        let server = axum::serve(listener, routes(Arc::new(source)));
        tokio::select! {
            served = async { server.await } => served.context("the server of the page failed")?,
            _ = tokio::signal::ctrl_c() => {}
        }
        Ok(())
    })
}

pub(super) fn refused(server: &str, status: StatusCode, body: &str) -> anyhow::Error {
    match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => anyhow!(
            "{server} refuses: give --token-file of a user whose ClusterRole allows `get` of /ui/ and /ui/*: {body}"
        ),
        StatusCode::NOT_FOUND => anyhow!(
            "{server} has no page: give the address of healthAddress if it is one of this machine, or of serving.address: {body}"
        ),
        _ => anyhow!("{server} answers {status}: {body}"),
    }
}

fn routes(source: Arc<Source>) -> Router {
    let home = || async { Redirect::temporary("/ui/") };
    Router::new()
        .route("/", get(home))
        .route("/ui", get(home))
        .route("/ui/", get(forward))
        .route("/ui/{file}", get(forward))
        .with_state(source)
}

async fn forward(State(source): State<Arc<Source>>, request: Request) -> Response {
    let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    if !source.hosts.iter().any(|known| known == host) {
        let why = format!("open the page as http://{}/ui/\n", source.hosts[0]);
        return (StatusCode::MISDIRECTED_REQUEST, why).into_response();
    }
    let answer = match source.server.get(request.uri().path(), &[]).await {
        Ok(answer) => answer,
        Err(error) => return (StatusCode::BAD_GATEWAY, format!("{error:#}\n")).into_response(),
    };
    let mut response = Response::builder().status(answer.status());
    for name in FORWARDED {
        if let Some(value) = answer.headers().get(&name) {
            response = response.header(name, value);
        }
    }
    let body = Body::from_stream(futures::stream::unfold(answer, chunk));
    response.body(body).unwrap_or_else(|error| (StatusCode::BAD_GATEWAY, error.to_string()).into_response())
}

/// Returns the next bytes of an answer; `None`: it ends, or broke off, after which the page connects again.
async fn chunk(mut answer: reqwest::Response) -> Option<(Result<Bytes, Infallible>, reqwest::Response)> {
    let bytes = answer.chunk().await.ok()??;
    Some((Ok(bytes), answer))
}
