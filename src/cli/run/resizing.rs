//! Resizing one pod in place: the room first, then the request. For whoever decides that a pod shall have another size.

use crate::apply::change::{Change, growth};
use crate::apply::{Pod, patch};
use crate::cluster::apply::{PodId, PodWriter, ResizeError};
use crate::engine::Engine;

/// What became of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Resized {
    /// The pod's spec says it. Its kubelet may still put it off.
    Asked,
    /// Its node has no room; nothing was sent.
    NoRoom(String),
    /// It is gone, or another one has its name.
    Gone,
    /// The API server does not allow it.
    Refused(String),
    /// Whether it was carried out is seen when the pod is read again.
    Unknown(String),
}

/// Gives the containers of a running pod these requests and limits, if its node has room for what they request more. The room is
/// charged before the request is sent, and given back when nothing comes of it. The caller must lead, and see to budgets and to the
/// pod's QoS class ([`crate::apply::qos::is_kept`]).
pub(super) async fn resize_pod(
    engine: &Engine,
    writer: &PodWriter,
    pod: &Pod,
    changes: &[Change],
) -> Resized {
    let more = growth(pod, changes);
    let grown = match engine.with(|scheduler, _| scheduler.grow_in_place(&pod.uid, more)) {
        Ok(grown) => grown,
        Err(why) => return Resized::NoRoom(why),
    };
    let id = PodId { namespace: &pod.namespace, name: &pod.name, uid: &pod.uid };
    let resized = match writer.resize_pod(id, &patch::in_place(pod, changes)).await {
        Ok(()) => return Resized::Asked,
        Err(ResizeError::Gone) => Resized::Gone,
        Err(ResizeError::Refused(why)) => Resized::Refused(why),
        // The room stays taken until a watch tells the truth.
        Err(ResizeError::Unknown(why)) => return Resized::Unknown(why),
    };
    engine.with(|scheduler, _| scheduler.take_growth_back(&pod.uid, &grown));
    resized
}
