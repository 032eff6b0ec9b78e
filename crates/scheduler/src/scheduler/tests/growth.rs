//! Resources for in-place resizes.

use super::*;
use berth_model::{NodeSize, PerResource};

fn more(cpu: i64) -> NodeSize {
    PerResource { cpu, memory: 0 }
}

impl Bench {
    fn grow(&mut self, uid: &str, cpu: i64) -> Result<Growth, GrowthError> {
        let grown = self.scheduler.grow_in_place(&Arc::from(uid), more(cpu));
        self.collect();
        grown
    }

    fn give_back(&mut self, uid: &str, growth: &Growth) {
        self.scheduler.take_growth_back(&Arc::from(uid), growth);
        self.collect();
    }
}

#[test]
fn an_in_place_resize_reserves_free_resources_before_it_is_observed() {
    let mut bench = Bench::new(1, &["n"]);
    bench.apply(on("n", pod("a", 300)));
    bench.apply(on("n", pod("b", 300)));
    let why = bench.grow("a", 401).unwrap_err();
    assert_eq!(
        why.to_string(),
        "it would request 401 more millicores of CPU, but only 400 are free on node n"
    );
    assert!(bench.grow("a", 300).is_ok());
    assert!(bench.grow("b", 300).is_err(), "the first one has it");
    assert_eq!(bench.cpu_taken("n"), 900);
    bench.apply(pod("new", 200));
    bench.work();
    assert!(bench.bound().is_empty());
    // The watch reports the resize.
    bench.apply(on("n", pod("a", 600)));
    assert_eq!(bench.cpu_taken("n"), 900);
    assert!(bench.grow("a", -500).is_ok(), "less always fits, and is freed when the watch reports it");
    assert_eq!(bench.cpu_taken("n"), 900);
}

#[test]
fn what_was_not_resized_gives_its_room_to_those_that_wait() {
    let mut bench = Bench::new(1, &["n"]);
    bench.apply(on("n", pod("a", 300)));
    let growth = bench.grow("a", 700).unwrap();
    bench.apply(pod("new", 200));
    bench.work();
    assert!(bench.bound().is_empty());
    bench.give_back("a", &growth);
    bench.work();
    assert_eq!(bench.bound(), ["new"]);
    // The watch was faster: its state stays.
    let growth = bench.grow("a", 100).unwrap();
    bench.apply(on("n", pod("a", 350)));
    bench.give_back("a", &growth);
    assert_eq!(bench.cpu_taken("n"), 550);
}

#[test]
fn a_resize_that_is_tried_again_is_charged_once() {
    let mut bench = Bench::new(1, &["n"]);
    bench.apply(on("n", pod("a", 300)));
    let mut growth = bench.grow("a", 200).unwrap();
    for cpu in [200, 200, 700, 100] {
        growth = bench.scheduler.grow_instead(&Arc::from("a"), &growth, more(cpu)).unwrap();
        bench.collect();
        assert_eq!(bench.cpu_taken("n"), 300 + cpu);
    }
    assert!(bench.scheduler.grow_instead(&Arc::from("a"), &growth, more(701)).is_err());
    bench.collect();
    assert_eq!(bench.cpu_taken("n"), 300);
}

#[test]
fn room_that_is_kept_for_others_is_none_and_strangers_do_not_grow() {
    let mut bench = Bench::new(1, &["n"]);
    bench.scheduler.cluster.config.knows_others = true;
    bench.apply(on("n", pod("a", 300)));
    let foreign = Pod { scheduler_name: "default-scheduler".into(), ..pod("q", 500) };
    bench.apply(Pod { nominated_node: Some("n".into()), ..foreign });
    assert!(bench.grow("a", 300).is_err());
    assert!(bench.grow("a", 200).is_ok());
    assert!(bench.grow("unknown", 1).is_err());
    bench.scheduler.delete_node("n");
    assert!(bench.grow("a", 1).is_err());
}
