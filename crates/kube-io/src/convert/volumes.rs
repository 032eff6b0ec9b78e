//! Conversion of a pod's volumes.

use super::Interner;
use crate::lean::{LeanDisk, LeanVolume, LeanVolumeSource};
use berth_model::{CsiVolume, Disk, PodClaim, PodVolumes};

/// Converts volumes; `None` if no volume restricts the choice of a node.
pub(super) fn volumes(lean: &[LeanVolume], pod: &str, interner: &mut Interner) -> Option<PodVolumes> {
    let mut claims: Vec<PodClaim> = Vec::new();
    let (mut disks, mut inline) = (Vec::new(), Vec::new());
    for volume in lean {
        let claim = match &volume.source {
            Some(LeanVolumeSource::Claim(source)) => {
                PodClaim { name: interner.text(&source.claim_name), ephemeral: false }
            }
            // The name of upstream's `ephemeral.VolumeClaimName`.
            Some(LeanVolumeSource::Ephemeral) => {
                PodClaim { name: format!("{pod}-{}", volume.name).into(), ephemeral: true }
            }
            Some(LeanVolumeSource::Disk(source)) => {
                disks.extend(disk(source, interner));
                inline.extend(csi_volume(source, interner));
                continue;
            }
            Some(LeanVolumeSource::Image(_) | LeanVolumeSource::Unknown) | None => continue,
        };
        if !claims.contains(&claim) {
            claims.push(claim);
        }
    }
    if claims.is_empty() && disks.is_empty() && inline.is_empty() {
        return None;
    }
    disks.sort_unstable();
    inline.sort_unstable();
    inline.dedup();
    Some(PodVolumes { claims: claims.into(), disks: disks.into(), inline: inline.into() })
}

/// Returns the disk that VolumeRestrictions checks.
fn disk(lean: &LeanDisk, interner: &mut Interner) -> Option<Disk> {
    Some(match lean {
        LeanDisk::Gce(disk) => {
            Disk::GcePersistentDisk { name: interner.text(&disk.pd_name), read_only: disk.read_only }
        }
        LeanDisk::Aws(disk) => Disk::AwsElasticBlockStore { id: interner.text(&disk.volume_id) },
        LeanDisk::Iscsi(disk) => Disk::Iscsi { iqn: interner.text(&disk.iqn), read_only: disk.read_only },
        LeanDisk::Rbd(disk) => Disk::Rbd {
            monitors: disk.monitors.iter().map(|monitor| interner.text(monitor)).collect(),
            pool: interner.text(&disk.pool),
            image: interner.text(&disk.image),
            read_only: disk.read_only,
        },
        LeanDisk::Azure(_) | LeanDisk::Cinder(_) | LeanDisk::Portworx(_) => return None,
    })
}

/// The volume as the driver knows it that took over this type of disk (upstream: `csi-translation-lib`); `None`: no driver
/// did. The handle of a GCE disk is its name alone: where it lies adds nothing to counting.
pub(crate) fn csi_volume(lean: &LeanDisk, interner: &mut Interner) -> Option<CsiVolume> {
    let (driver, handle) = match lean {
        LeanDisk::Gce(disk) => ("pd.csi.storage.gke.io", &*disk.pd_name),
        // `aws://zone/vol-1` is the same disk as `vol-1`.
        LeanDisk::Aws(disk) => ("ebs.csi.aws.com", disk.volume_id.rsplit('/').next().unwrap_or_default()),
        LeanDisk::Azure(disk) => ("disk.csi.azure.com", &*disk.disk_uri),
        LeanDisk::Cinder(disk) => ("cinder.csi.openstack.org", &*disk.volume_id),
        LeanDisk::Portworx(disk) => ("pxd.portworx.com", &*disk.volume_id),
        LeanDisk::Iscsi(_) | LeanDisk::Rbd(_) => return None,
    };
    Some(CsiVolume { driver: interner.text(driver), handle: interner.text(handle) })
}
