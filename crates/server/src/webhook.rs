//! Who may call the admission webhooks.
//!
//! An API server usually presents no certificate to a webhook. What it can prove is that it knows the secret end of the
//! path (`kube_io::webhook_path`). Without it, a caller needs the credentials that every other endpoint asks for, as
//! replicas have that forward reviews to the leader.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use axum::Router;
use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn_with_state, map_request};
use axum::response::{IntoResponse, Response};
use axum::routing::MethodRouter;
use parking_lot::RwLock;
use ring::digest::{SHA256, digest};

use super::access::{Access, AccessPath};
use super::secure::{ClientGroup, mark_admitted};

/// Decides who may call the webhooks. Clones share the tokens.
#[derive(Clone, Default)]
pub struct WebhookAccess {
    /// Hashes of the tokens that are accepted; `None`: everybody may call.
    tokens: Option<Arc<RwLock<Vec<Vec<u8>>>>>,
}

impl WebhookAccess {
    /// Returns access that admits nobody until it is told the tokens.
    pub fn closed() -> Self {
        WebhookAccess { tokens: Some(Arc::default()) }
    }

    /// Replaces the tokens that are accepted.
    pub fn accept<'a>(&self, accepted: impl Iterator<Item = &'a str>) {
        if let Some(tokens) = &self.tokens {
            *tokens.write() = accepted.map(hash).collect();
        }
    }

    /// Returns whether a caller without a token is admitted.
    pub fn is_open(&self) -> bool {
        self.tokens.is_none()
    }

    /// Compares hashes, so that the time of an answer says nothing about a token.
    fn admits(&self, token: &str) -> bool {
        let asked = hash(token);
        self.tokens.as_ref().is_none_or(|tokens| tokens.read().contains(&asked))
    }

    /// Routes a webhook at `path`, and below it with a token. `certified`: callers with a token need credentials, too, whose user
    /// may call `path`.
    pub fn route(&self, path: &str, webhook: MethodRouter, access: &Access, certified: bool) -> Router {
        let plain = Router::new().route(path, webhook.clone());
        let secret = Router::new().route(&format!("{path}/{{token}}"), webhook);
        let plain = match certified || !self.is_open() {
            true => access.guard(plain),
            false => plain.route_layer(map_request(admit_all)),
        };
        let secret = if certified { access.guard(secret) } else { secret };
        // Added last, it is asked first.
        let known = from_fn_with_state((self.clone(), access.clone(), AccessPath(path.into())), admit);
        plain.merge(secret.route_layer(known))
    }
}

fn hash(token: &str) -> Vec<u8> {
    digest(&SHA256, token.as_bytes()).as_ref().to_vec()
}

async fn admit_all(request: Request) -> Request {
    mark_admitted(&request, ClientGroup::Webhooks);
    request
}

/// A wrong token gets the answer of a path that does not exist. The body is not read.
async fn admit(
    State((webhooks, access, path)): State<(WebhookAccess, Access, AccessPath)>,
    Path(token): Path<String>,
    mut request: Request,
    next: Next,
) -> Response {
    if webhooks.admits(&token) {
        mark_admitted(&request, ClientGroup::Webhooks);
        request.extensions_mut().insert(path);
        return next.run(request).await;
    }
    access.counters().unauthenticated.fetch_add(1, Relaxed);
    StatusCode::NOT_FOUND.into_response()
}
