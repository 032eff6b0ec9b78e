//! Claims, volumes and their topology: bound and pending, static and provisioned, missing and being deleted.

use serde_json::{Value, json};

use super::nodes::{HOSTNAME, REGION, ZONE};
use super::{Generator, NAMESPACES};
use crate::differential::scenario::{Step, key_of};

const DRIVER: &str = "csi.example.com";
/// Storage classes: static volumes, volumes provisioned where the pod goes, volumes provisioned immediately.
const STATIC: &str = "static";
const WAITING: &str = "waiting";
const IMMEDIATE: &str = "immediate";
const CLAIMS: &[&str] = &["claim-0", "claim-1", "claim-2", "claim-3", "claim-4", "claim-5"];

impl Generator {
    /// Adds classes and drivers, then all other storage objects.
    pub(super) fn add_storage(&mut self, step: &mut Step) {
        let class = |name, provisioner, mode| json!({"metadata": {"name": name, "uid": name}, "provisioner": provisioner, "volumeBindingMode": mode});
        step.apply("storageclasses", class(STATIC, "kubernetes.io/no-provisioner", "WaitForFirstConsumer"));
        step.apply("storageclasses", class(IMMEDIATE, DRIVER, "Immediate"));
        let mut waiting = class(WAITING, DRIVER, "WaitForFirstConsumer");
        if self.dice.percent(30) {
            let expression = json!({"key": ZONE, "values": self.some(&["a", "b", "c"], 50)});
            waiting["allowedTopologies"] = json!([{"matchLabelExpressions": [expression]}]);
        }
        step.apply("storageclasses", waiting);
        let tells = self.dice.percent(50);
        let driver = json!({"metadata": {"name": DRIVER, "uid": DRIVER}, "spec": {"storageCapacity": tells}});
        step.apply("csidrivers", driver);
        for _ in 0..self.dice.below(5) {
            self.put_capacity(step);
        }
        for name in self.nodes.keys().cloned().collect::<Vec<_>>() {
            if self.dice.percent(70) {
                self.put_csi_node(&name, step);
            }
        }
        for _ in 0..self.dice.below(12) {
            self.add_free_disk(step);
        }
        for namespace in &NAMESPACES[..3] {
            for claim in CLAIMS {
                if self.dice.percent(85) {
                    self.put_claim(namespace, claim, step);
                }
            }
        }
    }

    pub(super) fn change_storage(&mut self, step: &mut Step) {
        match self.dice.below(8) {
            0 => self.put_capacity(step),
            1 | 2 => {
                let names: Vec<_> = self.nodes.keys().cloned().collect();
                if let Some(name) = self.dice.pick(&names) {
                    self.put_csi_node(name, step);
                }
            }
            3 => self.add_free_disk(step),
            4 => {
                let names: Vec<_> =
                    self.storage.iter().filter(|(kind, _)| *kind == "persistentvolumes").cloned().collect();
                if let Some((kind, key)) = self.dice.pick(&names) {
                    self.drop_storage(kind, key, step);
                }
            }
            5 => {
                let (namespace, claim) = (self.one(&NAMESPACES[..3]), self.one(CLAIMS));
                self.drop_storage("persistentvolumeclaims", &format!("{namespace}/{claim}"), step);
            }
            _ => {
                let (namespace, claim) = (self.one(&NAMESPACES[..3]), self.one(CLAIMS));
                self.put_claim(namespace, claim, step);
            }
        }
    }

