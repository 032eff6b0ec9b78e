//! Manifests and the pods that their controllers would create.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use crate::explain::dump::Dump;

/// Pods of one template.
#[derive(Debug, Clone)]
pub struct TriedWorkload {
    pub kind: String,
    pub namespace: String,
    pub name: String,
    /// Number of pods at once; `None`: one on each node that it selects (DaemonSet).
    pub replicas: Option<usize>,
    /// `metadata` and `spec` of its pods.
    template: Value,
    /// Its pods are numbered; otherwise it is one pod with its own name.
    numbered: bool,
    /// The controller of its pods.
    owner: Option<Owner>,
    /// `volumeClaimTemplates` of a StatefulSet.
    claims: Vec<Value>,
}

#[derive(Debug, Clone)]
struct Owner {
    api_version: &'static str,
    kind: &'static str,
    name: String,
}

/// Reason why manifests cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    #[error("{0} is not text: it must be YAML or JSON in UTF-8")]
    NotText(String),
    #[error("{file} cannot be read: {why}")]
    Syntax { file: String, why: String },
    #[error("{file}, {object}: {why}")]
    Object { file: String, object: String, why: String },
    #[error("{0} asks for no pods: name manifests of pods, or of what creates them")]
    NoPods(String),
}

/// Maximum number of pods of all manifests together.
const PODS_MAX: usize = 20_000;

/// Kinds without a namespace, of those that a dump knows.
const GLOBAL_KINDS: [&str; 11] = [
    "AllocationPolicy",
    "CSIDriver",
    "CSINode",
    "DeviceClass",
    "Namespace",
    "Node",
    "PersistentVolume",
    "Quota",
    "ResourceSlice",
    "StorageClass",
    "VolumeAttachment",
];

/// What manifests ask for.
#[derive(Debug, Default)]
pub struct Manifests {
    pub workloads: Vec<TriedWorkload>,
    /// Other objects, which pods may need: allocations, claims, services.
    objects: Vec<Value>,
    /// By name of priority class: its value and preemption policy.
    priorities: HashMap<String, (i64, Option<String>)>,
}

impl Manifests {
    /// Returns the documents of a file as they are.
    ///
    /// # Errors
    /// It is not YAML or JSON.
    pub fn documents(file: &str, bytes: &[u8]) -> Result<Vec<Value>, ManifestError> {
        let text = std::str::from_utf8(bytes).map_err(|_| ManifestError::NotText(file.to_owned()))?;
        documents(file, text)
    }

    /// Reads the documents of a file; `namespace` is that of objects without one.
    ///
    /// # Errors
    /// See [`ManifestError`].
    pub fn read(&mut self, file: &str, bytes: &[u8], namespace: &str) -> Result<(), ManifestError> {
        for (at, document) in Manifests::documents(file, bytes)?.into_iter().enumerate() {
            self.object(document, namespace).map_err(|(name, why)| ManifestError::Object {
                file: file.to_owned(),
                object: format!("document {} ({name})", at + 1),
                why,
            })?;
        }
        let pods: usize = self.workloads.iter().filter_map(|workload| workload.replicas).sum();
        if pods > PODS_MAX {
            let why = format!("the manifests ask for {pods} pods; at most {PODS_MAX} are tried at once");
            return Err(ManifestError::Syntax { file: file.to_owned(), why });
        }
        Ok(())
    }

    /// # Errors
    /// None of the files, with these names, has pods.
    pub fn require_pods(&self, files: &str) -> Result<(), ManifestError> {
        match self.workloads.is_empty() {
            true => Err(ManifestError::NoPods(files.to_owned())),
            false => Ok(()),
        }
    }

    /// Adds an object as a trace has it.
    ///
    /// # Errors
    /// It has no name, or no valid pods.
    pub fn take(&mut self, object: Value) -> Result<(), String> {
        self.object(object, "default").map_err(|(name, why)| format!("{name}: {why}"))
    }

