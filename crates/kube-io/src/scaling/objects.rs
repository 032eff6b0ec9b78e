//! Conversion of ServiceScalers, HorizontalPodAutoscalers and ScaledObjects to the scaler's inputs.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;

use crate::lean::nullable;
use berth_crds::quota::QuotaAmount;
use berth_crds::service_scaler::{
    ContainerMode, Objectives, PolicyType, ReplicaScaling, RequestMetricsOf, ScalerTuning, ScalingDimension,
    ScalingRules, SelectPolicy, ServiceBehavior as ApiBehavior, ServiceBounds as ApiBounds, ServiceScaler,
    ServiceScalerStatus, Signal, SignalType, SizeEstimator,
};
use berth_model::{LabelSelector, Operator, Quantity, Requirement, WeeklyWindow};
use berth_prometheus::{RequestSource, SignalKind};
use berth_rightsizing::apply::Mode;
use berth_rightsizing::recommend::method::Method;
use berth_rightsizing::recommend::{OwnerRef, Vpa};
use berth_rightsizing::scaling::behavior::{
    Behavior, DirectionRules, RatePolicy, Select, StepAmount as Step,
};
use berth_rightsizing::scaling::{self, Bounds, Fallback, Gains, Horizontal, ScalingSettings, Vertical};

/// The default of HorizontalPodAutoscalers, in seconds.
const SCALE_DOWN_WINDOW_S: i64 = 300;

/// Time without a signal after which the fallback applies.
const FALLBACK_AFTER_S: i64 = 180;

/// Percentage of requests that must succeed, where they are counted: the paper's.
const SUCCESS_PERCENT: f64 = 99.0;

/// Default target of `CpuPressure`: that of the simulation.
const DEFAULT_PRESSURE: f64 = 0.3;
/// Default target of `CpuUtilization`.
const DEFAULT_UTILIZATION: f64 = 0.7;

/// A ServiceScaler as read from the API server.
#[derive(Debug, Clone)]
pub struct ScaledService {
    pub namespace: Arc<str>,
    pub name: Arc<str>,
    pub uid: String,
    pub generation: i64,
    /// Creation time: of two for one target, the older one takes precedence, then the first by name.
    pub created: i64,
    pub target: OwnerRef,
    /// The plan, or the reason why the spec is invalid.
    pub plan: Result<ScalingPlan, String>,
    /// The status when it was read.
    pub status: Option<ServiceScalerStatus>,
}

/// The settings of a ServiceScaler.
#[derive(Debug, Clone, PartialEq)]
pub struct ScalingPlan {
    pub settings: ScalingSettings,
    /// The estimator of sizes; `None`: SHOWAR's.
    pub estimator: Option<Method>,
    /// The signals that drive the replicas, if they are scaled. The first one's target is the setpoint.
    pub signals: Vec<PlannedSignal>,
    /// Bounds of replicas at certain times.
    pub schedule: Vec<ScheduledBounds>,
    /// The success ratio of requests.
    pub success: Option<Query>,
    /// Whether the service asks for it: otherwise it counts where it can be measured.
    pub needs_success: bool,
    pub behavior: Behavior,
    pub dry_run: bool,
}

impl ScalingPlan {
    /// Returns its queries.
    pub fn queries(&self) -> impl Iterator<Item = &Query> {
        self.signals.iter().map(|signal| &signal.query).chain(&self.success)
    }

    /// Returns whether the service has no replicas while there is no work.
    pub fn may_be_idle(&self) -> bool {
        self.settings.horizontal.as_ref().is_some_and(|horizontal| horizontal.to_zero)
    }

    /// Returns whether one of its queries is PromQL of the service's own.
    pub fn has_custom_query(&self) -> bool {
        self.queries().any(|query| matches!(query, Query::Custom(_)))
    }
}

/// A signal with its target.
#[derive(Debug, Clone, PartialEq)]
pub struct PlannedSignal {
    pub query: Query,
    pub target: f64,
    /// Value above which there is work, if the signal exists without pods.
    pub activation: Option<f64>,
}

/// Bounds of replicas at a time of the week.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScheduledBounds {
    pub window: WeeklyWindow,
    pub min_replicas: u32,
    pub max_replicas: u32,
}

/// How something is measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Query {
    /// The CPU usage as a share of the requests, from the samples that sizes are computed from.
    CpuUtilization,
    /// One that berth has, and asks for all services at once.
    Signal(SignalKind),
    /// PromQL of the service's own.
    Custom(String),
}

