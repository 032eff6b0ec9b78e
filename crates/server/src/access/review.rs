//! TokenReview and SubjectAccessReview requests.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use k8s_openapi::api::authorization::v1::{
    NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use parking_lot::Mutex;

use super::{Caller, Refusal};
use crate::secure::ClientCertificate;
use berth_model::with_causes;

/// Minimum interval between warnings that a review failed.
const WARN_EVERY: Duration = Duration::from_secs(30);

/// An authenticated user with all attributes that a SubjectAccessReview takes.
pub(super) struct AuthenticatedUser {
    user: Caller,
    uid: Option<String>,
    extra: Option<BTreeMap<String, Vec<String>>>,
}

/// Maps a client certificate to a user as the API server does: the common name is the user, the organizations are its groups.
pub(super) fn user_of(certificate: ClientCertificate) -> AuthenticatedUser {
    let mut groups = certificate.organizations;
    groups.push("system:authenticated".to_owned());
    AuthenticatedUser { user: Caller { name: certificate.common_name, groups }, uid: None, extra: None }
}

pub(super) struct Reviewer {
    client: Client,
    last_warning: Mutex<Option<Instant>>,
}

impl Reviewer {
    pub fn new(client: Client) -> Reviewer {
        Reviewer { client, last_warning: Mutex::default() }
    }

    pub async fn authenticate(&self, token: String) -> Result<AuthenticatedUser, Refusal> {
        let review = TokenReview {
            metadata: ObjectMeta::default(),
            spec: TokenReviewSpec { token, audiences: None },
            status: None,
        };
        let api: Api<TokenReview> = Api::all(self.client.clone());
        let answer = api.create(&PostParams::default(), &review).await;
        let status = answer.map_err(|error| self.failed("tokenreviews", &error))?.status.unwrap_or_default();
        let user = status.user.unwrap_or_default();
        match (status.authenticated, user.username) {
            (Some(true), Some(name)) if !name.is_empty() => Ok(AuthenticatedUser {
                user: Caller { name, groups: user.groups.unwrap_or_default() },
                uid: user.uid,
                extra: user.extra,
            }),
            _ => Err(Refusal::Unauthenticated(
                "the API server does not accept this token: it may have expired, or belong to another cluster or audience",
            )),
        }
    }

    pub async fn authorize(
        &self,
        known: AuthenticatedUser,
        verb: String,
        path: String,
    ) -> Result<Caller, Refusal> {
        let AuthenticatedUser { user, uid, extra } = known;
        let wanted = NonResourceAttributes { verb: Some(verb.clone()), path: Some(path.clone()) };
        let review = SubjectAccessReview {
            metadata: ObjectMeta::default(),
            spec: SubjectAccessReviewSpec {
                user: Some(user.name.clone()),
                groups: Some(user.groups.clone()),
                uid,
                extra,
                non_resource_attributes: Some(wanted),
                resource_attributes: None,
            },
            status: None,
        };
        let api: Api<SubjectAccessReview> = Api::all(self.client.clone());
        let answer = api.create(&PostParams::default(), &review).await;
        let status = answer.map_err(|error| self.failed("subjectaccessreviews", &error))?.status;
        match status.is_some_and(|status| status.allowed && status.denied != Some(true)) {
            true => Ok(user),
            false => Err(Refusal::Forbidden { user: user.name, verb, path }),
        }
    }

    fn failed(&self, resource: &str, error: &kube::Error) -> Refusal {
        let error = match error {
            kube::Error::Api(status) if status.is_forbidden() => {
                format!("berth's service account may not create {resource}: check its ClusterRole")
            }
            error => with_causes(error),
        };
        let (now, mut last) = (Instant::now(), self.last_warning.lock());
        if last.is_none_or(|last| now - last >= WARN_EVERY) {
            *last = Some(now);
            tracing::warn!(error, "access reviews fail: requests are refused");
        }
        Refusal::Unavailable(error)
    }
}
