use super::*;
use berth_model::{AccessModes, Labels, NodeSelectorTerm, Pod, PodClaim, PodVolumes, VolumeNeeds};

fn name(name: &str) -> ClaimName {
    ClaimName { namespace: "ns".into(), name: name.into() }
}

fn claim(claim: &str) -> Claim {
    Claim {
        name: name(claim),
        uid: "uid".into(),
        version: 1,
        kind: VolumeKind { class: "class".into(), ..VolumeKind::default() },
        size_bytes: 5,
        ..Claim::default()
    }
}

fn bound(claim_name: &str, volume: &str) -> Claim {
    Claim { volume: Some(volume.into()), bind_completed: true, ..claim(claim_name) }
}

fn volume(name: &str) -> Volume {
    let kind = VolumeKind { class: "class".into(), ..VolumeKind::default() };
    let spec = StaticVolume { name: name.into(), kind, capacity_bytes: 10, ..StaticVolume::default() };
    Volume { version: 1, spec: spec.into(), available: true, ..Volume::default() }
}

fn with_spec(volume: Volume, change: impl FnOnce(&mut StaticVolume)) -> Volume {
    let mut spec = StaticVolume::clone(&volume.spec);
    change(&mut spec);
    Volume { spec: spec.into(), ..volume }
}

fn on_hosts(volume: Volume, hosts: &[&str]) -> Volume {
    let values = hosts.iter().map(|host| Arc::from(*host)).collect();
    let requirement = Requirement { key: HOSTNAME.into(), operator: Operator::In(values) };
    let term = NodeSelectorTerm { expressions: [requirement].into(), fields: [].into() };
    with_spec(volume, |spec| spec.affinity = Some([term].into()))
}

fn class(provisioner: &str, delayed: bool) -> StorageClass {
    let topologies = Shared::default();
    StorageClass { name: "class".into(), provisioner: provisioner.into(), delayed, topologies }
}

const STATIC: &str = "kubernetes.io/no-provisioner";
const CSI: &str = "example.com/csi";

/// Returns a pod and its claims by name; the prefix `*` marks an ephemeral claim.
fn pod(claims: &[&str]) -> (Pod, PodVolumes) {
    let claim = |name: &&str| match name.strip_prefix('*') {
        Some(name) => PodClaim { name: name.into(), ephemeral: true },
        None => PodClaim { name: (*name).into(), ephemeral: false },
    };
    let claims = claims.iter().map(claim).collect();
    let pod = Pod { uid: "pod".into(), name: "p".into(), namespace: "ns".into(), ..Pod::default() };
    (pod, PodVolumes { claims, ..PodVolumes::default() })
}

fn resolve(volumes: &mut Volumes, claims: &[&str], used: bool) -> VolumeNeeds {
    let (pod, wanted) = pod(claims);
    volumes.resolve(&pod, &wanted, &|_| used).needs
}

fn refusal(volumes: &mut Volumes, claims: &[&str]) -> String {
    resolve(volumes, claims, false).refusal.map(|text| text.to_string()).unwrap_or_default()
}

#[test]
fn what_is_wrong_with_a_claim_keeps_its_pod_from_every_node() {
    let mut volumes = Volumes::default();
    volumes.apply_class(class(STATIC, true));
    assert_eq!(refusal(&mut volumes, &["c"]), "persistentvolumeclaim \"c\" not found");
    assert_eq!(
        refusal(&mut volumes, &["*p-v"]),
        "waiting for ephemeral volume controller to create the persistentvolumeclaim \"p-v\""
    );
    volumes.apply_claim(Claim { lost: true, ..bound("c", "pv") });
    assert_eq!(
        refusal(&mut volumes, &["c"]),
        "persistentvolumeclaim \"c\" bound to non-existent persistentvolume \"pv\""
    );
    volumes.apply_claim(Claim { deleting: true, ..claim("c") });
    assert_eq!(refusal(&mut volumes, &["c"]), "persistentvolumeclaim \"c\" is being deleted");
    volumes.apply_claim(bound("c", "pv"));
    assert_eq!(refusal(&mut volumes, &["c"]), "persistentvolume \"pv\" not found");
    volumes.apply_claim(claim("p-v"));
    assert_eq!(
        refusal(&mut volumes, &["*p-v"]),
        "PVC ns/p-v was not created for pod ns/p (pod is not owner)"
    );
    volumes.apply_claim(Claim { owner: Some("pod".into()), ..bound("p-v", "pv") });
    assert_eq!(refusal(&mut volumes, &["*p-v"]), "");
    assert!(resolve(&mut volumes, &["*p-v"], false).volume_missing);
}