/// Another autoscaler of the replicas of a workload, or of the sizes of its containers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Other {
    pub namespace: Arc<str>,
    pub target: OwnerRef,
    /// Kind and name, such as `HorizontalPodAutoscaler web`.
    pub name: String,
    /// Whether it sets sizes.
    pub sizes: bool,
}

impl ScaledService {
    /// Parses a ServiceScaler.
    ///
    /// # Errors
    /// When it is not a ServiceScaler.
    pub fn read(json: &str) -> Result<ScaledService, String> {
        let object: ServiceScaler = serde_json::from_str(json).map_err(|error| error.to_string())?;
        let (meta, spec) = (object.metadata, object.spec);
        let target = OwnerRef {
            api_version: spec.target.api_version.clone(),
            kind: spec.target.kind.clone(),
            name: spec.target.name.clone(),
        };
        let dimensions = spec.dimensions.clone().unwrap_or_else(|| {
            let replicas = spec.objectives.is_some().then_some(ScalingDimension::Replicas);
            [ScalingDimension::Cpu, ScalingDimension::Memory].into_iter().chain(replicas).collect()
        });
        let scales = dimensions.contains(&ScalingDimension::Replicas);
        let objectives = scales.then(|| spec.objectives.clone().unwrap_or_default());
        let objectives = objectives.as_ref();
        let signals = objectives.map(|objectives| planned(objectives, &dimensions)).transpose();
        let plan = signals.and_then(|signals| {
            let signals = signals.unwrap_or_default();
            let settings = settings(
                &dimensions,
                objectives.map(|objectives| (objectives, &signals[..])),
                spec.bounds.as_ref(),
                spec.behavior.as_ref(),
            )?;
            let settings = tuned(settings, spec.tuning.as_ref())?;
            let has_success = settings.horizontal.as_ref().is_some_and(|it| it.success_min > 0.0);
            Ok(ScalingPlan {
                signals,
                schedule: match &settings.horizontal {
                    Some(horizontal) => scheduled(spec.bounds.as_ref(), horizontal.max_replicas)?,
                    None => Vec::new(),
                },
                success: objectives.filter(|_| has_success).map(|it| {
                    let own = it.success_rate.as_ref().and_then(|success| success.query.clone());
                    let built_in = Query::Signal(SignalKind::SuccessRate(source_of_requests(it)));
                    own.map_or(built_in, Query::Custom)
                }),
                needs_success: objectives.is_some_and(|it| it.success_rate.is_some()),
                settings,
                estimator: match spec.estimator {
                    SizeEstimator::Showar => None,
                    SizeEstimator::Hours => Some(Method::Hours),
                    SizeEstimator::AutopilotWindow => Some(Method::AutopilotWindow),
                    SizeEstimator::AutopilotEnsemble => Some(Method::AutopilotEnsemble),
                },
                behavior: behavior(spec.behavior.as_ref()),
                dry_run: spec.dry_run,
            })
        });
        Ok(ScaledService {
            namespace: meta.namespace.unwrap_or_default().into(),
            name: meta.name.unwrap_or_default().into(),
            uid: meta.uid.unwrap_or_default(),
            generation: meta.generation.unwrap_or_default(),
            created: meta.creation_timestamp.map_or(0, |time| time.0.as_second()),
            target,
            plan,
            status: object.status,
        })
    }
}

fn source_of_requests(objectives: &Objectives) -> RequestSource {
    match objectives.request_metrics {
        RequestMetricsOf::Istio => RequestSource::Istio,
        RequestMetricsOf::Linkerd => RequestSource::Linkerd,
        RequestMetricsOf::OpenTelemetry => RequestSource::OpenTelemetry,
    }
}

fn query(signal: &Signal, source: RequestSource) -> Query {
    let kind = match (&signal.query, signal.type_) {
        (Some(query), _) => return Query::Custom(query.clone()),
        (None, SignalType::CpuUtilization) => return Query::CpuUtilization,
        (None, SignalType::CpuThrottling) => SignalKind::CpuThrottling,
        (None, SignalType::CpuPressure) => SignalKind::CpuPressure,
        (None, SignalType::RunQueueLatency) => SignalKind::RunQueueLatency,
        (None, SignalType::RequestLatency | SignalType::Query) => SignalKind::RequestLatency(source),
    };
    Query::Signal(kind)
}

/// Returns the signals with their fields.
fn signals(objectives: &Objectives) -> impl Iterator<Item = (String, &Signal)> {
    let first = objectives.signal.iter().map(|signal| ("signal".to_owned(), signal));
    first.chain(objectives.signals.iter().enumerate().map(|(at, signal)| (format!("signals[{at}]"), signal)))
}

