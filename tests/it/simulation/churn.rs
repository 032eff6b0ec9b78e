//! Room that comes and goes all the time: no diagnosis is certain for long, and yet every waiting pod gets a condition and
//! every preemption that can help begins.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::chaos;
use super::dice::Dice;
use super::process::Settings;
use super::sim::{Event, MS, Sim, Step};

const SEEDS: u64 = 100;
/// A waiting pod has a condition after this time.
const TOLD_WITHIN: Duration = Duration::from_secs(10);
/// A preemption begins within this time; another one may have to end before.
const PREEMPTS_WITHIN: Duration = Duration::from_secs(20);
/// Interval between checks.
const STEP: Duration = Duration::from_secs(2);
/// Kinds of pods that fit nowhere, or nowhere but in the place of others.
const KINDS: [u64; 4] = [1, 6, 9, 11];

/// What is known of the waiting pods.
#[derive(Default)]
pub struct Churn {
    told: BTreeSet<Arc<str>>,
    created: BTreeMap<Arc<str>, Duration>,
    /// Since when a pod could preempt and does not.
    hopeful: BTreeMap<Arc<str>, Duration>,
}

impl Churn {
    pub fn told(&mut self, uid: &Arc<str>) {
        self.told.insert(uid.clone());
    }
}

impl Sim {
    /// Returns a cluster without faults that churns.
    fn churning(seed: u64) -> Sim {
        let mut load = Dice::new(seed, 0);
        let drawn = Settings::draw(&mut load);
        let settings = Settings {
            preemption: true,
            reserve_after: Duration::ZERO,
            quotas: false,
            policies: false,
            // Pods that are held back do not preempt.
            max_waiting_classes: usize::MAX,
            ..drawn
        };
        let mut sim = Sim::of(seed, load, settings, (true, 1), false);
        (sim.faults, sim.churn) = (false, Some(Churn::default()));
        for _ in 0..4 {
            sim.add_node();
        }
        sim.at(Duration::ZERO, Event::Churn);
        sim
    }

    /// Room comes or goes, and sometimes a pod.
    pub fn churn(&mut self) {
        match self.load.below(12) {
            0 => {
                let kind = *self.load.pick(&KINDS).expect("there are some");
                let uid = self.cluster.new_uid();
                let pod = chaos::pod(kind, &uid, &format!("pod-{uid}"), &mut self.load);
                if let Some(churn) = &mut self.churn {
                    churn.created.insert(uid, self.now);
                }
                self.cluster.create_pod(pod);
            }
            1 => self.foreign_pod(),
            2 => {
                if let Some(pod) = self.some_pod(|pod| &*pod.scheduler_name == "other") {
                    self.cluster.delete_pod(&pod);
                }
            }
            _ => {
                // Another label of a node may help some class.
                if let Some(mut node) = self.some_node() {
                    let value = self.load.below(1000).to_string();
                    let labels = node.labels.iter().filter(|(key, _)| *key != "churn");
                    node.labels = labels.chain([("churn", &*value)]).collect();
                    self.cluster.apply_node(node);
                }
            }
        }
        let pause = self.load.up_to(60 * MS);
        self.after(pause, Event::Churn);
    }

    fn judge_churn(&mut self) -> Step {
        let pods = self.cluster.store.list();
        let (mut cold, refusals) = self.cold_start(&pods);
        let evictions = self.possible_evictions(&mut cold)?;
        let leader = &self.processes[0].scheduler;
        let nominated: BTreeSet<_> = leader.nominated_pods().map(|(uid, _)| uid.clone()).collect();
        let now = self.now;
        let churn = self.churn.as_mut().ok_or("it does not churn")?;
        for pod in pods.iter().filter(|pod| pod.node_name.is_none() && !pod.deleting) {
            let since = churn.created.get(&pod.uid).copied().unwrap_or(now);
            if now.saturating_sub(since) > TOLD_WITHIN
                && !churn.told.contains(&pod.uid)
                && !refusals.contains_key(&pod.uid)
            {
                return Err(format!("{} waits since {since:?} and has no condition", pod.uid));
            }
        }
        let hopeful: BTreeSet<_> = evictions.into_iter().map(|eviction| eviction.preemptor.uid).collect();
        churn.hopeful.retain(|uid, _| hopeful.contains(uid));
        for uid in hopeful.into_iter().filter(|uid| !nominated.contains(uid)) {
            let since = *churn.hopeful.entry(uid.clone()).or_insert(now);
            if now.saturating_sub(since) > PREEMPTS_WITHIN {
                return Err(format!("{uid} could preempt since {since:?} and does not"));
            }
        }
        Ok(())
    }
}

#[test]
fn while_room_comes_and_goes_every_pod_gets_a_condition_and_every_hopeful_preemption_begins() {
    let (mut told, mut nominated) = (0, 0);
    for seed in 0..SEEDS {
        let mut sim = Sim::churning(seed);
        for _ in 0..20 {
            let step = sim.run_for(STEP).and_then(|()| sim.judge_churn());
            step.unwrap_or_else(|why| panic!("seed {seed}: {why}"));
        }
        told += sim.churn.as_ref().map_or(0, |churn| churn.told.len());
        nominated += sim.tally.of("nominated");
    }
    assert!(told > 1000 && nominated > 100, "{told} conditions, {nominated} nominations");
}
