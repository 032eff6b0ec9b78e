//! Other objects of the simulated cluster: namespaces, allocations, policies, hints; what all of them have in common.

use std::collections::HashSet;
use std::sync::Arc;

use berth_model::{LabelSelector, Labels, Operator, Packing, Requirement};
use berth_scheduler::hints::{Hint, SelectedPods};
use berth_scheduler::objects::{ClusterObject, ObjectKind, ObjectName};
use berth_scheduler::policy::{Governs, ObservedPolicy, PolicySettings, SelectedNamespaces};
use berth_scheduler::rules::CellLimit;
use berth_scheduler::scheduler::Scheduler;

use super::claim_server;
use super::dice::Dice;
use super::gangs;
use super::process::Process;
use super::sim::Sim;

pub type ObjectKey = (ObjectKind, ObjectName);

/// Kinds that every process lists before it schedules.
pub const KINDS: [ObjectKind; 11] = [
    ObjectKind::Namespace,
    ObjectKind::StorageClass,
    ObjectKind::PersistentVolume,
    ObjectKind::PersistentVolumeClaim,
    ObjectKind::DeviceClass,
    ObjectKind::ResourceSlice,
    ObjectKind::ResourceClaim,
    ObjectKind::Allocation,
    ObjectKind::AllocationPolicy,
    ObjectKind::Quota,
    ObjectKind::DisruptionBudget,
];
pub const NAMESPACES: [&str; 3] = ["ns", "na", "nb"];
/// Values of the label `app` of pods, and of the label `team` of namespaces.
pub const APPS: [&str; 3] = ["web", "db", "job"];
pub const TEAMS: [&str; 2] = ["x", "y"];
const POLICIES: u64 = 3;

pub fn global(kind: ObjectKind, name: &str) -> ObjectKey {
    (kind, ObjectName { namespace: "".into(), name: name.into() })
}

/// Returns the name of the object, which is of one of [`KINDS`].
pub fn key_of(object: &ClusterObject) -> ObjectKey {
    match object {
        ClusterObject::Namespace { name, .. } => global(ObjectKind::Namespace, name),
        ClusterObject::StorageClass(class) => global(ObjectKind::StorageClass, &class.name),
        ClusterObject::Volume(volume) => global(ObjectKind::PersistentVolume, &volume.spec.name),
        ClusterObject::Claim(claim) => {
            let (namespace, name) = (claim.name.namespace.clone(), claim.name.name.clone());
            (ObjectKind::PersistentVolumeClaim, ObjectName { namespace, name })
        }
        ClusterObject::DeviceClass(class) => global(ObjectKind::DeviceClass, &class.name),
        ClusterObject::ResourceSlice(slice) => global(ObjectKind::ResourceSlice, &slice.name),
        ClusterObject::ResourceClaim(claim) => claim_server::key_of(&claim.name),
        ClusterObject::Policy(policy) => global(ObjectKind::AllocationPolicy, &policy.name),
        ClusterObject::Quota(quota) => global(ObjectKind::Quota, &quota.name),
        ClusterObject::DisruptionBudget(budget) => (ObjectKind::DisruptionBudget, budget.name.clone()),
        ClusterObject::Allocation(allocation) => {
            let (namespace, name) = (allocation.name.namespace.clone(), allocation.name.name.clone());
            (ObjectKind::Allocation, ObjectName { namespace, name })
        }
        other => panic!("the simulation has no such object: {other:?}"),
    }
}

/// Sends a complete list of all objects.
pub fn list(objects: &[ClusterObject], scheduler: &mut Scheduler) {
    objects.iter().for_each(|object| scheduler.apply_object(object.clone()));
    for kind in KINDS {
        let of_kind = objects.iter().map(key_of).filter(|key| key.0 == kind);
        let names: HashSet<ObjectName> = of_kind.map(|(_, name)| name).collect();
        scheduler.retain_objects(kind, &names);
    }
}

impl Process {
    pub fn apply_object(&mut self, object: &ClusterObject) {
        self.shadow.objects.insert(key_of(object), object.clone());
        self.scheduler.apply_object(object.clone());
    }

    pub fn delete_object(&mut self, key: &ObjectKey) {
        self.shadow.objects.remove(key);
        self.scheduler.delete_object(key.0, &key.1);
    }

