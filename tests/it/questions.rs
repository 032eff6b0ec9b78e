//! The answers of docs/questions.md and the README, from the commands that stand there.

use std::process::Command;

use serde_json::{Value, json};

use crate::explain::{Cluster, merged, pod, requests, run};

/// Pages, and the number of their answers.
const PAGES: [(&str, usize); 2] = [("docs/questions.md", 6), ("README.md", 3)];

const WEB: &str = "apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: main, image: web, resources: {requests: {cpu: 500m}}}]}
";

fn of_shop(name: &str, spec: Value) -> Value {
    let owner =
        json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "x", "uid": "1", "controller": true}]);
    merged(pod(name, spec), json!({"metadata": {"namespace": "shop", "ownerReferences": owner}}))
}

fn cluster() -> Cluster {
    let placed = |name: &str, node: &str, cpu: &str| {
        of_shop(name, merged(json!({"nodeName": node}), requests(json!({"cpu": cpu}))))
    };
    let nodes =
        ["a", "b", "c", "d"].into_iter().fold(Cluster::default(), |all, name| all.node(name, json!({})));
    let pods = [
        placed("cart-0", "a", "2500m"),
        placed("cart-1", "b", "2"),
        placed("mail-0", "b", "500m"),
        placed("mail-1", "c", "2500m"),
        placed("pay-0", "d", "1500m"),
        of_shop("search-0", requests(json!({"cpu": "3"}))),
        of_shop("search-1", requests(json!({"cpu": "3"}))),
        of_shop("gpu-0", merged(requests(json!({"cpu": "1"})), json!({"nodeSelector": {"gpu": "yes"}}))),
    ];
    pods.into_iter().fold(nodes, Cluster::with)
}

/// With `UPDATE=1`, the pages are written anew.
#[test]
fn each_answer_on_the_pages_is_what_its_command_prints() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("cluster.json"), cluster().dump()).expect("written");
    std::fs::write(folder.path().join("web.yaml"), WEB).expect("written");
    for (page, expected) in PAGES {
        let text = std::fs::read_to_string(page).expect("the page");
        let mut blocks: Vec<String> = text.split("```").map(str::to_owned).collect();
        let mut answers = 0;
        for at in (1..blocks.len()).step_by(2) {
            let Some(command) = blocks[at].strip_prefix("sh\nberth ") else { continue };
            let options: Vec<&str> = command.split_whitespace().collect();
            let mut berth = Command::new(env!("CARGO_BIN_EXE_berth"));
            let ran = run(berth.args(options).current_dir(folder.path()), b"");
            assert!(ran.code == 0 || ran.code == 3, "{command}: {}", ran.err);
            assert!(ran.err.is_empty(), "{command}: {}", ran.err);
            blocks[at + 2] = format!("\n{}", ran.out);
            answers += 1;
        }
        assert_eq!(answers, expected, "{page}");
        let written = blocks.join("```");
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(page, &written).expect("written");
        }
        assert_eq!(text, written, "run it with UPDATE=1, and read what changed");
    }
}
