//! Why a VerticalPodAutoscaler recommends these sizes: its checkpoints, evaluated by the recommender's own code.

use std::io::{self, Write};

use serde::Serialize;

use crate::advise::show::units;
use crate::columns::{table, widths};
use berth_model::PerResource;
use berth_rightsizing::recommend::estimate::{minimum, recommend};
use berth_rightsizing::recommend::{
    Aggregate, Amount, CheckpointStatus, OpenWindows, RecommenderSettings, UnixNanos, Vpa, amount, open, time,
};

const SECOND_NS: i64 = 1_000_000_000;

/// The reasons of one VPA.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct VpaReasons {
    pub namespace: String,
    pub name: String,
    /// KIND/NAME.
    pub target: Option<String>,
    pub update_mode: String,
    pub containers: Vec<ContainerReasons>,
    /// What is said for all containers.
    pub notes: Vec<String>,
}

/// The usage that a recommendation is computed from.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerReasons {
    pub container: String,
    /// Samples of CPU.
    pub samples: u64,
    pub days: f64,
    pub newest_sample_seconds_ago: i64,
    pub resources: Vec<ResourceReasons>,
}

/// How the target of one resource comes about. Amounts are millicores or bytes.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ResourceReasons {
    pub resource: &'static str,
    /// As in the status.
    pub target: Option<Amount>,
    pub lower_bound: Option<Amount>,
    pub upper_bound: Option<Amount>,
    /// Percentile of usage, from 0 to 100: of CPU samples, or of the peaks of memory.
    pub percentile: f64,
    pub usage: Amount,
    pub margin_percent: f64,
    /// What this gives, before limits.
    pub computed: Amount,
    /// What the target was changed by.
    pub limited_by: Option<String>,
}

/// Explains the recommendations of a VPA. `checkpoints`: those of its containers.
pub fn reasons(
    vpa: &Vpa,
    checkpoints: &[(String, CheckpointStatus, OpenWindows)],
    settings: &RecommenderSettings,
    now: UnixNanos,
) -> VpaReasons {
    let mut notes = Vec::new();
    let window_ns = time::nanos(settings.memory_interval);
    let shapes = settings.shapes().map_err(|error| error.to_string());
    let mut aggregates = Vec::new();
    for (container, checkpoint, windows) in checkpoints {
        let loaded = shapes.as_ref().map_err(String::clone).and_then(|shapes| {
            open::load(checkpoint, windows, shapes, window_ns, now).map_err(|error| error.to_string())
        });
        match loaded {
            Ok((aggregate, _)) => aggregates.push((container.as_str(), aggregate)),
            Err(error) => notes.push(format!("the checkpoint of {container} cannot be used: {error}")),
        }
    }
    aggregates.sort_by_key(|(container, _)| *container);
    if aggregates.is_empty() {
        notes.push(
            "there are no checkpoints of its containers: the recommender has not seen usage yet, or keeps none (recommender.storage: \
             prometheus)"
                .to_owned(),
        );
    }
    if let Some(Ok(method)) = &vpa.estimator {
        notes.push(format!("its sizes are those of the estimator {method:?}, not the percentiles below"));
    }
    let said = vpa.status.conditions.iter().filter(|condition| !condition.message.is_empty());
    notes.extend(said.map(|condition| format!("{}: {}", condition.kind, condition.message)));
    let containers = aggregates.len();
    VpaReasons {
        namespace: vpa.namespace.to_string(),
        name: vpa.name.to_string(),
        target: vpa.target.as_ref().map(|target| format!("{}/{}", target.kind, target.name)),
        update_mode: vpa.update_mode.clone(),
        containers: aggregates
            .iter()
            .map(|(container, aggregate)| of_container(vpa, container, aggregate, settings, containers, now))
            .collect(),
        notes,
    }
}

