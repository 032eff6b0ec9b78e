//! VolumeRestrictions: some disks can only be used by one pod per node, and a `ReadWriteOncePod` claim by one pod in
//! the cluster.

use super::reasons::Reasons;
use crate::inventory::Row;
use berth_model::{ClaimName, VolumeNeeds};

pub fn refuses(needs: &VolumeNeeds, row: &Row) -> Option<Reasons> {
    let taken = row.volumes.as_ref().map_or(&[][..], |in_use| in_use.disks());
    if needs.disks.iter().any(|disk| taken.iter().any(|other| disk.conflicts(other))) {
        return Some(Reasons::DISK);
    }
    let is_vacated = |claim: &ClaimName| row.vacated.as_ref().is_some_and(|vacated| vacated.contains(claim));
    (!needs.claims_in_use.iter().all(is_vacated)).then_some(Reasons::CLAIM_IN_USE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_model::{Disk, HeldVolumes, Holding};
    use std::sync::Arc;

    #[test]
    fn a_disk_that_a_pod_of_the_node_has_is_not_free_until_that_pod_is_gone() {
        let disks: Box<[Disk]> = [Disk::AwsElasticBlockStore { id: "vol-1".into() }].into();
        let needs = VolumeNeeds { disks: disks.clone(), ..VolumeNeeds::default() };
        let holding = Holding {
            volumes: Some(Arc::new(HeldVolumes { disks, ..HeldVolumes::default() })),
            ..Holding::default()
        };
        let mut row = Row::default();
        assert_eq!(refuses(&needs, &row), None);
        row.charge(&holding);
        assert_eq!(refuses(&needs, &row), Some(Reasons::DISK));
        assert_eq!(refuses(&VolumeNeeds::default(), &row), None);
        row.discharge(&holding);
        assert_eq!(refuses(&needs, &row), None);
        assert!(row.volumes.is_none());
    }

    #[test]
    fn a_claim_for_one_pod_that_is_in_use_keeps_its_pod_from_every_node() {
        let claim = |name: &str| ClaimName { namespace: "ns".into(), name: name.into() };
        let claims_in_use = [claim("a"), claim("b")].into();
        let needs = VolumeNeeds { claims_in_use, ..VolumeNeeds::default() };
        assert_eq!(refuses(&needs, &Row::default()), Some(Reasons::CLAIM_IN_USE));
        // In a plan without the pods that use them.
        let without = |claims: &[&str]| {
            let vacated = claims.iter().map(|name| claim(name)).collect();
            Row { vacated: Some(Arc::new(vacated)), ..Row::default() }
        };
        assert_eq!(refuses(&needs, &without(&["a"])), Some(Reasons::CLAIM_IN_USE));
        assert_eq!(refuses(&needs, &without(&["a", "b"])), None);
    }
}
