//! Processing of one service from end to end, and its reports: the status, and events for changes.

use std::collections::BTreeMap;

use futures::StreamExt;
use jiff::{SignedDuration, Timestamp};

use super::act::Done;
use super::look::ServiceObservation;
use super::settle::{Remembered, Settled, is_heavy};
use super::{InTheWay, SERVICES_MAX, SERVICES_OF_NAMESPACE_MAX, Scaler, ScalerContext};
use crate::node_rooms::{largest_memory, node_rooms, sizes};
use berth_crds::service_scaler::{ContainerStatus, HintStatus, ServiceScalerStatus};
use berth_kube_io::conditions;
use berth_kube_io::scaling::{ScaledService, ScalerChange, ScalingPlan};
use berth_kube_io::vpa::ApiError;
use berth_rightsizing::scaling::Size;

/// Maximum interval between two writes of the state, while nothing else is to be reported.
const REMEMBERED_EVERY_S: i64 = 60;
/// Maximum size of the state; a larger state is not written, and the next leader starts from scratch.
const REMEMBERED_BYTES_MAX: usize = 64 << 10;

/// Maximum number of services that are told in one round that they are too many.
const TOLD_MAX: usize = 100;

/// Maximum number of services that are carried out concurrently. Their requests are limited by the budget.
const SERVICES_IN_FLIGHT: usize = 64;

/// Report of one service.
struct ServiceReport {
    /// Whether it is scaled: the status, the reason and the message of the condition.
    active: (bool, &'static str, String),
    /// Missing input of decisions.
    missing: Option<String>,
    /// Limits that keep it from its target.
    limited: Option<String>,
    replicas: Option<u32>,
    desired: Option<u32>,
    /// `None`: unchanged.
    sizes: Option<BTreeMap<String, Size>>,
    /// Selector of its pods, if known.
    selector: Option<String>,
    hints: Vec<HintStatus>,
    /// `None`: no new decision.
    decision: Option<String>,
    changes: Vec<(ScalerChange, String)>,
}

/// A service whose data were read.
pub(super) struct Observed<'a> {
    pub service: &'a ScaledService,
    pub look: Result<ServiceObservation, String>,
    /// Its other controllers. `Err`: an older ServiceScaler controls it completely.
    pub in_the_way: Result<InTheWay, String>,
}

/// A service with a decision, to be carried out and reported.
struct Settling<'a> {
    service: &'a ScaledService,
    remembered: Remembered,
    selector: Option<String>,
    hints: Vec<HintStatus>,
    verdict: Verdict<'a>,
}

enum Verdict<'a> {
    NotScaled(Box<ServiceReport>),
    Scaled(Box<Scaled<'a>>),
}

/// The decision about a service, and its inputs.
struct Scaled<'a> {
    plan: &'a ScalingPlan,
    look: ServiceObservation,
    others: InTheWay,
    settled: Settled,
    missing: Option<String>,
}

impl Verdict<'_> {
    fn not_scaled(reason: &'static str, why: String) -> Self {
        Verdict::NotScaled(Box::new(ServiceReport::not_scaled(reason, why)))
    }

    /// Returns the order in which services are carried out: growth first.
    fn order(&self) -> u8 {
        match self {
            Verdict::Scaled(scaled) if scaled.settled.grows(&scaled.look) => 0,
            Verdict::Scaled(scaled) if scaled.settled.acts(&scaled.look) => 1,
            _ => 2,
        }
    }
}

