//! Extended resources of a pod as device requests, for nodes where devices provide them (upstream: `createRequestsAndMappings` of
//! DynamicResources).

use super::{Interner, placing};
use crate::lean::{LeanContainer, LeanPod};
use berth_model::names::is_extended_resource;
use berth_model::{ContainerRequest, ExtendedResource, ExtendedResources, Usage};

/// Returns what the containers request; `None`: no extended resource. A pod that has a node keeps only the name of its claim.
pub(super) fn resources(
    pod: &LeanPod,
    usage: &Usage,
    interner: &mut Interner,
) -> Option<Box<ExtendedResources>> {
    let mut names =
        usage.extended.iter().map(|(name, _)| name).filter(|name| is_extended_resource(name)).peekable();
    names.peek()?;
    let claim = pod.status.extended_resource_claim_status.resource_claim_name.as_deref();
    let claim = claim.filter(|name| !name.is_empty()).map(|name| interner.text(name));
    let is_placed = pod.spec.node_name.as_ref().is_some_and(|name| !name.is_empty());
    let resources = match is_placed {
        true => [].into(),
        false => names.map(|name| resource(pod, name, interner)).collect(),
    };
    Some(Box::new(ExtendedResources { resources, claim }))
}

/// Devices that a container gets for itself.
struct OwnRequest {
    name: String,
    count: u64,
}

fn resource(pod: &LeanPod, name: &str, interner: &mut Interner) -> ExtendedResource {
    let containers: Vec<_> = pod.spec.init_containers.iter().chain(&pod.spec.containers).collect();
    let short_lived = |at: usize| at < pod.spec.init_containers.len() && !placing::is_sidecar(containers[at]);
    let wanted = |at: usize| own_request(at, containers[at], name);

    let lasting: Vec<_> =
        (0..containers.len()).map(|at| (!short_lived(at)).then(|| wanted(at)).flatten()).collect();
    let mut served = Vec::new();
    for (at, request) in lasting.iter().enumerate() {
        served.extend(request.iter().map(|request| (at, request.name.clone())));
    }
    // Init containers use what later containers get, and share what they need beyond that.
    let (mut extra, mut beyond): (Option<OwnRequest>, Vec<usize>) = (None, Vec::new());
    for at in (0..containers.len()).filter(|at| short_lived(*at)) {
        let Some(mut rest) = wanted(at) else { continue };
        for request in lasting[at..].iter().flatten() {
            if rest.count == 0 {
                break;
            }
            served.push((at, request.name.clone()));
            rest.count = rest.count.saturating_sub(request.count);
        }
        if rest.count > 0 {
            beyond.push(at);
            if extra.as_ref().is_none_or(|most| most.count < rest.count) {
                extra = Some(rest);
            }
        }
    }
    if let Some(extra) = &extra {
        served.extend(beyond.into_iter().map(|at| (at, extra.name.clone())));
    }

    let requests = extra.into_iter().chain(lasting.into_iter().flatten());
    ExtendedResource {
        name: interner.text(name),
        requests: requests.map(|request| (interner.text(&request.name), request.count)).collect(),
        containers: served
            .into_iter()
            .map(|(at, request)| ContainerRequest {
                container: interner.text(&containers[at].name),
                request: interner.text(&request),
            })
            .collect(),
    }
}

