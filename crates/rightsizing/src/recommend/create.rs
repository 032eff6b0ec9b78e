//! VPAs that are made for workloads that have none, as Goldilocks does: which ones to make, and which of them nobody needs.
//!
//! What is made only recommends (mode `Off`). It gives way to a VPA of anybody else, and whatever somebody changed about it
//! makes it theirs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::store::Workload;
use super::vpa::{Owner, Vpa};

/// The names of a VPA's checkpoints are its own, `-`, and that of a container, which has 63 bytes at most: 253 in all.
pub const NAME_BYTES_MAX: usize = 253 - 1 - 63;

/// A workload with pods, in a namespace whose workloads shall have VPAs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    pub namespace: Arc<str>,
    pub owner: Owner,
    pub uid: String,
    /// It wants none.
    pub is_excluded: bool,
}

/// Where VPAs are wanted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Asked {
    /// All namespaces that ask for VPAs.
    pub namespaces: BTreeSet<Arc<str>>,
    /// Their workloads that have pods, as far as these could be read.
    pub candidates: BTreeMap<Workload, Candidate>,
}

/// What is to be done.
#[derive(Debug, PartialEq)]
pub struct Plan<'a> {
    /// In the order of workloads.
    pub create: Vec<&'a Candidate>,
    /// VPAs of ours that nobody needs.
    pub superfluous: Vec<&'a Vpa>,
}

/// `vpas` are those of all recommenders, `recommender` is our name.
pub fn plan<'a>(asked: &'a Asked, vpas: &[&'a Vpa], recommender: &str) -> Plan<'a> {
    let mut targeted: BTreeMap<(&str, &str, &str), Vec<&Vpa>> = BTreeMap::new();
    for vpa in vpas {
        if let Some(target) = &vpa.target {
            targeted.entry((&vpa.namespace, &target.kind, &target.name)).or_default().push(vpa);
        }
    }
    let of = |namespace: &str, owner: &Owner| -> Vec<&Vpa> {
        let found = targeted.get(&(namespace, owner.kind.as_str(), owner.name.as_str()));
        let same = |vpa: &&&Vpa| vpa.target.as_ref().is_some_and(|target| is_same(target, owner));
        found.into_iter().flatten().filter(same).copied().collect()
    };
    let wants = |candidate: &&Candidate| {
        !candidate.is_excluded && of(&candidate.namespace, &candidate.owner).is_empty()
    };
    let is_superfluous = |vpa: &Vpa| {
        let Some(target) = vpa.target.as_ref().filter(|_| is_made(vpa, recommender)) else { return false };
        let candidate = vpa.workload().and_then(|workload| asked.candidates.get(&workload));
        !asked.namespaces.contains(&vpa.namespace)
            || candidate.is_some_and(|candidate| candidate.is_excluded)
            || of(&vpa.namespace, target).into_iter().any(|other| !is_made(other, recommender))
    };
    Plan {
        create: asked.candidates.values().filter(wants).collect(),
        superfluous: vpas.iter().copied().filter(|vpa| is_superfluous(vpa)).collect(),
    }
}

/// Whether it is a VPA that was made here for our recommender, and is as it was made.
pub fn is_made(vpa: &Vpa, recommender: &str) -> bool {
    vpa.is_managed
        && vpa.update_mode == "Off"
        && vpa.recommenders == [recommender]
        && vpa.policies.is_empty()
        && vpa.target.as_ref().is_some_and(|target| *vpa.name == *name(target))
}

/// Whether both name the same object of a namespace. A VPA may leave the group out.
fn is_same(a: &Owner, b: &Owner) -> bool {
    let groups = a.group() == b.group() || a.group().is_empty() || b.group().is_empty();
    a.kind == b.kind && a.name == b.name && (groups || (a.is_built_in() && b.is_built_in()))
}

/// The name of the VPA that is made for a workload: `berth-KIND-NAME`, with the group for kinds that are not Kubernetes' own.
/// One that is too long ends with a hash of the whole.
pub fn name(owner: &Owner) -> String {
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
    // A part of a name between dots ends with a letter or digit.
    format!("{}{hash}", whole[..end].trim_end_matches(['-', '.']))
}

/// FNV-1a: the same on every machine and in every version.
fn fnv(text: &str) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    text.bytes().fold(0xcbf2_9ce4_8422_2325, step)
}
