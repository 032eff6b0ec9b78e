use super::super::figures::{Compared, DispatchSlice, DispatchSweep, RunOutcome, Varied};
use super::*;

fn figures(name: &str, value: f64) -> DispatchFigures {
    DispatchFigures {
        dispatcher: name.to_owned(),
        avg_ms: value,
        p50_ms: value,
        p90_ms: value,
        p99_ms: value,
        top_hit: value,
        rule_hit: value,
        memory_mib: value,
        queue_ms: value,
        processing_ms: value,
        prediction_accuracy: Some(value),
        time_error: Some(value),
        best_agent: None,
        best_agent_gap: Some(value),
        conflicts: 0,
        throughput_burst: value,
        placed: 1,
        unplaced: 0,
        intervals: Default::default(),
    }
}

fn outcome(name: &str, value: f64) -> RunOutcome {
    let slice = |at| DispatchSlice {
        from_s: f64::from(at),
        arrived: value,
        placed: value,
        waiting: value,
        memory_mib: value,
    };
    RunOutcome {
        figures: figures(name, value),
        cdf: vec![(value, 0.0), (value, 1.0)],
        timeline: (0..3).map(slice).collect(),
        burst: (1.0, 2.0),
    }
}

fn report(outcomes: Vec<RunOutcome>) -> DispatchReport {
    let at = |x: f64| (x, outcomes.iter().map(|outcome| outcome.figures.clone()).collect());
    DispatchReport {
        title: "made up".to_owned(),
        setup: vec![("nodes", "3".to_owned())],
        sweeps: vec![
            DispatchSweep { what: Varied::Agents, points: vec![at(1.0), at(64.0)] },
            DispatchSweep { what: Varied::Load, points: vec![at(1.0)] },
            DispatchSweep { what: Varied::CacheSlots, points: Vec::new() },
        ],
        outcomes,
        compared: vec![Compared { what: "average", paper: "-42 %", ours: "-41 %".to_owned() }],
        notes: vec!["Nothing is real.".to_owned()],
        command: "berth simulate".to_owned(),
    }
}

/// Returns all words of the page's content, including those in attributes.
fn words(page: &str) -> impl Iterator<Item = &str> {
    let body = &page[page.find("<main>").unwrap()..page.find("</main>").unwrap()];
    body.split(|char: char| !char.is_ascii_alphanumeric())
}

#[test]
fn figures_that_are_no_numbers_are_never_printed() {
    for value in [f64::NAN, f64::INFINITY, -f64::INFINITY, 0.0, -0.0, -1.0, 5e-324, f64::MAX] {
        let page = render(&report(vec![outcome("a", value), outcome("b", 2.0), outcome("c", value)]));
        let wrong: Vec<_> =
            words(&page).filter(|word| ["NaN", "nan", "inf", "Infinity"].contains(word)).collect();
        assert_eq!(wrong, [""; 0], "with {value}");
    }
}

#[test]
fn a_name_is_text_wherever_it_stands() {
    let name = "<script>alert(\"x\")</script>' onload='y & \u{202e}";
    let mut report = report(vec![outcome(name, 1.0), outcome(&name.repeat(20), 2.0)]);
    name.clone_into(&mut report.title);
    name.clone_into(&mut report.command);
    report.notes = vec![name.to_owned()];
    report.setup = vec![("seed", name.to_owned())];
    let page = render(&report);
    assert_eq!(page.matches("<script").count(), 1, "the page's own");
    assert!(!page.contains("' onload") && page.contains("&lt;script&gt;"));
}

#[test]
fn any_number_of_dispatchers_has_a_page() {
    for count in [0, 1, 2, 100] {
        let named = |at| outcome(&format!("dispatcher-{at}"), f64::from(at));
        let page = render(&report((0..count).map(named).collect()));
        assert_eq!(page.contains("id=\"plot-cdf\""), count > 0);
        assert!(count == 0 || page.contains(&format!("dispatcher-{}", count - 1)));
    }
}

#[test]
fn what_there_is_no_data_for_is_left_out() {
    let mut bare = outcome("a", 1.0);
    bare.timeline.clear();
    bare.figures =
        DispatchFigures { prediction_accuracy: None, time_error: None, best_agent_gap: None, ..bare.figures };
    let mut report = report(vec![bare]);
    report.sweeps.clear();
    report.compared.clear();
    let page = render(&report);
    for id in ["sensitivity", "estimators", "paper", "plot-slots"] {
        assert!(!page.contains(&format!("id=\"{id}\"")), "{id}");
    }
    assert!(!page.contains("Over time") && page.contains("id=\"plot-bursts\""));
}

#[test]
fn the_same_report_gives_the_same_bytes() {
    let made = || render(&report(vec![outcome("a", 1.0), outcome("b", 2.0)]));
    assert_eq!(made(), made());
}

#[test]
fn the_headline_is_about_the_fastest_of_the_others() {
    let page = render(&report(vec![outcome("protean", 4.0), outcome("slow", 9.0), outcome("quick", 1.0)]));
    let head = &page[page.find("<header>").unwrap()..page.find("</header>").unwrap()];
    assert!(head.contains("<b>quick</b>") && head.contains("−75\u{a0}%") && !head.contains("slow"), "{head}");
}

#[test]
fn the_headline_claims_nothing_when_the_first_is_the_fastest() {
    let page = render(&report(vec![outcome("protean", 1.0), outcome("slow", 9.0), outcome("slower", 10.0)]));
    let head = &page[page.find("<header>").unwrap()..page.find("</header>").unwrap()];
    assert!(head.contains("No dispatcher has a lower average latency than <b>protean</b>"), "{head}");
    assert!(head.contains("+800\u{a0}%"), "{head}");
}
