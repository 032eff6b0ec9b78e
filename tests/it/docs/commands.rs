//! Every command of the documents, and the test that runs it.

use super::{documents, read};

/// Commands of the `sh` blocks of one document.
struct Document {
    path: &'static str,
    /// In the order of the document, each with the test that runs it, or the reason why none does.
    commands: &'static [(&'static str, &'static str)],
}

const KUBECTL: &str = "nothing here: kubectl's own";
const RELEASE: &str = "tests/it/chart/releases.rs, against a real API server";
const IMAGE: &str =
    ".ci/long image; tests/it/release/image.rs assembles it with a small file in place of the binary";
const LOAD: &str = "nothing here: it needs such a cluster; tests/it/release/image.rs reads the archive and the name of its image";
const REGISTRY: &str = "nothing here: it needs a registry; tests/it/release reads the archives";
const INSTALL: &str = "helm install berth charts/berth --namespace berth-system --create-namespace";
const BENCHMARK: &str =
    "nothing in a normal run: it measures for minutes or hours, and fails if its result is wrong";
const QUESTION: &str = "tests/it/questions.rs, with the whole output";
const SET_EXTENDER: &str = "helm upgrade berth charts/berth --namespace berth-system --reset-then-reuse-values --set extender.enabled=true \
                            --set extender.clientCaSecret=kube-scheduler-ca";

