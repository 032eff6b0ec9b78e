//! Authentication and authorization of requests: a bearer token or a client certificate identifies the user, and the API server's
//! RBAC decides what the user may do (TokenReview, SubjectAccessReview). berth has no rules of its own.
//!
//! A token is never stored, logged or shown: the cache key is its hash.

mod cache;
mod review;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, Request as HttpRequest, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use kube::Client;
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use super::secure::{ClientCertificate, ClientGroup, mark_admitted};
use cache::{Cache, Key, Verdict};
use review::Reviewer;

/// Longer tokens are rejected without a review: service account tokens have about 1 KiB.
const TOKEN_BYTES_MAX: usize = 16 << 10;
/// Concurrent reviews; further requests wait.
const REVIEWS_MAX: usize = 16;
/// Timeout of a verdict, the wait for a slot included.
const REVIEW_TIME_MAX: Duration = Duration::from_secs(10);

/// Authenticates and authorizes requests. Clones share the cache.
#[derive(Clone)]
pub struct Access(Arc<Shared>);

struct Shared {
    reviewer: Reviewer,
    cache: Mutex<Cache>,
    slots: Semaphore,
    counters: AccessCounters,
}

/// Results of requests.
#[derive(Debug, Default)]
pub struct AccessCounters {
    pub allowed: AtomicU64,
    pub unauthenticated: AtomicU64,
    pub forbidden: AtomicU64,
    /// The review failed: the API server could not be reached or returned an error.
    pub failed: AtomicU64,
    /// Cached verdicts evicted before they expired, because the cache was full.
    pub evicted: AtomicU64,
}

/// The sender of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    pub name: String,
    pub groups: Vec<String>,
}

/// Why a request is refused. Sent as 401, 403 or 503.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("{0}")]
    Unauthenticated(&'static str),
    #[error(
        "user {user:?} may not {verb} {path}: bind a ClusterRole that allows the verb {verb:?} on the nonResourceURL {path:?} to it"
    )]
    Forbidden { user: String, verb: String, path: String },
    #[error("cannot check access with the API server: {0}")]
    Unavailable(String),
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let status = match self {
            Refusal::Unauthenticated(_) => StatusCode::UNAUTHORIZED,
            Refusal::Forbidden { .. } => StatusCode::FORBIDDEN,
            Refusal::Unavailable(_) => StatusCode::SERVICE_UNAVAILABLE,
        };
        let mut response = (status, format!("{self}\n")).into_response();
        if status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// Credentials of a request. Has no `Debug`, as it may hold a token.
enum Credential {
    Token(String),
    Certificate(ClientCertificate),
}

/// The path that access is asked about, instead of the request's, whose end is secret.
#[derive(Debug, Clone)]
pub struct AccessPath(pub Arc<str>);

/// The access that a request needs, and its credentials.
struct AccessRequest {
    verb: String,
    path: String,
    credential: Credential,
}

impl Access {
    /// `client` must not retry: a caller waits for the response.
    pub fn new(client: Client) -> Access {
        Access(Arc::new(Shared {
            reviewer: Reviewer::new(client),
            cache: Mutex::default(),
            slots: Semaphore::new(REVIEWS_MAX),
            counters: AccessCounters::default(),
        }))
    }

    pub fn counters(&self) -> &AccessCounters {
        &self.0.counters
    }

    /// Wraps `routes` with the access check. Handlers find the [`Caller`] in the request extensions.
    pub fn guard(&self, routes: Router) -> Router {
        routes.route_layer(from_fn_with_state(self.clone(), admit))
    }

    /// Wraps `routes`: admits client certificates with one of these common names. Other requests need the access checked by
    /// [`Access::guard`].
    pub fn admit_clients(&self, routes: Router, names: Arc<[String]>) -> Router {
        routes.route_layer(from_fn_with_state((self.clone(), names), admit_client))
    }