impl Scaler {
    /// Decides about services, and carries the decisions out: several services concurrently, growth first, and of each service first
    /// the actions and then the report. Returns the reasons of their conditions.
    pub(super) async fn scale_services(
        &mut self,
        services: Vec<Observed<'_>>,
        now: Timestamp,
    ) -> Vec<&'static str> {
        let usage_error = self.readings.usage_error(now.as_second());
        self.rooms = None;
        let mut settling: Vec<Settling<'_>> = services
            .into_iter()
            .map(|observed| self.settle_service(observed, usage_error.as_deref(), now))
            .collect();
        settling.sort_by_key(|settling| settling.verdict.order());
        let context = &self.context;
        let carried_out: Vec<_> =
            settling.into_iter().map(|settling| context.carry_out(settling, now)).collect();
        let mut carried_out = futures::stream::iter(carried_out).buffer_unordered(SERVICES_IN_FLIGHT);
        let (mut reasons, mut states) = (Vec::new(), Vec::new());
        while let Some((uid, remembered, reason)) = carried_out.next().await {
            states.push((uid, remembered));
            reasons.push(reason);
        }
        drop(carried_out);
        self.remembered.extend(states);
        reasons
    }

    fn settle_service<'a>(
        &mut self,
        observed: Observed<'a>,
        usage_error: Option<&str>,
        now: Timestamp,
    ) -> Settling<'a> {
        let Observed { service, look, in_the_way } = observed;
        let mut remembered = self.remembered.remove(&service.uid).unwrap_or_else(|| Remembered::of(service));
        let selector = look.as_ref().ok().map(|look| look.scale.selector.clone());
        let hints = self.affinity.as_ref().map(|affinity| affinity.of(service)).unwrap_or_default();
        let verdict = match (&service.plan, in_the_way, look) {
            (Err(problem), _, _) => Verdict::not_scaled("InvalidSpec", problem.clone()),
            (_, Err(overruled), _) => Verdict::not_scaled("Overruled", overruled),
            (_, _, Err(problem)) => Verdict::NotScaled(Box::new(ServiceReport {
                sizes: None,
                ..ServiceReport::not_scaled("TargetUnreadable", problem)
            })),
            (Ok(plan), Ok(others), Ok(mut look)) => {
                self.measure(service, &mut look, now.as_second());
                let past = self.past.as_mut().and_then(|past| past.take(&service.uid));
                let needs_nodes = || {
                    remembered.needs_nodes(&look.pods)
                        || past.is_some()
                        || is_heavy(&service.namespace, &look.pods, &self.readings.windows.lock())
                };
                if let Some(engine) = self.context.engine.as_ref().filter(|_| needs_nodes()) {
                    let rooms = self.rooms.get_or_insert_with(|| node_rooms(engine));
                    look.largest_memory = sizes(rooms, look.spec.as_deref()).map(|room| room.memory).max();
                    look.possible_memory = largest_memory(rooms);
                }
                if let Some(past) = past {
                    remembered.learn(past, plan, look.possible_memory, now);
                }
                let missing = missing(plan, &look, usage_error);
                let windows = self.readings.windows.lock();
                let settled = remembered.settle((service, plan), &look, &others, &windows, now);
                Verdict::Scaled(Box::new(Scaled { plan, look, others, settled, missing }))
            }
        };
        if let Verdict::Scaled(scaled) = &verdict
            && let Some(labels) = &scaled.look.scale.labels
        {
            self.watched.insert(service.uid.clone(), (service.namespace.clone(), labels.clone()));
        }
        Settling { service, remembered, selector, hints, verdict }
    }

    /// Writes to the statuses of services why they are not scaled, for some of them in each round.
    pub(super) async fn report_left_out(&mut self, services: &[ScaledService], now: Timestamp) {
        const REASON: &str = "LimitReached";
        let is_told = |service: &&ScaledService| {
            let status = service.status.as_ref();
            status.is_some_and(|status| status.conditions.iter().any(|condition| condition.reason == REASON))
        };
        let why = format!(
            "berth scales at most {SERVICES_MAX} services, the {SERVICES_OF_NAMESPACE_MAX} oldest of a namespace, and namespaces take turns"
        );
        let left_out = services.iter().filter(|service| !is_told(service)).take(TOLD_MAX);
        let context = &self.context;
        let reports: Vec<_> = left_out
            .map(|service| {
                let (remembered, selector) = (Remembered::of(service), None);
                let verdict = Verdict::not_scaled(REASON, why.clone());
                let settling = Settling { service, remembered, selector, hints: Vec::new(), verdict };
                context.carry_out(settling, now)
            })
            .collect();
        futures::stream::iter(reports).buffer_unordered(SERVICES_IN_FLIGHT).collect::<Vec<_>>().await;
        if !services.is_empty() {
            *self.standings.entry(REASON).or_default() += services.len();
        }
    }
}

