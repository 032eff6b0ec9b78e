//! The fields of a `KubeSchedulerConfiguration` file and of the arguments of its plugins
//! (`k8s.io/kube-scheduler/config/v1`). Unknown fields are errors, as in kube-scheduler.

use berth_model::ConfigDuration;
use serde::Deserialize;
use serde_json::Value;

use crate::affinity::AddedAffinity;

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct File {
    pub(super) api_version: Option<String>,
    pub(super) kind: Option<String>,
    pub(super) parallelism: Option<i32>,
    pub(super) leader_election: Option<Election>,
    pub(super) client_connection: Option<Connection>,
    pub(super) enable_profiling: Option<bool>,
    pub(super) enable_contention_profiling: Option<bool>,
    pub(super) percentage_of_nodes_to_score: Option<i32>,
    pub(super) pod_initial_backoff_seconds: Option<u32>,
    pub(super) pod_max_backoff_seconds: Option<u32>,
    pub(super) profiles: Option<Vec<FileProfile>>,
    pub(super) extenders: Option<Vec<Value>>,
    pub(super) delay_cache_until_active: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct Election {
    pub leader_elect: Option<bool>,
    pub lease_duration: Option<ConfigDuration>,
    pub renew_deadline: Option<ConfigDuration>,
    pub retry_period: Option<ConfigDuration>,
    pub resource_lock: Option<String>,
    pub resource_name: Option<String>,
    pub resource_namespace: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct Connection {
    pub kubeconfig: Option<String>,
    pub accept_content_types: Option<String>,
    pub content_type: Option<String>,
    pub qps: Option<f64>,
    pub burst: Option<i32>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct FileProfile {
    pub scheduler_name: Option<String>,
    pub percentage_of_nodes_to_score: Option<i32>,
    pub plugins: Option<Plugins>,
    pub plugin_config: Option<Vec<PluginConfig>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct Plugins {
    pub pre_enqueue: Option<PluginSet>,
    pub queue_sort: Option<PluginSet>,
    pub pre_filter: Option<PluginSet>,
    pub filter: Option<PluginSet>,
    pub post_filter: Option<PluginSet>,
    pub pre_score: Option<PluginSet>,
    pub score: Option<PluginSet>,
    pub reserve: Option<PluginSet>,
    pub permit: Option<PluginSet>,
    pub pre_bind: Option<PluginSet>,
    pub bind: Option<PluginSet>,
    pub post_bind: Option<PluginSet>,
    pub multi_point: Option<PluginSet>,
    pub placement_generate: Option<PluginSet>,
    pub placement_score: Option<PluginSet>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct PluginSet {
    pub enabled: Option<Vec<Plugin>>,
    pub disabled: Option<Vec<Plugin>>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Plugin {
    pub name: String,
    #[serde(default)]
    pub weight: Option<u32>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PluginConfig {
    pub name: String,
    #[serde(default)]
    pub args: Value,
}

/// Arguments of a plugin may repeat their version and kind.
macro_rules! args {
    ($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Default, Deserialize)]
        #[serde(rename_all = "camelCase", deny_unknown_fields, default)]
        pub(super) struct $name {
            #[serde(rename = "apiVersion")]
            _api_version: Option<String>,
            #[serde(rename = "kind")]
            _kind: Option<String>,
            $(pub $field: Option<$type>,)*
        }
    };
}

args!(DefaultPreemptionArgs { min_candidate_nodes_percentage: i32, min_candidate_nodes_absolute: i32 });
args!(InterPodAffinityArgs { hard_pod_affinity_weight: i32, ignore_preferred_terms_of_existing_pods: bool });
args!(NodeResourcesFitArgs {
    ignored_resources: Vec<String>,
    ignored_resource_groups: Vec<String>,
    scoring_strategy: ScoringStrategy,
});
args!(BalancedAllocationArgs {
    resources: Vec<ResourceSpec>,
});
args!(PodTopologySpreadArgs { default_constraints: Value, defaulting_type: Value });
args!(VolumeBindingArgs {
    bind_timeout_seconds: u32,
    shape: Vec<ShapePoint>,
});
args!(NodeAffinityArgs { added_affinity: AddedAffinity });
args!(DynamicResourcesArgs { filter_timeout: ConfigDuration, binding_timeout: ConfigDuration });

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct ScoringStrategy {
    #[serde(rename = "type")]
    pub kind: Option<String>,
    pub resources: Option<Vec<ResourceSpec>>,
    pub requested_to_capacity_ratio: Option<Ratio>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Ratio {
    pub shape: Option<Vec<ShapePoint>>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ShapePoint {
    pub utilization: i32,
    pub score: i32,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ResourceSpec {
    pub name: String,
    /// 0 and none are 1.
    #[serde(default)]
    pub weight: Option<u32>,
}