    /// Returns the sender of the request if it has access: the method is the verb, the path is the nonResourceURL.
    ///
    /// # Errors
    /// The response to send instead.
    pub fn check<B>(
        &self,
        request: &HttpRequest<B>,
    ) -> impl Future<Output = Result<Caller, Refusal>> + Send + use<B> {
        // The request itself cannot be held across an await: its body is not `Sync`.
        let asked = AccessRequest::of(request);
        let access = self.clone();
        async move {
            let verdict = match asked {
                Ok(asked) => access.verdict(asked).await,
                Err(refusal) => Err(refusal),
            };
            let counters = access.counters();
            let counter = match &verdict {
                Ok(_) => &counters.allowed,
                Err(Refusal::Unauthenticated(_)) => &counters.unauthenticated,
                Err(Refusal::Forbidden { .. }) => &counters.forbidden,
                Err(Refusal::Unavailable(_)) => &counters.failed,
            };
            counter.fetch_add(1, Relaxed);
            verdict
        }
    }

    async fn verdict(&self, asked: AccessRequest) -> Verdict {
        let key = asked.key();
        if let Some(verdict) = self.0.cache.lock().get(&key, Instant::now()) {
            return verdict;
        }
        let reviewed = tokio::time::timeout(REVIEW_TIME_MAX, self.review(asked)).await;
        let verdict = reviewed.unwrap_or_else(|_| {
            Err(Refusal::Unavailable(format!("no response within {} s", REVIEW_TIME_MAX.as_secs())))
        });
        if self.0.cache.lock().put(key, &verdict, Instant::now()) {
            self.counters().evicted.fetch_add(1, Relaxed);
        }
        verdict
    }

    async fn review(&self, asked: AccessRequest) -> Verdict {
        let Ok(_slot) = self.0.slots.acquire().await else {
            return Err(Refusal::Unavailable("berth is stopping".to_owned()));
        };
        let reviewer = &self.0.reviewer;
        let user = match asked.credential {
            Credential::Token(token) => reviewer.authenticate(token).await?,
            Credential::Certificate(certificate) => review::user_of(certificate),
        };
        reviewer.authorize(user, asked.verb, asked.path).await
    }
}

async fn admit(State(access): State<Access>, mut request: Request, next: Next) -> Response {
    match access.check(&request).await {
        Ok(user) => {
            mark_admitted(&request, ClientGroup::Clients);
            request.extensions_mut().insert(user);
            next.run(request).await
        }
        Err(refusal) => refusal.into_response(),
    }
}

async fn admit_client(
    State((access, names)): State<(Access, Arc<[String]>)>,
    request: Request,
    next: Next,
) -> Response {
    let certificate: Option<&ClientCertificate> = request.extensions().get();
    if !certificate.is_some_and(|certificate| names.contains(&certificate.common_name)) {
        return admit(State(access), request, next).await;
    }
    access.counters().allowed.fetch_add(1, Relaxed);
    mark_admitted(&request, ClientGroup::Clients);
    next.run(request).await
}

impl AccessRequest {
    fn of<B>(request: &HttpRequest<B>) -> Result<AccessRequest, Refusal> {
        let certificate = request.extensions().get::<ClientCertificate>();
        let asked_path = request.extensions().get::<AccessPath>();
        let credential = match (request.headers().get(header::AUTHORIZATION), certificate) {
            // A token wins: it belongs to this request, the certificate to the whole connection.
            (Some(value), _) => Credential::Token(token_in(value).ok_or(Refusal::Unauthenticated(
                "the Authorization header must be `Bearer TOKEN`, with a token of this cluster",
            ))?),
            (None, Some(certificate)) if !certificate.common_name.is_empty() => {
                Credential::Certificate(certificate.clone())
            }
            _ => {
                return Err(Refusal::Unauthenticated(
                    "authenticate with `Authorization: Bearer TOKEN` with a token of this cluster (kubectl create token ACCOUNT), \
                     or with a client certificate that is signed by serving.clientCaFile and has a common name",
                ));
            }
        };
        Ok(AccessRequest {
            verb: request.method().as_str().to_ascii_lowercase(),
            path: asked_path.map_or_else(|| request.uri().path().to_owned(), |path| path.0.to_string()),
            credential,
        })
    }

