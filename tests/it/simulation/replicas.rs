//! Several replicas that place pods at once (`leaderElection.activeActive`): each holds a member lease, reads those of the
//! others, and places its share. Who holds the other lease decides about the binds of all.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use berth_kube_io::LeaseConfig;
use berth_kube_io::lease::{LeaseRecord, Observed};
use berth_model::Pod;
use berth_scheduler::scheduler::{Scheduler, Share};
use jiff::Timestamp;

use super::dice::Dice;
use super::gangs::gang_of;
use super::guard::Known;
use super::process::{Process, Who};
use super::sim::{Event, MS, S, Sim, Step};

pub struct ReplicaSettings {
    pub count: usize,
    lease: LeaseConfig,
}

impl ReplicaSettings {
    pub fn draw(dice: &mut Dice) -> Option<Self> {
        let duration = Duration::from_secs(4 + dice.below(12));
        let lease = LeaseConfig {
            duration,
            renew_deadline: duration * 2 / 3,
            retry_period: duration / 8,
            ..LeaseConfig::new("ns", "berth", "any")
        };
        let settings = ReplicaSettings { count: 2 + dice.below(2) as usize, lease };
        dice.percent(25).then_some(settings)
    }

    /// Returns the time after which the API server aborts requests (as `Fence`).
    pub fn server_timeout(&self) -> Duration {
        let slack = self.lease.duration.saturating_sub(self.lease.renew_deadline);
        slack.saturating_sub(S).max(slack / 2).min(10 * S)
    }
}

/// The member leases in the API server.
pub struct Members {
    dice: Dice,
    /// By the identity of the holder.
    leases: BTreeMap<String, MemberLease>,
}

struct MemberLease {
    /// Number of times that its holder lost it.
    losses: i32,
    acquired: Duration,
    /// Its holder has not renewed it since.
    ended: Option<Duration>,
}

impl Members {
    pub fn new(seed: u64) -> Self {
        Members { dice: Dice::new(seed, 8), leases: BTreeMap::new() }
    }

    fn records(&self, config: &LeaseConfig, now: Duration) -> Vec<LeaseRecord> {
        let record = |(holder, lease): (&String, &MemberLease)| {
            let renewed_for = lease.ended.unwrap_or(now).saturating_sub(lease.acquired);
            let renewals = renewed_for.as_millis() / config.retry_period.as_millis();
            LeaseRecord {
                holder: holder.clone(),
                duration: config.duration,
                acquired: None,
                renewed: Timestamp::from_second(renewals as i64).ok(),
                transitions: lease.losses,
            }
        };
        self.leases.iter().map(record).collect()
    }
}

/// What a process has of its membership.
#[derive(Debug, Default)]
pub struct Member {
    observed: BTreeMap<String, Observed>,
    /// Replicas that may be alive, as far as it knows.
    known: BTreeSet<String>,
    /// What it must know before it places any pod.
    catching_up: Option<Known>,
    /// It has ended, and another one may start in its place.
    pub is_down: bool,
    /// No other one will.
    is_gone: bool,
}

/// A step of a replica.
#[derive(Debug, Clone, Copy)]
pub enum ReplicaStep {
    Start,
    /// It acquires its own lease.
    Acquire,
    /// It could not renew its lease for so long that others may take it for dead.
    StepDown,
    /// It reads the leases of all.
    Look,
}

fn identity((slot, life): Who) -> String {
    format!("berth-{slot}_{life}")
}

impl Process {
    /// Reads the leases of all replicas. Returns whether the members have changed.
    fn read_members(&mut self, records: Vec<LeaseRecord>, config: &LeaseConfig, now: Duration) -> bool {
        let member = &mut self.member;
        let mut seen = BTreeMap::new();
        for record in records {
            let holder = record.holder.clone();
            let mut observed = member.observed.remove(&holder);
            Observed::update(&mut observed, record, now);
            seen.extend(observed.map(|observed| (holder, observed)));
        }
        member.observed = seen;
        let alive = member.observed.iter().filter(|(_, lease)| lease.is_held(config, now));
        let alive: BTreeSet<String> = alive.map(|(holder, _)| holder.clone()).collect();
        std::mem::replace(&mut member.known, alive) != member.known
    }

    fn share(&self, who: Who) -> Share {
        Share::new(&identity(who), self.member.known.iter().map(String::as_str))
    }
}

impl Sim {
    /// Returns whether several replicas place pods at once.
    pub fn is_active_active(&self) -> bool {
        self.settings.replicas.is_some()
    }

