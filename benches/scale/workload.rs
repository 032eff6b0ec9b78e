//! Objects of the benchmark as the API server writes them: nodes, workloads with ReplicaSets and Services, and pods with the fields
//! that nobody schedules by (probes, environment, managed fields, container statuses), since these are most of the JSON.

use std::fmt::Write;

use serde_json::{Value, json};

const HOSTNAME_LABEL: &str = "kubernetes.io/hostname";
const ZONE_LABEL: &str = "topology.kubernetes.io/zone";
pub const SCHEDULER: &str = "berth";
const CREATED: &str = "2026-01-01T00:00:00Z";
const ZONES: u32 = 3;

/// Number of objects.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    pub nodes: u32,
    /// Pods with a node at the start.
    pub pods: u32,
    /// Workloads whose pods fit; each is a class of its own.
    pub classes: u32,
    /// Workloads whose pods fit nowhere.
    pub parked_classes: u32,
    /// Whether workloads have Services, affinity and spread.
    pub lived_in: bool,
}

/// State of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    Waiting,
    Bound,
    Running,
    Deleting,
    Gone,
}

/// A pod of the store. Its serial number is its index there.
#[derive(Debug, Clone, Copy)]
pub struct Pod {
    /// Number of the workload; from `Size::classes` on it is a parked one.
    pub workload: u32,
    /// Number of rolling updates of the workload before.
    pub revision: u16,
    pub phase: Phase,
    /// Meaningless while the pod waits.
    pub node: u32,
    pub version: u32,
}

/// Texts of all pods of one revision of a workload, between what differs from pod to pod.
pub struct Template {
    name_prefix: String,
    namespace: String,
    labels_to_spec: String,
    spec: String,
}

pub fn node_name(index: u32) -> String {
    format!("node-{index:06}")
}

/// Returns the index of a named node.
pub fn node_index(name: &str) -> Option<u32> {
    name.strip_prefix("node-")?.parse().ok()
}

/// Returns the serial number of a named pod.
pub fn serial_of(name: &str) -> Option<u32> {
    name.rsplit_once('-')?.1.parse().ok()
}

pub fn uid_of(serial: u32) -> String {
    format!("7e5f0c1d-3b6a-4c2e-9d41-{serial:012x}")
}

fn app(workload: u32) -> String {
    format!("app-{workload:05}")
}