fn of_container(
    vpa: &Vpa,
    container: &str,
    aggregate: &Aggregate,
    settings: &RecommenderSettings,
    containers: usize,
    now: UnixNanos,
) -> ContainerReasons {
    const DAY_S: f64 = 86_400.0;
    let seconds = |from: UnixNanos, to: UnixNanos| to.saturating_sub(from).max(0) / SECOND_NS;
    let controlled = vpa.controlled(container).unwrap_or(PerResource { cpu: false, memory: false });
    let computed = recommend(container, aggregate, settings, containers, controlled).target;
    let told = vpa.status.recommendation.iter().flatten().find(|it| it.container == container);
    let allowed = vpa.policy(container).map(|policy| policy.allowed).unwrap_or_default();
    let usage = PerResource {
        cpu: amount::cpu_from_cores(aggregate.cpu.percentile(settings.cpu.target_percentile)),
        memory: amount::from_float(aggregate.memory.percentile(settings.memory.target_percentile)),
    };
    let names = PerResource { cpu: "cpu", memory: "memory" };
    let told = PerResource {
        cpu: told.map(|it| (it.target.cpu, it.lower.cpu, it.upper.cpu)).unwrap_or_default(),
        memory: told.map(|it| (it.target.memory, it.lower.memory, it.upper.memory)).unwrap_or_default(),
    };
    let parts =
        names.zip(told).zip(computed).zip(usage).zip(settings.resources()).zip(allowed.min).zip(allowed.max);
    let resources = parts.map(|((((((name, told), computed), usage), resource), min), max)| {
        let (target, lower_bound, upper_bound) = told;
        let computed: Option<Amount> = computed;
        let least = minimum(resource.pod_minimum, containers);
        computed.map(|computed| ResourceReasons {
            resource: name,
            target,
            lower_bound,
            upper_bound,
            percentile: resource.target_percentile * 100.0,
            usage,
            margin_percent: resource.margin * 100.0,
            computed,
            limited_by: limited_by(target, computed, (min, max), least),
        })
    });
    ContainerReasons {
        container: container.to_owned(),
        samples: aggregate.cpu_span.count,
        days: seconds(aggregate.cpu_span.first, aggregate.cpu_span.last) as f64 / DAY_S,
        newest_sample_seconds_ago: seconds(aggregate.cpu_span.last, now),
        resources: [resources.cpu, resources.memory].into_iter().flatten().collect(),
    }
}

/// Returns what makes the target another one than what was computed.
fn limited_by(
    target: Option<Amount>,
    computed: Amount,
    (min, max): (Option<Amount>, Option<Amount>),
    least: Amount,
) -> Option<String> {
    let target = target?;
    match target {
        _ if min == Some(target) && target > computed => Some("raised to the policy's minAllowed".to_owned()),
        _ if max == Some(target) && target < computed => Some("capped to the policy's maxAllowed".to_owned()),
        _ if target == computed && computed == least => {
            Some("the least that a container of this pod gets (recommender.podMin…)".to_owned())
        }
        // The checkpoint is a minute older or newer than the status.
        _ if (target - computed).unsigned_abs() as f64 <= 0.05 * computed as f64 => None,
        _ if target < computed => {
            Some("capped to recommender.maxAllowed, or to what the largest node can hold".to_owned())
        }
        _ => Some(
            "it was computed when usage was higher, or from newer usage than the checkpoint's".to_owned(),
        ),
    }
}

/// Writes the answer for people.
pub fn show(reasons: &VpaReasons, out: &mut impl Write) -> io::Result<()> {
    let target = reasons.target.as_deref().unwrap_or("no target");
    writeln!(
        out,
        "VerticalPodAutoscaler {}/{} of {target}, update mode {}",
        reasons.namespace, reasons.name, reasons.update_mode
    )?;
    for note in &reasons.notes {
        writeln!(out, "  {note}")?;
    }
    for container in &reasons.containers {
        let ContainerReasons { container, samples, days, newest_sample_seconds_ago: ago, resources } =
            container;
        writeln!(out, "\n{container}: {samples} samples of CPU in {days:.1} days, the newest {ago} s ago")?;
        let head = ["", "TARGET", "BOUNDS", "USAGE", "WITH MARGIN", "LIMITED BY"].map(str::to_owned);
        let rows: Vec<[String; 6]> = std::iter::once(head).chain(resources.iter().map(row)).collect();
        write!(out, "{}", table(&rows, &widths(&rows), &[0, 5]))?;
    }
    Ok(())
}

