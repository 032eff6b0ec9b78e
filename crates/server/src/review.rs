//! `AdmissionReview` (admission.k8s.io/v1): the fields that berth's webhooks read and write.

use std::time::Duration;

use k8s_openapi::ByteString;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

/// Timeout of the API server where it names none: `guard.timeoutSeconds` of the chart.
const TIMEOUT: Duration = Duration::from_secs(1);
/// A tenth of the timeout remains for the way back.
const WAY_BACK: u32 = 10;

const API_VERSION: &str = "admission.k8s.io/v1";
const KIND: &str = "AdmissionReview";

/// Returns how long an answer is of use to the API server, which names its timeout in the query of a webhook's URL: `timeout=5s`.
pub fn time_to_answer(query: &str) -> Duration {
    let named =
        query.split('&').find_map(|pair| pair.strip_prefix("timeout=")?.strip_suffix('s')?.parse().ok());
    // A webhook's timeout is at most 30 s.
    let timeout = named.map_or(TIMEOUT, |seconds: u8| Duration::from_secs(seconds.min(30).into()));
    timeout - timeout / WAY_BACK
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Review<'a> {
    api_version: String,
    kind: String,
    #[serde(borrow)]
    request: Option<ReviewRequest<'a>>,
}

/// The operation under review.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReviewRequest<'a> {
    /// Identifies the request; copied into the response.
    pub uid: String,
    #[serde(default)]
    resource: Resource,
    #[serde(default)]
    pub sub_resource: String,
    #[serde(default)]
    pub name: String,
    #[serde(default)]
    pub namespace: String,
    #[serde(default)]
    operation: String,
    /// The operation will not be persisted.
    #[serde(default)]
    pub dry_run: Option<bool>,
    /// The user that sent the request to the API server.
    #[serde(default)]
    pub user_info: UserInfo,
    #[serde(default)]
    options: Option<RequestOptions>,
    #[serde(borrow, default)]
    object: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub struct UserInfo {
    pub username: String,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RequestOptions {
    field_manager: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Resource {
    group: String,
    resource: String,
}

impl<'a> ReviewRequest<'a> {
    /// Decodes the body of a request.
    ///
    /// # Errors
    /// What is wrong with the body, for the client.
    pub fn read(body: &'a [u8]) -> Result<ReviewRequest<'a>, String> {
        let review: Review = serde_json::from_slice(body)
            .map_err(|error| format!("the body is not an AdmissionReview: {error}"))?;
        if review.api_version != API_VERSION || review.kind != KIND {
            return Err(format!(
                "the body is a {} {}, not an {KIND} of {API_VERSION}",
                review.api_version, review.kind
            ));
        }
        review.request.ok_or_else(|| "the AdmissionReview has no request".to_owned())
    }

    /// Returns the field manager that the client named; empty if it named none.
    pub fn field_manager(&self) -> &str {
        self.options.as_ref().map_or("", |options| &options.field_manager)
    }

    /// Returns the JSON of the object that is created as a pod or in a subresource of pods; `None` for all other requests.
    pub fn created_of_pods(&self) -> Option<&'a str> {
        let is_of_pods = self.resource.group.is_empty() && self.resource.resource == "pods";
        self.object.filter(|_| is_of_pods && self.operation == "CREATE").map(RawValue::get)
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Answer<'a> {
    api_version: &'static str,
    kind: &'static str,
    response: Response<'a>,
}

#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Response<'a> {
    uid: &'a str,
    allowed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<Status<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch_type: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch: Option<ByteString>,
}

#[derive(Serialize)]
struct Status<'a> {
    code: u16,
    reason: &'static str,
    message: &'a str,
}

fn written(response: Response) -> serde_json::Result<Vec<u8>> {
    serde_json::to_vec(&Answer { api_version: API_VERSION, kind: KIND, response })
}

/// Encodes a response that allows the request with this uid, with these JSON patch operations if there are any.
///
/// # Errors
/// The response cannot be encoded.
pub fn allowed(uid: &str, operations: Option<&[Value]>) -> serde_json::Result<Vec<u8>> {
    let patch = operations.map(serde_json::to_vec).transpose()?.map(ByteString);
    let patch_type = patch.is_some().then_some("JSONPatch");
    written(Response { uid, allowed: true, patch_type, patch, ..Response::default() })
}

/// Encodes a response that denies the request, with the status the API server uses for a binding that comes too late.
///
/// # Errors
/// The response cannot be encoded.
pub fn refused(uid: &str, why: &str) -> serde_json::Result<Vec<u8>> {
    let status = Some(Status { code: 409, reason: "Conflict", message: why });
    written(Response { uid, status, ..Response::default() })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_api_server_names_the_time_to_answer() {
        let millis = |query| time_to_answer(query).as_millis();
        assert_eq!(
            (millis("timeout=1s"), millis("timeout=5s"), millis("dryRun=All&timeout=30s")),
            (900, 4_500, 27_000)
        );
        assert_eq!((millis("timeout=99s"), millis("timeout=0s")), (27_000, 0));
        for unusable in [
            "",
            "timeout",
            "timeout=",
            "timeout=5",
            "timeout=s",
            "timeout=1m0s",
            "timeout=-1s",
            "timeout=999s",
        ] {
            assert_eq!(millis(unusable), 900, "{unusable}");
        }
    }

    #[test]
    fn only_what_is_created_of_pods_is_of_interest() {
        let of = |resource: &str, operation: &str| {
            let request = json!({
                "uid": "r", "namespace": "shop", "operation": operation, "subResource": "binding",
                "resource": {"group": "", "version": "v1", "resource": resource}, "object": {"spec": {}},
            });
            let review = json!({"apiVersion": API_VERSION, "kind": KIND, "request": request}).to_string();
            let request = ReviewRequest::read(review.as_bytes()).expect("understood");
            assert_eq!((request.uid.as_str(), request.sub_resource.as_str()), ("r", "binding"));
            request.created_of_pods().map(str::to_owned)
        };
        assert_eq!(of("pods", "CREATE").as_deref(), Some(r#"{"spec":{}}"#));
        assert_eq!((of("pods", "UPDATE"), of("nodes", "CREATE")), (None, None));
    }

    #[test]
    fn a_request_may_name_its_field_manager() {
        let of = |options: Value| {
            let request = json!({"uid": "r", "options": options});
            let review = json!({"apiVersion": API_VERSION, "kind": KIND, "request": request}).to_string();
            ReviewRequest::read(review.as_bytes()).expect("understood").field_manager().to_owned()
        };
        let named =
            json!({"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1", "fieldManager": "berth-1"});
        assert_eq!(of(named), "berth-1");
        assert_eq!((of(json!({"kind": "CreateOptions"})), of(Value::Null)), (String::new(), String::new()));
    }

    #[test]
    fn what_is_wrong_with_a_review_is_said() {
        let why = |body: &str| ReviewRequest::read(body.as_bytes()).err().expect("refused");
        for (body, says) in [
            ("{", "not an AdmissionReview"),
            ("[]", "not an AdmissionReview"),
            (r#"{"apiVersion":"admission.k8s.io/v1beta1","kind":"AdmissionReview"}"#, "v1beta1"),
            (r#"{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}"#, "no request"),
        ] {
            assert!(why(body).contains(says), "{body}: {}", why(body));
        }
    }

    #[test]
    fn an_answer_says_what_may_be_and_what_becomes_of_it() {
        let text = |answer: serde_json::Result<Vec<u8>>| String::from_utf8(answer.unwrap()).unwrap();
        assert_eq!(
            text(refused("r", "full")),
            r#"{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":"r","allowed":false,"status":{"code":409,"reason":"Conflict","message":"full"}}}"#
        );
        assert!(text(allowed("r", None)).ends_with(r#""response":{"uid":"r","allowed":true}}"#));
        // Base64 of `[7]`.
        let with = text(allowed("r", Some(&[json!(7)])));
        assert!(with.ends_with(r#""allowed":true,"patchType":"JSONPatch","patch":"Wzdd"}}"#), "{with}");
    }
}