    /// Returns the processes that run.
    pub fn running(&self) -> impl Iterator<Item = (usize, &Process)> {
        self.processes.iter().enumerate().filter(|(_, process)| !process.member.is_down)
    }

    /// Returns the processes that place pods when nothing fails.
    pub fn placing(&self) -> Vec<(usize, &Process)> {
        let places = |slot: usize| self.is_active_active() || self.leader == Some(slot);
        self.running().filter(|(slot, _)| places(*slot)).collect()
    }

    fn replica_after(&mut self, pause: Duration, who: Who, step: ReplicaStep) {
        self.after(pause, Event::Replica(who, step));
    }

    /// A process that has just started becomes a member, and reads who else is one.
    pub fn join_replicas(&mut self, slot: usize) {
        if !self.is_active_active() {
            return;
        }
        let process = &mut self.processes[slot];
        let who = (slot, process.life);
        process.scheduler.set_share(Some(process.share(who)));
        for step in [ReplicaStep::Acquire, ReplicaStep::Look] {
            let pause = self.members.dice.up_to(S);
            self.replica_after(pause, who, step);
        }
    }

    pub fn replica_step(&mut self, who: Who, step: ReplicaStep) -> Step {
        match step {
            ReplicaStep::Start if self.processes[who.0].life == who.1 => {
                self.processes[who.0].member.is_down = false;
                self.tally.count("replica started");
                self.start_process(who.0);
            }
            ReplicaStep::Start => {}
            ReplicaStep::Acquire => self.acquire_membership(who),
            ReplicaStep::StepDown => return self.step_down(who),
            ReplicaStep::Look => return self.look_at_members(who),
        }
        Ok(())
    }

    fn acquire_membership(&mut self, who: Who) {
        if self.process(who).is_none() {
            return;
        }
        if !self.cluster.up || self.faults && self.members.dice.percent(10) {
            let pause = self.members.dice.up_to(2 * S);
            return self.replica_after(pause, who, ReplicaStep::Acquire);
        }
        let (now, me) = (self.now, identity(who));
        self.note(|| format!("{me} is a member"));
        let before = self.members.leases.get(&me).map_or(0, |lease| lease.losses + 1);
        self.members.leases.insert(me, MemberLease { losses: before, acquired: now, ended: None });
        self.processes[who.0].member.catching_up = Some(Known::now(&self.cluster, self.devices.exists));
    }

    /// Lets the members place pods that know all binds until they became members.
    pub fn end_catching_up_of_members(&mut self) -> Step {
        for slot in 0..self.processes.len() {
            let process = &mut self.processes[slot];
            let watches = &process.watches;
            let knows = |known: &mut Known| known.is_seen(watches);
            if process.scheduler.synced() && process.member.catching_up.take_if(knows).is_some() {
                process.scheduler.set_leading(true);
                let who = (slot, process.life);
                self.note(|| format!("p{slot} places pods"));
                self.carry_out(who)?;
            }
        }
        Ok(())
    }

    /// A process that could not renew its lease places no more pods until it has it again.
    fn step_down(&mut self, who: Who) -> Step {
        let Some(process) = self.process(who) else {
            return Ok(());
        };
        process.scheduler.set_leading(false);
        process.member.catching_up = None;
        self.tally.count("membership lost");
        self.note(|| format!("p{} places no more pods", who.0));
        let pause = self.members.dice.up_to(20 * S);
        self.replica_after(pause, who, ReplicaStep::Acquire);
        self.carry_out(who)
    }

    fn look_at_members(&mut self, who: Who) -> Step {
        let Some(config) = self.settings.replicas.as_ref().map(|settings| settings.lease.clone()) else {
            return Ok(());
        };
        if self.process(who).is_none() {
            return Ok(());
        }
        let slow = self.faults && self.members.dice.percent(10);
        let late = self.members.dice.up_to(if slow { 6 * S } else { 100 * MS });
        self.replica_after(config.retry_period / 2 + late, who, ReplicaStep::Look);
        if !self.cluster.up || self.faults && self.members.dice.percent(10) {
            return Ok(());
        }
        let (now, records) = (self.now, self.members.records(&config, self.now));
        let process = &mut self.processes[who.0];
        let before = process.member.known.len();
        if !process.read_members(records, &config, now) {
            return Ok(());
        }
        let known = process.member.known.clone();
        process.scheduler.set_share(Some(process.share(who)));
        self.tally.count(if known.len() < before { "member lost" } else { "member found" });
        if self.running().any(|(_, other)| other.member.known != known) {
            self.tally.count("members disagree");
        }
        self.note(|| format!("p{} knows the members {known:?}", who.0));
        self.carry_out(who)
    }

