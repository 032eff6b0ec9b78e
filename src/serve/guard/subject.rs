//! `AdmissionReview` (admission.k8s.io/v1), as far as the guard reads and writes it.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::cluster::{Interner, LeanPod};
use crate::model::Pod;
use crate::placement::Binding;

/// What the API server is about to do.
#[derive(Debug)]
pub struct Request {
    /// Of the request; goes into the answer.
    pub uid: String,
    /// Nothing will come of it.
    pub dry_run: bool,
    /// Who asks the API server for it.
    pub user: String,
    pub subject: Subject,
}

#[derive(Debug)]
pub enum Subject {
    /// A pod is to be bound. The uid is empty when the binding does not say it.
    Binding(Binding),
    /// A pod is created on a node.
    Placed(Box<Pod>),
    /// Nothing that takes room.
    Other,
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
    name: String,
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    operation: String,
    #[serde(default)]
    dry_run: Option<bool>,
    #[serde(default)]
    user_info: UserInfo,
    #[serde(borrow, default)]
    object: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct UserInfo {
    username: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Resource {
    group: String,
    resource: String,
}

#[derive(Deserialize)]
struct BindingObject {
    #[serde(default)]
    metadata: BindingMeta,
    #[serde(default)]
    target: Target,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct BindingMeta {
    name: Option<String>,
    uid: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Target {
    kind: Option<String>,
    name: Option<String>,
}

/// The annotation of pods that stand for a static pod of a kubelet, which runs already.
const MIRROR: &str = "kubernetes.io/config.mirror";

#[derive(Default, Deserialize)]
#[serde(default)]
struct Annotated {
    metadata: Annotations,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Annotations {
    annotations: Option<std::collections::BTreeMap<String, serde::de::IgnoredAny>>,
}

/// Reads an `AdmissionReview`.
///
/// # Errors
/// What is wrong with the body, for who sent it.
pub fn request(body: &[u8]) -> Result<Request, String> {
    let review: Review = serde_json::from_slice(body)
        .map_err(|error| format!("the body is not an AdmissionReview: {error}"))?;
    if review.api_version != "admission.k8s.io/v1" || review.kind != "AdmissionReview" {
        return Err(format!(
            "the body is a {} {}, not an AdmissionReview of admission.k8s.io/v1",
            review.api_version, review.kind
        ));
    }
    let mut request = review.request.ok_or("the AdmissionReview has no request")?;
    let dry_run = request.dry_run.unwrap_or(false);
    let (uid, user) = (std::mem::take(&mut request.uid), std::mem::take(&mut request.user_info.username));
    Ok(Request { uid, dry_run, user, subject: subject(request)? })
}

fn subject(request: ReviewRequest) -> Result<Subject, String> {
    let of_pods = request.resource.group.is_empty() && request.resource.resource == "pods";
    let Some(object) = request.object.filter(|_| of_pods && request.operation == "CREATE") else {
        return Ok(Subject::Other);
    };
    match request.sub_resource.as_str() {
        "binding" => {
            let binding: BindingObject = serde_json::from_str(object.get())
                .map_err(|error| format!("request.object is not a Binding: {error}"))?;
            let target = binding.target;
            // The API server refuses other kinds, and bindings to nowhere.
            let Some(node) = target.name.filter(|_| target.kind.as_deref().is_none_or(|kind| kind == "Node"))
            else {
                return Ok(Subject::Other);
            };
            let name = if request.name.is_empty() {
                binding.metadata.name.unwrap_or_default()
            } else {
                request.name
            };
            Ok(Subject::Binding(Binding {
                uid: binding.metadata.uid.unwrap_or_default().into(),
                namespace: request.namespace.into(),
                name: name.into(),
                node: node.into(),
            }))
        }
        "" => {
            let annotated: Annotated = serde_json::from_str(object.get())
                .map_err(|error| format!("request.object is not a Pod: {error}"))?;
            if annotated.metadata.annotations.is_some_and(|all| all.contains_key(MIRROR)) {
                return Ok(Subject::Other);
            }
            let pod: LeanPod = serde_json::from_str(object.get())
                .map_err(|error| format!("request.object is not a Pod: {error}"))?;
            let pod = pod.into_pod(&mut Interner::default());
            Ok(match pod.node_name {
                Some(_) => Subject::Placed(Box::new(pod)),
                None => Subject::Other,
            })
        }
        _ => Ok(Subject::Other),
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Answer<'a> {
    api_version: &'static str,
    kind: &'static str,
    response: Response<'a>,
}

#[derive(Serialize)]
struct Response<'a> {
    uid: &'a str,
    allowed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<Status<'a>>,
}

#[derive(Serialize)]
struct Status<'a> {
    code: u16,
    reason: &'static str,
    message: &'a str,
}

/// The answer to the request with this uid; `refused` says why it is refused.
pub fn answer(uid: &str, refused: Option<&str>) -> serde_json::Result<Vec<u8>> {
    // As the API server answers a binding that comes too late.
    let status = refused.map(|message| Status { code: 409, reason: "Conflict", message });
    let response = Response { uid, allowed: refused.is_none(), status };
    serde_json::to_vec(&Answer { api_version: "admission.k8s.io/v1", kind: "AdmissionReview", response })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn review(request: serde_json::Value) -> Result<Request, String> {
        let body =
            json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request});
        super::request(body.to_string().as_bytes())
    }

