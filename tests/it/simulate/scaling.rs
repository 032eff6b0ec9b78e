//! `berth simulate --scaling` as a process.

use std::io::Write;

use serde_json::Value;
use tempfile::NamedTempFile;

use super::simulate;

const SHORT: [&str; 7] = ["--scaling", "--services", "2", "--hours", "0.2", "--warm-up-hours", "0.1"];

#[test]
fn scalers_are_compared_in_a_table_in_json_and_on_a_page() {
    let page = NamedTempFile::new().unwrap();
    let path = page.path().to_str().unwrap();
    let ran = simulate(SHORT.into_iter().chain(["--report", path]));
    assert_eq!(ran.code, 0, "{}", ran.err);
    // The first hours are counted apart.
    assert!(ran.out.contains("hours 0.0 to 0.1") && ran.out.contains("hours 0.1 to 0.3"), "{}", ran.out);
    for name in ["showar", "hpa", "hpa-vpa-memory", "keda", "keda-cpu", "vpa-hpa", "autopilot", "static"] {
        let lines = ran.out.lines().filter(|line| line.starts_with(&format!("{name} ")));
        assert_eq!(lines.count(), 2, "{}", ran.out);
    }
    let written = std::fs::read_to_string(page.path()).unwrap();
    assert!(written.contains("plot-frontier") && written.contains("hpa-vpa-memory"));

    let json = || {
        let ran = simulate(SHORT.into_iter().chain(["-o", "json", "--scalers", "static,showar"]));
        assert_eq!(ran.code, 0, "{}", ran.err);
        ran.out
    };
    let text = json();
    assert_eq!(text, json(), "the same seed gives the same figures");
    let all: Vec<Value> = serde_json::from_str(&text).unwrap();
    let names: Vec<_> =
        all.iter().map(|it| (it["scaler"].as_str().unwrap(), it["from_h"].as_f64().unwrap())).collect();
    assert_eq!(names, [("static", 0.0), ("showar", 0.0), ("static", 0.1), ("showar", 0.1)]);
    let figures = all[1].as_object().unwrap();
    assert!(figures.iter().all(|(name, value)| name == "scaler" || value.is_number()), "{text}");
    assert_eq!(all[0]["horizontal_changes"], 0.0);
}

#[test]
fn baselines_are_compared_at_equal_latency_and_with_each_assumption_changed() {
    let ran = simulate(SHORT.into_iter().chain([
        "--repeat",
        "3",
        "--equal-p99",
        "--baselines",
        "hpa,keda",
        "-o",
        "json",
    ]));
    assert_eq!(ran.code, 0, "{}", ran.err);
    let all: Vec<Value> = serde_json::from_str(&ran.out).unwrap();
    let names: Vec<_> = all.iter().map(|line| line["scaler"].as_str().unwrap()).collect();
    assert_eq!(names, ["hpa", "keda", "cheapest"]);
    for line in all.iter().filter(|line| line["equal"].as_u64() > Some(0)) {
        let p99 = |of: &str| line[of]["p99_ms"].as_f64().unwrap();
        assert!(p99("theirs") <= 1.021 * p99("showar"), "{line}");
    }

    let ran = simulate(SHORT.into_iter().chain(["--assumptions", "--baselines", "hpa", "--sizes", "500"]));
    assert_eq!(ran.code, 0, "{}", ran.err);
    for changed in ["none ", "pods of baselines: 500m only", "refused growth: half", "load: SocialNetwork"] {
        assert!(ran.out.lines().any(|line| line.starts_with(changed)), "{changed}: {}", ran.out);
    }
    let wrong = simulate(["--scaling", "--equal-p99", "--baselines", "static"]);
    assert!(wrong.code == 2 && wrong.err.contains("no target"), "{}", wrong.err);
}

#[test]
fn a_trace_of_rates_is_read_and_a_bad_one_refused_with_its_line() {
    let ran = |text: &str| {
        let mut file = NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        let path = file.path().to_str().unwrap().to_owned();
        let ran =
            simulate(["--scaling", "--scaling-trace", &path, "--hours", "0.1", "--warm-up-hours", "0.1"]);
        (ran.code, ran.out, ran.err.replace(&path, "FILE"))
    };
    let header = ",timestamp,web,\"ads\"\n";
    let good = format!("{header}0,2026-01-01 00:00:00,10.5,3\n1,2026-01-01 00:00:01,11,3.5\n");
    let (code, out, err) = ran(&good);
    assert!(code == 0 && out.contains(": 2 services"), "{out}{err}");
    for (row, line, says) in [
        ("2,x,soon,1\n", "FILE:4:", "soon"),
        ("2,x,-1,1\n", "FILE:4:", "web"),
        ("2,x,NaN,1\n", "FILE:4:", "NaN"),
        ("2,x,1\n", "FILE:4:", "3 values"),
    ] {
        let (code, _, err) = ran(&format!("{good}{row}"));
        assert!(code == 2 && err.contains(line) && err.contains(says), "{row}: {err}");
    }
    let (code, _, err) = ran(header);
    assert!(code == 2 && err.contains("nothing to simulate"), "{err}");
    let wrong = simulate(["--scaling", "--scalers", "magic"]);
    assert!(wrong.code == 2 && wrong.err.contains("hpa-vpa-memory"), "{}", wrong.err);
}
