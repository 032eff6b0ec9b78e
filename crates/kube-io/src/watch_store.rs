//! Store of watched objects that sizes of pods depend on, shared by the webhook, the recommender, the updater and the scaler.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::NamespaceResourceScope;
use kube::api::ObjectMeta;
use kube::{Client, Resource};
use parking_lot::RwLock;
use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::lean::{lean_meta, nullable};
use crate::scaling::LeanServiceScaler;
use crate::vpa::{Quantities, amounts, quantity, read_vpa};
use crate::watch::watch as watch_objects;
use crate::{
    LeanReplicaSet, LeanReplicationController, LeanStatefulSet, Listed, LivePods, OptionalKind, WatchChange,
    WatchCounters, watch_if_served,
};
use berth_model::PerResource;
use berth_rightsizing::apply::index::{ListState, NamespacedName, SizingKind, SizingObject, WorkloadObject};
use berth_rightsizing::apply::{Range, Ranges, SizingIndex};
use berth_rightsizing::recommend::{OwnerRef, Vpa};

/// Time that a reader waits for the first list of a kind.
const LISTED_WITHIN: Duration = Duration::from_secs(10);

/// A kind that the store keeps.
pub trait SizingResource: Resource + Clone + DeserializeOwned + Debug + Send + 'static {
    const KIND: SizingKind;

    /// `label`: the label by which workloads opt out of created VPAs.
    fn object(&self, label: Option<&str>) -> SizingObject;
}

/// Reason why VPAs are unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum VpasUnknown {
    #[error("no VerticalPodAutoscalers in this cluster: install their CRDs")]
    NotServed,
    #[error("berth's service account may not list and watch VerticalPodAutoscalers: check the ClusterRole")]
    Forbidden,
    #[error("VerticalPodAutoscalers have not been listed yet")]
    NotListed,
}

/// Pods, and the index of the other objects. Cheap to clone.
#[derive(Clone)]
pub struct WatchStore {
    pub pods: LivePods,
    pub index: Arc<RwLock<SizingIndex>>,
    label: Option<Arc<str>>,
    /// Notified whenever the state of a kind may have changed.
    listed: Arc<watch::Sender<()>>,
}

impl WatchStore {
    /// Creates a store of these kinds. `label`: the label by which workloads opt out of created VPAs.
    pub fn new(pods: LivePods, kinds: BTreeSet<SizingKind>, label: Option<&str>) -> WatchStore {
        WatchStore {
            pods,
            index: Arc::new(RwLock::new(SizingIndex::new(kinds))),
            label: label.map(Arc::from),
            listed: Arc::new(watch::Sender::new(())),
        }
    }

    /// Watches the kinds that are kept, except for `shared` ones, which other watches pass to a [`Self::follower`]. Never returns.
    pub async fn follow(self, client: Client, counters: &WatchCounters, shared: &BTreeSet<SizingKind>) {
        tokio::join!(
            self.optional::<LeanVpa>(&client, counters, shared),
            self.optional::<LeanServiceScaler>(&client, counters, shared),
            self.one::<LeanLimitRange>(&client, counters, shared),
            self.one::<LeanReplicaSet>(&client, counters, shared),
            self.one::<LeanReplicationController>(&client, counters, shared),
            self.one::<LeanDeployment>(&client, counters, shared),
            self.one::<LeanStatefulSet>(&client, counters, shared),
            self.one::<LeanDaemonSet>(&client, counters, shared),
            self.one::<LeanJob>(&client, counters, shared),
            self.one::<LeanCronJob>(&client, counters, shared),
        );
    }

    async fn one<K>(&self, client: &Client, counters: &WatchCounters, shared: &BTreeSet<SizingKind>)
    where
        K: SizingResource<DynamicType: Default>,
    {
        let Some(mut follower) = self.own_follower::<K>(shared) else { return };
        watch_objects(client.clone(), None, counters, |change| follower(&change)).await;
    }