    /// Adds an object, with the items of lists.
    fn object(&mut self, mut object: Value, namespace: &str) -> Result<(), (String, String)> {
        let kind = object["kind"].as_str().unwrap_or_default().to_owned();
        if let (Some(_), Some(items)) =
            (kind.strip_suffix("List"), object.get_mut("items").and_then(Value::as_array_mut))
        {
            return std::mem::take(items).into_iter().try_for_each(|item| self.object(item, namespace));
        }
        if kind.is_empty() {
            return Err(("without a kind".to_owned(), "every manifest needs apiVersion and kind".to_owned()));
        }
        let metadata = object["metadata"].as_object().cloned().unwrap_or_default();
        let text = |field: &str| metadata.get(field).and_then(Value::as_str);
        let name = match (text("name"), text("generateName")) {
            (Some(name), _) => name.to_owned(),
            (None, Some(prefix)) => format!("{prefix}0"),
            (None, None) => return Err((kind, "metadata.name is missing".to_owned())),
        };
        let namespace = text("namespace").unwrap_or(namespace).to_owned();
        let shown = format!("{kind} {name}");
        let found = self.workloads_of(&kind, &namespace, &name, &object).map_err(|why| (shown, why))?;
        if found.is_empty() {
            self.other(&kind, &namespace, object);
        }
        self.workloads.extend(found);
        Ok(())
    }

    fn workloads_of(
        &mut self,
        kind: &str,
        namespace: &str,
        name: &str,
        object: &Value,
    ) -> Result<Vec<TriedWorkload>, String> {
        let spec = &object["spec"];
        let workload = |template: &Value, replicas, owner: Option<Owner>| {
            if !template["spec"]["containers"].is_array() {
                return Err("the pod has no spec.containers".to_owned());
            }
            Ok(TriedWorkload {
                kind: kind.to_owned(),
                namespace: namespace.to_owned(),
                name: name.to_owned(),
                replicas,
                template: template.clone(),
                numbered: kind != "Pod",
                owner,
                claims: Vec::new(),
            })
        };
        let owner = |api_version, kind, name: &str| Some(Owner { api_version, kind, name: name.to_owned() });
        let one = |field: &Value, default| count(field, default).map(Some);
        Ok(match kind {
            "Pod" => vec![workload(object, Some(1), None)?],
            "Deployment" => {
                let set = format!("{name}-fit");
                let replica_set = json!({
                    "apiVersion": "apps/v1", "kind": "ReplicaSet",
                    "metadata": {"name": set, "namespace": namespace},
                    "spec": {"selector": spec["selector"]},
                });
                self.objects.push(replica_set);
                let replicas = one(&spec["replicas"], 1)?;
                vec![workload(&spec["template"], replicas, owner("apps/v1", "ReplicaSet", &set))?]
            }
            "ReplicaSet" | "StatefulSet" | "ReplicationController" => {
                self.other(kind, namespace, object.clone());
                let of = match kind {
                    "ReplicaSet" => owner("apps/v1", "ReplicaSet", name),
                    "StatefulSet" => owner("apps/v1", "StatefulSet", name),
                    _ => owner("v1", "ReplicationController", name),
                };
                let mut found = workload(&spec["template"], one(&spec["replicas"], 1)?, of)?;
                found.claims = spec["volumeClaimTemplates"].as_array().cloned().unwrap_or_default();
                vec![found]
            }
            "DaemonSet" => vec![workload(&spec["template"], None, owner("apps/v1", "DaemonSet", name))?],
            "Job" => vec![workload(&spec["template"], at_once(spec)?, owner("batch/v1", "Job", name))?],
            "CronJob" => {
                let job = &spec["jobTemplate"]["spec"];
                vec![workload(&job["template"], at_once(job)?, owner("batch/v1", "Job", name))?]
            }
            "JobSet" => {
                let jobs = spec["replicatedJobs"].as_array().ok_or("spec.replicatedJobs is missing")?;
                let job = |job: &Value| {
                    let template = &job["template"]["spec"];
                    let each = at_once(template)?.unwrap_or_default();
                    let pods = count(&job["replicas"], 1)?.saturating_mul(each);
                    let role = job["name"].as_str().unwrap_or("0");
                    let name = format!("{name}-{role}");
                    let found = workload(&template["template"], Some(pods), owner("batch/v1", "Job", &name))?;
                    Ok(TriedWorkload { name, ..found })
                };
                jobs.iter().map(job).collect::<Result<_, String>>()?
            }
            _ => Vec::new(),
        })
    }

