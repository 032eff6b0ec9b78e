//! VolumeRestrictions: some disks can only be used by one pod per node, and a `ReadWriteOncePod` claim by one pod in
//! the cluster.

use super::reasons::Reasons;
use crate::inventory::Row;
use berth_model::VolumeNeeds;

pub fn refuses(needs: &VolumeNeeds, row: &Row) -> Option<Reasons> {
    let taken = row.volumes.as_ref().map_or(&[][..], |in_use| in_use.disks());
    if needs.disks.iter().any(|disk| taken.iter().any(|other| disk.conflicts(other))) {
        return Some(Reasons::DISK);
    }
    needs.claim_in_use.then_some(Reasons::CLAIM_IN_USE)
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
        let needs = VolumeNeeds { claim_in_use: true, ..VolumeNeeds::default() };
        assert_eq!(refuses(&needs, &Row::default()), Some(Reasons::CLAIM_IN_USE));
    }
}
