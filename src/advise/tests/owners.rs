use proptest::prelude::*;

use crate::advise::{OwnerIndex, WorkloadRef, guess};
use berth_prometheus::{Fact, FactRow};

fn found(kind: &str, name: &str, guessed: bool) -> WorkloadRef {
    WorkloadRef { kind: kind.into(), name: name.into(), guessed }
}

fn owners(told: &[(Fact, &str, &str)]) -> OwnerIndex {
    let mut owners = OwnerIndex::default();
    for (fact, object, about) in told {
        owners.add(*fact, FactRow { namespace: "n", object, about, value: 1.0 });
    }
    owners
}

#[test]
fn the_top_of_the_chain_of_owners_is_the_workload() {
    let owners = owners(&[
        (Fact::PodOwner, "web-59f9fb6b8-x2x4z", "ReplicaSet/web-59f9fb6b8"),
        (Fact::ReplicaSetOwner, "web-59f9fb6b8", "Deployment/web"),
        (Fact::PodOwner, "roll-7c5ddbdf54-b5x2w", "ReplicaSet/roll-7c5ddbdf54"),
        (Fact::ReplicaSetOwner, "roll-7c5ddbdf54", "Rollout/roll"),
        (Fact::PodOwner, "alone-b5x2w", "ReplicaSet/alone"),
        (Fact::ReplicaSetOwner, "alone", "<none>/<none>"),
        (Fact::PodOwner, "backup-28456720-x2x4z", "Job/backup-28456720"),
        (Fact::JobOwner, "backup-28456720", "CronJob/backup"),
        (Fact::PodOwner, "import-x2x4z", "Job/import"),
        (Fact::JobOwner, "import", "/"),
        (Fact::PodOwner, "db-0", "StatefulSet/db"),
        (Fact::PodOwner, "agent-x2x4z", "DaemonSet/agent"),
        (Fact::PodOwner, "shell", "/"),
        (Fact::PodOwner, "old-style", "<none>/<none>"),
        (Fact::PodOwner, "kube-proxy-node-7", "Node/node-7"),
    ]);
    let cases = [
        ("web-59f9fb6b8-x2x4z", "Deployment", "web"),
        ("roll-7c5ddbdf54-b5x2w", "Rollout", "roll"),
        ("alone-b5x2w", "ReplicaSet", "alone"),
        ("backup-28456720-x2x4z", "CronJob", "backup"),
        ("import-x2x4z", "Job", "import"),
        ("db-0", "StatefulSet", "db"),
        ("agent-x2x4z", "DaemonSet", "agent"),
        ("shell", "Pod", "shell"),
        ("old-style", "Pod", "old-style"),
        ("kube-proxy-node-7", "Node", "kube-proxy"),
        // Unknown to kube-state-metrics, but its ReplicaSet or Job is known.
        ("roll-7c5ddbdf54-zzzzz", "Rollout", "roll"),
        ("import-zzzzz", "Job", "import"),
    ];
    for (pod, kind, name) in cases {
        assert_eq!(owners.workload("n", pod), found(kind, name, false), "{pod}");
    }
    assert!(
        owners.has_owner("n", "shell") && !owners.has_owner("n", "nobody") && !owners.has_owner("m", "shell")
    );
    // The same names in another namespace do not match.
    assert_eq!(owners.workload("m", "db-0"), found("StatefulSet", "db", true));
}

#[test]
fn unknown_top_owners_are_guessed_from_known_owners() {
    let owners = owners(&[
        (Fact::PodOwner, "web-59f9fb6b8-x2x4z", "ReplicaSet/web-59f9fb6b8"),
        (Fact::PodOwner, "mine-x2x4z", "ReplicaSet/mine"),
        (Fact::PodOwner, "backup-28456720-x2x4z", "Job/backup-28456720"),
    ]);
    assert_eq!(owners.workload("n", "web-59f9fb6b8-x2x4z"), found("Deployment", "web", true));
    assert_eq!(owners.workload("n", "mine-x2x4z"), found("ReplicaSet", "mine", false));
    assert_eq!(owners.workload("n", "backup-28456720-x2x4z"), found("CronJob", "backup", true));
}

#[test]
fn a_pod_that_had_an_owner_once_is_not_taken_for_one_without() {
    for order in [["StatefulSet/db", "/"], ["/", "StatefulSet/db"]] {
        let owners = owners(&order.map(|about| (Fact::PodOwner, "db-0", about)));
        assert_eq!(owners.workload("n", "db-0"), found("StatefulSet", "db", false));
    }
}

#[test]
fn workloads_are_guessed_from_names() {
    let cases = [
        ("web-59f9fb6b8-x2x4z", "Deployment", "web"),
        ("my-web-api-7c5ddbdf54-b5x2w", "Deployment", "my-web-api"),
        ("backup-28456720-x2x4z", "CronJob", "backup"),
        ("backup-1633478400-x2x4z", "CronJob", "backup"),
        ("agent-x2x4z", "DaemonSet", "agent"),
        ("node-exporter-x2x4z", "DaemonSet", "node-exporter"),
        ("db-0", "StatefulSet", "db"),
        ("db-12", "StatefulSet", "db"),
        ("db-012", "Pod", "db-012"),
        ("shell", "Pod", "shell"),
        // Random names never contain `a` or `1`.
        ("web-a1a1a", "Pod", "web-a1a1a"),
        ("-x2x4z", "Pod", "-x2x4z"),
        ("", "Pod", ""),
        ("-", "Pod", "-"),
    ];
    for (pod, kind, name) in cases {
        assert_eq!(guess(pod), found(kind, name, true), "{pod}");
    }
}

proptest! {
    #[test]
    fn any_name_has_a_workload_whose_name_it_begins_with(pod in ".{0,40}") {
        let WorkloadRef { name, guessed, .. } = OwnerIndex::default().workload("n", &pod);
        prop_assert!(pod.starts_with(&name) && guessed);
    }

    #[test]
    fn all_pods_of_a_deployment_are_of_one_workload(
        name in "[a-z]([a-z0-9-]{0,20}[a-z0-9])?", hash in "[bcdfghjklmnpqrstvwxz2456789]{9}[bcdfg]",
        pod in "[bcdfghjklmnpqrstvwxz2456789]{5}",
    ) {
        prop_assert_eq!(guess(&format!("{name}-{hash}-{pod}")), found("Deployment", &name, true));
    }
}
