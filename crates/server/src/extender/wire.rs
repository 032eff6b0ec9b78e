//! JSON of the extender protocol (upstream: `k8s.io/kube-scheduler/extender/v1`). Its Go types have no JSON names: fields are
//! sent under their Go names and read in any case. Pods and nodes inside are ordinary API objects.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::value::RawValue;

use super::super::fields::{Fields, Text};
use berth_kube_io::{Interner, LeanPod};
use berth_model::Pod;

/// Arguments of `filter` and `prioritize`.
#[derive(Debug)]
pub struct ExtenderArgs<'a> {
    pub pod: Pod,
    pub nodes: CandidateNodes<'a>,
}

/// The candidate nodes, as names or objects depending on the extender's configuration (`nodeCacheCapable`).
#[derive(Debug)]
pub enum CandidateNodes<'a> {
    Names(Vec<Cow<'a, str>>),
    /// Nodes with their names; returned unchanged.
    Objects(Vec<(Cow<'a, str>, &'a RawValue)>),
}

impl CandidateNodes<'_> {
    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        let (names, objects) = match self {
            CandidateNodes::Names(names) => (names.as_slice(), [].as_slice()),
            CandidateNodes::Objects(objects) => ([].as_slice(), objects.as_slice()),
        };
        (0..names.len() + objects.len()).map(|at| match names.get(at) {
            Some(name) => &**name,
            None => &*objects[at].0,
        })
    }
}

/// Arguments of `bind`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BindingArgs {
    pub pod_name: String,
    pub pod_namespace: String,
    pub pod_uid: String,
    pub node: String,
}

/// Arguments of `preempt`: the victims on each candidate node.
#[derive(Debug)]
pub struct PreemptionArgs {
    pub pod: Pod,
    pub victims: BTreeMap<String, VictimsByNode>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct VictimsByNode {
    pub pods: Vec<MetaPod>,
    #[serde(rename = "NumPDBViolations")]
    pub pdb_violations: i64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MetaPod {
    #[serde(rename = "UID")]
    pub uid: String,
}

/// Result of `filter`.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct FilterResult<'a> {
    pub nodes: Option<NodeList<'a>>,
    pub node_names: Option<Vec<&'a str>>,
    pub failed_nodes: BTreeMap<&'a str, &'a str>,
    /// Nodes where preemption would not help.
    pub failed_and_unresolvable_nodes: BTreeMap<&'a str, &'a str>,
    pub error: String,
}

#[derive(Debug, Serialize)]
pub struct NodeList<'a> {
    pub metadata: BTreeMap<(), ()>,
    pub items: Vec<&'a RawValue>,
}

/// Encodes the result of `prioritize`: the score, 0 to 10, of each host. Without serde, as there are thousands.
pub fn priorities<'a>(scores: impl ExactSizeIterator<Item = (&'a str, i64)>) -> Vec<u8> {
    const USUAL_LENGTH: usize = 64;
    let mut json = Vec::with_capacity(2 + scores.len() * USUAL_LENGTH);
    json.push(b'[');
    for (host, score) in scores {
        if json.len() > 1 {
            json.push(b',');
        }
        json.extend_from_slice(br#"{"Host":"#);
        if host.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'.') {
            json.push(b'"');
            json.extend_from_slice(host.as_bytes());
            json.push(b'"');
        } else {
            json.extend_from_slice(serde_json::Value::from(host).to_string().as_bytes());
        }
        json.extend_from_slice(br#","Score":"#);
        match u8::try_from(score) {
            Ok(digit @ 0..=9) => json.push(b'0' + digit),
            _ => json.extend_from_slice(score.to_string().as_bytes()),
        }
        json.push(b'}');
    }
    json.push(b']');
    json
}

#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct BindingResult {
    pub error: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct PreemptionResult {
    pub node_name_to_meta_victims: BTreeMap<String, VictimsByNode>,
}

/// Decodes `ExtenderArgs`.
///
/// # Errors
/// What is wrong with the body, for the client.
pub fn extender_args(body: &[u8]) -> Result<ExtenderArgs<'_>, String> {
    let fields = object(body)?;
    let pod = pod(&fields)?;
    let names = fields.parse::<Vec<Text>>("NodeNames")?;
    let nodes = match (names, fields.get("Nodes")) {
        (Some(_), Some(_)) => return Err("both Nodes and NodeNames are given: send one of them".to_owned()),
        (None, None) => return Err("neither Nodes nor NodeNames are given".to_owned()),
        (Some(names), None) => CandidateNodes::Names(names.into_iter().map(|Text(name)| name).collect()),
        (None, Some(list)) => CandidateNodes::Objects(node_objects(list)?),
    };
    Ok(ExtenderArgs { pod, nodes })
}