impl ScalerContext {
    /// Acts on the decision about a service, then reports it. Returns its uid, its state, and the reason of its condition.
    async fn carry_out(&self, settling: Settling<'_>, now: Timestamp) -> (String, Remembered, &'static str) {
        let Settling { service, mut remembered, selector, hints, verdict } = settling;
        let report = match verdict {
            Verdict::NotScaled(report) => *report,
            Verdict::Scaled(scaled) => {
                let Scaled { plan, look, others, settled, missing } = *scaled;
                let done = match plan.dry_run {
                    true => Done { replicas: look.scale.replicas, ..Done::default() },
                    false => self.act(&look, &settled, &mut remembered, now).await,
                };
                ServiceReport::scaled(plan, others, settled, done, missing)
            }
        };
        let report = ServiceReport { selector, hints, ..report };
        let reason = report.active.1;
        self.report(service, &mut remembered, report, now).await;
        (service.uid.clone(), remembered, reason)
    }

    async fn report(
        &self,
        service: &ScaledService,
        remembered: &mut Remembered,
        told: ServiceReport,
        now: Timestamp,
    ) {
        let api = &self.api;
        let failure = told.changes.iter().find(|(change, _)| *change == ScalerChange::Failed);
        let failure = failure.map(|(_, note)| note.clone());
        let known = std::mem::replace(&mut remembered.failed, failure);
        let is_new = |(change, note): &&(ScalerChange, String)| {
            *change != ScalerChange::Failed || known.as_deref() != Some(note.as_str())
        };
        for (at, (change, note)) in told.changes.iter().filter(is_new).enumerate() {
            tracing::info!(
                namespace = &*service.namespace,
                scaler = &*service.name,
                ?change,
                note,
                "scaled a service"
            );
            // The time is a part of the event's name.
            let time = now.saturating_add(SignedDuration::from_micros(at as i64)).unwrap_or(now);
            let event = (time, &*self.instance);
            self.metrics.change(change.reason());
            let Some(_turn) = self.turn().await else { return };
            if let Err(error) = api.write_event_of(service, *change, note, event).await {
                tracing::warn!(scaler = &*service.name, %error, "cannot write an event");
            }
        }
        let before = service.status.clone().unwrap_or_default();
        let mut status = told.status(service, &before, now);
        let due = remembered.told_at.is_none_or(|at| now.as_second() - at.as_second() >= REMEMBERED_EVERY_S);
        let unchanged = ServiceScalerStatus { memory: before.memory.clone(), ..status.clone() } == before;
        if unchanged && !due {
            return;
        }
        status.memory =
            serde_json::to_string(remembered).ok().filter(|text| text.len() <= REMEMBERED_BYTES_MAX);
        if status == before {
            return;
        }
        let Some(_turn) = self.turn().await else { return };
        match api.write_service_status(service, &status).await {
            Ok(()) => remembered.told_at = Some(now),
            // Deleted or recreated.
            Err(ApiError::NotFound(_) | ApiError::Conflict(_)) => {}
            Err(error) => {
                tracing::warn!(namespace = &*service.namespace, scaler = &*service.name, %error, "cannot write a status");
            }
        }
    }
}

/// Returns the missing input of a decision.
fn missing(plan: &ScalingPlan, look: &ServiceObservation, usage_error: Option<&str>) -> Option<String> {
    let none = |what: &str| Some(format!("there is no current {what} of this service"));
    let of = |what: &str, wanted: bool, measured: &Result<_, String>| match measured {
        _ if !wanted => None,
        Ok(Some(_)) => None,
        Ok(None) => none(what),
        Err(error) => Some(format!("{what}: {error}")),
    };
    let sizes = plan.settings.vertical.cpu || plan.settings.vertical.memory;
    let usage = usage_error.filter(|_| sizes).map(str::to_owned);
    usage
        .or_else(|| look.signals.iter().find_map(|signal| of("signal", true, signal)))
        .or_else(|| of("success rate", plan.needs_success && plan.success.is_some(), &look.success))
}

impl ServiceReport {
    fn not_scaled(reason: &'static str, why: String) -> ServiceReport {
        ServiceReport {
            decision: Some(format!("unchanged: {why}")),
            active: (false, reason, why),
            missing: None,
            limited: None,
            replicas: None,
            desired: None,
            sizes: Some(BTreeMap::new()),
            selector: None,
            hints: Vec::new(),
            changes: Vec::new(),
        }
    }

