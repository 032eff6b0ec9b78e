//! VolumeBinding: all bound volumes of the pod must reach the node, and for each claim with delayed binding the node
//! must have a free volume or allow provisioning one.

use std::sync::Arc;

use super::RuleAnswer;
use super::reasons::Reasons;
use crate::inventory::Row;
use berth_model::{
    Node, NodeSelectorTerm, Provision, Requirement, StaticVolume, UnboundClaim, VolumeNeeds, admits,
};

/// A bound volume does not reach the node.
pub const NOT_REACHED: RuleAnswer = 1;

/// Returns whether the volumes with these affinities reach the node.
pub fn answer(bound: &[Box<[NodeSelectorTerm]>], node: &Node) -> RuleAnswer {
    if bound.iter().all(|terms| admits(terms, &node.labels)) { super::NEUTRAL } else { NOT_REACHED }
}

/// Returns why the node is not valid, given the cached answer; `None`: it is valid (upstream: `FindPodVolumes`, which
/// reports bound and unbound claims together).
pub fn refuses(needs: &VolumeNeeds, row: &Row, answer: RuleAnswer) -> Option<Reasons> {
    let mut reasons = Reasons::NONE;
    if answer == NOT_REACHED {
        reasons |= Reasons::VOLUME_NOT_REACHED;
    }
    if needs.volume_missing {
        reasons |= Reasons::VOLUME_MISSING;
    }
    if let Err(unbound) = plan(&needs.unbound, row) {
        reasons |= unbound;
    }
    (reasons != Reasons::NONE).then_some(reasons)
}

/// The volume that a claim gets on a node.
#[derive(Debug, PartialEq, Eq)]
pub enum VolumeChoice<'a> {
    /// A free volume.
    Volume(&'a Arc<StaticVolume>),
    /// A volume provisioned for it.
    Made,
}

/// Returns what each of these claims gets on the node of this row, in their order.
///
/// # Errors
/// The reason why one of them gets no volume.
pub fn plan<'a>(claims: &'a [UnboundClaim], row: &'a Row) -> Result<Vec<VolumeChoice<'a>>, Reasons> {
    let Some(node) = row.node.as_deref().filter(|_| !claims.is_empty()) else {
        return Ok(Vec::new());
    };
    let local = row.local_volumes.as_ref().map_or(&[][..], |volumes| volumes);
    let mut choices: Vec<Option<VolumeChoice>> = Vec::with_capacity(claims.len());
    for claim in claims {
        let chosen = match &claim.selected_node {
            Some(selected) if *selected != node.name => return Err(Reasons::NO_FREE_VOLUME),
            Some(_) => None,
            None => {
                let taken = |volume: &StaticVolume| {
                    let is_this = |choice: &Option<VolumeChoice>| matches!(choice, Some(VolumeChoice::Volume(other)) if other.name == volume.name);
                    choices.iter().any(is_this)
                };
                find(claim, local, node, taken)
            }
        };
        choices.push(chosen.map(VolumeChoice::Volume));
    }
    // Claims that already wait for provisioning on this node are checked first.
    let open = |selected: bool| {
        let open = move |(claim, choice): &(&UnboundClaim, &Option<VolumeChoice>)| {
            choice.is_none() && claim.selected_node.is_some() == selected
        };
        claims.iter().zip(&choices).filter(open).map(|(claim, _)| claim)
    };
    for claim in open(true).chain(open(false)) {
        can_be_made(claim.provision.as_ref(), node)?;
    }
    Ok(choices.into_iter().map(|choice| choice.unwrap_or(VolumeChoice::Made)).collect())
}

/// Returns the smallest free volume that satisfies the claim on this node, or the pre-bound one (upstream:
/// `FindMatchingVolume`).
fn find<'a>(
    claim: &'a UnboundClaim,
    local: &'a [Arc<StaticVolume>],
    node: &Node,
    taken: impl Fn(&StaticVolume) -> bool,
) -> Option<&'a Arc<StaticVolume>> {
    if let Some(volume) = &claim.prebound {
        return Some(volume).filter(|volume| volume.reaches(&node.labels));
    }
    let serves = |volume: &&Arc<StaticVolume>| {
        let (kind, wanted) = (&volume.kind, &claim.kind);
        volume.capacity_bytes >= claim.size_bytes
            && kind.class == wanted.class
            && kind.block == wanted.block
            && kind.attributes_class == wanted.attributes_class
            && kind.modes.contains(wanted.modes)
            && claim.selector.as_ref().is_none_or(|selector| selector.matches(&volume.labels))
            && volume.reaches(&node.labels)
            && !taken(volume)
    };
    let place = |volume: &&Arc<StaticVolume>| (volume.capacity_bytes, volume.name.clone());
    // Both lists are sorted by size.
    let local = local.iter().find(serves);
    let elsewhere = claim.candidates.iter().find(serves);
    [local, elsewhere].into_iter().flatten().min_by_key(place)
}