/// Decodes `ExtenderBindingArgs`.
///
/// # Errors
/// What is wrong with the body, for the client.
pub fn binding_args(body: &[u8]) -> Result<BindingArgs, String> {
    let fields = object(body)?;
    let text = |name: &str| match fields.parse::<String>(name)? {
        Some(text) if !text.is_empty() => Ok(text),
        _ => Err(format!("{name} is missing")),
    };
    Ok(BindingArgs {
        pod_name: text("PodName")?,
        pod_namespace: text("PodNamespace")?,
        pod_uid: text("PodUID")?,
        node: text("Node")?,
    })
}

/// Decodes `ExtenderPreemptionArgs`.
///
/// # Errors
/// What is wrong with the body, for the client.
pub fn preemption_args(body: &[u8]) -> Result<PreemptionArgs, String> {
    let fields = object(body)?;
    let pod = pod(&fields)?;
    let (field, map) = match (fields.get("NodeNameToVictims"), fields.get("NodeNameToMetaVictims")) {
        (Some(_), Some(_)) => {
            return Err(
                "both NodeNameToVictims and NodeNameToMetaVictims are given: send one of them".to_owned()
            );
        }
        (None, None) => return Ok(PreemptionArgs { pod, victims: BTreeMap::new() }),
        (Some(map), None) => ("NodeNameToVictims", map),
        (None, Some(map)) => ("NodeNameToMetaVictims", map),
    };
    let map = Fields::read(map.get()).map_err(|error| format!("{field}: {error}"))?;
    let mut victims = BTreeMap::new();
    for (node, of_node) in map.into_iter() {
        let read = read_victims(of_node).map_err(|why| format!("{field}[{node}]: {why}"))?;
        victims.insert(node.into_owned(), read);
    }
    Ok(PreemptionArgs { pod, victims })
}

fn read_victims(raw: &RawValue) -> Result<VictimsByNode, String> {
    if raw.get() == "null" {
        return Ok(VictimsByNode::default());
    }
    let fields = Fields::read(raw.get()).map_err(|error| error.to_string())?;
    let mut pods = Vec::new();
    for pod in fields.parse::<Vec<Fields>>("Pods")?.unwrap_or_default() {
        // A whole pod has its uid in the metadata.
        let uid = match pod.parse::<String>("UID")? {
            Some(uid) => Some(uid),
            None => match pod.parse::<Fields>("metadata")? {
                Some(metadata) => metadata.parse::<String>("uid")?,
                None => None,
            },
        };
        pods.push(MetaPod { uid: uid.ok_or("a victim has no UID")? });
    }
    let pdb_violations = fields.parse("NumPDBViolations")?.unwrap_or(0);
    Ok(VictimsByNode { pods, pdb_violations })
}

fn object(body: &[u8]) -> Result<Fields<'_>, String> {
    let text = std::str::from_utf8(body).map_err(|error| format!("the body is not UTF-8: {error}"))?;
    Fields::read(text)
        .map_err(|error| format!("the body is not a JSON object of the extender protocol: {error}"))
}

fn pod(fields: &Fields) -> Result<Pod, String> {
    let pod = fields.parse::<LeanPod>("Pod")?.ok_or("Pod is missing")?;
    Ok(pod.into_pod(&mut Interner::default()))
}