    async fn optional<K>(&self, client: &Client, counters: &WatchCounters, shared: &BTreeSet<SizingKind>)
    where
        K: SizingResource + OptionalKind,
    {
        let Some(mut follower) = self.own_follower::<K>(shared) else { return };
        watch_if_served(client.clone(), counters, |_| {}, |change| follower(&change)).await;
    }

    /// Returns the receiver of a kind that no other watch passes on.
    fn own_follower<K: SizingResource>(
        &self,
        shared: &BTreeSet<SizingKind>,
    ) -> Option<impl FnMut(&WatchChange<K>) + Send + 'static> {
        if shared.contains(&K::KIND) { None } else { self.follower::<K>() }
    }

    /// Returns the receiver of the changes of one watch; `None` if its kind is not kept.
    pub fn follower<K: SizingResource>(&self) -> Option<impl FnMut(&WatchChange<K>) + Send + 'static> {
        let store = self.index.read().follows(K::KIND).then(|| self.clone())?;
        let mut listed = Listed::default();
        Some(move |change: &WatchChange<K>| store.take(&mut listed, change))
    }

    fn take<K: SizingResource>(
        &self,
        listed: &mut Listed<BTreeSet<NamespacedName>>,
        change: &WatchChange<K>,
    ) {
        match change {
            WatchChange::ListBegins => listed.begin(),
            WatchChange::Apply(Ok(object)) => {
                let meta = object.meta();
                let name = name_of(meta.namespace.as_deref(), meta.name.as_deref());
                listed.note(name.clone());
                let object = object.object(self.label.as_deref());
                self.index.write().apply(K::KIND, name, object);
            }
            // The last version that could be read may be outdated, so it is not used.
            WatchChange::Apply(Err(bad)) => {
                let name = name_of(Some(&bad.id.namespace), Some(&bad.id.name));
                self.index.write().delete(K::KIND, &name);
            }
            WatchChange::Delete(id) => {
                self.index.write().delete(K::KIND, &name_of(Some(&id.namespace), Some(&id.name)));
            }
            WatchChange::ListEnds => {
                self.index.write().retain(K::KIND, &listed.end());
                self.listed.send_replace(());
            }
            WatchChange::NotServed => {
                self.index.write().not_served(K::KIND);
                self.listed.send_replace(());
            }
            WatchChange::Refused => {
                self.index.write().forbidden(K::KIND);
                self.listed.send_replace(());
            }
        }
    }

    /// Returns the VPAs that count, by namespace and name; waits a few seconds for their first list.
    ///
    /// # Errors
    /// When they are unknown.
    pub async fn vpas(&self) -> Result<Vec<Arc<Vpa>>, VpasUnknown> {
        Ok(self.vpas_and_beyond().await?.0)
    }

    /// Returns the VPAs that count, and those beyond the limit of their namespace.
    ///
    /// # Errors
    /// When they are unknown.
    pub async fn vpas_and_beyond(&self) -> Result<(Vec<Arc<Vpa>>, Vec<Arc<Vpa>>), VpasUnknown> {
        let mut changes = self.listed.subscribe();
        let wait = async {
            while self.index.read().state(SizingKind::Vpa) == ListState::NotListed {
                // The sender is in `self`.
                let _ = changes.changed().await;
            }
        };
        let _ = timeout(LISTED_WITHIN, wait).await;
        let index = self.index.read();
        match index.state(SizingKind::Vpa) {
            ListState::Listed => {
                Ok((index.vpas().cloned().collect(), index.vpas_beyond().cloned().collect()))
            }
            ListState::NotServed => Err(VpasUnknown::NotServed),
            ListState::Forbidden => Err(VpasUnknown::Forbidden),
            ListState::NotListed => Err(VpasUnknown::NotListed),
        }
    }
}

fn name_of(namespace: Option<&str>, name: Option<&str>) -> NamespacedName {
    (namespace.unwrap_or_default().into(), name.unwrap_or_default().into())
}

/// A VPA to watch.
#[derive(Debug, Clone)]
pub struct LeanVpa {
    metadata: Box<ObjectMeta>,
    vpa: Arc<Vpa>,
}