/// Named after the positions of the container in the pod, and of the resource among all that the container requests.
fn own_request(at: usize, container: &LeanContainer, name: &str) -> Option<OwnRequest> {
    let requests = container.resources.as_ref()?.requests.as_ref()?;
    let (_, amount) = requests.0.iter().find(|(known, _)| known == name)?;
    let count = u64::try_from(amount.as_ref().ok()?.value()).ok().filter(|count| *count > 0)?;
    let position = requests.0.iter().filter(|(known, _)| **known < *name).count();
    Some(OwnRequest { name: format!("container-{at}-request-{position}"), count })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const GPU: &str = "example.com/gpu";

    fn container(name: &str, gpus: u64) -> Value {
        let requests = match gpus {
            0 => json!({"cpu": "1"}),
            _ => json!({GPU: gpus.to_string(), "cpu": "1", "memory": "1Gi"}),
        };
        json!({"name": name, "resources": {"requests": requests}})
    }

    fn sidecar(name: &str, gpus: u64) -> Value {
        let mut sidecar = container(name, gpus);
        sidecar["restartPolicy"] = "Always".into();
        sidecar
    }

    fn pod(spec: Value, status: Value) -> berth_model::Pod {
        let metadata = json!({"name": "p", "namespace": "ns", "uid": "u"});
        let pod = json!({"metadata": metadata, "spec": spec, "status": status});
        let lean: LeanPod = serde_json::from_value(pod).expect("a pod");
        lean.into_pod(&mut Interner::default())
    }

    /// Pairs of names.
    type Names = Vec<(String, String)>;

    /// Returns the requests with their counts, and for each container the requests that serve it.
    fn requests(init: &[Value], main: &[Value]) -> (Vec<(String, u64)>, Names) {
        let pod = pod(json!({"initContainers": init, "containers": main}), json!({}));
        let resources = pod.extended.expect("some").resources;
        let [gpu] = &*resources else { panic!("{resources:?}") };
        assert_eq!(&*gpu.name, GPU);
        let requests = gpu.requests.iter().map(|(name, count)| (name.to_string(), *count)).collect();
        let served = gpu.containers.iter().map(|one| (one.container.to_string(), one.request.to_string()));
        (requests, served.collect())
    }

    fn named(pairs: &[(&str, &str)]) -> Names {
        pairs.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect()
    }

    #[test]
    fn each_container_has_a_request_named_after_its_position_and_that_of_the_resource() {
        let (asked, served) = requests(&[], &[container("a", 2), container("b", 0), container("c", 1)]);
        assert_eq!(asked, [("container-0-request-1".to_owned(), 2), ("container-2-request-1".to_owned(), 1)]);
        assert_eq!(served, named(&[("a", "container-0-request-1"), ("c", "container-2-request-1")]));
    }

    #[test]
    fn init_containers_use_the_devices_of_later_containers_and_share_what_they_need_beyond() {
        let init = [container("i", 4), sidecar("s", 1), container("j", 5), container("k", 2)];
        let (asked, served) = requests(&init, &[container("a", 2)]);
        // i needs 4: 1 of s, 2 of a, and 1 more; j needs 5: 2 of a, and 3 more; k needs 2 of a.
        let (s, j, a) = ("container-1-request-1", "container-2-request-1", "container-4-request-1");
        assert_eq!(asked, [(j.to_owned(), 3), (s.to_owned(), 1), (a.to_owned(), 2)]);
        let mut served = served;
        served.sort();
        let mut expected =
            named(&[("s", s), ("a", a), ("i", s), ("i", a), ("i", j), ("j", a), ("j", j), ("k", a)]);
        expected.sort();
        assert_eq!(served, expected);
    }

    #[test]
    fn resources_of_the_node_itself_are_no_devices_but_those_named_after_a_class_are() {
        let asks = |name: &str| {
            let requests = json!({"cpu": "1", name: "1"});
            let containers = json!([{"name": "a", "resources": {"requests": requests}}]);
            pod(json!({"containers": containers}), json!({})).extended.is_some()
        };
        assert!(asks(GPU) && asks("deviceclass.resource.kubernetes.io/gpu"));
        for own in ["memory", "hugepages-2Mi", "ephemeral-storage", "kubernetes.io/batch-cpu"] {
            assert!(!asks(own), "{own}");
        }
    }

    #[test]
    fn a_pod_with_a_node_keeps_the_name_of_its_claim_alone() {
        let status =
            json!({"extendedResourceClaimStatus": {"resourceClaimName": "made", "requestMappings": []}});
        let placed = pod(json!({"nodeName": "n", "containers": [container("a", 1)]}), status);
        let extended = placed.extended.expect("it requests a device");
        assert_eq!((extended.claim.as_deref(), extended.resources.len()), (Some("made"), 0));
    }
}