fn node_objects(list: &RawValue) -> Result<Vec<(Cow<'_, str>, &RawValue)>, String> {
    let list = Fields::read(list.get()).map_err(|error| format!("Nodes: {error}"))?;
    let items = list.parse::<Vec<&RawValue>>("items")?.unwrap_or_default();
    let named = |node: &'_ RawValue| -> Result<String, String> {
        let fields = Fields::read(node.get()).map_err(|error| error.to_string())?;
        let metadata = fields.parse::<Fields>("metadata")?.ok_or("metadata is missing")?;
        let Text(name) = metadata.parse::<Text>("name")?.ok_or("metadata.name is missing")?;
        Ok(name.into_owned())
    };
    let name = |(at, node)| match named(node) {
        Ok(name) => Ok((Cow::Owned(name), node)),
        Err(why) => Err(format!("Nodes.items[{at}]: {why}")),
    };
    items.into_iter().enumerate().map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const POD: &str =
        r#"{"metadata":{"name":"p","namespace":"ns","uid":"u"},"spec":{"containers":[{"name":"c"}]}}"#;

    #[test]
    fn arguments_are_read_in_go_case_and_in_any_other() {
        for (pod, names) in [("Pod", "NodeNames"), ("pod", "nodenames"), ("POD", "NODENAMES")] {
            let body = format!(r#"{{"{pod}":{POD},"Nodes":null,"{names}":["a","b\u0062"]}}"#);
            let args = extender_args(body.as_bytes()).expect("understood");
            assert_eq!(&*args.pod.name, "p");
            assert_eq!(args.nodes.names().collect::<Vec<_>>(), ["a", "bb"]);
        }
    }

    #[test]
    fn whole_nodes_are_known_by_their_names() {
        let body =
            format!(r#"{{"Pod":{POD},"Nodes":{{"metadata":{{}},"items":[{{"metadata":{{"name":"a"}}}}]}}}}"#);
        let args = extender_args(body.as_bytes()).expect("understood");
        assert_eq!(args.nodes.names().collect::<Vec<_>>(), ["a"]);
        assert!(
            matches!(&args.nodes, CandidateNodes::Objects(nodes) if nodes[0].1.get().contains("metadata"))
        );
    }

    #[test]
    fn what_is_wrong_with_a_body_is_said() {
        for (body, why) in [
            ("", "the body is not a JSON object"),
            ("[]", "the body is not a JSON object"),
            (r#"{"Pod":"#, "the body is not a JSON object"),
            ("{}", "Pod is missing"),
            (r#"{"Pod":7}"#, "Pod: invalid type"),
            (r#"{"Pod":{"metadata":{}}}"#, "neither Nodes nor NodeNames"),
            (r#"{"Pod":{"metadata":{}},"Nodes":{},"NodeNames":[]}"#, "both Nodes and NodeNames"),
            (r#"{"Pod":{"metadata":{}},"NodeNames":[7]}"#, "NodeNames: invalid type"),
            (r#"{"Pod":{"metadata":{}},"Nodes":{"items":[{}]}}"#, "Nodes.items[0]: metadata is missing"),
        ] {
            let error = extender_args(body.as_bytes()).expect_err(body);
            assert!(error.starts_with(why), "{body}: {error}");
        }
        assert!(extender_args(b"\xff").is_err_and(|why| why.contains("UTF-8")));
        assert_eq!(binding_args(br#"{"PodName":"p"}"#), Err("PodNamespace is missing".to_owned()));
    }

    #[test]
    fn a_binding_is_read_as_it_is_documented() {
        let args = binding_args(br#"{"PodName":"p","PodNamespace":"ns","PodUID":"u","Node":"n"}"#);
        let text = |text: &str| text.to_owned();
        let expected = BindingArgs {
            pod_name: text("p"),
            pod_namespace: text("ns"),
            pod_uid: text("u"),
            node: text("n"),
        };
        assert_eq!(args, Ok(expected));
    }

    #[test]
    fn victims_are_read_whole_or_by_uid_and_sent_by_uid() {
        let whole =
            format!(r#"{{"Pod":{POD},"NodeNameToVictims":{{"a":{{"Pods":[{POD}],"NumPDBViolations":2}}}}}}"#);
        let meta = format!(
            r#"{{"Pod":{POD},"NodeNameToMetaVictims":{{"a":{{"Pods":[{{"UID":"u"}}],"NumPDBViolations":2}}}}}}"#
        );
        for body in [whole, meta] {
            let args = preemption_args(body.as_bytes()).expect("understood");
            let answer = PreemptionResult { node_name_to_meta_victims: args.victims };
            assert_eq!(
                serde_json::to_string(&answer).expect("serialises"),
                r#"{"NodeNameToMetaVictims":{"a":{"Pods":[{"UID":"u"}],"NumPDBViolations":2}}}"#
            );
        }
        let none = format!(r#"{{"Pod":{POD},"NodeNameToMetaVictims":{{"a":null}}}}"#);
        assert_eq!(
            preemption_args(none.as_bytes()).expect("understood").victims["a"],
            VictimsByNode::default()
        );
    }

    #[test]
    fn answers_have_gos_names() {
        let scores = [("h-1.example", 1), ("\"\n", 10)];
        let text = String::from_utf8(priorities(scores.into_iter())).expect("a text");
        assert_eq!(text, r#"[{"Host":"h-1.example","Score":1},{"Host":"\"\n","Score":10}]"#);
        assert_eq!(priorities([].into_iter()), b"[]");
        let text =
            serde_json::to_string(&FilterResult { node_names: Some(vec!["a"]), ..FilterResult::default() });
        assert_eq!(
            text.expect("serialises"),
            r#"{"Nodes":null,"NodeNames":["a"],"FailedNodes":{},"FailedAndUnresolvableNodes":{},"Error":""}"#
        );
    }
}