impl<'de> Deserialize<'de> for LeanVpa {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = <&RawValue>::deserialize(deserializer)?;
        let vpa = read_vpa(raw.get()).map_err(D::Error::custom)?;
        let metadata = ObjectMeta {
            namespace: Some(vpa.namespace.to_string()),
            name: Some(vpa.name.to_string()),
            uid: Some(vpa.uid.clone()),
            resource_version: Some(vpa.resource_version.clone()),
            ..ObjectMeta::default()
        };
        Ok(LeanVpa { metadata: Box::new(metadata), vpa: Arc::new(vpa) })
    }
}

impl Resource for LeanVpa {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "VerticalPodAutoscaler".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        "autoscaling.k8s.io".into()
    }

    fn version((): &()) -> Cow<'_, str> {
        "v1".into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        "verticalpodautoscalers".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

impl OptionalKind for LeanVpa {
    const VERSIONS: &'static [()] = &[()];
}

impl SizingResource for LeanVpa {
    const KIND: SizingKind = SizingKind::Vpa;

    fn object(&self, _: Option<&str>) -> SizingObject {
        SizingObject::Vpa(self.vpa.clone())
    }
}

impl SizingResource for LeanServiceScaler {
    const KIND: SizingKind = SizingKind::ServiceScaler;

    fn object(&self, _: Option<&str>) -> SizingObject {
        SizingObject::ServiceScaler(self.sizes().map(Arc::new))
    }
}