    /// Keeps an object that creates no pods.
    fn other(&mut self, kind: &str, namespace: &str, mut object: Value) {
        if kind == "PriorityClass" {
            return self.priority_class(&object);
        }
        if !GLOBAL_KINDS.contains(&kind)
            && let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut)
        {
            metadata.entry("namespace").or_insert_with(|| namespace.into());
        }
        self.objects.push(object);
    }

    /// Records the value of a priority class.
    pub fn priority_class(&mut self, class: &Value) {
        if let (Some(name), Some(value)) = (class["metadata"]["name"].as_str(), class["value"].as_i64()) {
            let policy = class["preemptionPolicy"].as_str().map(str::to_owned);
            // Those of the manifests, which are read first, count.
            self.priorities.entry(name.to_owned()).or_insert((value, policy));
        }
    }

    /// Fills in what the API server would: priorities by class. Returns the names of unknown classes.
    pub fn resolve_priorities(&mut self) -> Vec<String> {
        let mut unknown = Vec::new();
        for workload in &mut self.workloads {
            let spec = &mut workload.template["spec"];
            let Some(class) = spec["priorityClassName"].as_str().filter(|name| !name.is_empty()) else {
                continue;
            };
            let known = match class {
                "system-cluster-critical" => Some((2_000_000_000, None)),
                "system-node-critical" => Some((2_000_001_000, None)),
                name => self.priorities.get(name).cloned(),
            };
            match known {
                Some((value, policy)) => {
                    spec["priority"] = value.into();
                    if let Some(policy) = policy {
                        spec["preemptionPolicy"] = policy.into();
                    }
                }
                None => unknown.push(class.to_owned()),
            }
        }
        unknown.sort();
        unknown.dedup();
        unknown
    }

    /// Moves the objects that are not pods to those of the cluster.
    pub fn move_objects_to(&mut self, dump: &mut Dump) {
        for object in self.objects.drain(..) {
            dump.take_object(&object.to_string());
        }
    }
}

impl TriedWorkload {
    /// Whether its pods are made from the same template.
    pub fn has_pods_of(&self, other: &TriedWorkload) -> bool {
        (&self.template, &self.claims) == (&other.template, &other.claims)
    }

    /// Returns the pod with this number, and the claims that its controllers create with it. `scheduler`: its scheduler name.
    pub fn pod(&self, at: usize, scheduler: &str) -> (Value, Vec<Value>) {
        let name = if self.numbered { format!("{}-{at}", self.name) } else { self.name.clone() };
        let mut metadata = self.template["metadata"].as_object().cloned().unwrap_or_default();
        metadata.insert("name".to_owned(), name.clone().into());
        metadata.insert("namespace".to_owned(), self.namespace.clone().into());
        let uid = format!("fit/{}/{}/{name}", self.kind, self.namespace);
        metadata.insert("uid".to_owned(), uid.clone().into());
        if let Some(owner) = &self.owner {
            let owner = json!([{
                "apiVersion": owner.api_version, "kind": owner.kind, "name": owner.name, "uid": owner.name,
                "controller": true,
            }]);
            metadata.insert("ownerReferences".to_owned(), owner);
        }
        let mut spec = self.template["spec"].as_object().cloned().unwrap_or_default();
        spec.insert("schedulerName".to_owned(), scheduler.into());
        request_limits(&mut spec);
        let claims = self.claims_of(&name, &uid, &mut spec);
        if self.kind == "DaemonSet" {
            tolerate_as_daemon(&mut spec);
        }
        (json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}), claims)
    }

    /// Returns the volume claims that are created with a pod, and adds those of a StatefulSet to its volumes.
    fn claims_of(&self, pod: &str, uid: &str, spec: &mut Map<String, Value>) -> Vec<Value> {
        let claim = |name: &str, spec: &Value, owner: Value| {
            json!({
                "apiVersion": "v1", "kind": "PersistentVolumeClaim",
                "metadata": {"name": name, "namespace": self.namespace, "uid": name, "ownerReferences": owner},
                "spec": spec, "status": {"phase": "Pending"},
            })
        };
        let mut claims = Vec::new();
        let volumes = spec.entry("volumes").or_insert_with(|| json!([]));
        let Some(volumes) = volumes.as_array_mut() else { return claims };
        for volume in volumes.iter() {
            let of = &volume["ephemeral"]["volumeClaimTemplate"]["spec"];
            if let (Some(name), true) = (volume["name"].as_str(), of.is_object()) {
                let owner =
                    json!([{"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": uid, "controller": true}]);
                claims.push(claim(&format!("{pod}-{name}"), of, owner));
            }
        }
        for template in &self.claims {
            let Some(name) = template["metadata"]["name"].as_str() else { continue };
            let of_pod = format!("{name}-{pod}");
            claims.push(claim(&of_pod, &template["spec"], json!([])));
            volumes.push(json!({"name": name, "persistentVolumeClaim": {"claimName": of_pod}}));
        }
        claims
    }
}

