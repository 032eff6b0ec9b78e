//! NodeVolumeLimits: the number of volumes that a CSI driver can attach to a node is limited (CSINode).

use super::reasons::Reasons;
use crate::inventory::Row;
use berth_model::{CsiVolume, VolumeNeeds};

pub fn refuses(needs: &VolumeNeeds, row: &Row) -> Option<Reasons> {
    if needs.fresh.is_empty() && needs.shared.is_empty() {
        return None;
    }
    let storage = row.storage.as_ref().filter(|storage| !storage.limits.is_empty())?;
    let in_use = row.volumes.as_deref();
    let used = |volume: &CsiVolume| in_use.is_some_and(|in_use| in_use.is_attached(volume));
    let exceeds = |(driver, limit): &(std::sync::Arc<str>, i64)| {
        let of_driver = |volume: &&CsiVolume| volume.driver == *driver;
        let fresh =
            needs.fresh.iter().find(|(name, _)| name == driver).map_or(0, |(_, count)| *count as usize);
        let new = fresh + needs.shared.iter().filter(of_driver).filter(|volume| !used(volume)).count();
        let held = in_use.into_iter().flat_map(|in_use| in_use.attached()).filter(of_driver).count();
        let left = storage.attachments.iter().filter(of_driver).filter(|volume| !used(volume)).count();
        new > 0 && (held + left + new) as i64 > *limit
    };
    storage.limits.iter().any(exceeds).then_some(Reasons::TOO_MANY_VOLUMES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_model::{HeldVolumes, Holding, NodeStorage};
    use std::sync::Arc;

    fn volume(handle: &str) -> CsiVolume {
        CsiVolume { driver: "csi".into(), handle: handle.into() }
    }

    fn row(limit: i64, held: &[&str], attached: &[&str]) -> Row {
        let mut row = Row::default();
        let volumes = |handles: &[&str]| handles.iter().map(|handle| volume(handle)).collect();
        let held = HeldVolumes { attached: volumes(held), ..HeldVolumes::default() };
        row.charge(&Holding { volumes: Some(held.into()), ..Holding::default() });
        let limits = [("csi".into(), limit)].into();
        row.storage = Some(Arc::new(NodeStorage { limits, attachments: volumes(attached) }));
        row
    }

    fn wants(fresh: u32, shared: &[&str]) -> VolumeNeeds {
        let fresh = (fresh > 0).then(|| ("csi".into(), fresh)).into_iter().collect();
        VolumeNeeds {
            fresh,
            shared: shared.iter().map(|handle| volume(handle)).collect(),
            ..VolumeNeeds::default()
        }
    }

    const FULL: Option<Reasons> = Some(Reasons::TOO_MANY_VOLUMES);

    #[test]
    fn new_volumes_count_up_to_the_limit() {
        assert_eq!(refuses(&wants(2, &[]), &row(3, &["a"], &[])), None);
        assert_eq!(refuses(&wants(3, &[]), &row(3, &["a"], &[])), FULL);
        assert_eq!(refuses(&wants(3, &[]), &Row::default()), None, "no limit is known");
    }

    #[test]
    fn a_volume_that_a_pod_of_the_node_uses_already_costs_nothing() {
        assert_eq!(refuses(&wants(0, &["a"]), &row(1, &["a"], &[])), None);
        assert_eq!(refuses(&wants(0, &["b"]), &row(1, &["a"], &[])), FULL);
    }

    /// Upstream counts such a volume twice, too: only volumes of pods are subtracted from the new ones.
    #[test]
    fn attached_volumes_that_no_pod_uses_count_once() {
        assert_eq!(refuses(&wants(1, &[]), &row(2, &["a"], &["a"])), None);
        assert_eq!(refuses(&wants(1, &[]), &row(2, &["a"], &["b"])), FULL);
        assert_eq!(refuses(&wants(0, &["b"]), &row(2, &["a"], &["b"])), FULL);
    }

    #[test]
    fn a_node_beyond_its_limit_still_takes_pods_that_attach_nothing_new() {
        assert_eq!(refuses(&wants(0, &["a"]), &row(1, &["a"], &["b"])), None);
        assert_eq!(refuses(&wants(1, &[]), &row(1, &["a"], &["b"])), FULL);
    }

    #[test]
    fn a_limit_of_another_driver_says_nothing() {
        let needs = VolumeNeeds { fresh: [("other".into(), 9)].into(), ..VolumeNeeds::default() };
        assert_eq!(refuses(&needs, &row(1, &["a"], &[])), None);
    }
}
