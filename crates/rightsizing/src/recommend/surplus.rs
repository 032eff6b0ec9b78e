//! What workloads request beyond their recommendations, and what they lack: where changed requests matter most.

use std::cmp::Reverse;

use super::post::Recommendation;
use super::propose::Requests;
use super::store::Workload;
use berth_model::NodeSize;

/// Number of workloads that are listed.
const LISTED_MAX: usize = 30;
/// Memory in GiB for which clouds ask about as much as for a core.
pub const GIB_PER_CORE: f64 = 8.0;
const GIB: f64 = (1_i64 << 30) as f64;

/// Requests of a workload's pods together, and what they would be as recommended. Millicores and bytes.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkloadSurplus {
    pub workload: Workload,
    pub pods: usize,
    pub requested: NodeSize,
    pub recommended: NodeSize,
}

/// The same of all workloads with a recommendation.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Surplus {
    pub workloads: usize,
    /// Those that would cost less as recommended.
    pub over: usize,
    pub requested: NodeSize,
    pub recommended: NodeSize,
    /// Those of them that would save most, at most 30.
    pub largest: Vec<WorkloadSurplus>,
}

impl WorkloadSurplus {
    /// Sums up a workload with this number of pods. Containers and resources without a recommendation do not count.
    pub fn of(
        workload: Workload,
        pods: usize,
        requests: &Requests,
        recommendations: &[Recommendation],
    ) -> WorkloadSurplus {
        let all = |each: i64| each.saturating_mul(i64::try_from(pods).unwrap_or(i64::MAX));
        let (mut requested, mut recommended) = (NodeSize::default(), NodeSize::default());
        for Recommendation { container, target, .. } in recommendations {
            let Some(now) = requests.get(container) else { continue };
            requested = plus(requested, target.zip(*now).map(|(target, now)| target.map_or(0, |_| all(now))));
            recommended = plus(recommended, target.map(|target| target.map_or(0, all)));
        }
        WorkloadSurplus { workload, pods, requested, recommended }
    }

    /// Returns what the recommendation would save, in the cost of cores.
    fn saving(&self) -> f64 {
        let spare = self.requested.zip(self.recommended).map(|(now, then)| now as f64 - then as f64);
        spare.cpu / 1_000.0 + spare.memory / (GIB * GIB_PER_CORE)
    }
}

impl FromIterator<WorkloadSurplus> for Surplus {
    fn from_iter<I: IntoIterator<Item = WorkloadSurplus>>(all: I) -> Surplus {
        let mut sums = Surplus::default();
        for one in all {
            sums.workloads += 1;
            sums.requested = plus(sums.requested, one.requested);
            sums.recommended = plus(sums.recommended, one.recommended);
            if one.saving() > 0.0 {
                sums.over += 1;
                sums.largest.push(one);
            }
        }
        let order = |one: &WorkloadSurplus| Reverse((one.saving() * 1_000.0) as i64);
        sums.largest.sort_by(|a, b| (order(a), &a.workload).cmp(&(order(b), &b.workload)));
        sums.largest.truncate(LISTED_MAX);
        sums
    }
}

fn plus(a: NodeSize, b: NodeSize) -> NodeSize {
    a.zip(b).map(|(a, b)| a.saturating_add(b))
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_model::PerResource;

    const GI: i64 = 1 << 30;

    fn workload(name: &str) -> Workload {
        Workload { namespace: "shop".into(), kind: "Deployment".into(), name: name.into() }
    }

    fn target(container: &str, cpu: Option<i64>, memory: Option<i64>) -> Recommendation {
        let target = PerResource { cpu, memory };
        Recommendation { container: container.into(), target, lower: target, upper: target, uncapped: target }
    }

    fn one(name: &str, cpu: (i64, i64), memory: (i64, i64)) -> WorkloadSurplus {
        let requests = [("app".to_owned(), PerResource { cpu: cpu.0, memory: memory.0 })].into();
        WorkloadSurplus::of(workload(name), 1, &requests, &[target("app", Some(cpu.1), Some(memory.1))])
    }

    #[test]
    fn requests_and_recommendations_are_those_of_all_pods_where_there_is_a_recommendation() {
        let size = |cpu, memory| PerResource { cpu, memory };
        let requests = [
            ("app".to_owned(), size(500, GI)),
            ("proxy".to_owned(), size(100, 7)),
            ("off".to_owned(), size(9, 9)),
        ];
        let recommendations = [
            target("app", Some(200), Some(2 * GI)),
            target("proxy", Some(50), None),
            target("gone", Some(9), None),
        ];
        let web = WorkloadSurplus::of(workload("web"), 3, &requests.into(), &recommendations);
        assert_eq!((web.requested, web.recommended), (size(1_800, 3 * GI), size(750, 6 * GI)));
    }

    #[test]
    fn the_largest_savings_come_first_and_those_that_lack_something_count_in_the_sums_only() {
        let (memory, cpu) = (one("memory", (100, 100), (17 * GI, GI)), one("cpu", (1_600, 100), (GI, GI)));
        let short = one("short", (100, 900), (GI, GI));
        let all: Surplus = [short.clone(), cpu.clone(), memory.clone()].into_iter().collect();
        assert_eq!((all.workloads, all.over), (3, 2));
        assert_eq!(all.requested, PerResource { cpu: 1_800, memory: 19 * GI });
        assert_eq!(all.recommended, PerResource { cpu: 1_100, memory: 3 * GI });
        assert_eq!(all.largest, [memory, cpu], "16 GiB cost as much as two cores");
    }

    #[test]
    fn no_more_workloads_are_listed_than_are_read() {
        let many = (0..100).map(|at| one(&format!("w{at:02}"), (1_000 + at, 0), (0, 0)));
        let all: Surplus = many.collect();
        let first: Vec<_> = all.largest.iter().take(2).map(|one| &*one.workload.name).collect();
        assert_eq!((all.over, all.largest.len(), &first[..]), (100, LISTED_MAX, &["w99", "w98"][..]));
    }

    #[test]
    fn no_amounts_overflow() {
        let size = PerResource { cpu: i64::MAX, memory: i64::MAX };
        let huge = WorkloadSurplus::of(
            workload("w"),
            usize::MAX,
            &[("app".to_owned(), size)].into(),
            &[target("app", Some(0), Some(1))],
        );
        let all: Surplus = [huge.clone(), huge].into_iter().collect();
        assert_eq!((all.over, all.requested), (2, size));
    }
}
