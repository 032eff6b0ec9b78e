//! Workloads of all kinds that upstream supports, each with two equal VPAs: one for upstream, one for berth.

use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::recommender::{api, create, vpas};

/// Gives 200 containers and some more with recommendations.
const COUNT: usize = 168;
const CREATIONS_IN_FLIGHT: usize = 16;
/// A container's memory request in bytes: the minimum sample of an OOM kill.
const REQUESTED: i64 = 256 << 20;

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    Deployment,
    StatefulSet,
    DaemonSet,
    Job,
    CronJob,
    ReplicaSet,
    ReplicationController,
}

#[derive(Debug, Clone)]
pub struct Workload {
    pub number: usize,
    pub name: String,
    pub kind: Kind,
    pub containers: &'static [&'static str],
    /// Running pods.
    pub pods: Vec<String>,
    /// A pod that is gone.
    pub old_pod: Option<String>,
}

/// Recommender of a VPA.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Of {
    Upstream,
    Berth,
}

impl Of {
    pub fn vpa(self, workload: &str) -> String {
        match self {
            Of::Upstream => workload.to_owned(),
            Of::Berth => format!("{workload}-berth"),
        }
    }
}

pub fn workloads() -> Vec<Workload> {
    (0..COUNT).map(Workload::new).collect()
}

impl Workload {
    fn new(number: usize) -> Self {
        let name = format!("w{number:03}");
        let kind = match number % 8 {
            0 | 1 => Kind::Deployment,
            2 => Kind::StatefulSet,
            3 => Kind::DaemonSet,
            4 => Kind::Job,
            5 => Kind::CronJob,
            6 => Kind::ReplicaSet,
            _ => Kind::ReplicationController,
        };
        // As controllers name them: of a pod that is gone only the name remains.
        let pod = |index: usize| match kind {
            Kind::Deployment => format!("{name}-7d4b9c6f5-pod{index:02}"),
            Kind::StatefulSet => format!("{name}-{index}"),
            Kind::CronJob => format!("{name}-29000000-pod{index:02}"),
            _ => format!("{name}-pod{index:02}"),
        };
        let pods = if number % 5 == 3 { 2 } else { 1 };
        Self {
            containers: if number.is_multiple_of(4) { &["app", "sidecar"] } else { &["app"] },
            pods: (0..pods).map(pod).collect(),
            old_pod: (number % 5 == 1).then(|| pod(pods)),
            number,
            kind,
            name,
        }
    }

