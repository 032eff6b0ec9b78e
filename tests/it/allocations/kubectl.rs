//! Output of kubectl for users.

use super::*;

fn allocation(spec: &str) -> String {
    format!("{{apiVersion: berth.dev/v1alpha1, kind: Allocation, metadata: {{name: a}}, spec: {spec}}}")
}

const SELECTOR: &str = "selector: {matchLabels: {app: a}}";

/// A spec and its expected error; empty if it is valid.
fn cases() -> Vec<(String, &'static str)> {
    let role = |name: &str, more: &str| format!("{{name: {name}, minimum: 1, {more}}}");
    let roles = |roles: &[String]| format!("{{roles: [{}]}}", roles.join(", "));
    let many: Vec<String> = (0..17).map(|i| role(&format!("r{i}"), SELECTOR)).collect();
    vec![
        (format!("{{minimum: 1, {SELECTOR}}}"), ""),
        ("{minimum: 1, selector: {matchExpressions: [{key: app, operator: Exists}]}}".to_owned(), ""),
        ("{minimum: 1000000, owner: {kind: Job, name: a}, timeout: 1h30m}".to_owned(), ""),
        (format!("{{minimum: 1, {SELECTOR}, topology: {{key: example.com/rack, mode: Spread}}}}"), ""),
        (roles(&many[..16]), ""),
        ("{}".to_owned(), "give either minimum with selector or owner, or roles"),
        (format!("{{{SELECTOR}}}"), "give either minimum with selector or owner, or roles"),
        (
            format!("{{minimum: 1, roles: [{}]}}", many[0]),
            "give either minimum with selector or owner, or roles",
        ),
        (
            "{minimum: 1}".to_owned(),
            "give exactly one of selector and owner: they say which pods belong to the allocation",
        ),
        (
            format!("{{minimum: 1, {SELECTOR}, owner: {{kind: Job, name: a}}}}"),
            "give exactly one of selector and owner: they say which pods belong to the allocation",
        ),
        (format!("{{minimum: 0, {SELECTOR}}}"), "spec.minimum in body should be greater than or equal to 1"),
        (format!("{{minimum: -1, {SELECTOR}}}"), "spec.minimum in body should be greater than or equal to 1"),
        (
            format!("{{minimum: 1000001, {SELECTOR}}}"),
            "spec.minimum in body should be less than or equal to 1",
        ),
        (format!("{{minimum: many, {SELECTOR}}}"), "spec.minimum in body must be of type integer"),
        (
            roles(&["{name: a, minimum: 1}".to_owned()]),
            "give exactly one of selector and owner: they say which pods belong to the role",
        ),
        (
            roles(&[role("a", &format!("{SELECTOR}, owner: {{kind: Job, name: a}}"))]),
            "give exactly one of selector and owner: they say which pods belong to the role",
        ),
        (roles(&[role("a", SELECTOR), role("a", SELECTOR)]), "spec.roles[1]: Duplicate value"),
        (roles(&[role("A_b", SELECTOR)]), "spec.roles[0].name in body should match"),
        (roles(&many), "spec.roles: Too many: 17: must have at most 16 items"),
        (roles(&[]), "spec.roles in body should have at least 1 items"),
        (format!("{{minimum: 1, {SELECTOR}, timeout: soon}}"), "spec.timeout in body should match"),
        (
            format!("{{minimum: 1, {SELECTOR}, timeout: 0s}}"),
            "timeout must be longer than 0s, and a year (8760h) at most",
        ),
        (format!("{{minimum: 1, {SELECTOR}, timeout: 8761h}}"), "timeout must be longer than 0s"),
        (
            format!("{{minimum: 1, {SELECTOR}, topology: {{key: a b}}}}"),
            "spec.topology.key in body should match",
        ),
        (
            format!("{{minimum: 1, {SELECTOR}, topology: {{key: a, mode: Near}}}}"),
            "supported values: \"Required\", \"Preferred\", \"Spread\"",
        ),
        (
            "{minimum: 1, owner: {kind: Deployment, name: a}}".to_owned(),
            "the pods of a Deployment belong to its ReplicaSets, those of a CronJob to its Jobs: use selector",
        ),
        ("{minimum: 1, owner: {kind: Job}}".to_owned(), "spec.owner.name: Required value"),
        (
            "{minimum: 1, selector: {matchExpressions: [{key: a, operator: Near}]}}".to_owned(),
            "supported values: \"In\", \"NotIn\", \"Exists\", \"DoesNotExist\"",
        ),
        (format!("{{minimum: 1, minimun: 2, {SELECTOR}}}"), "unknown field \"spec.minimun\""),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_applies_the_kinds_and_the_examples_and_says_what_is_wrong_with_others() {
    let control_plane = start_control_plane().await;
    let kubectl = Kubectl::new(&control_plane).await;
    kubectl.install_kinds().await;
    for example in ["manifests/example-allocation.yaml", "manifests/example-gangs.yaml"] {
        kubectl.must(&["apply", "-f", example], "").await;
    }
    let listed = kubectl.must(&["get", "alloc", "-o", "name"], "").await;
    let names = ["berth-blue", "berth-red", "berth-training"];
    assert_eq!(listed, names.map(|name| format!("allocation.berth.dev/{name}\n")).concat());
    let explained = kubectl.must(&["explain", "allocation.spec.topology.mode"], "").await;
    assert!(explained.contains("Spread: as evenly over the domains as capacity allows"), "{explained}");

    for (spec, expected) in cases() {
        let said = kubectl.run(&["apply", "--dry-run=server", "-f", "-"], &allocation(&spec)).await;
        assert_eq!(said.success, expected.is_empty(), "{spec}: {}", said.errors);
        assert!(said.errors.contains(expected), "{spec}: {}", said.errors);
    }
}