    fn scaled(
        plan: &ScalingPlan,
        others: InTheWay,
        settled: Settled,
        done: Done,
        missing: Option<String>,
    ) -> ServiceReport {
        let Settled { decision, allowed, sizes, held, .. } = settled;
        let active = match others {
            InTheWay { replicas: Some(replicas), sizes: Some(sizes), .. } => {
                let why =
                    format!("{replicas} controls the replicas and {sizes} the sizes: nothing left to scale");
                (false, "Conflict", why)
            }
            InTheWay { replicas: Some(owner), .. } => (
                plan.settings.vertical.memory,
                "Conflict",
                format!("{owner} controls the replicas: they and the CPU size are unchanged"),
            ),
            InTheWay { sizes: Some(owner), .. } => (
                plan.settings.horizontal.is_some(),
                "Conflict",
                format!("{owner} controls the sizes: they are unchanged"),
            ),
            _ if plan.dry_run => (false, "DryRun", "dry run: spec.dryRun is true".to_owned()),
            _ if decision.replicas == 0 && plan.may_be_idle() => {
                (true, "Idle", "there is no work, and there are no replicas".to_owned())
            }
            _ if decision.replicas == 0 => (false, "SwitchedOff", "the target has 0 replicas".to_owned()),
            _ => (true, "Scaling", "the service is scaled".to_owned()),
        };
        let mut limited = Vec::new();
        limited.extend(allowed.because.map(str::to_owned));
        limited.extend(held);
        limited.extend(
            done.because.map(|why| format!("{} pods do not get all of their size, {why}", done.held)),
        );
        ServiceReport {
            active,
            missing,
            limited: (!limited.is_empty()).then(|| limited.join("; ")),
            replicas: Some(done.replicas),
            desired: Some(allowed.replicas),
            decision: Some(decision.reason).filter(|reason| !reason.is_empty()),
            sizes: Some(sizes),
            selector: None,
            hints: Vec::new(),
            changes: done.changes,
        }
    }

    fn status(
        &self,
        service: &ScaledService,
        before: &ServiceScalerStatus,
        now: Timestamp,
    ) -> ServiceScalerStatus {
        let now = Timestamp::from_second(now.as_second()).unwrap_or(now).to_string();
        let (active, reason, message) = &self.active;
        let missing = self.missing.as_deref();
        let limited = self.limited.as_deref();
        let told = [
            ("Active", *active, *reason, message.as_str()),
            (
                "MetricsAvailable",
                missing.is_none(),
                if missing.is_none() { "Read" } else { "Missing" },
                missing.unwrap_or("all inputs are available"),
            ),
            (
                "Limited",
                limited.is_some(),
                if limited.is_some() { "Held" } else { "Free" },
                limited.unwrap_or("nothing limits the service"),
            ),
        ];
        let container =
            |(name, size): (&String, &Size)| ContainerStatus { name: name.clone(), target: target(*size) };
        let containers = match &self.sizes {
            Some(sizes) => sizes.iter().map(container).filter(|it| !it.target.is_empty()).collect(),
            None => before.containers.clone(),
        };
        let changed = self.changes.iter().any(|(change, _)| !matches!(change, ScalerChange::Failed));
        ServiceScalerStatus {
            observed_generation: service.generation,
            conditions: conditions(&told, &before.conditions, service.generation, &now),
            replicas: self.replicas.map(i64::from),
            desired_replicas: self.desired.map(i64::from),
            selector: self.selector.clone().or_else(|| before.selector.clone()),
            hints: self.hints.clone(),
            containers,
            decision: self.decision.clone().unwrap_or_else(|| last_decision(before)),
            last_change_time: if changed { Some(now) } else { before.last_change_time.clone() },
            memory: None,
        }
    }
}

/// Returns the last decision while the service was scaled.
fn last_decision(before: &ServiceScalerStatus) -> String {
    let scaled = before.desired_replicas.is_some() && !before.decision.is_empty();
    if scaled { before.decision.clone() } else { "no change needed".to_owned() }
}

/// Formats a size as quantities; omits unset values.
fn target(size: Size) -> BTreeMap<String, String> {
    let cpu = (size.cpu_milli > 0).then(|| ("cpu".to_owned(), format!("{}m", size.cpu_milli)));
    let memory = (size.memory_bytes > 0).then(|| ("memory".to_owned(), size.memory_bytes.to_string()));
    cpu.into_iter().chain(memory).collect()
}
