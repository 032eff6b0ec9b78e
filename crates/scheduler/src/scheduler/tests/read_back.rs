//! What was written to waiting pods is read back, and written again if it is missing.

use super::*;
use berth_model::ScheduledCondition;

const ROUND: Duration = Duration::from_secs(31);

/// A pod that fits nowhere, as the API server has it.
fn big(condition: Option<&str>) -> Pod {
    let scheduled = condition.map(|message| ScheduledCondition {
        status: false,
        reason: "Unschedulable".into(),
        message: message.into(),
    });
    Pod { scheduled, ..pod("big", 5000) }
}

fn rounds(bench: &mut Bench, n: u32) {
    for _ in 0..n {
        bench.tick(bench.now + ROUND);
        bench.work();
    }
}

#[test]
fn a_condition_that_the_api_server_does_not_have_is_written_again_until_it_has() {
    let mut bench = Bench::new(1, &["a"]);
    bench.apply(big(None));
    bench.work();
    let first = bench.told[0].clone();
    rounds(&mut bench, 5);
    assert!(bench.told.len() > 2, "{:?}", bench.told);
    assert!(bench.told.iter().all(|told| (&told.0, &told.2) == (&first.0, &first.2)));
    bench.apply(big(Some(&first.2)));
    let told = bench.told.len();
    rounds(&mut bench, 5);
    assert_eq!(bench.told.len(), told, "the watch shows it");
    // Another client overwrites it.
    bench.apply(big(Some("something else")));
    rounds(&mut bench, 2);
    assert_eq!((bench.told.len(), &bench.told[told].2), (told + 1, &first.2));
}

#[test]
fn a_condition_on_its_way_is_not_written_twice() {
    let mut bench = Bench::new(1, &["a"]);
    bench.apply(big(None));
    bench.work();
    let message = bench.told[0].2.clone();
    rounds(&mut bench, 1);
    bench.apply(big(Some(&message)));
    rounds(&mut bench, 5);
    assert_eq!(bench.told.len(), 1);
}
