//! `/ui/`: a page to watch the scheduler, its files and its stream of events. It only reads, and fetches nothing from elsewhere.

mod feed;
mod overview;
#[cfg(test)]
mod tests;

use std::convert::Infallible;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get;
use futures::StreamExt;

pub use feed::{Feed, UiCounters, VIEWERS_MAX};
pub use overview::PageSources;

/// The page may run its own scripts and read its own server, and nothing else; nobody may show it in a frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; \
                      form-action 'none'; frame-ancestors 'none'";

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const PICTURE: &str = "image/svg+xml";
const STYLE: &str = "text/css; charset=utf-8";

/// The files of the page: path, type and content.
const FILES: [(&str, &str, &str); 6] = [
    ("/ui/", HTML, include_str!("assets/index.html")),
    ("/ui/icon.svg", PICTURE, include_str!("assets/icon.svg")),
    ("/ui/style.css", STYLE, include_str!("assets/style.css")),
    ("/ui/app.js", SCRIPT, include_str!("assets/app.js")),
    ("/ui/heatmap.js", SCRIPT, include_str!("assets/heatmap.js")),
    ("/ui/tables.js", SCRIPT, include_str!("assets/tables.js")),
];

/// Every path below `/ui`.
pub fn paths() -> impl Iterator<Item = &'static str> {
    ["/ui", "/ui/stream"].into_iter().chain(FILES.iter().map(|(path, ..)| *path))
}

pub(super) fn routes(feed: Arc<Feed>) -> Router {
    let page = FILES.into_iter().fold(Router::new(), |routes, (path, kind, content)| {
        routes.route(path, get(move || async move { file(kind, content) }))
    });
    // Addresses in the page are relative to `/ui/`.
    page.route("/ui", get(|| async { Redirect::permanent("ui/") }))
        .route("/ui/stream", get(stream))
        .with_state(feed)
}

fn file(kind: &'static str, content: &'static str) -> impl IntoResponse {
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, content)
}

async fn stream(State(feed): State<Arc<Feed>>) -> Result<Response, (StatusCode, String)> {
    let watch = tokio::task::spawn_blocking(move || feed.watch()).await;
    let watch = watch.map_err(|error| (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")))?;
    let events = watch.map_err(|why| (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")))?;
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    Ok((headers, Body::from_stream(events.map(Ok::<_, Infallible>))).into_response())
}