fn hash(workload: u32, revision: u16) -> String {
    let number = u64::from(workload) << 16 | u64::from(revision);
    format!("{:010x}", (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 24)
}

impl Size {
    fn namespaces(&self) -> u32 {
        (self.classes / 10).max(1)
    }

    pub fn workloads(&self) -> u32 {
        self.classes + self.parked_classes
    }

    fn namespace(&self, workload: u32) -> String {
        format!("team-{:03}", workload % self.namespaces())
    }

    /// Returns the node of a pod that has one at the start. Pods of one workload are on different nodes.
    pub fn first_node(&self, serial: u32) -> u32 {
        (serial + serial / self.nodes) % self.nodes
    }

    /// Returns the number of the namespace with this name: of it are the pods of every workload with this remainder.
    pub fn namespace_number(&self, name: &str) -> Option<u32> {
        (0..self.namespaces()).find(|at| self.namespace(*at) == name)
    }

    /// Returns whether the pods of this workload are in the namespace with this number.
    pub fn is_in(&self, workload: u32, namespace: u32) -> bool {
        workload % self.namespaces() == namespace
    }

    pub fn namespace_objects(&self) -> Vec<Value> {
        let object = |at| {
            json!({"metadata": {"name": self.namespace(at), "uid": format!("ns-{at}"), "resourceVersion": "1",
            "labels": {"kubernetes.io/metadata.name": self.namespace(at), "team": at.to_string()}}})
        };
        (0..self.namespaces()).map(object).collect()
    }

    pub fn services(&self) -> Vec<Value> {
        let object = |at| {
            json!({
                "metadata": {"name": app(at), "namespace": self.namespace(at), "uid": format!("svc-{at}"), "resourceVersion": "1"},
                "spec": {"clusterIP": "None", "selector": {"app": app(at)}},
            })
        };
        let all = if self.lived_in { self.workloads() } else { 0 };
        (0..all).map(object).collect()
    }

    pub fn replica_set(&self, workload: u32, revision: u16, version: u32) -> Value {
        let hash = hash(workload, revision);
        json!({
            "kind": "ReplicaSet", "apiVersion": "apps/v1",
            "metadata": {"name": format!("{}-{hash}", app(workload)), "namespace": self.namespace(workload),
                "uid": format!("rs-{workload}-{revision}"), "resourceVersion": version.to_string()},
            "spec": {"replicas": 1, "selector": {"matchLabels": {"app": app(workload), "pod-template-hash": hash}}},
        })
    }

    pub fn template(&self, workload: u32, revision: u16) -> Template {
        let (app, hash, namespace) = (app(workload), hash(workload, revision), self.namespace(workload));
        let labels = json!({"app": app, "app.kubernetes.io/name": app, "app.kubernetes.io/instance": namespace,
            "app.kubernetes.io/managed-by": "Helm", "pod-template-hash": hash});
        let owners = json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": format!("{app}-{hash}"),
            "uid": format!("rs-{workload}-{revision}"), "controller": true, "blockOwnerDeletion": true}]);
        let annotations = json!({"checksum/config": format!("{:064x}", u64::from(workload) * 7_919),
            "prometheus.io/scrape": "true", "prometheus.io/port": "9102"});
        let labels_to_spec = format!(
            r#""labels":{labels},"annotations":{annotations},"ownerReferences":{owners},"managedFields":{MANAGED_FIELDS}"#
        );
        // Without the braces: the node's name is another field.
        let spec = self.spec(workload, &app).to_string();
        let spec = spec[1..spec.len() - 1].to_owned();
        Template { name_prefix: format!("{app}-{hash}-"), namespace, labels_to_spec, spec }
    }

    fn spec(&self, workload: u32, app: &str) -> Value {
        let is_parked = workload >= self.classes;
        let milli_cpu = if is_parked { 1_000_000 } else { 500 + workload % 10 * 100 };
        let memory_mib = 1_024 + workload % 7 * 256;
        let probe = json!({"httpGet": {"path": "/healthz", "port": 8080, "scheme": "HTTP"}, "timeoutSeconds": 1,
            "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3});
        let variable =
            |at: u32| json!({"name": format!("SETTING_{at}"), "value": format!("value-{at}-of-{app}")});
        let mut spec = json!({
            "volumes": [{"name": "kube-api-access-x7k2p", "projected": {"defaultMode": 420, "sources": [
                {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
                {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
                {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}]}}]}}],
            "containers": [{
                "name": "main", "image": format!("registry.example.com/shop/{app}:1.0"),
                "ports": [{"name": "http", "containerPort": 8080, "protocol": "TCP"}],
                "env": (0..8).map(variable).collect::<Vec<_>>(),
                "resources": {"limits": {"memory": format!("{}Mi", memory_mib * 2)},
                    "requests": {"cpu": format!("{milli_cpu}m"), "memory": format!("{memory_mib}Mi")}},
                "volumeMounts": [{"name": "kube-api-access-x7k2p", "readOnly": true, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}],
                "livenessProbe": probe, "readinessProbe": probe,
                "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File", "imagePullPolicy": "IfNotPresent"}],
            "restartPolicy": "Always", "terminationGracePeriodSeconds": 30, "dnsPolicy": "ClusterFirst",
            "serviceAccountName": "default", "serviceAccount": "default", "securityContext": {},
            "schedulerName": SCHEDULER, "priority": 0, "enableServiceLinks": true, "preemptionPolicy": "PreemptLowerPriority",
            "tolerations": [
                {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300},
                {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}],
        });
        if !self.lived_in {
            return spec;
        }
        let selector = json!({"matchLabels": {"app.kubernetes.io/name": app}});
        let term = json!({"labelSelector": selector, "topologyKey": HOSTNAME_LABEL});
        // As in the lived-in workload of `cargo bench --bench cluster`: a quarter, a twentieth and a tenth.
        match workload * 7 % 20 {
            0..5 => {
                let weighted = json!([{"weight": 100, "podAffinityTerm": term}]);
                spec["affinity"] =
                    json!({"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": weighted}});
            }
            5 => {
                spec["affinity"] =
                    json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}});
            }
            6 | 7 => {
                spec["topologySpreadConstraints"] = json!([{"maxSkew": 1, "topologyKey": ZONE_LABEL,
                    "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": selector}]);
            }
            _ => {}
        }
        spec
    }
}