#[test]
fn a_claim_that_does_not_wait_for_its_pod_must_be_bound_before() {
    let unbound = "pod has unbound immediate PersistentVolumeClaims";
    let mut volumes = Volumes::default();
    volumes.apply_claim(claim("c"));
    assert_eq!(refusal(&mut volumes, &["c"]), unbound, "no such class");
    volumes.apply_class(class(CSI, false));
    assert_eq!(refusal(&mut volumes, &["c"]), unbound);
    volumes.apply_class(class(CSI, true));
    assert_eq!(refusal(&mut volumes, &["c"]), "");
    volumes.apply_claim(Claim { volume: Some("pv".into()), ..claim("c") });
    assert_eq!(refusal(&mut volumes, &["c"]), unbound, "a user chose its volume");
}

#[test]
fn bound_claims_bring_the_affinity_and_zones_of_their_volumes() {
    let mut volumes = Volumes::default();
    for name in ["pv1", "pv2"] {
        volumes.apply_volume(with_spec(on_hosts(volume(name), &["h"]), |spec| {
            spec.labels = [("topology.kubernetes.io/zone", "b__a")].into_iter().collect();
        }));
    }
    volumes.apply_claim(bound("c1", "pv1"));
    volumes.apply_claim(Claim { owner: Some("pod".into()), ..bound("c2", "pv2") });
    let needs = resolve(&mut volumes, &["c1", "*c2"], false);
    assert_eq!((needs.bound.len(), needs.zones.len()), (1, 1), "each once");
    assert_eq!(&*needs.zones[0].values, &["a".into(), "b".into()]);
    assert_eq!(
        resolve(&mut volumes, &["*c2"], false).zones.len(),
        0,
        "VolumeZone looks at no ephemeral claim"
    );
    assert!(needs.unbound.is_empty());
}

#[test]
fn local_volumes_are_offered_to_their_hosts_and_others_to_claims_of_their_class() {
    let mut volumes = Volumes::default();
    volumes.apply_class(class(STATIC, true));
    volumes.apply_claim(claim("c"));
    let news = volumes.apply_volume(on_hosts(volume("local"), &["h", "i"]));
    assert_eq!(news.hosts, ["h".into(), "i".into()].into());
    assert!(!news.all_claims);
    let local = |volumes: &Volumes| volumes.local("h").map_or(0, |free| free.len());
    assert_eq!(local(&volumes), 1);
    let news = volumes.apply_volume(volume("shared"));
    assert!(news.all_claims && news.hosts.is_empty());
    assert_eq!(resolve(&mut volumes, &["c"], false).unbound[0].candidates.len(), 1);
    assert!(volumes.apply_volume(Volume { version: 2, ..volume("shared") }).is_empty(), "only its version");

    for taken in [
        Volume { available: false, ..volume("shared") },
        Volume { deleting: true, ..volume("shared") },
        Volume { claim: Some(ClaimRef { claim: name("d"), uid: "".into() }), ..volume("shared") },
    ] {
        assert!(volumes.apply_volume(taken).all_claims);
        assert_eq!(resolve(&mut volumes, &["c"], false).unbound[0].candidates.len(), 0);
        volumes.apply_volume(volume("shared"));
    }
    assert_eq!(volumes.delete_volume(&"local".into()).hosts.len(), 2);
    assert_eq!(local(&volumes), 0);
}

#[test]
fn a_reserved_volume_is_its_claims_alone_until_released_or_seen_bound() {
    let mut volumes = Volumes::default();
    volumes.apply_class(class(STATIC, true));
    volumes.apply_claim(claim("c"));
    volumes.apply_claim(claim("d"));
    volumes.apply_volume(volume("pv"));
    let requests = volumes.requests(&[(name("c"), WantedVolume::Volume("pv".into()))]);
    assert!(volumes.reserve(&requests, &"n".into()).all_claims);
    let for_claim = |volumes: &mut Volumes, claim| {
        let claim = resolve(volumes, &[claim], false).unbound[0].clone();
        (claim.prebound.is_some(), claim.candidates.len())
    };
    assert_eq!((for_claim(&mut volumes, "c"), for_claim(&mut volumes, "d")), ((true, 0), (false, 0)));
    volumes.release(&requests);
    assert_eq!((for_claim(&mut volumes, "c"), for_claim(&mut volumes, "d")), ((false, 1), (false, 1)));
    volumes.reserve(&requests, &"n".into());
    let reference = ClaimRef { claim: name("c"), uid: "uid".into() };
    volumes.apply_volume(Volume { claim: Some(reference), version: 2, ..volume("pv") });
    assert!(!volumes.release(&requests).all_claims, "confirmed by the API server");
    assert_eq!(for_claim(&mut volumes, "c"), (true, 0));
}

