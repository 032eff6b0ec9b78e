//! The file in which measured latencies survive a restart: an invalid file is rejected or harmless.

use std::time::Duration;

use berth_scheduler::agent::Part;
use berth_scheduler::dispatch::Estimator;
use berth_scheduler::rules::CachedRule;

/// No list of a cluster takes longer to build.
const LONGEST: Duration = Duration::from_secs(3_600);

pub fn check(data: &[u8]) {
    let Ok(mut estimator) = serde_json::from_slice::<Estimator>(data) else { return };
    let text = serde_json::to_string(&estimator).expect("serialises");
    assert_eq!(serde_json::from_str::<Estimator>(&text).ok().as_ref(), Some(&estimator), "{text}");
    let rules = CachedRule::ALL.into_iter().flat_map(|rule| [Part::RuleHit(rule), Part::RuleMiss(rule)]);
    let others = [Part::ListHit, Part::ListMiss, Part::Survey, Part::DryRun, Part::GangPreemption];
    for part in others.into_iter().chain(rules) {
        assert!(estimator.estimate(part) <= LONGEST, "{part:?} takes {:?}", estimator.estimate(part));
        // A sample moves the estimate towards it.
        let (before, sample) = (estimator.estimate(part), Duration::from_millis(1));
        estimator.learn(part, sample);
        let after = estimator.estimate(part);
        let nanosecond = Duration::from_nanos(1);
        assert!(after.abs_diff(sample) <= before.abs_diff(sample) + nanosecond, "{before:?} to {after:?}");
    }
}