    pub fn objects_listed(&mut self, objects: &[ClusterObject]) {
        self.shadow.objects = objects.iter().map(|object| (key_of(object), object.clone())).collect();
        list(objects, &mut self.scheduler);
    }
}

pub fn one_of(key: &str, value: &str) -> LabelSelector {
    let operator = Operator::In([value.into()].into());
    LabelSelector::All([Requirement { key: key.into(), operator }].into())
}

fn namespace(name: &str, dice: &mut Dice) -> ClusterObject {
    let labels: Labels = [("team", *dice.pick(&TEAMS).expect("there are some"))].into_iter().collect();
    ClusterObject::Namespace { name: name.into(), labels }
}

/// Namespaces that an object selects.
fn selected(dice: &mut Dice) -> SelectedNamespaces {
    match dice.below(3) {
        0 => SelectedNamespaces::Named([Arc::from(*dice.pick(&NAMESPACES).expect("there are some"))].into()),
        _ => SelectedNamespaces::Selected(one_of("team", dice.pick(&TEAMS).expect("there are some"))),
    }
}

fn policy(name: &str, created: i64, dice: &mut Dice) -> ClusterObject {
    let namespaces = if dice.percent(30) { SelectedNamespaces::All } else { selected(dice) };
    let limit = dice.percent(50).then(|| CellLimit {
        cpu: Some(40 + dice.below(50) as u8),
        memory: None,
        topology_key: dice.percent(50).then(|| "zone".into()),
    });
    let settings = PolicySettings {
        packing: Some(if dice.percent(50) { Packing::MostAllocated } else { Packing::LeastAllocated }),
        candidate_width: Some(1 + dice.below(3) as usize),
        limit,
        agents: dice.percent(30).then_some(1),
        ..PolicySettings::default()
    };
    ClusterObject::Policy(Box::new(ObservedPolicy {
        name: name.into(),
        uid: format!("{name} {created}").into(),
        generation: 1,
        created,
        governs: Governs { schedulers: [].into(), namespaces },
        settings: if dice.percent(10) { Err("it is invalid".into()) } else { Ok(settings) },
    }))
}

impl Sim {
    pub fn build_objects(&mut self) {
        gangs::allocations().for_each(|allocation| self.cluster.apply_object(allocation));
        for name in NAMESPACES {
            let namespace = namespace(name, &mut self.load);
            self.cluster.apply_object(namespace);
        }
    }

    /// Changes an object that schedulers read, of a kind that this schedule has.
    pub fn change_object(&mut self) {
        match self.load.below(5) {
            0 => self.relabel(),
            1 if self.settings.policies => self.change_policy(),
            2 if self.settings.hints => self.change_hints(),
            3 if self.settings.quotas => self.change_quota(),
            4 if self.settings.budgets => self.change_budget(),
            _ => {}
        }
    }

    fn relabel(&mut self) {
        let name = *self.load.pick(&NAMESPACES).expect("there are some");
        let namespace = namespace(name, &mut self.load);
        self.note(|| format!("{namespace:?}"));
        self.tally.count("relabelled");
        self.cluster.apply_object(namespace);
    }

    fn change_policy(&mut self) {
        let name = format!("p{}", self.load.below(POLICIES));
        let key = global(ObjectKind::AllocationPolicy, &name);
        if self.cluster.objects.contains_key(&key) && self.load.percent(40) {
            self.note(|| format!("policy {name} is deleted"));
            return self.cluster.delete_object(&key);
        }
        let policy = policy(&name, self.now.as_millis() as i64, &mut self.load);
        self.note(|| format!("{policy:?}"));
        self.tally.count("policy");
        self.cluster.apply_object(policy);
    }

    /// Every process measures hints by itself.
    fn change_hints(&mut self) {
        let slot = self.load.below(self.processes.len() as u64) as usize;
        let workload = |dice: &mut Dice| SelectedPods {
            namespace: (*dice.pick(&NAMESPACES).expect("there are some")).into(),
            selector: one_of("app", dice.pick(&APPS).expect("there are some")),
        };
        let hints = (0..self.load.below(3)).map(|_| {
            let weight = if self.load.percent(50) { 50 } else { -50 };
            Hint { of: workload(&mut self.load), other: workload(&mut self.load), weight }
        });
        let hints: Vec<_> = hints.collect();
        self.note(|| format!("p{slot} has the hints {hints:?}"));
        self.tally.count("hints");
        self.processes[slot].scheduler.hints_changed(hints);
    }
}
