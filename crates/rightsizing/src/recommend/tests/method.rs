//! VPAs that select another estimator.

use std::sync::Arc;

use super::vpa::{vpa, workload};
use super::{MI, MINUTE, T0};
use crate::recommend::method::Method;
use crate::recommend::post::OptionalAmounts;
use crate::recommend::propose::{Requests, propose};
use crate::recommend::settings::RecommenderSettings;
use crate::recommend::store::{Store, Workload};
use crate::recommend::{Recommendation, Vpa};
use berth_model::PerResource;

const NO_MAX: OptionalAmounts = OptionalAmounts { cpu: None, memory: None };

struct Bench {
    store: Store,
    workload: Workload,
    vpa: Vpa,
    minute: i64,
}

impl Bench {
    /// A day of 2 cores and 1000 MiB.
    fn new() -> Bench {
        let (store, workload) =
            (Store::new(RecommenderSettings::default()).unwrap(), workload("Deployment", "web"));
        let mut bench = Bench { store, workload, vpa: vpa("web", 0, "web"), minute: 0 };
        for uid in ["uid", "other"] {
            bench.store.pod_runs(&Arc::from(uid), &bench.workload);
        }
        bench.run(1440, 2000, 1000);
        bench
    }

    /// Adds this usage of both pods for a number of minutes.
    fn run(&mut self, minutes: i64, cpu: i64, mib: i64) {
        for _ in 0..minutes {
            let time = T0 + self.minute * MINUTE;
            for uid in ["uid", "other"] {
                self.store.add_cpu(uid, "app", cpu, time, time).unwrap();
                self.store.add_memory(uid, "app", mib * MI, time, time).unwrap();
            }
            self.store.advance_methods(time);
            self.minute += 1;
        }
    }

    fn recommended(&self) -> Recommendation {
        let proposal = propose(
            &self.vpa,
            &self.store,
            &self.workload,
            (&Requests::new(), &Requests::new()),
            NO_MAX,
            Vec::new,
        );
        proposal.recommendations[0].clone()
    }

    /// Writes the recommendation into the status.
    fn publish(&mut self) -> OptionalAmounts {
        let recommended = self.recommended();
        self.vpa.status.recommendation = Some(vec![recommended.clone()]);
        recommended.target
    }
}

fn amounts(cpu: i64, mib: i64) -> OptionalAmounts {
    PerResource { cpu: Some(cpu), memory: Some(mib * MI) }
}

#[test]
fn another_estimator_only_raises_what_was_recommended_until_it_has_seen_a_day() {
    let mut bench = Bench::new();
    let before = bench.publish();
    bench.store.set_method(&bench.workload, "app", Some(Method::Showar));
    assert_eq!(bench.publish(), before, "it knows nothing yet");
    bench.run(60, 200, 100);
    assert_eq!(bench.publish(), before);
    bench.run(60, 4000, 2000);
    assert_eq!(bench.publish(), amounts(4000, 2000), "more is needed");
    bench.run(1440 - 121, 200, 400);
    assert_eq!(bench.publish(), amounts(4000, 2000));
    bench.run(2, 200, 400);
    assert_eq!(bench.publish(), amounts(200, 2000), "memory is not below the peak of the day");
    let Recommendation { lower, upper, .. } = bench.recommended();
    assert_eq!((lower.cpu, upper.cpu), (Some(170), Some(229)), "truncated");
}

#[test]
fn each_estimator_says_what_it_does_of_steady_usage_and_the_old_one_is_back_when_none_is_asked_for() {
    let plain = Bench::new().recommended();
    for (method, cpu, memory) in [
        (Method::Showar, 2000..2001, 1000..1001),
        (Method::Hours, 2300..2301, 1150..1151),
        // The width of a bucket, and the margin.
        (Method::AutopilotWindow, 2300..2500, 1150..1250),
        (Method::AutopilotEnsemble, 2000..2150, 1100..1250),
    ] {
        let mut bench = Bench::new();
        bench.store.set_method(&bench.workload, "app", Some(method));
        bench.run(1450, 2000, 1000);
        let target = bench.recommended().target;
        assert!(target.cpu.is_some_and(|it| cpu.contains(&it)), "{method:?}: {target:?}");
        assert!(target.memory.is_some_and(|it| memory.contains(&(it / MI))), "{method:?}: {target:?}");
        bench.store.set_method(&bench.workload, "app", None);
        assert_eq!(bench.recommended().target, plain.target);
    }
}

#[test]
fn a_kill_raises_memory_at_once() {
    for method in [Method::Showar, Method::Hours, Method::AutopilotWindow, Method::AutopilotEnsemble] {
        let mut bench = Bench::new();
        bench.store.set_method(&bench.workload, "app", Some(method));
        bench.run(1450, 200, 300);
        let now = T0 + bench.minute * MINUTE;
        let needed = bench.store.record_oom("uid", "app", 3000 * MI, now, now).unwrap();
        bench.store.advance_methods(now);
        assert!(bench.recommended().target.memory >= Some(needed), "{method:?}");
    }
}

#[test]
fn an_estimator_that_there_is_not_is_said_to_be_unknown() {
    assert_eq!(Method::parse("vpa"), Ok(None));
    assert_eq!(Method::parse("autopilot-ensemble"), Ok(Some(Method::AutopilotEnsemble)));
    let error = Method::parse("best").unwrap_err().to_string();
    assert!(error.starts_with("unknown estimator `best`: use vpa, "), "{error}");
    assert!(Method::parse(&"x".repeat(10_000)).unwrap_err().to_string().len() < 200);
}
