//! The object of a review that would take room on a node.

use serde::Deserialize;

use crate::review;
use berth_kube_io::{Interner, LeanPod};
use berth_model::Pod;
use berth_scheduler::placement::Binding;

/// What the request would do.
#[derive(Debug)]
pub enum ReviewSubject {
    /// Binds a pod. The uid is empty if the binding has none.
    Binding(Binding),
    /// Creates a pod with a node name.
    Placed(Box<Pod>),
    /// Takes no room.
    Other,
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

/// Annotation of mirror pods: the static pod of the kubelet runs already.
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

/// Returns what takes room if this request is allowed.
///
/// # Errors
/// What is wrong with the request, for the client.
pub fn subject(request: &review::ReviewRequest) -> Result<ReviewSubject, String> {
    let Some(object) = request.created_of_pods() else { return Ok(ReviewSubject::Other) };
    match request.sub_resource.as_str() {
        "binding" => {
            let binding: BindingObject = serde_json::from_str(object)
                .map_err(|error| format!("request.object is not a Binding: {error}"))?;
            let target = binding.target;
            // The API server rejects other kinds, and bindings without a node.
            let Some(node) = target.name.filter(|_| target.kind.as_deref().is_none_or(|kind| kind == "Node"))
            else {
                return Ok(ReviewSubject::Other);
            };
            let name = if request.name.is_empty() {
                binding.metadata.name.unwrap_or_default()
            } else {
                request.name.clone()
            };
            Ok(ReviewSubject::Binding(Binding {
                uid: binding.metadata.uid.unwrap_or_default().into(),
                namespace: request.namespace.as_str().into(),
                name: name.into(),
                node: node.into(),
                decision: None,
            }))
        }
        "" => {
            let annotated: Annotated = serde_json::from_str(object)
                .map_err(|error| format!("request.object is not a Pod: {error}"))?;
            if annotated.metadata.annotations.is_some_and(|all| all.contains_key(MIRROR)) {
                return Ok(ReviewSubject::Other);
            }
            let pod: LeanPod = serde_json::from_str(object)
                .map_err(|error| format!("request.object is not a Pod: {error}"))?;
            let pod = pod.into_pod(&mut Interner::default());
            Ok(match pod.node_name {
                Some(_) => ReviewSubject::Placed(Box::new(pod)),
                None => ReviewSubject::Other,
            })
        }
        _ => Ok(ReviewSubject::Other),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(request: serde_json::Value) -> Result<ReviewSubject, String> {
        let body =
            json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request});
        let body = body.to_string();
        subject(&review::ReviewRequest::read(body.as_bytes())?)
    }

    #[test]
    fn a_binding_is_read_with_its_pod_and_node() {
        let read = read(json!({
            "uid": "r", "operation": "CREATE", "namespace": "ns", "name": "p",
            "resource": {"group": "", "version": "v1", "resource": "pods"}, "subResource": "binding",
            "object": {"metadata": {"name": "p", "uid": "u"}, "target": {"kind": "Node", "name": "n"}},
        }));
        let ReviewSubject::Binding(binding) = read.expect("understood") else { panic!("no binding") };
        let text = |text: &str| std::sync::Arc::<str>::from(text);
        let expected = Binding {
            uid: text("u"),
            namespace: text("ns"),
            name: text("p"),
            node: text("n"),
            decision: None,
        };
        assert_eq!(binding, expected);
    }

    #[test]
    fn only_pods_that_come_with_a_node_take_room() {
        let pod = |spec: serde_json::Value, annotations: serde_json::Value| {
            read(json!({
                "uid": "r", "operation": "CREATE", "resource": {"group": "", "version": "v1", "resource": "pods"},
                "object": {"metadata": {"name": "p", "uid": "u", "annotations": annotations}, "spec": spec},
            }))
            .expect("understood")
        };
        assert!(matches!(pod(json!({"nodeName": "n"}), json!(null)), ReviewSubject::Placed(_)));
        assert!(matches!(pod(json!({}), json!(null)), ReviewSubject::Other));
        assert!(matches!(pod(json!({"nodeName": "n"}), json!({MIRROR: "hash"})), ReviewSubject::Other));
        let other =
            json!({"uid": "r", "operation": "DELETE", "resource": {"resource": "pods"}, "object": null});
        assert!(matches!(read(other).expect("understood"), ReviewSubject::Other));
    }

    #[test]
    fn a_binding_that_is_none_is_an_error() {
        let bad = json!({
            "uid": "r", "operation": "CREATE", "resource": {"resource": "pods"}, "subResource": "binding",
            "object": {"target": 7},
        });
        assert!(read(bad).is_err_and(|why| why.contains("not a Binding")));
    }
}