/// Returns the signal of a service that names none: one that needs no mesh and no exporter.
fn default_signal(dimensions: &[ScalingDimension]) -> PlannedSignal {
    let (query, target) = match dimensions.contains(&ScalingDimension::Cpu) {
        true => (Query::Signal(SignalKind::CpuPressure), DEFAULT_PRESSURE),
        false => (Query::CpuUtilization, DEFAULT_UTILIZATION),
    };
    PlannedSignal { query, target, activation: None }
}

fn planned(objectives: &Objectives, dimensions: &[ScalingDimension]) -> Result<Vec<PlannedSignal>, String> {
    if signals(objectives).next().is_none() {
        return Ok(vec![default_signal(dimensions)]);
    }
    let planned = signals(objectives).map(|(field, signal)| {
        let target = objective(&format!("{field}.target"), &signal.target)?;
        if target == 0.0 {
            return Err(format!("spec.objectives.{field}.target: must be above 0"));
        }
        let query = query(signal, source_of_requests(objectives));
        let activation =
            objective(&format!("{field}.activation"), signal.activation.as_deref().unwrap_or("0"))?;
        let activation = matches!(query, Query::Custom(_)).then_some(activation);
        Ok(PlannedSignal { query, target, activation })
    });
    planned.collect()
}

/// Parses a number of the objectives.
fn objective(field: &str, text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|number| number.is_finite() && *number >= 0.0);
    number.ok_or_else(|| format!("spec.objectives.{field}: `{text}` is not a number"))
}

fn scheduled(bounds: Option<&ApiBounds>, max_replicas: u32) -> Result<Vec<ScheduledBounds>, String> {
    let schedule = bounds.map_or(&[][..], |bounds| &bounds.schedule);
    let scheduled = schedule.iter().enumerate().map(|(at, of)| {
        let window = of.window.parse::<WeeklyWindow>();
        let window = window.map_err(|error| format!("spec.bounds.schedule[{at}].window: {error}"))?;
        let min_replicas = of.min_replicas.max(1).unsigned_abs();
        let most = of.max_replicas.map_or(max_replicas.max(min_replicas), |it| it.max(1).unsigned_abs());
        if min_replicas > most {
            return Err(format!("spec.bounds.schedule[{at}].minReplicas: {min_replicas} is more than maxReplicas, which is {most}"));
        }
        Ok(ScheduledBounds { window, min_replicas, max_replicas: most })
    });
    scheduled.collect()
}

/// Validates the settings again: the API server may have another version of the CRD.
fn settings(
    dimensions: &[ScalingDimension],
    objectives: Option<(&Objectives, &[PlannedSignal])>,
    bounds: Option<&ApiBounds>,
    behavior: Option<&ApiBehavior>,
) -> Result<ScalingSettings, String> {
    let seconds = |given: Option<i32>, else_: i64| given.map_or(else_, |it| i64::from(it.max(1)));
    let pace = behavior.and_then(|it| it.period_seconds);
    let default = Vertical::default();
    let down = behavior.and_then(|it| it.scale_down.as_ref());
    let hold = down.and_then(|rules| rules.stabilization_window_seconds).map(|hold| i64::from(hold.max(0)));
    let base = Vertical {
        every_s: seconds(pace, default.every_s),
        hold_s: hold.unwrap_or(default.hold_s),
        window_s: seconds(behavior.and_then(|it| it.window_seconds), default.window_s),
        history_s: behavior
            .and_then(|it| it.history_seconds)
            .map_or(default.history_s, |it| i64::from(it.max(0))),
        cpu: dimensions.contains(&ScalingDimension::Cpu),
        memory: dimensions.contains(&ScalingDimension::Memory),
        ..default
    };
    let (mut vertical, mut containers) = (base.clone(), BTreeMap::new());
    for of in bounds.map_or(&[][..], |bounds| &bounds.containers) {
        let bounded =
            bounded(&base, of).map_err(|error| format!("spec.bounds.containers[{}].{error}", of.name))?;
        match of.name.as_str() {
            "*" => vertical = bounded,
            name => drop(containers.insert(name.to_owned(), bounded)),
        }
    }
    let horizontal = match objectives {
        Some((objectives, signals)) => {
            let horizontal = horizontal(objectives, signals, bounds)?;
            let uses_usage = signals.iter().any(|signal| signal.query == Query::CpuUtilization);
            if uses_usage && dimensions.contains(&ScalingDimension::Cpu) {
                return Err("spec.objectives: the signal CpuUtilization is relative to the CPU size, and needs spec.dimensions without CPU".into());
            }
            Some(Horizontal {
                every_s: seconds(pace, horizontal.every_s),
                hold_s: hold.unwrap_or(horizontal.hold_s),
                by_hand_s: behavior
                    .and_then(|it| it.manual_hold_seconds)
                    .map_or(horizontal.by_hand_s, |it| i64::from(it.max(0))),
                fallback: behavior.and_then(|it| it.fallback).map(|fallback| Fallback {
                    replicas: fallback.replicas.max(1).unsigned_abs(),
                    after_s: seconds(fallback.after_seconds, FALLBACK_AFTER_S),
                }),
                ..horizontal
            })
        }
        None => None,
    };
    Ok(ScalingSettings { vertical, containers, horizontal })
}

