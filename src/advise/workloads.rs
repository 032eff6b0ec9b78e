//! Mapping from pods to workloads: from the owners that kube-state-metrics reports, or guessed from the pod's name.

use std::collections::BTreeMap;

use berth_prometheus::{Fact, FactRow};

/// Kind and name.
type Owner = (String, String);
/// By namespace, then by name.
type ByName = BTreeMap<String, BTreeMap<String, Owner>>;

/// Owners of pods, ReplicaSets and Jobs.
#[derive(Debug, Clone, Default)]
pub struct OwnerIndex {
    pods: ByName,
    replica_sets: ByName,
    jobs: ByName,
}

/// A workload by kind and name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkloadRef {
    pub kind: String,
    pub name: String,
    /// Guessed from the pod's name; it may be wrong.
    pub guessed: bool,
}

impl OwnerIndex {
    /// Adds a result of an owner query; results of other queries are ignored.
    pub fn add(&mut self, fact: Fact, told: FactRow<'_>) {
        let map = match fact {
            Fact::PodOwner => &mut self.pods,
            Fact::ReplicaSetOwner => &mut self.replica_sets,
            Fact::JobOwner => &mut self.jobs,
            _ => return,
        };
        let (kind, name) = told.about.split_once('/').unwrap_or_default();
        let nobody = |text: &str| text.is_empty() || text == "<none>";
        let owner = match nobody(kind) || nobody(name) {
            true => (String::new(), String::new()),
            false => (kind.to_owned(), name.to_owned()),
        };
        let objects = map.entry(told.namespace.to_owned()).or_default();
        // The history has two pods of this name: a named owner is better than none.
        if !owner.0.is_empty() || !objects.contains_key(told.object) {
            objects.insert(told.object.to_owned(), owner);
        }
    }

    /// Returns whether no pod is known.
    pub fn is_empty(&self) -> bool {
        self.pods.is_empty()
    }

    /// Returns whether this pod's owner is known, including that it has none.
    pub fn has_owner(&self, namespace: &str, pod: &str) -> bool {
        get(&self.pods, namespace, pod).is_some()
    }

    /// Returns the top of the pod's chain of owners.
    pub fn workload(&self, namespace: &str, pod: &str) -> WorkloadRef {
        let Some((kind, name)) = get(&self.pods, namespace, pod) else {
            return self.by_name(namespace, pod);
        };
        let sure =
            |kind: &str, name: &str| WorkloadRef { kind: kind.into(), name: name.into(), guessed: false };
        let above = |owners: &ByName, own: WorkloadRef| match get(owners, namespace, name) {
            None => None,
            Some((kind, _)) if kind.is_empty() => Some(own),
            Some((kind, name)) => Some(sure(kind, name)),
        };
        match &**kind {
            "" => sure("Pod", pod),
            "ReplicaSet" => {
                above(&self.replica_sets, sure(kind, name)).unwrap_or_else(|| match deployment_of(name) {
                    Some(name) => WorkloadRef { kind: "Deployment".into(), name: name.into(), guessed: true },
                    None => sure(kind, name),
                })
            }
            "Job" => above(&self.jobs, sure(kind, name)).unwrap_or_else(|| match cron_job_of(name) {
                Some(name) => WorkloadRef { kind: "CronJob".into(), name: name.into(), guessed: true },
                None => sure(kind, name),
            }),
            // The mirror of a static pod: the same pod runs on other nodes, with their names as suffix.
            "Node" => sure(kind, pod.strip_suffix(&format!("-{name}")).unwrap_or(pod)),
            _ => sure(kind, name),
        }
    }

    /// Returns the workload of a pod known only by name. Its ReplicaSet or Job may still be known.
    fn by_name(&self, namespace: &str, pod: &str) -> WorkloadRef {
        if let Some((controller, _)) = without_random(pod) {
            for (owners, own) in [(&self.replica_sets, "ReplicaSet"), (&self.jobs, "Job")] {
                if let Some((kind, name)) = get(owners, namespace, controller) {
                    let (kind, name) = if kind.is_empty() { (own, controller) } else { (&**kind, &**name) };
                    return WorkloadRef { kind: kind.into(), name: name.into(), guessed: false };
                }
            }
        }
        guess(pod)
    }
}

fn get<'a>(map: &'a ByName, namespace: &str, name: &str) -> Option<&'a Owner> {
    map.get(namespace)?.get(name)
}

/// Characters of the random names that controllers generate: no vowels, and no digits that look like letters.
const RANDOM: &str = "bcdfghjklmnpqrstvwxz2456789";
const RANDOM_SUFFIX: usize = 5;

/// Guesses the workload of a pod from its name. DaemonSet and Job pods have the same name pattern: a DaemonSet is
/// guessed.
pub fn guess(pod: &str) -> WorkloadRef {
    let found = |kind: &str, name: &str| WorkloadRef { kind: kind.into(), name: name.into(), guessed: true };
    if let Some((controller, _)) = without_random(pod) {
        if let Some(name) = cron_job_of(controller) {
            return found("CronJob", name);
        }
        if let Some(name) = deployment_of(controller) {
            return found("Deployment", name);
        }
        return found("DaemonSet", controller);
    }
    match split(pod) {
        Some((name, ordinal)) if is_ordinal(ordinal) => found("StatefulSet", name),
        _ => found("Pod", pod),
    }
}

/// Returns the pod's name without its random suffix, and the suffix.
fn without_random(pod: &str) -> Option<(&str, &str)> {
    split(pod).filter(|(_, end)| end.len() == RANDOM_SUFFIX && is_random(end))
}

/// Returns the Deployment of a ReplicaSet of this name.
fn deployment_of(replica_set: &str) -> Option<&str> {
    let (name, hash) = split(replica_set)?;
    // A hash is a number of 32 bits: it is shorter than 8 characters about once in 400 times.
    ((7..=10).contains(&hash.len()) && is_random(hash)).then_some(name)
}

/// Returns the CronJob of a Job of this name: the suffix is the minutes, formerly the seconds, since 1970.
fn cron_job_of(job: &str) -> Option<&str> {
    let (name, time) = split(job)?;
    (matches!(time.len(), 8 | 10) && time.bytes().all(|byte| byte.is_ascii_digit())).then_some(name)
}

fn is_random(text: &str) -> bool {
    text.chars().all(|c| RANDOM.contains(c))
}

fn is_ordinal(text: &str) -> bool {
    text.len() <= 5
        && text.bytes().all(|byte| byte.is_ascii_digit())
        && (text == "0" || !text.starts_with('0'))
}

/// Splits at the last hyphen; neither part is empty.
fn split(name: &str) -> Option<(&str, &str)> {
    name.rsplit_once('-').filter(|(head, tail)| !head.is_empty() && !tail.is_empty())
}