#[test]
fn a_volume_set_apart_for_an_older_claim_of_the_same_name_or_too_small_is_not_for_this_one() {
    let mut volumes = Volumes::default();
    volumes.apply_class(class(STATIC, true));
    volumes.apply_claim(claim("c"));
    let apart = |uid: &str| {
        let claim = Some(ClaimRef { claim: name("c"), uid: uid.into() });
        Volume { claim, available: false, ..volume("pv") }
    };
    let mut is_for_it = |volume: Volume| {
        volumes.apply_volume(volume);
        resolve(&mut volumes, &["c"], false).unbound[0].prebound.is_some()
    };
    assert!(is_for_it(apart("")) && is_for_it(apart("uid")));
    assert!(!is_for_it(apart("older")));
    assert!(!is_for_it(with_spec(apart(""), |spec| spec.capacity_bytes = 4)));
    assert!(!is_for_it(with_spec(apart(""), |spec| spec.kind.class = "other".into())));
    assert!(!is_for_it(Volume { deleting: true, ..apart("") }));
}

#[test]
fn a_claim_being_provisioned_for_one_pod_holds_others_to_that_node() {
    let mut volumes = Volumes::default();
    volumes.apply_class(class(CSI, true));
    volumes.apply_claim(claim("c"));
    let requests = volumes.requests(&[(name("c"), WantedVolume::Provision)]);
    assert_eq!(volumes.reserve(&requests, &"n".into()).claims, [name("c")].into());
    let selected = |volumes: &mut Volumes| {
        resolve(volumes, &["c"], false).unbound[0].selected_node.as_deref().map(str::to_owned)
    };
    assert_eq!(selected(&mut volumes).as_deref(), Some("n"));
    volumes.release(&requests);
    assert_eq!(selected(&mut volumes), None);
    volumes.apply_claim(Claim { selected_node: Some("m".into()), ..claim("c") });
    assert_eq!(selected(&mut volumes).as_deref(), Some("m"));
}

fn csi(handle: &str) -> Option<CsiVolume> {
    Some(CsiVolume { driver: CSI.into(), handle: handle.into() })
}

#[test]
fn volumes_used_by_one_pod_are_counted_and_shared_ones_named() {
    let mut volumes = Volumes::default();
    volumes.apply_class(class(CSI, true));
    volumes.apply_volume(Volume { csi: csi("h"), ..volume("pv") });
    volumes.apply_claim(bound("c", "pv"));
    volumes.apply_claim(claim("new"));
    let alone = resolve(&mut volumes, &["c", "new"], false);
    assert_eq!((&*alone.fresh, alone.shared.len()), (&[(CSI.into(), 2)][..], 0));
    let shared = resolve(&mut volumes, &["c", "new"], true);
    assert_eq!((shared.fresh.len(), shared.shared.len()), (0, 2));

    let attachment =
        Attachment { name: "va".into(), node: "n".into(), driver: CSI.into(), volume: "pv".into() };
    let news = volumes.apply_attachment(attachment.clone());
    assert_eq!((news.nodes, news.claims), (["n".into()].into(), [name("c")].into()));
    assert!(volumes.apply_attachment(attachment).is_empty());
    let attached = resolve(&mut volumes, &["c"], false);
    assert_eq!((attached.fresh.len(), attached.shared.first().cloned()), (0, csi("h")));
    assert_eq!(volumes.storage_of("n").expect("it has one").attachments.first().cloned(), csi("h"));
    volumes.delete_attachment(&"va".into());
    assert_eq!(volumes.storage_of("n"), None);

    let (pod, wanted) = pod(&["c", "new"]);
    let held = volumes.held(&pod, &wanted);
    assert_eq!((held.claims.len(), held.attached.len()), (2, 2));
    volumes.apply_volume(Volume { csi: csi("other"), ..volume("pv2") });
    volumes.apply_claim(bound("new", "pv2"));
    assert!(volumes.renewed(&held).attached.contains(&csi("other").expect("it is one")));
}