    /// Adds volumes to the spec of a pod.
    pub(super) fn mount(&mut self, spec: &mut Value) {
        let mut volumes = Vec::new();
        if self.dice.percent(self.theme.volumes) {
            let mut claims = self.some(CLAIMS, 15);
            // Used twice in one pod, it needs two volumes upstream, which no claim can have.
            let one = self.one(CLAIMS);
            claims.retain(|claim| *claim != one);
            claims.push(one);
            let volume = |claim| json!({"name": claim, "persistentVolumeClaim": {"claimName": claim}});
            volumes.extend(claims.into_iter().map(volume));
        }
        if self.dice.percent(self.theme.volumes / 3) {
            volumes.push(self.disk());
        }
        if self.dice.percent(self.theme.volumes / 3) {
            volumes.push(json!({"name": "scratch", "emptyDir": {}}));
        }
        if self.dice.percent(self.theme.volumes / 20) {
            let template = json!({"spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": WAITING,
                "resources": {"requests": {"storage": "1Gi"}}}});
            volumes.push(json!({"name": "own", "ephemeral": {"volumeClaimTemplate": template}}));
        }
        if !volumes.is_empty() {
            spec["volumes"] = json!(volumes);
        }
    }

    /// Returns a volume that not all pods of a node can share.
    fn disk(&mut self) -> Value {
        let (id, read_only) = (self.one(&["one", "two"]), self.dice.percent(50));
        let mut volume = json!({"name": "disk"});
        match self.dice.below(4) {
            0 => volume["gcePersistentDisk"] = json!({"pdName": id, "readOnly": read_only}),
            1 => volume["awsElasticBlockStore"] = json!({"volumeID": id, "readOnly": read_only}),
            2 => {
                volume["iscsi"] =
                    json!({"targetPortal": "10.0.0.9", "iqn": id, "lun": 0, "readOnly": read_only});
            }
            _ => {
                let mut monitors = self.some(&["m1", "m2"], 50);
                monitors.push("m3");
                volume["rbd"] =
                    json!({"monitors": monitors, "pool": "p", "image": id, "readOnly": read_only});
            }
        }
        volume
    }

    fn put_storage(&mut self, resource: &'static str, object: Value, step: &mut Step) {
        let key = key_of(&object);
        super::churn::forget(step, resource, &key);
        self.storage.insert((resource, key));
        step.apply(resource, object);
    }

    fn drop_storage(&mut self, resource: &'static str, key: &str, step: &mut Step) {
        if self.storage.remove(&(resource, key.to_owned())) {
            super::churn::forget(step, resource, key);
            step.delete(resource, key);
        }
    }

    fn put_capacity(&mut self, step: &mut Step) {
        let name = format!("capacity-{}", self.dice.below(5));
        let mut capacity = json!({
            "metadata": {"namespace": "kube-system", "name": name, "uid": name}, "storageClassName": WAITING,
        });
        match self.dice.below(4) {
            0 => {}
            1 => capacity["nodeTopology"] = json!({}),
            _ => capacity["nodeTopology"] = json!({"matchLabels": {ZONE: self.one(&["a", "b", "c"])}}),
        }
        if self.dice.percent(80) {
            capacity["capacity"] = json!(self.one(&["1Gi", "10Gi", "100Gi"]));
        }
        if self.dice.percent(30) {
            capacity["maximumVolumeSize"] = json!(self.one(&["1Gi", "10Gi"]));
        }
        self.put_storage("csistoragecapacities", capacity, step);
    }

    fn put_csi_node(&mut self, name: &str, step: &mut Step) {
        let mut driver = json!({"name": DRIVER, "nodeID": name, "topologyKeys": null});
        if self.dice.percent(80) {
            driver["allocatable"] = json!({"count": self.dice.below(4)});
        }
        let drivers = if self.dice.percent(90) { json!([driver]) } else { json!([]) };
        let node =
            json!({"metadata": {"name": name, "uid": format!("csi-{name}")}, "spec": {"drivers": drivers}});
        self.put_storage("csinodes", node, step);
    }

    fn add_free_disk(&mut self, step: &mut Step) {
        let name = self.new_name("disk-");
        let mut disk = self.persistent_volume(&name, STATIC);
        disk["status"] = json!({"phase": "Available"});
        if self.dice.percent(15) {
            let (namespace, claim) = (self.one(&NAMESPACES[..3]), self.one(CLAIMS));
            // Upstream chooses arbitrarily among several for one claim.
            if self.reserved.insert([namespace, claim]) {
                disk["spec"]["claimRef"] = json!({"namespace": namespace, "name": claim});
            }
        }
        self.put_storage("persistentvolumes", disk, step);
    }

    fn persistent_volume(&mut self, name: &str, class: &str) -> Value {
        let mut volume = json!({
            "metadata": {"name": name, "uid": format!("uid-{name}"), "labels": {}},
            "spec": {
                "storageClassName": class,
                // Upstream chooses arbitrarily among equal ones.
                "capacity": {"storage": format!("{}Mi", self.one(&[5, 10, 20]) * 1024 + self.named)},
                "accessModes": ["ReadWriteOnce"],
                "persistentVolumeReclaimPolicy": "Retain",
                "volumeMode": "Filesystem",
            },
            "status": {"phase": "Bound"},
        });
        let spec = &mut volume["spec"];
        if class == STATIC {
            spec["local"] = json!({"path": "/disk"});
        } else {
            spec["csi"] = json!({"driver": DRIVER, "volumeHandle": name});
        }
        if self.dice.percent(60) {
            let names: Vec<_> = self.nodes.keys().cloned().collect();
            let expression = match (self.dice.below(3), self.dice.pick(&names)) {
                (0, Some(node)) => json!({"key": HOSTNAME, "operator": "In", "values": [node]}),
                (1, _) => json!({"key": "disk", "operator": "Exists"}),
                _ => json!({"key": ZONE, "operator": "In", "values": [self.one(&["a", "b", "c"]), "a"]}),
            };
            spec["nodeAffinity"] =
                json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}});
        }
        let labels = &mut volume["metadata"]["labels"];
        if self.dice.percent(20) {
            labels[ZONE] = json!(self.one(&["a", "b", "a__c"]));
        }
        if self.dice.percent(10) {
            labels["failure-domain.beta.kubernetes.io/zone"] = json!(self.one(&["a", "c"]));
        }
        if self.dice.percent(10) {
            labels[REGION] = json!(self.one(&["east", "west"]));
        }
        if self.dice.percent(30) {
            labels["quality"] = json!("good");
        }
        volume
    }

    /// Adds a claim in one of its lifecycle states.
    fn put_claim(&mut self, namespace: &str, name: &str, step: &mut Step) {
        let uid = self.new_name("uid-claim-");
        let class = self.one(&[STATIC, STATIC, WAITING, WAITING, IMMEDIATE]);
        let mut mode = self.one(&["ReadWriteOnce", "ReadWriteOnce", "ReadWriteOnce", "ReadWriteOncePod"]);
        if self.theme.preemption {
            // Several pods use it here. Upstream takes it to be free when one of them is gone; berth wants all gone.
            mode = "ReadWriteOnce";
        }
        let mut claim = json!({
            "metadata": {"namespace": namespace, "name": name, "uid": uid, "annotations": {}},
            "spec": {
                "storageClassName": class,
                "accessModes": [mode],
                "volumeMode": "Filesystem",
                "resources": {"requests": {"storage": self.one(&["1Gi", "5Gi", "15Gi"])}},
            },
            "status": {"phase": "Pending"},
        });
        match self.dice.below(20) {
            0..=9 => self.bind_claim(&mut claim, step),
            10 => claim["spec"]["volumeName"] = json!("disk-1"),
            11 => claim["metadata"]["annotations"]["volume.kubernetes.io/selected-node"] = json!("node-7"),
            12 if class == STATIC => claim["spec"]["selector"] = json!({"matchLabels": {"quality": "good"}}),
            13 => claim["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z"),
            _ => {}
        }
        self.put_storage("persistentvolumeclaims", claim, step);
    }

    fn bind_claim(&mut self, claim: &mut Value, step: &mut Step) {
        let name = self.new_name("bound-");
        claim["spec"]["volumeName"] = json!(name);
        claim["metadata"]["annotations"]["pv.kubernetes.io/bind-completed"] = json!("yes");
        claim["status"]["phase"] = json!(if self.dice.percent(5) { "Lost" } else { "Bound" });
        if self.dice.percent(95) {
            let class = claim["spec"]["storageClassName"].as_str().expect("it has one").to_owned();
            let mut volume = self.persistent_volume(&name, &class);
            volume["spec"]["accessModes"] = claim["spec"]["accessModes"].clone();
            volume["spec"]["claimRef"] = json!({
                "namespace": claim["metadata"]["namespace"],
                "name": claim["metadata"]["name"],
                "uid": claim["metadata"]["uid"],
            });
            self.put_storage("persistentvolumes", volume, step);
        }
    }
}
