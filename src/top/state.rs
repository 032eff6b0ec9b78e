//! What the events have told.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

/// The version of the events that is understood.
const API_VERSION: &str = "ui.berth.dev/v1";

/// Reason why an event cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TopError {
    #[error("the event {event} is not as expected: {error}")]
    Malformed { event: String, error: serde_json::Error },
    #[error("the server speaks {0}; this berth understands {API_VERSION}: use the same version of berth")]
    OtherVersion(String),
}

/// The scheduler and its cluster, as of the last event.
#[derive(Debug, Default)]
pub struct TopState {
    pub version: String,
    /// By id.
    pub nodes: BTreeMap<u32, TopNode>,
    pub totals: TopTotals,
    pub queue: TopQueue,
    pub agents: Vec<TopAgent>,
    pub gangs: TopGangs,
    pub quotas: Vec<TopQuota>,
    /// `None`: the recommender is off, or another process leads.
    pub recommendations: Option<TopRecommendations>,
    /// Between the last two totals; `None`: there was one only.
    pub binds_per_second: Option<f64>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TopNode {
    id: u32,
    pub name: String,
    pub zone: String,
    pub pool: String,
    pub cordoned: bool,
    pub ready: bool,
    #[serde(skip)]
    pub usage: TopUsage,
}

/// Requested parts of what a node has, in permille.
#[derive(Debug, Clone, Copy, Default)]
pub struct TopUsage {
    pub cpu: i64,
    pub memory: i64,
    pub pods: i64,
    /// Of the busiest extended resource; -1: the node has none.
    pub extended: i64,
    /// CPU that is kept for waiting pods.
    pub reserved: i64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TopTotals {
    /// Milliseconds since 1970.
    pub at: i64,
    pub leading: bool,
    pub nodes: usize,
    pub pods: usize,
    pub waiting: usize,
    pub classes: usize,
    pub scheduled: u64,
    pub conflicts: u64,
    pub preemptions: u64,
    pub list_hits: u64,
    pub list_misses: u64,
    /// Number of pods by queue; null before they were counted.
    queues: Option<BTreeMap<String, usize>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TopQueue {
    pub groups: Vec<TopWaiting>,
    pub left_out: usize,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TopWaiting {
    pub namespace: String,
    /// KIND NAME.
    pub owner: Option<String>,
    pub pod: String,
    pub pods: usize,
    pub state: String,
    pub priority: i32,
    /// Milliseconds since 1970.
    pub since: i64,
    pub message: Option<String>,
}

#[derive(Debug, Deserialize)]
pub struct TopAgent {
    pub dispatched: u64,
    pub lists: usize,
    pub bytes: usize,
    pub evictions: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TopGangs {
    pub gangs: Vec<TopGang>,
    pub left_out: usize,
}

#[derive(Debug, Deserialize)]
pub struct TopGang {
    pub namespace: String,
    pub name: String,
    pub phase: String,
    pub message: String,
    pub minimum: u32,
    pub members: u32,
    pub bound: u32,
}

#[derive(Debug, Deserialize)]
pub struct TopQuota {
    pub name: String,
    pub waiting: usize,
    pub reclaimed: u64,
    pub resources: Vec<TopQuotaResource>,
}

#[derive(Debug, Deserialize)]
pub struct TopQuotaResource {
    pub resource: String,
    pub used: String,
    pub borrowed: String,
    pub guaranteed: Option<String>,
    pub maximum: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TopRecommendations {
    pub workloads: usize,
    /// Of all workloads.
    pub sizes: TopSizes,
    /// The workloads that request most beyond their recommendation.
    pub largest: Vec<TopWorkload>,
    pub left_out: usize,
}

#[derive(Debug, Deserialize)]
pub struct TopWorkload {
    pub namespace: String,
    pub kind: String,
    pub name: String,
    pub pods: usize,
    pub sizes: TopSizes,
}

/// Requested and recommended, for all pods together.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TopSizes {
    pub cpu_milli: [i64; 2],
    /// Bytes.
    pub memory: [i64; 2],
}

impl TopState {
    /// Returns whether the state is complete enough to be drawn.
    pub fn is_complete(&self) -> bool {
        self.totals.at > 0
    }

    /// Returns the number of pods by queue.
    pub fn queues(&self) -> impl Iterator<Item = (&str, usize)> {
        self.totals.queues.iter().flatten().map(|(queue, pods)| (queue.as_str(), *pods))
    }

    /// Takes an event. Those of other names are ignored.
    ///
    /// # Errors
    /// It is of another version, or not as expected.
    pub fn hear(&mut self, event: &str, data: &str) -> Result<(), TopError> {
        match event {
            "hello" => {
                #[derive(Deserialize)]
                #[serde(rename_all = "camelCase")]
                struct Hello {
                    api_version: String,
                    version: String,
                }
                let Hello { api_version, version } = parsed(event, data)?;
                if api_version != API_VERSION {
                    return Err(TopError::OtherVersion(api_version));
                }
                *self = TopState { version, ..TopState::default() };
            }
            "nodes" => {
                #[derive(Deserialize)]
                struct Nodes {
                    nodes: Vec<TopNode>,
                    gone: Vec<u32>,
                }
                let Nodes { nodes, gone } = parsed(event, data)?;
                gone.iter().for_each(|id| drop(self.nodes.remove(id)));
                for mut node in nodes {
                    node.usage = self.nodes.get(&node.id).map(|known| known.usage).unwrap_or_default();
                    self.nodes.insert(node.id, node);
                }
            }
            "use" => {
                #[derive(Deserialize)]
                struct Uses {
                    of: Vec<i64>,
                }
                for six in parsed::<Uses>(event, data)?.of.chunks_exact(6) {
                    let node = u32::try_from(six[0]).ok().and_then(|id| self.nodes.get_mut(&id));
                    if let Some(node) = node {
                        node.usage = TopUsage {
                            cpu: six[1],
                            memory: six[2],
                            pods: six[3],
                            extended: six[4],
                            reserved: six[5],
                        };
                    }
                }
            }
            "totals" => {
                let totals: TopTotals = parsed(event, data)?;
                let (before, seconds) = (&self.totals, (totals.at - self.totals.at) as f64 / 1_000.0);
                self.binds_per_second = (before.at > 0 && seconds > 0.0)
                    .then(|| totals.scheduled.saturating_sub(before.scheduled) as f64 / seconds);
                self.totals = totals;
            }
            "queue" => self.queue = parsed(event, data)?,
            "agents" => self.agents = listed(event, data, "agents")?,
            "gangs" => self.gangs = parsed(event, data)?,
            "quotas" => self.quotas = listed(event, data, "quotas")?,
            "recommendations" => self.recommendations = parsed(event, data)?,
            _ => {}
        }
        Ok(())
    }
}

fn parsed<'a, T: Deserialize<'a>>(event: &str, data: &'a str) -> Result<T, TopError> {
    serde_json::from_str(data).map_err(|error| TopError::Malformed { event: event.to_owned(), error })
}

fn listed<T: serde::de::DeserializeOwned>(event: &str, data: &str, field: &str) -> Result<Vec<T>, TopError> {
    let mut all: Value = parsed(event, data)?;
    let list = all.get_mut(field).map(Value::take).unwrap_or_default();
    serde_json::from_value(list).map_err(|error| TopError::Malformed { event: event.to_owned(), error })
}