    // External changes.

    /// Changes which replicas place pods or decide, or nothing.
    pub fn change_replicas(&mut self) {
        if !self.is_active_active() || !self.members.dice.percent(8) {
            return;
        }
        let slot = self.members.dice.below(self.processes.len() as u64) as usize;
        match self.members.dice.below(4) {
            0 | 1 => self.cut_off(slot),
            2 => self.end_replica(slot),
            _ => self.stop_leading(),
        }
    }

    /// A process cannot renew its lease any more.
    fn cut_off(&mut self, slot: usize) {
        let who = (slot, self.processes[slot].life);
        let Some(settings) = &self.settings.replicas else {
            return;
        };
        let (deadline, now) = (settings.lease.renew_deadline, self.now);
        let lease = self.members.leases.get_mut(&identity(who));
        if let Some(lease) = lease.filter(|lease| lease.ended.is_none()) {
            lease.ended = Some(now);
            self.note(|| format!("p{slot} cannot renew its member lease"));
            let pause = self.members.dice.up_to(deadline);
            self.replica_after(pause, who, ReplicaStep::StepDown);
        }
    }

    /// A replica ends, and another one may start in its place.
    pub fn end_replica(&mut self, slot: usize) {
        let process = &self.processes[slot];
        if process.member.is_down {
            return;
        }
        let (life, is_settled) = (process.life, process.scheduler.binds_under_way().are_settled());
        let me = identity((slot, life));
        // At the end it deletes its lease, unless a request of it may still take effect.
        if is_settled && self.members.dice.percent(50) {
            self.members.leases.remove(&me);
        } else if let Some(lease) = self.members.leases.get_mut(&me) {
            lease.ended.get_or_insert(self.now);
        }
        self.tally.count("restart");
        self.replace_process(slot);
        if self.leader == Some(slot) {
            self.leader = None;
            self.elect();
        }
        let others = (0..self.processes.len()).filter(|other| *other != slot);
        let is_last = others.into_iter().all(|other| self.processes[other].member.is_gone);
        let pause = match self.members.dice.below(8) {
            0 if !is_last => None,
            0..4 => Some(self.members.dice.up_to(30 * S)),
            _ => Some(self.members.dice.up_to(S)),
        };
        self.note(|| format!("{me} ends, another one starts in {pause:?}"));
        let member = &mut self.processes[slot].member;
        (member.is_down, member.is_gone) = (true, pause.is_none());
        if let Some(pause) = pause {
            self.replica_after(pause, (slot, life + 1), ReplicaStep::Start);
        }
    }

    // Checks at rest.

    /// Every replica knows the members, and the deciding one is one of them.
    pub fn judge_members(&self) -> Step {
        if !self.is_active_active() {
            return Ok(());
        }
        let all: BTreeSet<String> =
            self.running().map(|(slot, process)| identity((slot, process.life))).collect();
        for (slot, process) in self.running() {
            if process.member.known != all || !process.scheduler.leading() {
                return Err(format!(
                    "p{slot} knows the members {:?}, there are {all:?}",
                    process.member.known
                ));
            }
        }
        Ok(())
    }

    /// Returns the process that places this pod, and the state in which it has it: exactly one process does.
    pub fn owner_of(&self, pod: &Pod, cold: &mut Scheduler) -> Result<(usize, &'static str), String> {
        let mut owners = Vec::new();
        for (slot, process) in self.placing() {
            let waiting = process.scheduler.find_waiting(&pod.namespace, &pod.name);
            let Some((_, state)) = waiting.filter(|(known, _)| known.uid == pod.uid) else {
                return Err(format!("p{slot} does not know {}", pod.uid));
            };
            let who = (slot, process.life);
            let is_alone = self.is_active_active() && gang_of(pod).is_none();
            let class = cold.class_of(pod);
            let owns = match class.spec.devices {
                Some(_) => self.leader == Some(slot),
                None => process.share(who).owns(class.fingerprint()),
            };
            if is_alone && owns == (state == "elsewhere") {
                return Err(format!("{} is {state} at p{slot}, whose share says otherwise", pod.uid));
            }
            if state != "elsewhere" {
                owners.push((slot, state));
            }
        }
        match &*owners {
            [owner] => Ok(*owner),
            _ => Err(format!("I1 violated: {} waits at {owners:?}", pod.uid)),
        }
    }
}