    #[test]
    fn a_binding_is_read_with_its_pod_and_node() {
        let read = review(json!({
            "uid": "r", "operation": "CREATE", "namespace": "ns", "name": "p", "dryRun": true, "userInfo": {"username": "me"},
            "resource": {"group": "", "version": "v1", "resource": "pods"}, "subResource": "binding",
            "object": {"metadata": {"name": "p", "uid": "u"}, "target": {"kind": "Node", "name": "n"}},
        }));
        let read = read.expect("understood");
        assert!(read.dry_run && read.uid == "r" && read.user == "me");
        let Subject::Binding(binding) = read.subject else { panic!("no binding") };
        let text = |text: &str| std::sync::Arc::<str>::from(text);
        let expected = Binding { uid: text("u"), namespace: text("ns"), name: text("p"), node: text("n") };
        assert_eq!(binding, expected);
    }

    #[test]
    fn only_pods_that_come_with_a_node_take_room() {
        let pod = |spec: serde_json::Value, annotations: serde_json::Value| {
            review(json!({
                "uid": "r", "operation": "CREATE", "resource": {"group": "", "version": "v1", "resource": "pods"},
                "object": {"metadata": {"name": "p", "uid": "u", "annotations": annotations}, "spec": spec},
            }))
            .expect("understood")
            .subject
        };
        assert!(matches!(pod(json!({"nodeName": "n"}), json!(null)), Subject::Placed(_)));
        assert!(matches!(pod(json!({}), json!(null)), Subject::Other));
        assert!(matches!(pod(json!({"nodeName": "n"}), json!({MIRROR: "hash"})), Subject::Other));
        let other =
            json!({"uid": "r", "operation": "DELETE", "resource": {"resource": "pods"}, "object": null});
        assert!(matches!(review(other).expect("understood").subject, Subject::Other));
    }

    #[test]
    fn what_is_wrong_with_a_review_is_said() {
        let other = br#"{"apiVersion":"admission.k8s.io/v1beta1","kind":"AdmissionReview"}"#;
        assert!(super::request(other).is_err_and(|why| why.contains("v1beta1")));
        assert!(super::request(b"{").is_err_and(|why| why.contains("not an AdmissionReview")));
        let bad = json!({
            "uid": "r", "operation": "CREATE", "resource": {"resource": "pods"}, "subResource": "binding",
            "object": {"target": 7},
        });
        assert!(review(bad).is_err_and(|why| why.contains("not a Binding")));
    }

    #[test]
    fn a_refusal_says_why() {
        let text = String::from_utf8(answer("r", Some("full")).expect("serialises")).expect("UTF-8");
        assert_eq!(
            text,
            r#"{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":"r","allowed":false,"status":{"code":409,"reason":"Conflict","message":"full"}}}"#
        );
        let text = String::from_utf8(answer("r", None).expect("serialises")).expect("UTF-8");
        assert!(text.ends_with(r#""response":{"uid":"r","allowed":true}}"#));
    }
}
