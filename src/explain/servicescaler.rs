//! What a ServiceScaler does, and what it would have done in the last day: its decisions, replayed on the usage measured then.

use std::collections::BTreeMap;
use std::io::{self, Write};

use serde::Serialize;

use super::show::wrapped;
use crate::advise::show::units;
use crate::columns::{table, widths};
use berth_kube_io::scaling::ScaledService;
use berth_rightsizing::recommend::Amount;
use berth_rightsizing::scaling::Size;
use berth_rightsizing::scaling::replay::{PastSeries, ReplayTimes, ReplayedContainer, ReplayedSizes, replay};

const DAY_S: i64 = 86_400;
/// Usage that is read: the first day is only known to the decisions of the second one.
pub const READ_S: i64 = 2 * DAY_S;
/// Time between two decisions of the replay, and between two points.
pub const EVERY_S: i64 = 60;

/// What is known of a ServiceScaler.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceReasons {
    pub namespace: String,
    pub name: String,
    /// KIND/NAME.
    pub target: String,
    pub dry_run: bool,
    /// Why the spec is invalid.
    pub problem: Option<String>,
    pub replicas: Option<i64>,
    pub desired_replicas: Option<i64>,
    /// The last decision with its reasons.
    pub decision: String,
    /// Conditions, as `Active: True (Reason): message`.
    pub conditions: Vec<String>,
    /// The last day, as far as there is usage; sizes only.
    pub last_day: Vec<ReplayedContainer>,
    pub notes: Vec<String>,
}

/// Explains a ServiceScaler. `sizes`: requests of its pods by container. `past`: their usage, or why it is unknown.
pub fn reasons(
    service: &ScaledService,
    sizes: BTreeMap<String, Size>,
    past: Result<Vec<PastSeries>, String>,
    now_s: i64,
) -> ServiceReasons {
    let status = service.status.clone().unwrap_or_default();
    let conditions = status.conditions.iter().map(|condition| {
        let message = if condition.message.is_empty() { "" } else { ": " };
        format!(
            "{}: {} ({}){message}{}",
            condition.type_, condition.status, condition.reason, condition.message
        )
    });
    let mut notes = Vec::new();
    let mut last_day = Vec::new();
    match (&service.plan, past) {
        (Err(_), _) => {}
        (_, Err(why)) => notes.push(format!("the last day is unknown: {why}")),
        (Ok(_), Ok(past)) if past.is_empty() => {
            notes.push("the last day is unknown: Prometheus has no usage of its pods".to_owned());
        }
        (Ok(_), _) if sizes.is_empty() => notes.push("it has no pods with containers to size".to_owned()),
        (Ok(plan), Ok(_)) if plan.estimator.is_some() => {
            notes.push("the last day is not replayed: spec.estimator selects another estimator".to_owned());
        }
        (Ok(plan), Ok(past)) => {
            let times = ReplayTimes { from_s: now_s - DAY_S, until_s: now_s, every_s: EVERY_S };
            last_day = replay(&plan.settings, sizes, &past, times);
        }
    }
    ServiceReasons {
        namespace: service.namespace.to_string(),
        name: service.name.to_string(),
        target: format!("{}/{}", service.target.kind, service.target.name),
        dry_run: service.plan.as_ref().is_ok_and(|plan| plan.dry_run),
        problem: service.plan.as_ref().err().cloned(),
        replicas: status.replicas,
        desired_replicas: status.desired_replicas,
        decision: status.decision,
        conditions: conditions.collect(),
        last_day,
        notes,
    }
}

/// Writes the answer for people.
///
/// # Errors
/// Writing to `out` fails.
pub fn show(reasons: &ServiceReasons, width: usize, out: &mut impl Write) -> io::Result<()> {
    let mode = if reasons.dry_run { " (dry run)" } else { "" };
    writeln!(out, "ServiceScaler {}/{} of {}{mode}", reasons.namespace, reasons.name, reasons.target)?;
    if let Some(problem) = &reasons.problem {
        wrapped(out, "  ", &format!("its spec is invalid: {problem}"), width)?;
    }
    for condition in &reasons.conditions {
        wrapped(out, "  ", condition, width)?;
    }
    match (reasons.replicas, reasons.desired_replicas) {
        (Some(now), Some(desired)) => writeln!(out, "  replicas: {now}, desired {desired}")?,
        (Some(now), None) => writeln!(out, "  replicas: {now}")?,
        _ => {}
    }
    if !reasons.decision.is_empty() {
        wrapped(out, "  ", &format!("last decision: {}", reasons.decision), width)?;
    }
    for note in &reasons.notes {
        wrapped(out, "  ", note, width)?;
    }
    if reasons.last_day.is_empty() {
        return Ok(());
    }
    writeln!(
        out,
        "\nsizes in the last 24 hours, had they been decided each minute (replicas as they were):"
    )?;
    let head = ["container", "resource", "pods have", "lowest", "highest", "now", "changes", "usage above"];
    let mut rows = vec![head.map(str::to_owned)];
    for container in &reasons.last_day {
        let resources = [("cpu", &container.cpu, units::cpu as fn(Amount) -> String)];
        let resources = resources.into_iter().chain([(
            "memory",
            &container.memory,
            units::memory as fn(Amount) -> String,
        )]);
        rows.extend(resources.filter_map(|(name, sizes, unit)| {
            sizes.as_ref().map(|sizes| row(&container.container, name, sizes, unit))
        }));
    }
    for line in table(&rows, &widths(&rows), &[0, 1]).lines() {
        writeln!(out, "  {line}")?;
    }
    let note = "\"usage above\": part of the samples above the size of that moment. Usage was measured with the sizes that the pods \
                had; a throttled container would have used more.";
    wrapped(out, "  ", note, width)
}

