//! Invalid input.

use super::*;

fn refused(input: &[u8]) -> String {
    let ran = explain(&[], input);
    assert_eq!((ran.code, &*ran.out), (2, ""), "{}", ran.err);
    assert_eq!(ran.err.lines().count(), 1, "one line for people: {}", ran.err);
    ran.err
}

#[test]
fn input_that_is_empty_cut_off_or_something_else_is_refused_with_what_is_wrong() {
    let dump = Cluster::default().node("n", json!({})).pod("web", json!({})).dump();
    assert!(refused(b"").contains("the input is empty"));
    assert!(refused(b" \n\t").contains("the input is empty"));
    for cut in [1, dump.len() / 3, dump.len() / 2, dump.len() - 1] {
        let message = refused(&dump.as_bytes()[..cut]);
        assert!(message.contains("is it cut off?"), "{cut}: {message}");
    }
    let twice = format!("{dump}\n{}", &dump[..dump.len() / 2]);
    assert!(refused(twice.as_bytes()).contains("(line 2, column "));
    let yaml = refused(b"apiVersion: v1\nkind: List\nitems: []\n");
    assert!(yaml.contains("is not JSON (line 1, column ") && yaml.contains("-o json"), "{yaml}");
    assert!(refused(b"NAME STATUS\nn Ready\n").contains("is not JSON"));
    assert!(refused(b"\xff\xfe{}").contains("byte 0 is not UTF-8"));
    for other in [&b"[]"[..], b"3", b"\"x\"", b"null", b"{}", br#"{"items": []}"#, br#"{"kind": 7}"#] {
        let message = refused(other);
        assert!(message.contains("no Kubernetes object or list of them"), "{message}");
    }
}

#[test]
fn a_file_that_cannot_be_read_is_a_failure_of_its_own() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_berth"));
    let ran = run(command.args(["explain", "-f", "no/such/dump.json"]), b"");
    assert_eq!(ran.code, 1);
    assert!(ran.err.contains("cannot read no/such/dump.json"), "{}", ran.err);
}

#[test]
fn objects_that_scheduling_does_not_read_are_counted_and_named() {
    let cluster = Cluster::default()
        .node("n", json!({}))
        .with(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}))
        .with(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "b"}}))
        .with(json!({"apiVersion": "serving.knative.dev/v1", "kind": "Service", "metadata": {"name": "c"}}))
        .with(json!({"metadata": {"name": "d"}}))
        .pod("web", json!({}));
    let ran = explain(&["-o", "json"], cluster.dump().as_bytes());
    assert_eq!(ran.code, 0);
    assert!(ran.err.contains("2 ConfigMap, 1 Service, 1 objects without a kind"), "{}", ran.err);
    assert!(ran.out.contains(r#""feasible":["n"]"#), "{}", ran.out);
}

#[test]
fn an_object_that_cannot_be_read_is_named_and_the_others_are_explained() {
    let cluster = Cluster::default()
        .node("n", json!({}))
        .node("bad", json!({"spec": {"taints": 7}}))
        .with(json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "odd", "namespace": "x"}, "spec": 3}))
        .pod("web", json!({}));
    let ran = explain(&["-o", "json"], cluster.dump().as_bytes());
    assert_eq!(ran.code, 2);
    assert!(
        ran.err.contains("skipped, cannot be read: Node bad: ")
            && ran.err.contains("skipped, cannot be read: Pod x/odd: "),
        "{}",
        ran.err
    );
    let answers: Vec<Value> = serde_json::from_str(&ran.out).expect("JSON");
    assert_eq!(names(&answers[0]["feasible"]), ["n"]);
    assert_eq!(answers[0]["reasons"], json!({}));
}

#[test]
fn lists_of_one_kind_single_objects_and_several_of_them_are_read_too() {
    let node = Cluster::default().node("n", json!({})).0.remove(0);
    let mut bare = pod("web", json!({}));
    for key in ["apiVersion", "kind"] {
        bare.as_object_mut().expect("an object").remove(key);
    }
    let pods = json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": [bare]});
    let none = json!({"kind": "ServiceList", "apiVersion": "v1", "items": null});
    let text = format!("{}\n{pods}{none}\n\n", serde_json::to_string_pretty(&node).expect("JSON"));
    let ran = explain(&["-o", "json"], text.as_bytes());
    assert_eq!((ran.code, &*ran.err), (0, ""));
    assert!(ran.out.contains(r#""feasible":["n"]"#), "{}", ran.out);
}

#[test]
fn the_later_state_of_a_pod_counts_and_pods_without_uid_are_distinct() {
    let mut cluster =
        Cluster::default().node("n", json!({})).bound("web", "n", requests(json!({"cpu": "4"})));
    cluster = cluster.pod("web", requests(json!({"cpu": "3"}))).pod("db", requests(json!({"cpu": "4"})));
    for object in &mut cluster.0[1..] {
        object["metadata"].as_object_mut().expect("an object").remove("uid");
    }
    let answers = cluster.explain(&[]);
    assert_eq!(answers.len(), 2);
    assert!(answers.iter().all(|answer| names(&answer["feasible"]) == ["n"]), "{answers:?}");
}

#[test]
fn without_waiting_pods_it_says_so_and_the_list_is_empty() {
    let dump = Cluster::default().node("n", json!({})).dump();
    let ran = explain(&["-o", "json"], dump.as_bytes());
    assert_eq!((ran.code, &*ran.out), (0, "[]\n"));
    assert!(ran.err.contains("no pod waits for scheduler berth"), "{}", ran.err);
    let pods_alone = Cluster::default().pod("web", json!({})).explain(&[]);
    assert_eq!(names(&pods_alone[0]["feasible"]), [""; 0]);
}