fn bounded(base: &Vertical, of: &berth_crds::service_scaler::ContainerBounds) -> Result<Vertical, String> {
    let is_on = of.mode == ContainerMode::Auto;
    let mut vertical = Vertical { cpu: base.cpu && is_on, memory: base.memory && is_on, ..base.clone() };
    let amount = |field: &str, amounts: &BTreeMap<String, QuotaAmount>, resource: &str| {
        let Some(amount) = amounts.get(resource) else { return Ok(None) };
        let quantity =
            Quantity::parse(&amount.to_string()).map_err(|error| format!("{field}[{resource}]: {error}"))?;
        Ok::<_, String>(Some(if resource == "cpu" { quantity.milli_value() } else { quantity.value() }))
    };
    for name in of.min_allowed.keys().chain(of.max_allowed.keys()) {
        if !matches!(name.as_str(), "cpu" | "memory") {
            return Err(format!("minAllowed and maxAllowed: {name} is neither cpu nor memory"));
        }
    }
    for (resource, bounds) in [("cpu", &mut vertical.cpu_bounds), ("memory", &mut vertical.memory_bounds)] {
        let least = amount("minAllowed", &of.min_allowed, resource)?.unwrap_or(bounds.min);
        let most = amount("maxAllowed", &of.max_allowed, resource)?.unwrap_or(bounds.max);
        if of.min_allowed.contains_key(resource) && least > most {
            return Err(format!("minAllowed[{resource}]: is more than maxAllowed"));
        }
        *bounds = Bounds { min: least, max: most };
    }
    if of.max_allowed.contains_key("cpu") {
        vertical.cpu_cap_milli = vertical.cpu_bounds.max;
    }
    Ok(vertical)
}

fn horizontal(
    objectives: &Objectives,
    signals: &[PlannedSignal],
    bounds: Option<&ApiBounds>,
) -> Result<Horizontal, String> {
    let setpoint = signals.first().ok_or("spec.objectives: there is no signal")?.target;
    let success = objectives.success_rate.as_ref();
    let percent = success.map(|it| objective("successRate.percent", &it.percent)).transpose()?;
    // Its metrics count successes, too.
    let has_requests =
        signals.iter().any(|signal| matches!(signal.query, Query::Signal(SignalKind::RequestLatency(_))));
    let usual = if has_requests { SUCCESS_PERCENT } else { 0.0 };
    let replicas = |of: fn(&ApiBounds) -> Option<i32>| bounds.and_then(of).map(|it| it.max(0).unsigned_abs());
    let least = replicas(|bounds| bounds.min_replicas).unwrap_or(1);
    let most = replicas(|bounds| bounds.max_replicas).map(|most| most.max(1));
    let most = most.ok_or("spec.bounds.maxReplicas: required to scale replicas")?;
    if least > most {
        return Err(format!("spec.bounds.minReplicas: {least} is more than maxReplicas, which is {most}"));
    }
    if least == 0 && signals.iter().all(|signal| signal.activation.is_none()) {
        return Err("spec.bounds.minReplicas: can be 0 only with a signal that has a query, as there is no other one without pods".into());
    }
    Ok(Horizontal {
        setpoint,
        min_replicas: least.max(1),
        to_zero: least == 0,
        max_replicas: most,
        success_min: percent.unwrap_or(usual).min(100.0) / 100.0,
        ..Horizontal::default()
    })
}