fn row(container: &str, resource: &str, sizes: &ReplayedSizes, unit: fn(Amount) -> String) -> [String; 8] {
    let above = match sizes.samples {
        0 => units::UNKNOWN.to_owned(),
        samples => format!("{:.1} %", 100.0 * sizes.above as f64 / samples as f64),
    };
    [
        container.to_owned(),
        resource.to_owned(),
        if sizes.first > 0 { unit(sizes.first) } else { units::UNSET.to_owned() },
        unit(sizes.lowest),
        unit(sizes.highest),
        unit(sizes.last),
        sizes.changes.to_string(),
        above,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_rightsizing::scaling::{MeasuredKind, Point};

    const NOW: i64 = 1_700_000_000;
    const MI: i64 = 1 << 20;

    fn service(spec: &str) -> ScaledService {
        ScaledService::read(&format!(
            r#"{{"apiVersion":"berth.dev/v1alpha1","kind":"ServiceScaler",
                "metadata":{{"namespace":"shop","name":"web","uid":"u"}},
                "spec":{{"target":{{"apiVersion":"apps/v1","kind":"Deployment","name":"web"}}{spec}}},
                "status":{{"decision":"cpu of app 900m -> 350m: mean 300m","replicas":2,"desiredReplicas":3,
                    "conditions":[{{"type":"Active","status":"False","reason":"DryRun","message":"nothing is changed",
                        "lastTransitionTime":"2026-11-25T00:00:00Z"}}]}}}}"#
        ))
        .expect("a ServiceScaler")
    }

    const INVALID: &str = r#","objectives":{"signal":{"type":"CpuThrottling","target":"0.1"}},
        "bounds":{"minReplicas":3,"maxReplicas":2}"#;

    fn past() -> Vec<PastSeries> {
        let series = |kind, value: f64| {
            let points =
                (0..=READ_S / EVERY_S).map(|at| Point { time_s: NOW - READ_S + at * EVERY_S, value });
            PastSeries { pod: "web-0".into(), container: "app".into(), kind, points: points.collect() }
        };
        vec![series(MeasuredKind::Cpu, 300.0), series(MeasuredKind::Memory, (200 * MI) as f64)]
    }

    fn shown(service: &ScaledService, past: Result<Vec<PastSeries>, String>) -> (ServiceReasons, String) {
        let sizes = BTreeMap::from([("app".to_owned(), Size { cpu_milli: 900, memory_bytes: 900 * MI })]);
        let reasons = reasons(service, sizes, past, NOW);
        let mut text = Vec::new();
        show(&reasons, 110, &mut text).unwrap();
        (reasons, String::from_utf8(text).unwrap())
    }

    #[test]
    fn a_service_is_explained_by_its_decision_and_by_the_sizes_of_its_last_day() {
        let (reasons, text) = shown(&service(""), Ok(past()));
        assert!(reasons.dry_run, "as a new one is");
        let cpu = reasons.last_day[0].cpu.expect("sized");
        assert!((300..400).contains(&cpu.last) && cpu.above == 0, "{cpu:?}");
        for part in [
            "ServiceScaler shop/web of Deployment/web (dry run)",
            "Active: False (DryRun): nothing is changed",
            "replicas: 2, desired 3",
            "last decision: cpu of app 900m -> 350m: mean 300m",
            "app        cpu       ",
            "0.0 %",
        ] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
    }

    #[test]
    fn what_cannot_be_told_of_the_last_day_is_said() {
        for (spec, past, why) in [
            ("", Err("no Prometheus is configured".to_owned()), "unknown: no Prometheus is configured"),
            ("", Ok(Vec::new()), "has no usage of its pods"),
            (r#","estimator":"autopilot-window""#, Ok(past()), "spec.estimator"),
        ] {
            let (reasons, text) = shown(&service(spec), past);
            assert!(reasons.last_day.is_empty() && text.contains(why), "{text}");
        }
        let (reasons, text) = shown(&service(INVALID), Ok(past()));
        assert!(reasons.problem.is_some() && text.contains("its spec is invalid"), "{text}");
    }
}