/// A LimitRange to watch.
#[derive(Debug, Clone, Default, Deserialize, kube::Resource)]
#[resource(inherit = "k8s_openapi::api::core::v1::LimitRange")]
pub struct LeanLimitRange {
    #[serde(deserialize_with = "lean_meta")]
    metadata: ObjectMeta,
    #[serde(default, deserialize_with = "nullable")]
    spec: LimitRangeSpec,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct LimitRangeSpec {
    #[serde(deserialize_with = "nullable")]
    limits: Vec<LimitRangeItem>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct LimitRangeItem {
    #[serde(rename = "type")]
    kind: String,
    #[serde(deserialize_with = "nullable")]
    min: Quantities,
    #[serde(deserialize_with = "nullable")]
    max: Quantities,
    #[serde(deserialize_with = "nullable")]
    default: Quantities,
    #[serde(deserialize_with = "nullable")]
    max_limit_request_ratio: Quantities,
}

impl SizingResource for LeanLimitRange {
    const KIND: SizingKind = SizingKind::LimitRange;

    fn object(&self, _: Option<&str>) -> SizingObject {
        let mut ranges = Ranges::default();
        for item in &self.spec.limits {
            let milli = |name: &str| {
                item.max_limit_request_ratio
                    .get(name)
                    .and_then(quantity)
                    .map(berth_model::Quantity::milli_value)
            };
            let range = Range {
                min: amounts(&item.min),
                max: amounts(&item.max),
                default_limit: amounts(&item.default),
                ratio_milli: PerResource { cpu: milli("cpu"), memory: milli("memory") },
            };
            match item.kind.as_str() {
                "Container" => ranges.container.join(&range),
                "Pod" => ranges.pod.join(&range),
                _ => {}
            }
        }
        SizingObject::LimitRange(ranges)
    }
}

/// Defines a workload of which no more than the metadata is read.
macro_rules! workload {
    ($lean:ident, $kind:ident, $inherit:path) => {
        #[derive(Debug, Clone, Default, Deserialize, kube::Resource)]
        #[resource(inherit = $inherit)]
        pub struct $lean {
            #[serde(deserialize_with = "lean_meta")]
            metadata: ObjectMeta,
        }

        impl SizingResource for $lean {
            const KIND: SizingKind = SizingKind::$kind;

            fn object(&self, label: Option<&str>) -> SizingObject {
                workload(&self.metadata, label, None)
            }
        }
    };
}

workload!(LeanDeployment, Deployment, k8s_openapi::api::apps::v1::Deployment);
workload!(LeanJob, Job, k8s_openapi::api::batch::v1::Job);
workload!(LeanCronJob, CronJob, k8s_openapi::api::batch::v1::CronJob);

/// A DaemonSet to watch.
#[derive(Debug, Clone, Default, Deserialize, kube::Resource)]
#[resource(inherit = "k8s_openapi::api::apps::v1::DaemonSet")]
pub struct LeanDaemonSet {
    #[serde(deserialize_with = "lean_meta")]
    metadata: ObjectMeta,
    #[serde(default, deserialize_with = "nullable")]
    status: DaemonSetStatus,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct DaemonSetStatus {
    desired_number_scheduled: Option<i64>,
}

impl SizingResource for LeanDaemonSet {
    const KIND: SizingKind = SizingKind::DaemonSet;

    fn object(&self, label: Option<&str>) -> SizingObject {
        workload(&self.metadata, label, self.status.desired_number_scheduled)
    }
}

/// Kinds that the scheduler watches too, for their selectors.
macro_rules! scaled_workload {
    ($lean:ident, $kind:ident) => {
        impl SizingResource for $lean {
            const KIND: SizingKind = SizingKind::$kind;

            fn object(&self, label: Option<&str>) -> SizingObject {
                workload(&self.metadata, label, Some(self.replicas()))
            }
        }
    };
}

scaled_workload!(LeanReplicaSet, ReplicaSet);
scaled_workload!(LeanReplicationController, ReplicationController);
scaled_workload!(LeanStatefulSet, StatefulSet);

fn workload(metadata: &ObjectMeta, label: Option<&str>, replicas: Option<i64>) -> SizingObject {
    let controller = metadata.owner_references.iter().flatten().find(|owner| owner.controller == Some(true));
    SizingObject::Workload(WorkloadObject {
        uid: metadata.uid.as_deref().unwrap_or_default().into(),
        owner: controller.map(|owner| OwnerRef {
            api_version: owner.api_version.clone(),
            kind: owner.kind.clone(),
            name: owner.name.clone(),
        }),
        label: label.and_then(|label| metadata.labels.as_ref()?.get(label).cloned()),
        replicas: replicas.and_then(|wanted| usize::try_from(wanted).ok()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_read_as_the_index_keeps_them() {
        let text = r#"{"metadata":{"name":"a","namespace":"b","resourceVersion":"7"},"spec":{"limits":[
            {"type":"Container","max":{"cpu":"2"},"default":{"cpu":"500m"},"maxLimitRequestRatio":{"cpu":"1.5"}},
            {"type":"Container","max":{"cpu":"1","memory":"1Ki"}},
            {"type":"Pod","min":{"memory":"1"}}, {"type":"PersistentVolumeClaim"}]}}"#;
        let object: LeanLimitRange = serde_json::from_str(text).unwrap();
        let SizingObject::LimitRange(ranges) = object.object(None) else { panic!("a LimitRange") };
        assert_eq!(ranges.container.max, PerResource { cpu: Some(1_000), memory: Some(1_024) });
        assert_eq!(
            (ranges.container.default_limit.cpu, ranges.container.ratio_milli.cpu),
            (Some(500), Some(1_500))
        );
        assert_eq!(ranges.pod.min.memory, Some(1));

        let text = r#"{"metadata":{"name":"a","namespace":"b","resourceVersion":"7"}}"#;
        let object: LeanVpa = serde_json::from_str(text).unwrap();
        assert_eq!(object.meta().resource_version.as_deref(), Some("7"));
        assert!(serde_json::from_str::<LeanVpa>("{}").is_err());
    }
    fn read<K: SizingResource>(spec: &str) -> WorkloadObject {
        let text = format!(
            r#"{{"metadata":{{"name":"a","namespace":"b","uid":"u","labels":{{"recommend":"false","app":"x"}},"ownerReferences":[
            {{"apiVersion":"apps/v1","kind":"Deployment","name":"web","uid":"u","controller":true}}]}},{spec}}}"#
        );
        let object: K = serde_json::from_str(&text).expect("an object");
        let SizingObject::Workload(workload) = object.object(Some("recommend")) else { panic!("a workload") };
        assert_eq!((&*workload.uid, workload.label.as_deref()), ("u", Some("false")));
        assert_eq!(workload.owner.as_ref().map(|owner| owner.name.as_str()), Some("web"));
        workload
    }

    #[test]
    fn workloads_are_read_with_their_controller_and_the_replicas_that_they_want() {
        let selects = r#""spec":{"replicas":3,"selector":{"matchLabels":{"app":"x"}}}"#;
        assert_eq!(read::<LeanReplicaSet>(selects).replicas, Some(3));
        assert_eq!(read::<LeanStatefulSet>(r#""spec":{}"#).replicas, Some(1), "the default");
        assert_eq!(read::<LeanReplicationController>(r#""spec":{"replicas":0}"#).replicas, Some(0));
        assert_eq!(read::<LeanDaemonSet>(r#""status":{"desiredNumberScheduled":5}"#).replicas, Some(5));
        assert_eq!(read::<LeanDaemonSet>(r#""status":null"#).replicas, None);
        for workload in [read::<LeanDeployment>(r#""spec":7"#), read::<LeanJob>(r#""spec":7"#)] {
            assert_eq!(workload.replicas, None);
        }
        assert_eq!(read::<LeanCronJob>(r#""spec":7"#).replicas, None);
    }

    fn store(kinds: &[SizingKind]) -> WatchStore {
        WatchStore::new(LivePods::new(|_| false), kinds.iter().copied().collect(), None)
    }

    fn vpa(name: &str) -> LeanVpa {
        let text = format!(r#"{{"metadata":{{"name":"{name}","namespace":"shop","resourceVersion":"7"}}}}"#);
        serde_json::from_str(&text).expect("a VPA")
    }

    async fn names(store: &WatchStore) -> Result<Vec<String>, VpasUnknown> {
        Ok(store.vpas().await?.iter().map(|vpa| vpa.name.to_string()).collect())
    }

    #[tokio::test(start_paused = true)]
    async fn readers_wait_for_the_first_list_of_vpas_but_not_for_ever() {
        let store = store(&[SizingKind::Vpa]);
        assert!(store.follower::<LeanLimitRange>().is_none(), "nobody needs them");
        assert_eq!(names(&store).await, Err(VpasUnknown::NotListed));
        let mut follower = store.follower::<LeanVpa>().expect("it is kept");
        let reader = tokio::spawn({
            let store = store.clone();
            async move { names(&store).await }
        });
        tokio::task::yield_now().await;
        follower(&WatchChange::ListBegins);
        follower(&WatchChange::Apply(Ok(vpa("web"))));
        tokio::task::yield_now().await;
        assert!(!reader.is_finished());
        follower(&WatchChange::ListEnds);
        assert_eq!(reader.await.expect("it ends"), Ok(vec!["web".to_owned()]));
    }

    #[tokio::test(start_paused = true)]
    async fn a_missing_kind_is_no_empty_list_and_a_refusal_says_what_to_check() {
        let store = store(&[SizingKind::Vpa]);
        let mut follower = store.follower::<LeanVpa>().expect("it is kept");
        follower(&WatchChange::NotServed);
        assert_eq!(names(&store).await, Err(VpasUnknown::NotServed));
        follower(&WatchChange::Refused);
        assert_eq!(names(&store).await, Err(VpasUnknown::Forbidden));
        follower(&WatchChange::ListBegins);
        follower(&WatchChange::Apply(Ok(vpa("web"))));
        follower(&WatchChange::ListEnds);
        assert_eq!(names(&store).await, Ok(vec!["web".to_owned()]));
        let id = crate::ObjectId { namespace: "shop".into(), name: "web".into(), uid: String::new() };
        follower(&WatchChange::Delete(id));
        assert_eq!(names(&store).await, Ok(Vec::new()));
    }
}