fn row(of: &ResourceReasons) -> [String; 6] {
    let unit = if of.resource == "cpu" { units::cpu } else { units::memory };
    let amount = |amount: Option<Amount>| units::estimate(amount, unit);
    let samples = if of.resource == "cpu" { "samples" } else { "peaks" };
    [
        of.resource.to_owned(),
        amount(of.target),
        format!("{} to {}", amount(of.lower_bound), amount(of.upper_bound)),
        format!("{} (p{} of {samples})", unit(of.usage), of.percentile),
        format!("{} (+{}%)", unit(of.computed), of.margin_percent),
        of.limited_by.clone().unwrap_or_default(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_kube_io::vpa::read_vpa;

    const HOUR_NS: i64 = 3_600_000_000_000;

    /// Usage of 300m and 400 MiB in two days that end a minute before `now`.
    fn checkpoint(settings: &RecommenderSettings, now: UnixNanos) -> CheckpointStatus {
        let mut aggregate = Aggregate::new(&settings.shapes().unwrap(), 0);
        for minute in 1..=2 * 24 * 60 {
            aggregate.add_cpu(300, now - minute * HOUR_NS / 60);
        }
        for day in 1..=2 {
            aggregate.add_peak(400 << 20, now - day * 20 * HOUR_NS);
        }
        CheckpointStatus::save(&aggregate, now)
    }

    fn vpa(policy: &str, cpu: &str, memory: &str) -> Vpa {
        read_vpa(&format!(
            r#"{{"metadata":{{"namespace":"shop","name":"web","uid":"u"}},"spec":{{
                "targetRef":{{"apiVersion":"apps/v1","kind":"Deployment","name":"web"}},
                "resourcePolicy":{{"containerPolicies":[{{"containerName":"*"{policy}}}]}}}},
                "status":{{"recommendation":{{"containerRecommendations":[{{"containerName":"app",
                    "target":{{"cpu":"{cpu}","memory":"{memory}"}},
                    "lowerBound":{{"cpu":"100m","memory":"100Mi"}},"upperBound":{{"cpu":"2","memory":"2Gi"}}}}]}}}}}}"#
        ))
        .expect("a VPA")
    }

    fn explained(policy: &str, cpu: &str, memory: &str) -> (VpaReasons, String) {
        let (settings, now) = (RecommenderSettings::default(), 1_700_000_000_000_000_000);
        let checkpoints = [("app".to_owned(), checkpoint(&settings, now), OpenWindows::default())];
        let reasons = reasons(&vpa(policy, cpu, memory), &checkpoints, &settings, now);
        let mut text = Vec::new();
        show(&reasons, &mut text).unwrap();
        (reasons, String::from_utf8(text).unwrap())
    }

    #[test]
    fn a_recommendation_is_explained_by_its_percentile_samples_days_and_margin() {
        let (reasons, text) = explained("", "350m", "480Mi");
        let app = &reasons.containers[0];
        assert_eq!((app.samples, app.newest_sample_seconds_ago), (2_880, 60));
        assert!((1.99..2.01).contains(&app.days));
        let [cpu, memory] = &app.resources[..] else { panic!("{reasons:?}") };
        // The end of a bucket is a few per cent above the usage.
        assert!((300..=315).contains(&cpu.usage) && (345..=363).contains(&cpu.computed), "{cpu:?}");
        assert_eq!((cpu.percentile, cpu.margin_percent, cpu.limited_by.as_deref()), (90.0, 15.0, None));
        assert!((400 << 20..430 << 20).contains(&memory.usage), "{memory:?}");
        assert_eq!(memory.limited_by, None);
        assert!(text.starts_with("VerticalPodAutoscaler shop/web of Deployment/web"), "{text}");
        for part in [
            "app: 2880 samples of CPU in 2.0 days, the newest 60 s ago",
            "(p90 of samples)",
            "(+15%)",
            "480Mi",
        ] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
    }

    #[test]
    fn what_limits_a_recommendation_is_named() {
        let limited = |policy: &str, cpu: &str| {
            let (reasons, text) = explained(policy, cpu, "480Mi");
            let why = reasons.containers[0].resources[0].limited_by.clone().expect(cpu);
            assert!(text.contains(&why), "{text}");
            why
        };
        assert_eq!(limited(r#","maxAllowed":{"cpu":"200m"}"#, "200m"), "capped to the policy's maxAllowed");
        assert_eq!(limited(r#","minAllowed":{"cpu":"900m"}"#, "900m"), "raised to the policy's minAllowed");
        assert!(limited("", "200m").contains("largest node"));
    }

    #[test]
    fn without_checkpoints_it_says_why_there_may_be_none() {
        let vpa = vpa("", "350m", "480Mi");
        let reasons = reasons(&vpa, &[], &RecommenderSettings::default(), 0);
        assert!(reasons.containers.is_empty() && reasons.notes[0].contains("recommender.storage"));
    }
}