#[test]
fn a_claim_for_one_pod_counts_as_used_only_when_it_is_and_the_pod_names_it_itself() {
    let mut volumes = Volumes::default();
    volumes.apply_class(class(CSI, true));
    let once: AccessModes = ["ReadWriteOncePod"].into_iter().collect();
    let mut single = Claim { owner: Some("pod".into()), ..claim("c") };
    assert!(!resolve_used(&mut volumes, &single, "c", true));
    single.kind.modes = once;
    assert!(resolve_used(&mut volumes, &single, "c", true));
    assert!(!resolve_used(&mut volumes, &single, "c", false));
    assert!(!resolve_used(&mut volumes, &single, "*c", true));
}

fn resolve_used(volumes: &mut Volumes, claim: &Claim, pod_claim: &str, used: bool) -> bool {
    volumes.apply_claim(claim.clone());
    resolve(volumes, &[pod_claim], used).claims_in_use.len() == 1
}

fn capacity(object: &str, node: &str, bytes: i64) -> Capacity {
    let operator = Operator::In([node.into()].into());
    let nodes = LabelSelector::All([Requirement { key: "node".into(), operator }].into());
    let object = ObjectName { namespace: "driver".into(), name: object.into() };
    Capacity { object, class: "class".into(), bytes: Some(bytes), nodes }
}

#[test]
fn storage_capacity_decides_where_claims_fit_and_only_its_changes_are_passed_on() {
    let mut volumes = Volumes::default();
    volumes.apply_class(class(CSI, true));
    volumes.apply_claim(claim("c"));
    volumes.apply_capacity(capacity("1", "a", 10));
    volumes.apply_capacity(capacity("2", "b", 5));
    volumes.apply_capacity(capacity("3", "c", 4));
    let room = |volumes: &mut Volumes, node: &str| {
        let unbound = resolve(volumes, &["c"], false).unbound[0].clone();
        let labels: Labels = [("node", node)].into_iter().collect();
        let segments = unbound.provision.expect("it is made").segments;
        segments.map(|segments| (segments.len(), segments.iter().any(|segment| segment.matches(&labels))))
    };
    assert_eq!(room(&mut volumes, "a"), None, "the driver does not report capacity");
    assert!(volumes.apply_driver(&CSI.into(), true).all_claims);
    assert_eq!(room(&mut volumes, "a"), Some((1, true)), "one selector for all nodes");
    assert_eq!((room(&mut volumes, "b"), room(&mut volumes, "c")), (Some((1, true)), Some((1, false))));
    assert!(volumes.apply_capacity(capacity("1", "a", 9)).is_empty(), "still enough");
    assert!(volumes.apply_capacity(capacity("1", "a", 3)).all_claims);
    assert_eq!(room(&mut volumes, "a"), Some((1, false)));
    let two = ObjectName { namespace: "driver".into(), name: "2".into() };
    assert!(volumes.delete(ObjectKind::CsiStorageCapacity, &two).all_claims);
    assert_eq!(room(&mut volumes, "b"), Some((0, false)));
}

#[test]
fn drivers_without_a_provisioner_make_nothing() {
    let mut volumes = Volumes::default();
    volumes.apply_claim(claim("c"));
    for (provisioner, makes) in [(STATIC, false), (CSI, true)] {
        volumes.apply_class(class(provisioner, true));
        assert_eq!(resolve(&mut volumes, &["c"], false).unbound[0].provision.is_some(), makes);
    }
}

#[test]
fn unbound_claims_choose_smallest_first_and_keep_their_names_in_that_order() {
    let mut volumes = Volumes::default();
    volumes.apply_class(class(CSI, true));
    for (name, size_bytes) in [("large", 30), ("small", 10), ("middle", 20)] {
        volumes.apply_claim(Claim { size_bytes, ..claim(name) });
    }
    let (pod, wanted) = pod(&["large", "small", "middle"]);
    let resolved = volumes.resolve(&pod, &wanted, &|_| false);
    let sizes: Vec<_> = resolved.needs.unbound.iter().map(|claim| claim.size_bytes).collect();
    assert_eq!(sizes, [10, 20, 30]);
    assert_eq!(resolved.unbound, [name("small"), name("middle"), name("large")]);
}
