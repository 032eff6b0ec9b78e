//! Conditions and nominated nodes on their way to the API server: some are lost, some are undone by other clients.

use std::collections::HashMap;
use std::sync::Arc;

use berth_model::{Pod, PodRef, PodReport, ScheduledCondition};
use berth_scheduler::invariants;

use super::judge::said;
use super::preemption::without_preemption;
use super::process::Who;
use super::sim::{Event, MS, Sim, Step};

impl Sim {
    pub fn report(&mut self, who: Who, report: PodReport) -> Step {
        match report {
            PodReport::Scheduled { pod, node } => {
                let truth = self.cluster.store.get(&pod.namespace, &pod.name);
                if let Some(truth) = truth.filter(|truth| truth.uid == pod.uid)
                    && truth.node_name.as_ref() != Some(&node)
                {
                    return Err(format!(
                        "{} is reported on {node}, but is on {:?}",
                        pod.uid, truth.node_name
                    ));
                }
            }
            PodReport::Preempted { .. } => {}
            PodReport::Failed { pod, reason, message, .. } => {
                self.note(|| format!("p{} reports {}: {message}", who.0, pod.uid));
                if !self.processes[who.0].scheduler.leading() {
                    return Err(format!("p{} reports {} but does not lead", who.0, pod.uid));
                }
                self.tally.count(match reason {
                    "Unschedulable" => "reported parked",
                    "QuotaExceeded" => "reported over quota",
                    _ if message.contains("in a row conflicted") => "conflicts to backoff",
                    _ if message.contains("rejected") => "reported rejected",
                    _ => "reported refused",
                });
                let condition = ScheduledCondition { status: false, reason: reason.into(), message };
                if self.faults && self.fates.percent(5) {
                    self.note(|| format!("the condition of {} is lost", pod.uid));
                    self.tally.count("condition lost");
                } else {
                    self.after(5 * MS, Event::Condition(pod, condition));
                }
            }
        }
        Ok(())
    }

    pub fn write_condition(&mut self, pod: &PodRef, condition: ScheduledCondition) {
        if !self.cluster.up {
            return self.after(300 * MS, Event::Condition(pod.clone(), condition));
        }
        let there = self.cluster.store.get(&pod.namespace, &pod.name);
        if let Some(there) = there.filter(|there| there.uid == pod.uid && there.node_name.is_none()) {
            if let Some(churn) = &mut self.churn {
                churn.told(&pod.uid);
            }
            self.cluster.update_pod(&there, |pod| pod.scheduled = Some(condition));
        }
    }

    /// Another client removes a condition or a nominated node.
    pub fn undo_report(&mut self) {
        let Some(pod) = self.some_pod(|pod| pod.scheduled.is_some() && pod.node_name.is_none()) else {
            return;
        };
        self.note(|| format!("the condition of {} is removed", pod.uid));
        self.tally.count("condition removed");
        self.cluster.update_pod(&pod, |pod| (pod.scheduled, pod.nominated_node) = (None, None));
    }

    pub fn send_nomination(&mut self, pod: PodRef, node: Option<Arc<str>>) {
        if self.faults && self.fates.percent(5) {
            self.note(|| format!("the nomination of {} for {node:?} is lost", pod.uid));
            self.tally.count("nomination lost");
            return;
        }
        self.after(5 * MS, Event::Nominate(pod, node));
    }

    pub fn nominate(&mut self, pod: PodRef, node: Option<Arc<str>>) {
        if !self.cluster.up {
            return self.after(300 * MS, Event::Nominate(pod, node));
        }
        let there = self.cluster.store.get(&pod.namespace, &pod.name);
        if let Some(there) = there.filter(|there| there.uid == pod.uid && there.node_name.is_none()) {
            self.note(|| format!("{} is nominated for {node:?}", pod.uid));
            self.tally.count("nominated");
            self.cluster.update_pod(&there, |pod| pod.nominated_node = node);
        }
    }

    /// At rest: the API server has what was last reported and no nominated node. `expected`: messages by uid.
    pub fn judge_reports(&self, pods: &[Pod], mut expected: HashMap<Arc<str>, String>) -> Step {
        let mut conditions: HashMap<Arc<str>, Arc<str>> = HashMap::new();
        for (uid, condition) in pods.iter().filter_map(|pod| Some((&pod.uid, pod.scheduled.as_ref()?))) {
            conditions.insert(uid.clone(), condition.message.clone());
        }
        for (slot, process) in self.placing() {
            let reported = process.scheduler.reported_messages();
            invariants::conditions_written(reported, &conditions).map_err(said(&format!("p{slot}")))?;
        }
        let nominated = pods.iter().find(|pod| pod.node_name.is_none() && pod.nominated_node.is_some());
        if let Some(pod) = nominated.filter(|pod| self.settings.preemption && &*pod.scheduler_name == "berth")
        {
            return Err(format!("{} is nominated for {:?} for ever", pod.uid, pod.nominated_node));
        }
        // Preemption results are appended to the message without it.
        let start = |text: &str| match self.settings.preemption {
            true => without_preemption(text).to_owned(),
            false => text.to_owned(),
        };
        conditions.values_mut().for_each(|text| *text = start(text).into());
        expected.values_mut().for_each(|text| *text = start(text));
        invariants::reported_conditions(&expected, &conditions).map_err(said("conditions"))
    }
}