/// Appends the JSON of a node.
pub fn write_node(to: &mut String, index: u32, version: u32) {
    let name = node_name(index);
    let zone = index % ZONES;
    // Writing to a string cannot fail.
    let _ = write!(
        to,
        r#"{{"kind":"Node","apiVersion":"v1","metadata":{{"name":"{name}","uid":"node-{index}","resourceVersion":"{version}","creationTimestamp":"{CREATED}","labels":{{"beta.kubernetes.io/arch":"amd64","beta.kubernetes.io/os":"linux","kubernetes.io/arch":"amd64","kubernetes.io/hostname":"{name}","kubernetes.io/os":"linux","node.kubernetes.io/instance-type":"m-{}","topology.kubernetes.io/region":"eu","topology.kubernetes.io/zone":"eu-{zone}"}},"annotations":{{"csi.volume.kubernetes.io/nodeid":"{{\"disk.csi\":\"{name}\"}}","node.alpha.kubernetes.io/ttl":"0"}},"managedFields":{NODE_MANAGED_FIELDS}}},"spec":{{"podCIDR":"10.0.0.0/24","providerID":"cloud:///{name}"}},"status":{{"capacity":{{"cpu":"16","ephemeral-storage":"100Gi","hugepages-2Mi":"0","memory":"66Gi","pods":"110"}},"allocatable":{{"cpu":"16","ephemeral-storage":"90Gi","hugepages-2Mi":"0","memory":"64Gi","pods":"110"}},{NODE_STATUS}}}}}"#,
        16 + index % 4,
    );
}