/// Returns the documents of a file.
fn documents(file: &str, text: &str) -> Result<Vec<Value>, ManifestError> {
    let syntax = |why: String| ManifestError::Syntax { file: file.to_owned(), why };
    // Objects of JSON one after the other are no YAML.
    if text.trim_start().starts_with('{')
        && let Ok(documents) = serde_json::Deserializer::from_str(text).into_iter().collect()
    {
        return Ok(documents);
    }
    // The first line says what and where; the rest shows the text.
    let first_line = |error: String| syntax(error.lines().next().unwrap_or_default().to_owned());
    let documents: Vec<Value> =
        serde_saphyr::from_multiple(text).map_err(|error| first_line(error.to_string()))?;
    Ok(documents.into_iter().filter(|document| !document.is_null()).collect())
}

fn count(field: &Value, default: usize) -> Result<usize, String> {
    match field {
        Value::Null => Ok(default),
        field => {
            let count = field.as_u64().and_then(|count| usize::try_from(count).ok());
            count.ok_or_else(|| format!("{field} is not a number of pods"))
        }
    }
}

/// Returns the number of pods of a Job at once.
fn at_once(job: &Value) -> Result<Option<usize>, String> {
    let parallelism = count(&job["parallelism"], 1)?;
    Ok(Some(count(&job["completions"], parallelism)?.min(parallelism)))
}

/// Requests what a container may use at most where it requests nothing, as the API server does.
fn request_limits(spec: &mut Map<String, Value>) {
    if let Some(resources) = spec.get_mut("resources") {
        default_requests(resources);
    }
    for field in ["containers", "initContainers"] {
        for container in spec.get_mut(field).and_then(Value::as_array_mut).into_iter().flatten() {
            if let Some(resources) = container.get_mut("resources") {
                default_requests(resources);
            }
        }
    }
}

fn default_requests(resources: &mut Value) {
    let Some(limits) = resources["limits"].as_object().cloned() else { return };
    if !resources["requests"].is_object() {
        resources["requests"] = json!({});
    }
    if let Some(requests) = resources["requests"].as_object_mut() {
        for (resource, limit) in limits {
            requests.entry(resource).or_insert(limit);
        }
    }
}

/// Adds the tolerations that the DaemonSet controller adds.
fn tolerate_as_daemon(spec: &mut Map<String, Value>) {
    let host_network = spec.get("hostNetwork").and_then(Value::as_bool).unwrap_or(false);
    let tolerations = spec.entry("tolerations").or_insert_with(|| json!([]));
    let Some(tolerations) = tolerations.as_array_mut() else { return };
    let mut tolerate = |condition: &str, effect: &str| {
        let key = format!("node.kubernetes.io/{condition}");
        tolerations.push(json!({"key": key, "operator": "Exists", "effect": effect}));
    };
    tolerate("not-ready", "NoExecute");
    tolerate("unreachable", "NoExecute");
    for condition in ["disk-pressure", "memory-pressure", "pid-pressure", "unschedulable"] {
        tolerate(condition, "NoSchedule");
    }
    if host_network {
        tolerate("network-unavailable", "NoSchedule");
    }
}