    fn key(&self) -> Key {
        let who: Vec<&str> = match &self.credential {
            Credential::Token(token) => vec!["token", token],
            Credential::Certificate(ClientCertificate { common_name, organizations }) => {
                let organizations = organizations.iter().map(String::as_str);
                ["certificate", common_name].into_iter().chain(organizations).collect()
            }
        };
        Key::of([self.verb.as_str(), self.path.as_str()].into_iter().chain(who))
    }
}

fn token_in(value: &HeaderValue) -> Option<String> {
    let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
    let token = token.trim();
    let is_token = scheme.eq_ignore_ascii_case("bearer") && (1..=TOKEN_BYTES_MAX).contains(&token.len());
    is_token.then(|| token.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(authorization: Option<&str>, certificate: Option<&str>) -> Result<AccessRequest, Refusal> {
        let mut request = HttpRequest::get("/metrics?x=1");
        if let Some(value) = authorization {
            request = request.header(header::AUTHORIZATION, value);
        }
        let mut request = request.body(()).unwrap();
        if let Some(name) = certificate {
            let organizations = vec!["a".to_owned()];
            request
                .extensions_mut()
                .insert(ClientCertificate { common_name: name.to_owned(), organizations });
        }
        AccessRequest::of(&request)
    }

    #[test]
    fn a_request_is_asked_about_by_its_method_and_its_path_alone() {
        let asked = asked(Some("Bearer abc"), None).ok().unwrap();
        assert_eq!((asked.verb.as_str(), asked.path.as_str()), ("get", "/metrics"));
    }

    #[test]
    fn a_secret_end_of_a_path_is_not_asked_about() {
        let mut request =
            HttpRequest::post("/guard/secret").header(header::AUTHORIZATION, "Bearer abc").body(()).unwrap();
        request.extensions_mut().insert(AccessPath("/guard".into()));
        let asked = AccessRequest::of(&request).ok().unwrap();
        assert_eq!((asked.verb.as_str(), asked.path.as_str()), ("post", "/guard"));
    }

    #[test]
    fn a_token_wins_over_a_certificate_and_a_bad_header_over_both() {
        let token = |it: Result<AccessRequest, Refusal>| match it.ok().map(|it| it.credential) {
            Some(Credential::Token(token)) => Some(token),
            _ => None,
        };
        assert_eq!(token(asked(Some("bearer  abc"), Some("me"))).as_deref(), Some("abc"));
        let long = format!("Bearer {}", "a".repeat(TOKEN_BYTES_MAX + 1));
        for bad in ["", "Bearer", "Bearer ", "Basic abc", "abc", "Bearer \u{e9}", &long] {
            assert!(matches!(asked(Some(bad), Some("me")), Err(Refusal::Unauthenticated(_))), "{bad:?}");
        }
        let certificate = asked(None, Some("me")).ok().map(|it| it.credential);
        assert!(matches!(certificate, Some(Credential::Certificate(it)) if it.common_name == "me"));
        assert!(asked(None, Some("")).is_err() && asked(None, None).is_err());
    }

    #[test]
    fn what_differs_has_another_key() {
        let key = |it: Result<AccessRequest, Refusal>| it.ok().unwrap().key();
        let token = key(asked(Some("Bearer abc"), None));
        assert_eq!(token, key(asked(Some("bearer abc"), Some("me"))));
        assert_ne!(token, key(asked(Some("Bearer abd"), None)));
        assert_ne!(token, key(asked(None, Some("abc"))));
    }

    #[test]
    fn a_refusal_says_what_to_do_with_its_status() {
        let refusals = [
            (Refusal::Unauthenticated("authenticate"), StatusCode::UNAUTHORIZED),
            (
                Refusal::Forbidden { user: "me".into(), verb: "get".into(), path: "/metrics".into() },
                StatusCode::FORBIDDEN,
            ),
            (Refusal::Unavailable("connection refused".into()), StatusCode::SERVICE_UNAVAILABLE),
        ];
        for (refusal, status) in refusals {
            let response = refusal.into_response();
            assert_eq!(response.status(), status);
            let asks = response.headers().contains_key(header::WWW_AUTHENTICATE);
            assert_eq!(asks, status == StatusCode::UNAUTHORIZED);
        }
    }
}
