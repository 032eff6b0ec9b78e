//! `AdmissionReview` (admission.k8s.io/v1), as far as pods that are created need it.

use k8s_openapi::ByteString;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

/// What the API server is about to do.
#[derive(Debug)]
pub struct Request<'a> {
    /// Of the request; goes into the answer.
    pub uid: String,
    pub namespace: String,
    /// A pod that is being created, as JSON; `None`: it is something else.
    pub pod: Option<&'a str>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Review<'a> {
    api_version: String,
    kind: String,
    #[serde(borrow)]
    request: Option<ReviewRequest<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ReviewRequest<'a> {
    uid: String,
    #[serde(default)]
    resource: Resource,
    #[serde(default)]
    sub_resource: String,
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    operation: String,
    #[serde(borrow, default)]
    object: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Resource {
    group: String,
    resource: String,
}

/// Reads the body of a request.
///
/// # Errors
/// What is wrong with it.
pub fn request(body: &[u8]) -> Result<Request<'_>, String> {
    let review: Review = serde_json::from_slice(body)
        .map_err(|error| format!("the body is not an AdmissionReview: {error}"))?;
    if review.api_version != "admission.k8s.io/v1" || review.kind != "AdmissionReview" {
        return Err(format!(
            "the body is a {} {}, not an AdmissionReview of admission.k8s.io/v1",
            review.api_version, review.kind
        ));
    }
    let request = review.request.ok_or("the AdmissionReview has no request")?;
    let is_pod = request.resource.group.is_empty()
        && request.resource.resource == "pods"
        && request.sub_resource.is_empty()
        && request.operation == "CREATE";
    let pod = request.object.filter(|_| is_pod).map(RawValue::get);
    Ok(Request { uid: request.uid, namespace: request.namespace, pod })
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Answer<'a> {
    api_version: &'static str,
    kind: &'static str,
    response: Response<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Response<'a> {
    uid: &'a str,
    allowed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch_type: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch: Option<ByteString>,
}

/// The answer to the request with this uid: it is always allowed, with these operations if there are any.
///
/// # Errors
/// It cannot be written.
pub fn answer(uid: &str, operations: Option<&[Value]>) -> serde_json::Result<Vec<u8>> {
    let patch = operations.map(serde_json::to_vec).transpose()?.map(ByteString);
    let patch_type = patch.is_some().then_some("JSONPatch");
    let response = Response { uid, allowed: true, patch_type, patch };
    serde_json::to_vec(&Answer { api_version: "admission.k8s.io/v1", kind: "AdmissionReview", response })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn review(request: Value) -> String {
        json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request})
            .to_string()
    }

    #[test]
    fn only_pods_that_are_created_are_of_interest() {
        let of = |resource: &str, sub_resource: &str, operation: &str| {
            let body = review(json!({
                "uid": "r", "namespace": "shop", "operation": operation, "subResource": sub_resource,
                "resource": {"group": "", "version": "v1", "resource": resource}, "object": {"spec": {}},
            }));
            request(body.as_bytes()).expect("understood").pod.map(str::to_owned)
        };
        assert_eq!(of("pods", "", "CREATE").as_deref(), Some(r#"{"spec":{}}"#));
        for (resource, sub_resource, operation) in
            [("pods", "", "UPDATE"), ("pods", "binding", "CREATE"), ("nodes", "", "CREATE")]
        {
            assert_eq!(of(resource, sub_resource, operation), None);
        }
        for bad in ["{", "[]", r#"{"apiVersion":"admission.k8s.io/v1beta1","kind":"AdmissionReview"}"#] {
            assert!(request(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn whatever_is_answered_the_pod_is_allowed() {
        let text =
            |operations: Option<&[Value]>| String::from_utf8(answer("r", operations).unwrap()).unwrap();
        assert!(text(None).ends_with(r#""response":{"uid":"r","allowed":true}}"#));
        // Of `[7]`.
        let with = text(Some(&[json!(7)]));
        assert!(with.ends_with(r#""allowed":true,"patchType":"JSONPatch","patch":"Wzdd"}}"#), "{with}");
    }
}
