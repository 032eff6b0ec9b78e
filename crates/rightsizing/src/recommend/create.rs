//! Creation and deletion of VPAs for workloads that have none, as Goldilocks does.
//!
//! A created VPA only recommends (mode `Off`). It is deleted when another VPA targets the same workload. A created
//! VPA that a user has edited belongs to the user and is never deleted.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::store::Workload;
use super::vpa::{OwnerRef, Vpa};

/// Maximum length of a VPA name. Checkpoint names are the VPA's name, `-`, and the container name of at most 63
/// bytes: 253 bytes in all.
pub const NAME_BYTES_MAX: usize = 253 - 1 - 63;

/// Workload with pods, in a namespace whose workloads get VPAs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CreationCandidate {
    pub namespace: Arc<str>,
    pub owner: OwnerRef,
    pub uid: String,
    /// Whether the workload opted out.
    pub is_excluded: bool,
}

/// Namespaces and workloads for which VPAs are requested.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CreationRequests {
    /// All namespaces that request VPAs.
    pub namespaces: BTreeSet<Arc<str>>,
    /// Their workloads with pods, as far as these could be read.
    pub candidates: BTreeMap<Workload, CreationCandidate>,
}

/// VPAs to create and to delete.
#[derive(Debug, PartialEq)]
pub struct CreationPlan<'a> {
    /// In workload order.
    pub create: Vec<&'a CreationCandidate>,
    /// Created VPAs that are no longer needed.
    pub superfluous: Vec<&'a Vpa>,
}

/// Plans which VPAs to create and to delete. `vpas` are those of all recommenders, `recommender` is the name of
/// this one.
pub fn plan<'a>(asked: &'a CreationRequests, vpas: &[&'a Vpa], recommender: &str) -> CreationPlan<'a> {
    let mut targeted: BTreeMap<(&str, &str, &str), Vec<&Vpa>> = BTreeMap::new();
    for vpa in vpas {
        if let Some(target) = &vpa.target {
            targeted.entry((&vpa.namespace, &target.kind, &target.name)).or_default().push(vpa);
        }
    }
    let of = |namespace: &str, owner: &OwnerRef| -> Vec<&Vpa> {
        let found = targeted.get(&(namespace, owner.kind.as_str(), owner.name.as_str()));
        let same = |vpa: &&&Vpa| vpa.target.as_ref().is_some_and(|target| is_same(target, owner));
        found.into_iter().flatten().filter(same).copied().collect()
    };
    let wants = |candidate: &&CreationCandidate| {
        !candidate.is_excluded && of(&candidate.namespace, &candidate.owner).is_empty()
    };
    let is_superfluous = |vpa: &Vpa| {
        let Some(target) = vpa.target.as_ref().filter(|_| is_made(vpa, recommender)) else { return false };
        let candidate = vpa.workload().and_then(|workload| asked.candidates.get(&workload));
        !asked.namespaces.contains(&vpa.namespace)
            || candidate.is_some_and(|candidate| candidate.is_excluded)
            || of(&vpa.namespace, target).into_iter().any(|other| !is_made(other, recommender))
    };
    CreationPlan {
        create: asked.candidates.values().filter(wants).collect(),
        superfluous: vpas.iter().copied().filter(|vpa| is_superfluous(vpa)).collect(),
    }
}

/// Returns whether the VPA was created by berth for this recommender and has not been edited.
pub fn is_made(vpa: &Vpa, recommender: &str) -> bool {
    vpa.is_managed
        && vpa.update_mode == "Off"
        && vpa.recommenders == [recommender]
        && vpa.policies.is_empty()
        && vpa.target.as_ref().is_some_and(|target| *vpa.name == *name(target))
}

/// Returns whether both name the same object of a namespace. A VPA may leave the group out.
fn is_same(a: &OwnerRef, b: &OwnerRef) -> bool {
    let groups = a.group() == b.group() || a.group().is_empty() || b.group().is_empty();
    a.kind == b.kind && a.name == b.name && (groups || (a.is_built_in() && b.is_built_in()))
}

/// Returns the name of the VPA to create for a workload: `berth-KIND-NAME`, with the group for kinds that are not
/// built in. A name that is too long is cut and ends with a hash of the full name.
pub fn name(owner: &OwnerRef) -> String {
    let kind = owner.kind.to_ascii_lowercase();
    let whole = match owner.is_built_in() || owner.group().is_empty() {
        true => format!("berth-{kind}-{}", owner.name),
        false => format!("berth-{kind}.{}-{}", owner.group(), owner.name),
    };
    if whole.len() <= NAME_BYTES_MAX {
        return whole;
    }
    let hash = format!("-{:016x}", fnv(&whole));
    let mut end = NAME_BYTES_MAX - hash.len();
    while !whole.is_char_boundary(end) {
        end -= 1;
    }
    // Each dot-separated part of a name must end with a letter or digit.
    format!("{}{hash}", whole[..end].trim_end_matches(['-', '.']))
}

/// Returns the FNV-1a hash, which is stable across machines and versions.
fn fnv(text: &str) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    text.bytes().fold(0xcbf2_9ce4_8422_2325, step)
}
