use std::borrow::Cow;
use std::sync::Arc;

use super::write::frame;
use super::{RunResult, SettingsReport, compare, show_settings};
use berth_model::{Amounts, Node, Packing, Pod, PodClaim, PodVolumes};
use berth_scheduler::agent::{AgentConfig, CacheLimits};
use berth_scheduler::dispatch::Estimator;
use berth_scheduler::recording::{Input, Opening, RecordingEntry, framed};
use berth_scheduler::rules::PlacementSettings;
use berth_scheduler::scheduler::SchedulerConfig;
use berth_scheduler::testing::pod;

/// A recording, made by hand.
struct Story {
    opening: Opening,
    records: Vec<u8>,
    at_ms: u64,
}

impl Story {
    /// Nodes of 4 cores, listed, and a leader.
    fn new(nodes: usize) -> Story {
        let agent = AgentConfig { cache: CacheLimits::unlimited(), seed: 1 };
        let config = SchedulerConfig { preemption: true, ..SchedulerConfig::default() };
        let opening = Opening::new(config, vec![agent], Estimator::default());
        let mut story = Story { opening, records: Vec::new(), at_ms: 0 };
        let names: Vec<Arc<str>> = (0..nodes).map(|at| format!("n{at}").into()).collect();
        for name in &names {
            let allocatable = Amounts { cpu_milli: 4000, memory: 1 << 30, ephemeral_storage: 0, pods: 100 };
            let node = Node { name: name.clone(), allocatable, ..Node::default() };
            story.hear(Input::Node(Cow::Owned(node)));
        }
        story.hear(Input::RetainNodes {
            listed: Some(Cow::Owned(names.into_iter().collect())),
            from: berth_scheduler::inventory::NodeId(0),
        });
        story.hear(Input::RetainPods {
            listed: Some(Cow::Owned([].into())),
            from: berth_scheduler::inventory::NodeId(0),
        });
        story.hear(Input::FinishPodList);
        story.hear(Input::Term(Some(1)));
        story
    }

    fn hear(&mut self, input: Input<'static>) {
        let entry = RecordingEntry { at: self.at_ms * 1_000_000, input, decisions: Vec::new() };
        self.records.extend(framed(&entry).expect("a record"));
    }

    fn pod(&mut self, pod: Pod) {
        self.hear(Input::Pod(Cow::Owned(pod)));
    }

    fn until(&mut self, second: u64) {
        while self.at_ms < second * 1000 {
            self.at_ms += 100;
            self.hear(Input::Tick);
        }
    }

    fn compared(&self, other: SchedulerConfig) -> SettingsReport {
        let opening = framed(&self.opening).expect("a record");
        let file: Vec<u8> = [&opening, &self.records].map(|block| frame(block).expect("a frame")).concat();
        compare(|| Ok(&file[..]), |opening| (other, opening.agents.clone())).expect("a report")
    }

    fn again(&self) -> RunResult {
        let report = self.compared(self.opening.config.clone());
        assert_eq!(report.as_recorded, report.with_config, "the same settings");
        assert!(report.waits.is_empty());
        report.as_recorded
    }
}

fn on(node: &str, pod: Pod) -> Pod {
    Pod { node_name: Some(node.into()), ..pod }
}

#[test]
fn packing_and_spreading_are_compared_on_the_same_pods() {
    let mut story = Story::new(4);
    for at in 0..4 {
        story.pod(pod(&format!("p{at}"), 1000));
    }
    story.until(10);
    let packed = PlacementSettings { packing: Packing::MostAllocated, ..PlacementSettings::default() };
    let profiles = Arc::new(Arc::new(packed).into());
    let report = story.compared(SchedulerConfig { profiles, ..story.opening.config.clone() });
    let (spread, packed) = (&report.as_recorded, &report.with_config);
    assert_eq!((spread.pods, spread.placed, packed.placed), (4, 4, 4));
    assert!(spread.nodes_in_use > 3.5 && packed.nodes_in_use <= 1.0, "{report:?}");
    assert!(spread.free_cpu_on_empty_nodes < 0.2 && packed.free_cpu_on_empty_nodes > 0.9, "{report:?}");
    assert_eq!(spread.cpu_requested, packed.cpu_requested);
    let mut text = Vec::new();
    show_settings(&report, "with packed.yaml", &mut text).expect("written");
    let text = String::from_utf8(text).expect("text");
    assert!(text.starts_with("recorded by berth 0.1.0, over 10.0 s\n"), "{text}");
    assert!(text.contains("pods that came                     4                 4\n"), "{text}");
}

#[test]
fn a_pod_that_ended_by_itself_runs_as_long_as_it_did_and_one_that_was_deleted_ends_when_it_did() {
    let mut story = Story::new(1);
    story.pod(pod("first", 4000));
    story.pod(pod("second", 4000));
    story.until(5);
    // Berth was slow then.
    story.pod(on("n0", pod("first", 4000)));
    story.until(15);
    story.pod(Pod { finished: true, ..on("n0", pod("first", 4000)) });
    story.pod(on("n0", pod("second", 4000)));
    story.until(18);
    story.hear(Input::PodGone("second".into()));
    story.pod(pod("third", 4000));
    story.until(20);
    let result = story.again();
    assert_eq!((result.pods, result.placed, result.waiting, result.preempted), (3, 3, 0, Some(0)));
    assert!((result.wait_max - 10.0).abs() < 1.5, "{result:?}");
    assert_eq!(result.wait_median, 0.0);
}

#[test]
fn pods_of_others_and_pods_with_volumes_keep_the_node_that_was_recorded() {
    let mut story = Story::new(2);
    story.pod(on("n0", Pod { scheduler_name: "other".into(), ..pod("theirs", 4000) }));
    let claims = [PodClaim { name: "data".into(), ephemeral: false }].into();
    let volumes = Some(Arc::new(PodVolumes { claims, ..PodVolumes::default() }));
    let tied = Pod { volumes, ..pod("tied", 4000) };
    story.pod(tied.clone());
    story.until(1);
    story.pod(on("n1", tied));
    story.pod(pod("waits", 1000));
    story.until(5);
    let result = story.again();
    assert_eq!((result.pods, result.placed, result.waiting), (1, 0, 1));
    assert!(result.cpu_requested > 0.7, "{result:?}");
}

#[test]
fn victims_are_counted_and_the_waits_that_differ_are_listed() {
    let mut story = Story::new(1);
    story.pod(pod("low", 4000));
    story.until(1);
    story.pod(Pod { priority: 100, ..pod("high", 4000) });
    story.until(30);
    let report = story.compared(SchedulerConfig { preemption: false, ..story.opening.config.clone() });
    assert_eq!((report.as_recorded.preempted, report.with_config.preempted), (Some(1), Some(0)));
    assert_eq!((report.as_recorded.waiting, report.with_config.waiting), (0, 1));
    let [high] = &report.waits[..] else { panic!("{:?}", report.waits) };
    assert_eq!(&*high.pod, "ns/high");
    assert!(high.as_recorded < 5.0 && (high.with_config - 29.0).abs() < 0.2, "{high:?}");
}