/// Returns the settings with these parameters.
fn tuned(mut settings: ScalingSettings, tuning: Option<&ScalerTuning>) -> Result<ScalingSettings, String> {
    let Some(tuning) = tuning else { return Ok(settings) };
    let number = |field: &str, text: &Option<String>, default: f64| {
        let Some(text) = text else { return Ok(default) };
        let number = text.parse::<f64>().ok().filter(|number| (0.0..=1_000.0).contains(number));
        number.ok_or_else(|| format!("spec.tuning.{field}: `{text}` is not a number from 0 to 1000"))
    };
    for vertical in std::iter::once(&mut settings.vertical).chain(settings.containers.values_mut()) {
        vertical.sigmas = number("sigmas", &tuning.sigmas, vertical.sigmas)?;
        vertical.change = number("sizeChange", &tuning.size_change, vertical.change)?;
        vertical.spare_min = vertical.spare_min.max(vertical.change);
    }
    if let Some(horizontal) = &mut settings.horizontal {
        horizontal.rule = match tuning.replicas {
            ReplicaScaling::Pid => scaling::ReplicaRule::Pid,
            ReplicaScaling::Proportional => scaling::ReplicaRule::Proportional,
        };
        if let Some(gains) = &tuning.gains {
            let gain =
                |field: &str, text: &str| number(&format!("gains.{field}"), &Some(text.to_owned()), 0.0);
            horizontal.gains = Gains {
                proportional: gain("proportional", &gains.proportional)?,
                integral: gain("integral", &gains.integral)?,
                derivative: gain("derivative", &gains.derivative)?,
            };
        }
        horizontal.dead_band = number("deadBand", &tuning.dead_band, horizontal.dead_band)?;
        horizontal.step = number("step", &tuning.step, horizontal.step)?;
        let first = tuning.replicas_first.map(|it| it.max(1).unsigned_abs());
        horizontal.replicas_first = first.unwrap_or(horizontal.replicas_first);
    }
    Ok(settings)
}

fn behavior(behavior: Option<&ApiBehavior>) -> Behavior {
    let rules = |rules: &ScalingRules, window_s: i64| DirectionRules {
        stabilization_s: rules.stabilization_window_seconds.map_or(window_s, |it| i64::from(it.max(0))),
        select: match rules.select_policy {
            SelectPolicy::Max => Select::Max,
            SelectPolicy::Min => Select::Min,
            SelectPolicy::Disabled => Select::Disabled,
        },
        policies: (rules.policies.iter())
            .map(|policy| RatePolicy {
                amount: match policy.type_ {
                    PolicyType::Pods => Step::Pods(policy.value.max(1).unsigned_abs()),
                    PolicyType::Percent => Step::Percent(policy.value.max(1).unsigned_abs()),
                },
                period_s: i64::from(policy.period_seconds.max(1)),
            })
            .collect(),
    };
    let up = behavior.and_then(|it| it.scale_up.as_ref());
    let down = behavior.and_then(|it| it.scale_down.as_ref());
    Behavior { up: up.map(|it| rules(it, 0)), down: down.map(|it| rules(it, SCALE_DOWN_WINDOW_S)) }
}

/// Returns a VerticalPodAutoscaler that updates pods or sets the sizes of new ones.
pub fn sizing(vpa: &Vpa) -> Option<Other> {
    let target = vpa.target.clone().filter(|_| Mode::of(&vpa.update_mode) != Mode::Off)?;
    let (namespace, name) = (vpa.namespace.clone(), format!("VerticalPodAutoscaler {}", vpa.name));
    Some(Other { namespace, target, name, sizes: true })
}