/// Documents with commands, sorted by path.
const COVERED: &[Document] = &[
    Document {
        path: "CONTRIBUTING.md",
        commands: &[
            ("cargo build", ".ci/run, as a part of the tests"),
            ("cargo test", ".ci/run"),
            ("cargo test -p berth-scheduler --lib", ".ci/run, with the tests of all crates"),
            ("cargo test --test it docs", ".ci/run, with all tests"),
            (".ci/run", "nothing here: it runs the tests"),
            (
                "cargo mutants -p berth-scheduler -p berth-rightsizing -p berth-devices -p berth-model --shard 100/205 --sharding round-robin -- --lib -- --skip a_deep_expression",
                "nothing in a normal run: it takes 22 minutes, and needs cargo-mutants",
            ),
        ],
    },
    Document {
        path: "README.md",
        commands: &[
            ("cargo run --release -- demo", ".ci/run and tests/it/demo.rs, with the test build"),
            ("cargo test", ".ci/run"),
            ("release/image", IMAGE),
            ("kind load image-archive target/image/berth-amd64.tar", LOAD),
            (INSTALL, RELEASE),
            ("kubectl apply -f manifests/example-deployment.yaml", "tests/it/chart.rs applies it"),
            ("kubectl get pods -o wide", KUBECTL),
            ("berth explain shop/search-0 -f docs/tour/cluster.json", QUESTION),
            ("berth fit docs/tour/web.yaml --max 40 -f docs/tour/cluster.json", QUESTION),
            ("berth drain --plan -f docs/tour/cluster.json", QUESTION),
        ],
    },
    Document {
        path: "docs/alerts.md",
        commands: &[
            ("kubectl -n berth-system get pods,lease -o wide", KUBECTL),
            (
                "kubectl -n berth-system logs --selector app.kubernetes.io/name=berth --prefix --tail=-1 --since=30m",
                KUBECTL,
            ),
        ],
    },
    Document {
        path: "docs/applying.md",
        commands: &[(
            "helm upgrade berth charts/berth --namespace berth-system --reset-then-reuse-values --set apply.webhook.enabled=true --set apply.updater.enabled=true",
            "tests/it/chart.rs renders the chart with these values, and tests/it/chart/features.rs reads the webhook in it",
        )],
    },
    Document {
        path: "docs/benchmarks.md",
        commands: &[
            ("cargo bench --bench cluster -- --markdown docs/benchmarks.md", BENCHMARK),
            (
                "cargo bench --bench cluster -- --pods 5000 --repeat 3 --subjects null,berth,kube-scheduler --workload basic,ten-classes,\
                 node-affinity,taints,mixed,unschedulable",
                BENCHMARK,
            ),
            (
                "cargo bench --bench cluster -- --workload basic,ten-classes --subjects null,berth --repeat 3",
                BENCHMARK,
            ),
            ("cargo bench --bench cluster -- --nodes 200 --pods 500", BENCHMARK),
            ("cargo bench --bench cluster -- --help", BENCHMARK),
            (
                "cargo bench --bench cluster -- --workload basic,zone-spread,preferred-affinity,zone-affinity,anti-affinity,\
                 hundred-classes --subjects null,berth --repeat 3",
                BENCHMARK,
            ),
            (
                "cargo bench --bench cluster -- --workload lived-in --subjects null,berth,berth+features,kube-scheduler --repeat 3",
                BENCHMARK,
            ),
            (
                "cargo bench --bench cluster -- --workload lived-in --pods 50000 --subjects null,berth",
                BENCHMARK,
            ),
            ("cargo bench --bench scale", BENCHMARK),
            ("cargo bench --bench scale -- --quick", BENCHMARK),
            (
                "cargo bench --bench scale -- --nodes 10000 --pods 100000 --classes 500 --parked-classes 50 --parked-pods 10000 \
                 --churn 500 --seconds 20",
                BENCHMARK,
            ),
            (
                "cargo bench --bench scale -- --nodes 5000 --pods 50000 --classes 500 --parked-classes 20 --parked-pods 5000 \
                 --churn 1000 --seconds 15 --dispatcher protean --agents 2",
                BENCHMARK,
            ),
            (
                "cargo bench --bench cluster -- --workload pod-groups --nodes 1000 --pods 8000 --subjects null,berth,kube-scheduler --repeat 3",
                BENCHMARK,
            ),
            (
                "cargo bench --bench cluster -- --workload gangs --nodes 1000 --pods 8000 --subjects null,berth --repeat 3",
                BENCHMARK,
            ),
            (
                "cargo bench --bench cluster -- --workload basic,extended-resource --subjects berth,kube-scheduler --nodes 1000 \
                 --pods 3000 --repeat 3",
                BENCHMARK,
            ),
            ("cargo bench -p berth-scheduler --bench tenants -- --pods 10000 --seconds 8", BENCHMARK),
            (
                "cargo bench -p berth-scheduler --bench tenants -- --pods 10000 --seconds 8 --limit 1000000",
                BENCHMARK,
            ),
            (
                "BERTH_TENANT_OBJECTS=100000 BERTH_TENANT_RATE=1500 BERTH_TENANT_SECONDS=15 BERTH_TENANT_KINDS=Vpas,PodGroups \
                 .ci/long tenants",
                BENCHMARK,
            ),
            (
                "BERTH_TENANT_OBJECTS=10000 BERTH_TENANT_RATE=1000 BERTH_TENANT_SECONDS=15 \
                 BERTH_TENANT_KINDS=ServiceScalers,Allocations .ci/long tenants",
                BENCHMARK,
            ),
            ("cargo bench --bench agent", BENCHMARK),
            ("cargo bench --bench agent -- --quick", BENCHMARK),
            (
                "cargo test --locked --test it recommend::hours -- --nocapture",
                "itself; the table is what it prints",
            ),
            (
                "cargo bench --bench cluster -- --workload lived-in --subjects berth,berth+recorder --repeat 5",
                BENCHMARK,
            ),
            ("cargo test --profile dist --test it explain::speed -- --ignored", BENCHMARK),
            ("cargo test --profile dist --test it fit:: -- --ignored", BENCHMARK),
            (
                "cargo bench --bench cluster -- --workload lived-in --subjects berth,berth+asked --repeat 3",
                BENCHMARK,
            ),
            ("cargo test --profile dist --test it drain:: -- --ignored", BENCHMARK),
        ],
    },
    Document {
        path: "docs/drain.md",
        commands: &[
            ("berth drain --plan", "tests/it/drain.rs, on a real API server"),
            ("berth drain --plan node-7 node-8", "tests/it/drain.rs, on dumps"),
            ("berth drain --plan -l pool=spot --max-moves 50 --max-nodes 3", "tests/it/drain.rs, on dumps"),
            ("berth drain --plan -f cluster.json -o json", "tests/it/drain.rs, on dumps"),
            ("berth drain --plan --deletion-costs", "tests/it/drain.rs, on dumps"),
            ("berth drain --apply -l pool=spot --max-nodes 3", "tests/it/drain.rs, on a real API server"),
        ],
    },
    Document {
        path: "docs/extender.md",
        commands: &[
            (
                "kubectl create secret generic kube-scheduler-ca --namespace berth-system --from-file=ca.crt=CA_FILE",
                KUBECTL,
            ),
            (
                SET_EXTENDER,
                "tests/it/chart.rs renders it; tests/it/extender.rs runs a real kube-scheduler with what it sets",
            ),
        ],
    },
    Document {
        path: "docs/first-steps.md",
        commands: &[
            (
                "cargo run --release -- demo --nodes 100 --pods 500 --keep",
                "tests/it/demo.rs, with fewer nodes and pods",
            ),
            ("export KUBECONFIG=FILE", "nothing here: the shell's own"),
            ("kubectl describe pods --selector class=giant --show-events", KUBECTL),
            ("target/release/berth explain", "tests/it/explain/live.rs, with the build of the tests"),
            (
                r#"kubectl run mine --image=pause --overrides='{"apiVersion": "v1", "spec": {"schedulerName": "berth"}}'"#,
                "kubectl's own; tests/it/demo.rs creates such a pod beside a kept demo",
            ),
            ("kubectl get pods mine -o wide", KUBECTL),
            (
                "kubectl label nodes --selector pool=general topology.kubernetes.io/zone=zone-z --overwrite",
                "kubectl's own; tests/it/scheduling/waiting.rs changes labels of nodes",
            ),
            ("kubectl get pods --selector class=nowhere -o wide", KUBECTL),
            (
                "cargo run --release -- demo --kubeconfig FILE",
                "tests/it/demo/existing.rs, with fewer nodes and pods",
            ),
            ("release/image", IMAGE),
            ("kind load image-archive target/image/berth-amd64.tar", LOAD),
            (INSTALL, RELEASE),
        ],
    },
    Document {
        path: "docs/fit.md",
        commands: &[
            ("berth fit app.yaml", "tests/it/fit.rs, on a real API server"),
            ("berth fit app.yaml --max 500", "tests/it/fit.rs, on dumps"),
            ("berth fit app.yaml -f cluster.json -o json", "tests/it/fit.rs, on dumps"),
            ("berth fit app.yaml --server http://127.0.0.1:10261", "tests/it/fit.rs, on a real API server"),
        ],
    },
    Document {
        path: "docs/guard.md",
        commands: &[(
            "helm upgrade berth charts/berth --namespace berth-system --reset-then-reuse-values --set guard.enabled=true",
            "tests/it/chart/features.rs, against a real API server",
        )],
    },
    Document {
        path: "docs/kube-scheduler-configuration.md",
        commands: &[(
            "berth run --kubeconfig FILE --config kube-scheduler.yaml",
            "tests/it/scheduling/profiles.rs, against a real API server",
        )],
    },
    Document {
        path: "docs/questions.md",
        commands: &[
            ("berth explain shop/search-0 -f docs/tour/cluster.json", QUESTION),
            ("berth explain -f docs/tour/cluster.json", QUESTION),
            ("berth explain shop/search-0 --what-if -f docs/tour/cluster.json", QUESTION),
            ("berth fit docs/tour/web.yaml --max 40 -f docs/tour/cluster.json", QUESTION),
            ("berth drain --plan -f docs/tour/cluster.json", QUESTION),
            ("berth drain --plan b -f docs/tour/cluster.json", QUESTION),
        ],
    },
    Document {
        path: "docs/recommender.md",
        commands: &[
            ("berth recommend", "src/cli/recommend/tests/cluster.rs, on a fake API server"),
            (
                "berth recommend --context prod --prometheus-service monitoring/prometheus-operated",
                "src/cli/recommend/tests/cluster.rs, on a fake API server",
            ),
            (
                "berth recommend --prometheus http://localhost:9090",
                "tests/it/recommend.rs, on a real Prometheus",
            ),
            (
                "berth recommend --prometheus http://localhost:9090 --namespace shop,bank -o html > sizes.html",
                "tests/it/recommend.rs, on a real Prometheus",
            ),
            (
                "berth recommend --prometheus http://localhost:9090 --strategy krr --limits memory-as-request --prices 20,2.5",
                "tests/it/recommend/strategies.rs, on a real Prometheus",
            ),
            (
                "berth recommend --prometheus http://localhost:9090 --price-file prices.yaml -o csv > costs.csv",
                "src/cli/recommend/tests.rs, on a fake Prometheus",
            ),
            (
                "berth recommend --prometheus http://localhost:9090 --kind Deployment,StatefulSet --selector team=a -o kubectl > sizes.sh",
                "tests/it/recommend/strategies.rs, on a real Prometheus",
            ),
            (
                "berth recommend --prometheus http://localhost:9090 --prices 20,2.5 -o slack > message.json",
                "tests/it/recommend/strategies.rs, on a real Prometheus",
            ),
            (
                "curl --fail --header 'Content-Type: application/json' --data @message.json \"$SLACK_WEBHOOK_URL\"",
                "nothing here: it needs an account; src/advise/tests/messages.rs checks Slack's limits",
            ),
            ("berth recommend --backtest usage.csv", "tests/it/recommend.rs, on a file it makes"),
        ],
    },
    Document {
        path: "docs/releasing.md",
        commands: &[
            (
                "release/build 0.1.0",
                "tests/it/release/recipe.rs, with a small file in place of the binary, and .ci/long image",
            ),
            ("cd target/release-0.1.0", "nothing here: the shell's own"),
            ("sha256sum --check SHA256SUMS", "tests/it/release/recipe.rs"),
            (
                "skopeo copy --all oci-archive:berth-0.1.0-image-oci.tar docker://REGISTRY/berth:0.1.0",
                REGISTRY,
            ),
            ("helm push berth-0.1.0.tgz oci://REGISTRY/charts", REGISTRY),
            ("git tag 0.1.0", "nothing here: git's own"),
        ],
    },
    Document {
        path: "docs/replay.md",
        commands: &[
            (
                "helm upgrade berth charts/berth --namespace berth-system --reset-then-reuse-values --set config.recorder.enabled=true",
                "tests/it/chart/features.rs renders the chart with this value",
            ),
            (
                "kubectl exec --namespace berth-system POD -- /berth replay /var/lib/berth/recordings --print > recording.jsonl",
                "tests/it/replay.rs, without a container",
            ),
            ("berth replay recording.jsonl", "tests/it/replay.rs"),
            ("berth replay recording.jsonl --config packed.yaml", "tests/it/replay.rs"),
            (
                "kubectl get nodes,pods,namespaces,pv,pvc,storageclasses,services,replicationcontrollers,replicasets,statefulsets,poddisruptionbudgets -A -o json > 1.json",
                KUBECTL,
            ),
            (
                "berth replay 1.json 2.json 3.json --config packed.yaml",
                "tests/it/replay.rs, with what kube-scheduler placed",
            ),
            (
                "berth replay trace.sktrace --nodes cluster.json --config packed.yaml",
                "tests/it/replay.rs, with a trace made in the form that SimKube writes",
            ),
            ("berth replay tuesday.jsonl --against today.jsonl", "tests/it/replay.rs"),
            (
                "kubectl exec --namespace berth-system POD -- /berth replay /var/lib/berth/recordings --print --anonymise > recording.jsonl",
                "tests/it/replay.rs, without a container",
            ),
        ],
    },
    Document {
        path: "docs/rightsizers.md",
        commands: &[
            (
                "cargo test --test it -- recommend::strategies --nocapture",
                "itself; tests/it/recommend/strategies.rs compares the figures",
            ),
            (
                "BERTH_DAY_HOURS=24 BERTH_SEED=1 cargo test --test it -- scaler::day --nocapture",
                "itself, for four hours; .ci/long day",
            ),
        ],
    },
    Document {
        path: "docs/running.md",
        commands: &[
            ("release/image", IMAGE),
            ("kind load image-archive target/image/berth-amd64.tar", LOAD),
            ("k3d image import target/image/berth-amd64.tar", LOAD),
            ("minikube image load target/image/berth-amd64.tar", LOAD),
            ("docker load --input target/image/berth-amd64.tar", LOAD),
            (
                "skopeo copy --all oci-archive:target/image/berth-oci.tar docker://REGISTRY/berth:0.1.0",
                REGISTRY,
            ),
            ("kubectl apply -f manifests/install.yaml", "tests/it/chart.rs applies every object of it"),
            (
                "berth run --kubeconfig FILE --config FILE --leader-elect=false --health-address 127.0.0.1:10261",
                "tests/it/scheduling: every test runs it with these options",
            ),
            (
                "kubectl delete nodes,namespaces,clusterroles,clusterrolebindings --selector berth.dev/demo",
                "kubectl's own; tests/it/demo/existing.rs compares the kinds of objects that a demo deletes",
            ),
            ("kubectl -n kube-node-lease delete leases --selector berth.dev/demo", KUBECTL),
        ],
    },
    Document {
        path: "docs/simulate.md",
        commands: &[
            ("berth simulate", "tests/it/simulate.rs"),
            (
                "berth simulate --trace batched-1pct-0.csv.gz --dispatcher all --report report.html",
                "tests/it/simulate, on published traces if they are there, and tests/it/report.rs",
            ),
        ],
    },
    Document {
        path: "docs/upgrading.md",
        commands: &[
            ("helm get values berth --namespace berth-system", RELEASE),
            ("helm upgrade berth charts/berth --namespace berth-system --reset-then-reuse-values", RELEASE),
            (
                "kubectl -n berth-system rollout status deployment/berth",
                "tests/it/chart/upgrades.rs, with a real Deployment controller",
            ),
            ("helm history berth --namespace berth-system", RELEASE),
            ("helm rollback berth --namespace berth-system", RELEASE),
            ("kubectl delete validatingwebhookconfiguration berth-system-berth --ignore-not-found", KUBECTL),
            ("helm uninstall berth --namespace berth-system", RELEASE),
            (
                "kubectl delete crds allocations.berth.dev allocationpolicies.berth.dev quotas.berth.dev servicescalers.berth.dev",
                "kubectl's own; tests/it/chart/releases.rs compares the names",
            ),
            ("kubectl -n berth-system delete lease berth --ignore-not-found", KUBECTL),
            ("kubectl -n berth-system delete secrets berth-tls berth-webhooks --ignore-not-found", KUBECTL),
            ("kubectl delete namespace berth-system", KUBECTL),
        ],
    },
    Document {
        path: "docs/using-as-scheduler.md",
        commands: &[
            ("kubectl apply -f manifests/example-deployment.yaml", "tests/it/chart.rs applies it"),
            ("kubectl get pods -o wide", KUBECTL),
            ("berth explain NAMESPACE/POD", "tests/it/explain.rs, on a real API server"),
            (
                "kubectl get nodes,pods,namespaces,pv,pvc,storageclasses,csinodes,csidrivers,csistoragecapacities,volumeattachments,\
                 resourceclaims,resourceslices,deviceclasses,services,replicationcontrollers,replicasets,statefulsets,poddisruptionbudgets,allocations,allocationpolicies,quotas.berth.dev,podgroups -A -o json > cluster.json",
                "kubectl's own; tests/it/explain.rs makes such files",
            ),
            ("berth explain -f cluster.json", "tests/it/explain.rs"),
            (
                "berth explain --what-if",
                "tests/it/explain/what_if.rs, and tests/it/allocations/advice.rs on a real API server",
            ),
            ("source <(berth completion bash)", "tests/it/shell.rs, with a real bash"),
            ("berth man ~/.local/share/man/man1", "tests/it/shell.rs, into another folder"),
            (
                "kubectl apply -f manifests/example-allocation.yaml",
                "tests/it/allocations/placed.rs, with a real kubectl and berth on a real API server",
            ),
            ("kubectl get allocations -o wide", "tests/it/allocations/status.rs"),
            ("kubectl apply -f manifests/example-policy.yaml", "tests/it/policies.rs, on a real API server"),
            ("kubectl get allocationpolicies", "kubectl's own; tests/it/policies.rs reads what it shows"),
        ],
    },
    Document {
        path: "docs/watch.md",
        commands: &[
            ("berth ui", "tests/it/ui/tunnel.rs, through a real API server and kwok"),
            ("berth top", "src/top/tests.rs; a terminal is needed"),
            ("berth top --view queue --once", "tests/it/ui/tunnel.rs, and with --server tests/it/ui.rs"),
        ],
    },
    Document {
        path: "docs/why.md",
        commands: &[
            ("berth why default/web-0", "tests/it/why.rs and tests/it/ui/tunnel.rs, on a real API server"),
            (
                "berth why default/web-0 --server http://127.0.0.1:10261",
                "tests/it/why.rs, on a real API server",
            ),
        ],
    },
];

/// Returns the commands of the `sh` blocks of a document, without their comments.
fn commands(text: &str) -> Vec<&str> {
    let blocks = text.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap_or_default());
    let lines =
        blocks.flat_map(str::lines).map(|line| line.split(" #").next().unwrap_or_default().trim_end());
    lines.filter(|line| !line.is_empty() && !line.starts_with('#')).collect()
}

#[test]
fn every_command_of_the_documents_is_covered() {
    for document in documents() {
        let text = read(&document);
        let covered = COVERED
            .iter()
            .find(|covered| covered.path == document)
            .map_or(&[][..], |covered| covered.commands);
        let covered: Vec<&str> = covered.iter().map(|(command, _)| *command).collect();
        assert_eq!(
            commands(&text),
            covered,
            "{document}: a command that nothing runs, or the other way round"
        );
    }
    let documents = documents();
    let paths: Vec<&str> = COVERED.iter().map(|covered| covered.path).collect();
    assert!(
        paths.iter().all(|path| documents.iter().any(|document| document == path)),
        "no such document: {paths:?}"
    );
    assert!(paths.is_sorted(), "sort the documents by path: {paths:?}");
}