/// Checks whether a volume can be provisioned for this node (upstream: `checkVolumeProvisions`).
fn can_be_made(provision: Option<&Provision>, node: &Node) -> Result<(), Reasons> {
    let provision = provision.ok_or(Reasons::NO_FREE_VOLUME)?;
    let matches = |term: &[Requirement]| {
        !term.is_empty() && term.iter().all(|requirement| requirement.matches(&node.labels))
    };
    if !provision.topologies.is_empty() && !provision.topologies.iter().any(|term| matches(term)) {
        return Err(Reasons::NO_FREE_VOLUME);
    }
    match &provision.segments {
        Some(segments) if !segments.iter().any(|segment| segment.matches(&node.labels)) => {
            Err(Reasons::NO_SPACE)
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_model::{LabelSelector, Operator, Shared, VolumeKind};

    fn requirement(key: &str, value: &str) -> Requirement {
        Requirement { key: key.into(), operator: Operator::In([value.into()].into()) }
    }

    fn terms(key: &str, value: &str) -> Box<[NodeSelectorTerm]> {
        [NodeSelectorTerm { expressions: [requirement(key, value)].into(), fields: [].into() }].into()
    }

    fn row(zone: &str, local: &[Arc<StaticVolume>]) -> Row {
        let node = Node {
            name: "node".into(),
            labels: [("zone", zone), ("kubernetes.io/hostname", "host")].into_iter().collect(),
            ..Node::default()
        };
        let mut row = Row::default();
        row.set_node(Some(Arc::new(node)));
        row.local_volumes = (!local.is_empty()).then(|| Arc::new(local.to_vec()));
        row
    }

    fn volume(name: &str, capacity_bytes: i64) -> Arc<StaticVolume> {
        let kind = VolumeKind { class: "local".into(), ..VolumeKind::default() };
        Arc::new(StaticVolume { name: name.into(), kind, capacity_bytes, ..StaticVolume::default() })
    }

    fn claim(size_bytes: i64) -> UnboundClaim {
        let kind = VolumeKind { class: "local".into(), ..VolumeKind::default() };
        UnboundClaim { size_bytes, kind, ..UnboundClaim::default() }
    }

    fn names(choices: Result<Vec<VolumeChoice>, Reasons>) -> Vec<String> {
        let name = |choice| match choice {
            VolumeChoice::Volume(volume) => volume.name.to_string(),
            VolumeChoice::Made => "made".to_owned(),
        };
        choices.expect("each gets something").into_iter().map(name).collect()
    }

    #[test]
    fn bound_volumes_must_all_reach_the_node() {
        let (a, b) = (terms("zone", "a"), terms("zone", "b"));
        let in_a = row("a", &[]).node.unwrap();
        assert_eq!(answer(std::slice::from_ref(&a), &in_a), super::super::NEUTRAL);
        assert_eq!(answer(&[a, b], &in_a), NOT_REACHED);
        assert_eq!(answer(&[[].into()], &in_a), NOT_REACHED, "no term matches nothing");
    }

    #[test]
    fn each_claim_gets_the_smallest_volume_that_serves_and_none_gets_two() {
        let row = row("a", &[volume("small", 10), volume("middle", 20), volume("large", 30)]);
        let claims = [claim(5), claim(15)];
        assert_eq!(names(plan(&claims, &row)), ["small", "middle"]);
        let claims = [claim(5), claim(5), claim(15)];
        assert_eq!(names(plan(&claims, &row)), ["small", "middle", "large"]);
        let claims = [claim(31)];
        assert_eq!(plan(&claims, &row), Err(Reasons::NO_FREE_VOLUME));
    }

    #[test]
    fn a_volume_of_exactly_the_size_of_a_claim_serves() {
        let row = row("a", &[volume("small", 10), volume("large", 11)]);
        assert_eq!(names(plan(&[claim(10)], &row)), ["small"]);
        assert_eq!(names(plan(&[claim(11)], &row)), ["large"]);
    }

    #[test]
    fn a_volume_of_another_kind_or_without_the_labels_does_not_serve() {
        let row = row("a", &[volume("v", 10)]);
        let other = |change: &dyn Fn(&mut UnboundClaim)| {
            let mut claim = claim(5);
            change(&mut claim);
            plan(std::slice::from_ref(&claim), &row).is_ok()
        };
        assert!(other(&|_| {}));
        assert!(!other(&|claim| claim.kind.class = "other".into()));
        assert!(!other(&|claim| claim.kind.block = true));
        assert!(!other(&|claim| claim.kind.attributes_class = "gold".into()));
        assert!(!other(&|claim| claim.kind.modes = ["ReadWriteMany"].into_iter().collect()));
        assert!(!other(&|claim| claim.selector = Some(LabelSelector::All([requirement("a", "b")].into()))));
    }

    #[test]
    fn candidates_of_many_nodes_serve_where_they_reach() {
        let far =
            StaticVolume { affinity: Some(terms("zone", "b")), ..StaticVolume::clone(&volume("far", 6)) };
        let near =
            StaticVolume { affinity: Some(terms("zone", "a")), ..StaticVolume::clone(&volume("near", 8)) };
        let candidates = Shared::new(vec![Arc::new(far), Arc::new(near)]);
        let claims = [UnboundClaim { candidates, ..claim(5) }];
        assert_eq!(names(plan(&claims, &row("a", &[volume("local", 10)]))), ["near"]);
        assert_eq!(names(plan(&claims, &row("c", &[volume("local", 10)]))), ["local"]);
        assert_eq!(plan(&claims, &row("c", &[])), Err(Reasons::NO_FREE_VOLUME));
    }

    #[test]
    fn a_volume_set_apart_for_a_claim_is_the_only_one_for_it() {
        let apart =
            StaticVolume { affinity: Some(terms("zone", "b")), ..StaticVolume::clone(&volume("apart", 6)) };
        let claims = [UnboundClaim { prebound: Some(Arc::new(apart)), ..claim(5) }];
        assert_eq!(names(plan(&claims, &row("b", &[volume("local", 5)]))), ["apart"]);
        assert_eq!(plan(&claims, &row("a", &[volume("local", 5)])), Err(Reasons::NO_FREE_VOLUME));
    }

    #[test]
    fn volumes_are_made_where_topology_and_room_allow() {
        let anywhere = Provision::default();
        let topologies = Shared::new(vec![[requirement("zone", "a")].into(), [].into()]);
        let in_a = Provision { topologies, segments: None };
        let room = |zone| {
            let segment = LabelSelector::All([requirement("zone", zone)].into());
            Provision { segments: Some(Shared::new(vec![segment])), ..Provision::default() }
        };
        let full = Provision { segments: Some(Shared::default()), ..Provision::default() };
        let made = |provision: &Provision, zone| {
            let claims = [UnboundClaim { provision: Some(provision.clone()), ..claim(5) }];
            plan(&claims, &row(zone, &[])).map(|_| ())
        };
        assert_eq!((made(&anywhere, "a"), made(&in_a, "a"), made(&room("a"), "a")), (Ok(()), Ok(()), Ok(())));
        assert_eq!(made(&in_a, "b"), Err(Reasons::NO_FREE_VOLUME));
        assert_eq!(
            (made(&room("b"), "a"), made(&full, "a")),
            (Err(Reasons::NO_SPACE), Err(Reasons::NO_SPACE))
        );
    }

    #[test]
    fn a_claim_whose_volume_is_being_made_for_a_node_keeps_its_pod_there() {
        let selected = |node: &str| {
            [UnboundClaim {
                selected_node: Some(node.into()),
                provision: Some(Provision::default()),
                ..claim(5)
            }]
        };
        let row = row("a", &[volume("local", 10)]);
        assert_eq!(names(plan(&selected("node"), &row)), ["made"], "though there is a free one");
        assert_eq!(plan(&selected("other"), &row), Err(Reasons::NO_FREE_VOLUME));
    }
}