/// Parses a HorizontalPodAutoscaler or a ScaledObject; the kind is only displayed.
pub(super) fn read_other(json: &str, kind: &str) -> Option<Other> {
    #[derive(Deserialize)]
    struct WireAutoscaler {
        metadata: Named,
        spec: Spec,
    }
    #[derive(Deserialize)]
    struct Named {
        #[serde(default)]
        namespace: Arc<str>,
        name: String,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Spec {
        scale_target_ref: Reference,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Reference {
        #[serde(default, deserialize_with = "nullable")]
        api_version: String,
        #[serde(default, deserialize_with = "nullable")]
        kind: String,
        name: String,
    }
    let WireAutoscaler { metadata, spec } = serde_json::from_str(json).ok()?;
    let Reference { api_version, kind: of, name } = spec.scale_target_ref;
    // KEDA's defaults.
    let or = |text: String, default: &str| if text.is_empty() { default.to_owned() } else { text };
    let target = OwnerRef { api_version: or(api_version, "apps/v1"), kind: or(of, "Deployment"), name };
    let name = format!("{kind} {}", metadata.name);
    Some(Other { namespace: metadata.namespace, target, name, sizes: false })
}

/// Parses a selector in the syntax of a `scale`, `app=web,tier in (a,b)`; `None` if it is empty or invalid.
pub(super) fn read_selector(text: &str) -> Option<LabelSelector> {
    let mut requirements = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        // A comma in parentheses separates values.
        let open = rest.find('(').filter(|open| rest.find(',').is_none_or(|comma| *open < comma));
        let end = match open {
            Some(open) => open + rest[open..].find(')')? + 1,
            None => rest.find(',').unwrap_or(rest.len()),
        };
        requirements.push(read_requirement(rest[..end].trim())?);
        rest = rest[end..].trim_start_matches(',').trim();
    }
    (!requirements.is_empty()).then(|| LabelSelector::All(requirements.into()))
}

fn read_requirement(text: &str) -> Option<Requirement> {
    let values = |text: &str| {
        let inner = text.trim().strip_prefix('(')?.strip_suffix(')')?;
        let mut values: Vec<Arc<str>> = inner.split(',').map(|value| value.trim().into()).collect();
        values.sort();
        values.dedup();
        Some(values.into_boxed_slice())
    };
    let (key, operator) = if let Some((key, list)) = text.split_once(" notin ") {
        (key, Operator::NotIn(values(list)?))
    } else if let Some((key, list)) = text.split_once(" in ") {
        (key, Operator::In(values(list)?))
    } else if let Some((key, value)) = text.split_once("!=") {
        (key, Operator::NotIn([Arc::from(value.trim())].into()))
    } else if let Some((key, value)) = text.split_once('=') {
        (key, Operator::In([Arc::from(value.trim_start_matches('=').trim())].into()))
    } else if let Some(key) = text.strip_prefix('!') {
        (key, Operator::DoesNotExist)
    } else {
        (text, Operator::Exists)
    };
    let key = key.trim();
    (!key.is_empty() && !key.contains(char::is_whitespace)).then(|| Requirement { key: key.into(), operator })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(spec: &str) -> ScaledService {
        let json = format!(
            r#"{{"apiVersion":"berth.dev/v1alpha1","kind":"ServiceScaler","metadata":{{"namespace":"shop","name":"web",
                "uid":"u","generation":2,"creationTimestamp":"2026-11-22T10:00:00Z"}},"spec":{{
                "target":{{"apiVersion":"apps/v1","kind":"Deployment","name":"web"}}{spec}}}}}"#
        );
        ScaledService::read(&json).expect(&json)
    }

    #[test]
    fn what_is_left_out_is_as_the_documentation_says() {
        let plan = service("").plan.unwrap();
        assert!(plan.settings.vertical.cpu && plan.settings.vertical.memory);
        assert_eq!((plan.settings.horizontal, plan.signals, plan.success), (None, vec![], None));
        assert!(plan.dry_run);
        assert_eq!(plan.settings.vertical.history_s, 86_400);
        let signal = r#","objectives":{"signal":{"type":"CpuThrottling","target":"0.05"}},"bounds":{"maxReplicas":30}"#;
        let plan = service(signal).plan.unwrap();
        let horizontal = plan.settings.horizontal.unwrap();
        assert_eq!((horizontal.setpoint, horizontal.min_replicas, horizontal.max_replicas), (0.05, 1, 30));
        assert_eq!(horizontal.success_min, 0.0);
        let query = Query::Signal(SignalKind::CpuThrottling);
        assert_eq!(plan.signals, [PlannedSignal { query, target: 0.05, activation: None }]);
    }

    #[test]
    fn a_service_that_names_no_signal_has_one_that_needs_no_mesh_and_no_exporter() {
        let signals = |spec: &str| {
            let plan = service(&format!(r#"{spec},"bounds":{{"maxReplicas":30}}"#)).plan.unwrap();
            let setpoint = plan.settings.horizontal.unwrap().setpoint;
            let [signal] = &plan.signals[..] else { panic!("{:?}", plan.signals) };
            assert_eq!((signal.target, signal.activation), (setpoint, None));
            (signal.query.clone(), setpoint)
        };
        let pressure = (Query::Signal(SignalKind::CpuPressure), 0.3);
        assert_eq!(signals(r#","objectives":{}"#), pressure);
        assert_eq!(signals(r#","dimensions":["Replicas","CPU"]"#), pressure);
        let utilization = (Query::CpuUtilization, 0.7);
        assert_eq!(signals(r#","dimensions":["Replicas","Memory"]"#), utilization);
        assert_eq!(signals(r#","dimensions":["Replicas"],"objectives":{}"#), utilization);
        let named = signals(r#","objectives":{"signals":[{"type":"CpuThrottling","target":"0.1"}]}"#);
        assert_eq!(named, (Query::Signal(SignalKind::CpuThrottling), 0.1));
    }

    #[test]
    fn bounds_are_for_all_containers_or_for_one() {
        let spec = r#","dimensions":["CPU"],"bounds":{"containers":[
            {"name":"*","minAllowed":{"cpu":"200m"},"maxAllowed":{"cpu":2,"memory":"4Gi"}},
            {"name":"proxy","mode":"Off"}]}"#;
        let settings = service(spec).plan.unwrap().settings;
        assert_eq!(settings.vertical.cpu_bounds, Bounds { min: 200, max: 2_000 });
        assert_eq!((settings.vertical.cpu_cap_milli, settings.vertical.memory), (2_000, false));
        let proxy = &settings.containers["proxy"];
        assert!(!proxy.cpu && !proxy.memory);
    }

    #[test]
    fn requests_must_succeed_where_they_are_counted_unless_the_service_says_otherwise() {
        let plan = |signal: &str, success: &str| {
            let spec = format!(
                r#","objectives":{{"signal":{{"type":"{signal}","target":"200"}}{success}}},"bounds":{{"maxReplicas":30}}"#
            );
            let plan = service(&spec).plan.unwrap();
            (plan.success, plan.needs_success, plan.settings.horizontal.unwrap().success_min)
        };
        let measured = Some(Query::Signal(SignalKind::SuccessRate(RequestSource::Istio)));
        assert_eq!(plan("RequestLatency", ""), (measured.clone(), false, 0.99));
        assert_eq!(
            plan("RequestLatency", r#","successRate":{"percent":"99.5"}"#),
            (measured.clone(), true, 0.995)
        );
        assert_eq!(plan("RequestLatency", r#","successRate":{"percent":"0"}"#), (None, true, 0.0));
        assert_eq!(plan("CpuPressure", ""), (None, false, 0.0));
        assert_eq!(plan("CpuPressure", r#","successRate":{"percent":"95"}"#), (measured, true, 0.95));
        let (of_linkerd, ..) = plan("RequestLatency", r#","requestMetrics":"Linkerd""#);
        assert_eq!(of_linkerd, Some(Query::Signal(SignalKind::SuccessRate(RequestSource::Linkerd))));
    }

    #[test]
    fn the_papers_parameters_can_be_changed() {
        let scaled = r#","objectives":{"signal":{"type":"CpuPressure","target":"1"}},"bounds":{"maxReplicas":30,"containers":[
            {"name":"app","maxAllowed":{"cpu":"2"}}]}"#;
        let with = |tuning: &str| service(&format!(r#"{scaled},"tuning":{tuning}"#)).plan;
        let settings = with(
            r#"{"sigmas":"2","sizeChange":"0.3","replicas":"Proportional","deadBand":"0.1","step":"0.5","replicasFirst":2,
                "gains":{"proportional":"10","integral":"0","derivative":"0.5"}}"#,
        );
        let ScalingSettings { vertical, containers, horizontal } = settings.unwrap().settings;
        for vertical in [&vertical, &containers["app"]] {
            assert_eq!((vertical.sigmas, vertical.change, vertical.spare_min), (2.0, 0.3, 0.3));
        }
        let horizontal = horizontal.unwrap();
        assert_eq!((horizontal.rule, horizontal.replicas_first), (scaling::ReplicaRule::Proportional, 2));
        assert_eq!((horizontal.dead_band, horizontal.step), (0.1, 0.5));
        let gains = Gains { proportional: 10.0, integral: 0.0, derivative: 0.5 };
        assert_eq!(horizontal.gains, gains);
        let usual = with("{}").unwrap();
        assert_eq!(usual, service(scaled).plan.unwrap());
        let wrong = with(r#"{"sigmas":"many"}"#).unwrap_err();
        assert_eq!(wrong, "spec.tuning.sigmas: `many` is not a number from 0 to 1000");
    }

    #[test]
    fn what_is_wrong_is_told_with_its_field() {
        for (spec, expected) in [
            (r#","dimensions":["Replicas"]"#, "spec.bounds.maxReplicas: required to scale replicas"),
            (
                r#","objectives":{"signal":{"type":"CpuThrottling","target":"0.05"}}"#,
                "spec.bounds.maxReplicas: required to scale replicas",
            ),
            (
                r#","objectives":{"signal":{"type":"CpuThrottling","target":"0"}}"#,
                "spec.objectives.signal.target: must be above 0",
            ),
            (
                r#","bounds":{"containers":[{"name":"a","minAllowed":{"cpu":"2"},"maxAllowed":{"cpu":"1"}}]}"#,
                "spec.bounds.containers[a].minAllowed[cpu]: is more than maxAllowed",
            ),
            (
                r#","objectives":{"signal":{"type":"CpuUtilization","target":"0.7"}},"bounds":{"maxReplicas":3}"#,
                "needs spec.dimensions without CPU",
            ),
            (
                r#","objectives":{"signal":{"type":"CpuPressure","target":"0.7"}},"bounds":{"minReplicas":0,"maxReplicas":3}"#,
                "spec.bounds.minReplicas: can be 0 only with a signal that has a query",
            ),
            (
                r#","objectives":{"signal":{"type":"CpuPressure","target":"0.7"}},
                    "bounds":{"maxReplicas":3,"schedule":[{"window":"often","minReplicas":2}]}"#,
                "spec.bounds.schedule[0].window: `often` is not a window of time",
            ),
            (
                r#","bounds":{"containers":[{"name":"a","minAllowed":{"disk":"2"}}]}"#,
                "disk is neither cpu nor memory",
            ),
        ] {
            let problem = service(spec).plan.unwrap_err();
            assert!(problem.contains(expected), "{problem}");
        }
    }

    #[test]
    fn several_signals_a_schedule_and_what_is_for_bad_days() {
        let spec = r#","dimensions":["Memory","Replicas"],"objectives":{"signal":{"type":"CpuUtilization","target":"0.7"},
            "signals":[{"type":"Query","query":"queue","target":"30","activation":"2"}]},
            "bounds":{"minReplicas":0,"maxReplicas":9,"schedule":[
                {"window":"Mon-Fri 07:30-18:00","minReplicas":12},{"window":"Sat 00:00-24:00","minReplicas":2,"maxReplicas":3}]},
            "behavior":{"manualHoldSeconds":900,"fallback":{"replicas":5}}"#;
        let plan = service(spec).plan.unwrap();
        let utilization = PlannedSignal { query: Query::CpuUtilization, target: 0.7, activation: None };
        let queue =
            PlannedSignal { query: Query::Custom("queue".into()), target: 30.0, activation: Some(2.0) };
        assert_eq!(plan.signals, [utilization, queue]);
        assert!(plan.has_custom_query());
        let horizontal = plan.settings.horizontal.unwrap();
        assert_eq!((horizontal.setpoint, horizontal.min_replicas, horizontal.to_zero), (0.7, 1, true));
        assert_eq!(horizontal.by_hand_s, 900);
        assert_eq!(horizontal.fallback, Some(Fallback { replicas: 5, after_s: 180 }));
        let bounds: Vec<_> = plan.schedule.iter().map(|it| (it.min_replicas, it.max_replicas)).collect();
        assert_eq!(bounds, [(12, 12), (2, 3)]);
    }

    #[test]
    fn a_vpa_that_leaves_pods_alone_is_in_nobodys_way() {
        let of = |mode: &str| {
            let json = format!(
                r#"{{"metadata":{{"namespace":"shop","name":"v","uid":"u"}},"spec":{{"updatePolicy":{{"updateMode":"{mode}"}},
                    "targetRef":{{"apiVersion":"apps/v1","kind":"Deployment","name":"web"}}}}}}"#
            );
            sizing(&crate::vpa::read_vpa(&json).expect(&json))
        };
        assert_eq!(of("Off"), None);
        for mode in ["Initial", "Auto", "InPlaceOrRecreate"] {
            let other = of(mode).expect(mode);
            assert!(other.sizes);
            assert_eq!(other.target, service("").target);
            assert_eq!(other.name, "VerticalPodAutoscaler v");
        }
    }

    #[test]
    fn a_selector_is_read_as_the_api_server_writes_it() {
        let of = |operator| Requirement { key: "app".into(), operator };
        let values = |values: &[&str]| values.iter().map(|value| Arc::from(*value)).collect();
        for (text, expected) in [
            ("app=web", vec![of(Operator::In(values(&["web"])))]),
            ("app in (b,a)", vec![of(Operator::In(values(&["a", "b"])))]),
            ("app notin (a),app", vec![of(Operator::NotIn(values(&["a"]))), of(Operator::Exists)]),
            ("app!=a,!app", vec![of(Operator::NotIn(values(&["a"]))), of(Operator::DoesNotExist)]),
        ] {
            assert_eq!(read_selector(text), Some(LabelSelector::All(expected.into())), "{text}");
        }
        assert_eq!((read_selector(""), read_selector("app in (a"), read_selector("a b")), (None, None, None));
    }

    #[test]
    fn others_that_scale_are_known_by_their_target() {
        let hpa = r#"{"metadata":{"name":"h"},"spec":{"scaleTargetRef":{"apiVersion":"apps/v1","kind":"Deployment","name":"web"}}}"#;
        let other = read_other(hpa, "HorizontalPodAutoscaler").unwrap();
        assert_eq!(other.name, "HorizontalPodAutoscaler h");
        assert_eq!(other.target, service("").target);
        let keda = r#"{"metadata":{"name":"k"},"spec":{"scaleTargetRef":{"name":"web"}}}"#;
        assert_eq!(read_other(keda, "ScaledObject").unwrap().target, service("").target);
        assert_eq!(read_other("{}", "ScaledObject"), None);
    }
}