    /// Returns the containers with a recommendation.
    pub fn recommended(&self) -> impl Iterator<Item = &'static str> {
        let is_off = self.number % 10 == 4;
        self.containers.iter().copied().filter(move |name| !(is_off && *name == "sidecar"))
    }

    fn vpa(&self, of: Of) -> Value {
        let policies = match self.number % 10 {
            1 => json!([{"containerName": "app", "minAllowed": {"cpu": "300m", "memory": "300Mi"}}]),
            2 => json!([{"containerName": "*", "maxAllowed": {"cpu": "700m", "memory": "600Mi"}}]),
            3 => json!([{"containerName": "*", "controlledResources": ["memory"]}]),
            4 => json!([{"containerName": "sidecar", "mode": "Off"}]),
            6 => json!([{
                "containerName": "app", "controlledResources": ["cpu"],
                "minAllowed": {"memory": "10Gi"}, "maxAllowed": {"cpu": "2"},
            }]),
            7 => json!([{
                "containerName": "app",
                "minAllowed": {"cpu": "2", "memory": "2Gi"}, "maxAllowed": {"cpu": "1500m", "memory": "1Gi"},
            }]),
            8 => json!([
                {"containerName": "*", "minAllowed": {"cpu": "400m"}},
                {"containerName": "app", "maxAllowed": {"memory": "500M"}},
            ]),
            _ => json!([]),
        };
        let mut vpa = json!({
            "apiVersion": "autoscaling.k8s.io/v1", "kind": "VerticalPodAutoscaler",
            "metadata": {"name": of.vpa(&self.name)},
            "spec": {
                "targetRef": {
                    "apiVersion": self.kind.api_version(), "kind": self.kind.name(), "name": self.name,
                },
                "updatePolicy": {"updateMode": "Off"},
                "resourcePolicy": {"containerPolicies": policies},
            },
        });
        if self.number % 10 == 5 {
            let annotation = json!({"vpa-post-processor.kubernetes.io/app_integerCPU": "true"});
            vpa["metadata"]["annotations"] = annotation;
        }
        if of == Of::Berth {
            vpa["spec"]["recommenders"] = json!([{"name": "berth"}]);
        }
        vpa
    }

    async fn create(&self, client: &Client) {
        let metadata = json!({"labels": {"app": self.name}});
        let containers: Vec<Value> =
            self.containers.iter().map(|name| json!({"name": name, "image": "pause"})).collect();
        let template = |policy: &str| {
            let spec = json!({"containers": containers, "restartPolicy": policy});
            json!({"metadata": metadata, "spec": spec})
        };
        let selector = json!({"matchLabels": {"app": self.name}});
        let spec = json!({"selector": selector, "template": template("Always")});
        let job = json!({"manualSelector": true, "selector": selector, "template": template("Never")});
        let mut owner = match self.kind {
            Kind::StatefulSet => {
                let mut spec = spec.clone();
                spec["serviceName"] = json!("nowhere");
                self.kind.create(client, &self.name, spec, None).await
            }
            Kind::Job => self.kind.create(client, &self.name, job.clone(), None).await,
            Kind::CronJob => {
                let template = json!({"spec": {"template": template("Never")}});
                let spec = json!({"schedule": "0 0 1 1 *", "jobTemplate": template});
                self.kind.create(client, &self.name, spec, None).await
            }
            Kind::ReplicationController => {
                let spec = json!({"selector": {"app": self.name}, "template": template("Always")});
                self.kind.create(client, &self.name, spec, None).await
            }
            _ => self.kind.create(client, &self.name, spec.clone(), None).await,
        };
        let mut owner_kind = self.kind;
        let between = match self.kind {
            Kind::Deployment => Some((Kind::ReplicaSet, format!("{}-7d4b9c6f5", self.name), spec)),
            Kind::CronJob => Some((Kind::Job, format!("{}-29000000", self.name), job)),
            _ => None,
        };
        if let Some((kind, name, spec)) = between {
            owner = kind.create(client, &name, spec, Some((owner_kind, &owner))).await;
            owner_kind = kind;
        }
        for pod in &self.pods {
            self.create_pod(client, pod, owner_kind.reference(&owner)).await;
        }
        for of in [Of::Upstream, Of::Berth] {
            create(&vpas(client), self.vpa(of)).await;
        }
    }

    async fn create_pod(&self, client: &Client, name: &str, owner: Value) {
        let api: Api<Pod> = Api::default_namespaced(client.clone());
        let resources = json!({"requests": {"cpu": "100m", "memory": REQUESTED.to_string()}});
        let containers: Vec<Value> = self
            .containers
            .iter()
            .map(|name| json!({"name": name, "image": "pause", "resources": resources}))
            .collect();
        let pod = json!({
            "metadata": {"name": name, "labels": {"app": self.name}, "ownerReferences": owner},
            "spec": {"schedulerName": "nobody", "containers": containers},
        });
        let pod = serde_json::from_value(pod).expect("a pod");
        api.create(&PostParams::default(), &pod).await.expect("the pod is created");
        self.patch_pod(client, name, 0, Value::Null).await;
    }

    /// Sets the containers to running, after this number of restarts; `last` is the first one's last termination.
    pub async fn patch_pod(&self, client: &Client, name: &str, restarts: u32, last: Value) {
        let statuses = self.containers.iter().enumerate().map(|(index, name)| {
            json!({
                "name": name, "image": "pause", "imageID": "", "ready": true,
                "restartCount": if index == 0 { restarts } else { 0 },
                "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
                "lastState": if index == 0 { last.clone() } else { Value::Null },
            })
        });
        let statuses: Vec<Value> = statuses.collect();
        let status = json!({"status": {"phase": "Running", "containerStatuses": statuses}});
        let api: Api<Pod> = Api::default_namespaced(client.clone());
        let patched = api.patch_status(name, &PatchParams::default(), &Patch::Merge(&status)).await;
        patched.expect("the pod runs");
    }
}

impl Kind {
    fn api_version(self) -> &'static str {
        match self {
            Kind::Job | Kind::CronJob => "batch/v1",
            Kind::ReplicationController => "v1",
            _ => "apps/v1",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Kind::Deployment => "Deployment",
            Kind::StatefulSet => "StatefulSet",
            Kind::DaemonSet => "DaemonSet",
            Kind::Job => "Job",
            Kind::CronJob => "CronJob",
            Kind::ReplicaSet => "ReplicaSet",
            Kind::ReplicationController => "ReplicationController",
        }
    }

    fn reference(self, owner: &DynamicObject) -> Value {
        let (name, uid) = (&owner.metadata.name, &owner.metadata.uid);
        json!([{
            "apiVersion": self.api_version(), "kind": self.name(), "name": name, "uid": uid, "controller": true,
        }])
    }

    async fn create(
        self,
        client: &Client,
        name: &str,
        spec: Value,
        owner: Option<(Kind, &DynamicObject)>,
    ) -> DynamicObject {
        let (group, version) = self.api_version().split_once('/').unwrap_or(("", "v1"));
        let api = api(client, group, version, self.name(), &format!("{}s", self.name().to_lowercase()));
        let mut object = json!({
            "apiVersion": self.api_version(), "kind": self.name(), "metadata": {"name": name}, "spec": spec,
        });
        if let Some((kind, owner)) = owner {
            object["metadata"]["ownerReferences"] = kind.reference(owner);
        }
        create(&api, object).await
    }
}

pub async fn create_all(client: &Client, workloads: &[Workload]) {
    let creations = workloads.iter().map(|workload| workload.create(client));
    stream::iter(creations).buffer_unordered(CREATIONS_IN_FLIGHT).for_each(|()| async {}).await;
}