impl Template {
    /// Appends the JSON of a pod.
    pub fn write_pod(&self, to: &mut String, serial: u32, pod: &Pod, condition: Option<&str>) {
        self.write_metadata(to, serial, pod);
        to.push_str(r#","spec":{"#);
        if pod.phase != Phase::Waiting {
            let _ = write!(to, r#""nodeName":"{}","#, node_name(pod.node));
        }
        to.push_str(&self.spec);
        to.push_str(r#"},"status":"#);
        match (pod.phase, condition) {
            (Phase::Waiting, None) => to.push_str(r#"{"phase":"Pending","qosClass":"Burstable"}"#),
            (Phase::Waiting, Some(condition)) => {
                let _ =
                    write!(to, r#"{{"phase":"Pending","conditions":[{condition}],"qosClass":"Burstable"}}"#);
            }
            (Phase::Bound, _) => to.push_str(BOUND_STATUS),
            (Phase::Running | Phase::Deleting | Phase::Gone, _) => to.push_str(RUNNING_STATUS),
        }
        to.push('}');
    }

    /// Appends a pod without spec and status.
    pub fn write_partial(&self, to: &mut String, serial: u32, pod: &Pod) {
        self.write_metadata(to, serial, pod);
        to.push('}');
    }

    fn write_metadata(&self, to: &mut String, serial: u32, pod: &Pod) {
        let (name, uid, version) = (&self.name_prefix, uid_of(serial), pod.version);
        let _ = write!(
            to,
            r#"{{"kind":"Pod","apiVersion":"v1","metadata":{{"name":"{name}{serial:09}","generateName":"{name}","namespace":"{}","uid":"{uid}","resourceVersion":"{version}","generation":1,"creationTimestamp":"{CREATED}","#,
            self.namespace,
        );
        if matches!(pod.phase, Phase::Deleting | Phase::Gone) {
            let _ = write!(to, r#""deletionTimestamp":"{CREATED}","deletionGracePeriodSeconds":30,"#);
        }
        to.push_str(&self.labels_to_spec);
        to.push('}');
    }
}

const MANAGED_FIELDS: &str = r#"[{"manager":"kube-controller-manager","operation":"Update","apiVersion":"v1","time":"2026-01-01T00:00:00Z","fieldsType":"FieldsV1","fieldsV1":{"f:metadata":{"f:annotations":{".":{},"f:checksum/config":{},"f:prometheus.io/port":{},"f:prometheus.io/scrape":{}},"f:generateName":{},"f:labels":{".":{},"f:app":{},"f:app.kubernetes.io/instance":{},"f:app.kubernetes.io/managed-by":{},"f:app.kubernetes.io/name":{},"f:pod-template-hash":{}},"f:ownerReferences":{".":{},"k:{\"uid\":\"7e5f0c1d-3b6a-4c2e-9d41-000000000000\"}":{}}},"f:spec":{"f:containers":{"k:{\"name\":\"main\"}":{".":{},"f:env":{".":{},"k:{\"name\":\"SETTING_0\"}":{".":{},"f:name":{},"f:value":{}},"k:{\"name\":\"SETTING_1\"}":{".":{},"f:name":{},"f:value":{}},"k:{\"name\":\"SETTING_2\"}":{".":{},"f:name":{},"f:value":{}}},"f:image":{},"f:imagePullPolicy":{},"f:livenessProbe":{".":{},"f:failureThreshold":{},"f:httpGet":{".":{},"f:path":{},"f:port":{},"f:scheme":{}},"f:periodSeconds":{},"f:successThreshold":{},"f:timeoutSeconds":{}},"f:name":{},"f:ports":{".":{},"k:{\"containerPort\":8080,\"protocol\":\"TCP\"}":{".":{},"f:containerPort":{},"f:name":{},"f:protocol":{}}},"f:resources":{".":{},"f:limits":{".":{},"f:memory":{}},"f:requests":{".":{},"f:cpu":{},"f:memory":{}}},"f:terminationMessagePath":{},"f:terminationMessagePolicy":{}}},"f:dnsPolicy":{},"f:enableServiceLinks":{},"f:restartPolicy":{},"f:schedulerName":{},"f:securityContext":{},"f:terminationGracePeriodSeconds":{}}}},{"manager":"kubelet","operation":"Update","apiVersion":"v1","time":"2026-01-01T00:00:00Z","fieldsType":"FieldsV1","fieldsV1":{"f:status":{"f:conditions":{"k:{\"type\":\"ContainersReady\"}":{".":{},"f:lastProbeTime":{},"f:lastTransitionTime":{},"f:status":{},"f:type":{}},"k:{\"type\":\"Ready\"}":{".":{},"f:lastProbeTime":{},"f:lastTransitionTime":{},"f:status":{},"f:type":{}}},"f:containerStatuses":{},"f:hostIP":{},"f:phase":{},"f:podIP":{},"f:podIPs":{},"f:startTime":{}}},"subresource":"status"}]"#;

const BOUND_STATUS: &str = r#"{"phase":"Pending","conditions":[{"type":"PodScheduled","status":"True","lastProbeTime":null,"lastTransitionTime":"2026-01-01T00:00:00Z"}],"qosClass":"Burstable"}"#;

const RUNNING_STATUS: &str = r#"{"phase":"Running","conditions":[{"type":"PodReadyToStartContainers","status":"True","lastProbeTime":null,"lastTransitionTime":"2026-01-01T00:00:00Z"},{"type":"Initialized","status":"True","lastProbeTime":null,"lastTransitionTime":"2026-01-01T00:00:00Z"},{"type":"Ready","status":"True","lastProbeTime":null,"lastTransitionTime":"2026-01-01T00:00:00Z"},{"type":"ContainersReady","status":"True","lastProbeTime":null,"lastTransitionTime":"2026-01-01T00:00:00Z"},{"type":"PodScheduled","status":"True","lastProbeTime":null,"lastTransitionTime":"2026-01-01T00:00:00Z"}],"hostIP":"10.1.2.3","hostIPs":[{"ip":"10.1.2.3"}],"podIP":"10.2.3.4","podIPs":[{"ip":"10.2.3.4"}],"startTime":"2026-01-01T00:00:00Z","containerStatuses":[{"name":"main","state":{"running":{"startedAt":"2026-01-01T00:00:00Z"}},"lastState":{},"ready":true,"restartCount":0,"image":"registry.example.com/shop/app:1.0","imageID":"registry.example.com/shop/app@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef","containerID":"containerd://0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef","started":true,"volumeMounts":[{"name":"kube-api-access-x7k2p","mountPath":"/var/run/secrets/kubernetes.io/serviceaccount","readOnly":true,"recursiveReadOnly":"Disabled"}]}],"qosClass":"Burstable"}"#;

const NODE_MANAGED_FIELDS: &str = r#"[{"manager":"kubelet","operation":"Update","apiVersion":"v1","time":"2026-01-01T00:00:00Z","fieldsType":"FieldsV1","fieldsV1":{"f:status":{"f:conditions":{"k:{\"type\":\"DiskPressure\"}":{"f:lastHeartbeatTime":{}},"k:{\"type\":\"MemoryPressure\"}":{"f:lastHeartbeatTime":{}},"k:{\"type\":\"PIDPressure\"}":{"f:lastHeartbeatTime":{}},"k:{\"type\":\"Ready\"}":{"f:lastHeartbeatTime":{}}},"f:images":{}}},"subresource":"status"}]"#;

const NODE_STATUS: &str = r#""conditions":[{"type":"MemoryPressure","status":"False","lastHeartbeatTime":"2026-01-01T00:00:00Z","lastTransitionTime":"2026-01-01T00:00:00Z","reason":"KubeletHasSufficientMemory","message":"kubelet has sufficient memory available"},{"type":"DiskPressure","status":"False","lastHeartbeatTime":"2026-01-01T00:00:00Z","lastTransitionTime":"2026-01-01T00:00:00Z","reason":"KubeletHasNoDiskPressure","message":"kubelet has no disk pressure"},{"type":"PIDPressure","status":"False","lastHeartbeatTime":"2026-01-01T00:00:00Z","lastTransitionTime":"2026-01-01T00:00:00Z","reason":"KubeletHasSufficientPID","message":"kubelet has sufficient PID available"},{"type":"Ready","status":"True","lastHeartbeatTime":"2026-01-01T00:00:00Z","lastTransitionTime":"2026-01-01T00:00:00Z","reason":"KubeletReady","message":"kubelet is posting ready status"}],"addresses":[{"type":"InternalIP","address":"10.1.2.3"}],"daemonEndpoints":{"kubeletEndpoint":{"Port":10250}},"nodeInfo":{"machineID":"0123456789abcdef","systemUUID":"0123","bootID":"0123","kernelVersion":"6.12.0","osImage":"Linux","containerRuntimeVersion":"containerd://2.1.0","kubeletVersion":"v1.36.0","kubeProxyVersion":"v1.36.0","operatingSystem":"linux","architecture":"amd64"},"images":[{"names":["registry.k8s.io/pause@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef","registry.k8s.io/pause:3.10"],"sizeBytes":320368},{"names":["registry.k8s.io/kube-proxy@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef","registry.k8s.io/kube-proxy:v1.36.0"],"sizeBytes":31891765}]"#;
