//! The page of `berth recommend` in a real browser (Debian's `chromium`, headless). `BERTH_SCREENSHOTS=DIR` keeps its screenshots there;
//! that of the desktop is docs/pictures/sizes.png.

use std::f64::consts::TAU;
use std::fmt::Write;
use std::path::PathBuf;

use super::{AT, HOUR, NOW, recommend};
use crate::report::browser::{Screen, Visit, visit};
use crate::report::{DESKTOP, PHONE, TEXT_SIZE_MIN};
use crate::usage::start;

const DAYS: i64 = 7;
const SCRAPE_INTERVAL: i64 = 60;
const MI: f64 = 1_048_576.0;

/// A Deployment with a pod.
struct Shown {
    name: &'static str,
    cores: fn(f64) -> f64,
    bytes: fn(f64) -> f64,
    /// Cores and bytes.
    requests: (f64, f64),
}

/// A wave of a day, from 0 to 1; `hours` since the beginning.
fn day(hours: f64) -> f64 {
    0.5 - 0.5 * (hours / 24.0 * TAU).cos()
}

const SHOWN: [Shown; 5] = [
    Shown {
        name: "catalog",
        cores: |hours| 0.3 + 0.4 * day(hours),
        bytes: |hours| (600.0 + 150.0 * day(hours)) * MI,
        requests: (4.0, 4_096.0 * MI),
    },
    Shown {
        name: "checkout",
        cores: |hours| 0.2 + 1.1 * day(hours).powi(4),
        bytes: |_| 420.0 * MI,
        requests: (0.5, 512.0 * MI),
    },
    Shown {
        name: "reports",
        cores: |hours| if hours % 24.0 < 1.0 { 1.8 } else { 0.02 },
        bytes: |hours| if hours % 24.0 < 1.0 { 1_500.0 * MI } else { 200.0 * MI },
        requests: (2.0, 3_072.0 * MI),
    },
    Shown {
        name: "sessions",
        cores: |hours| 0.15 + 0.05 * day(hours),
        bytes: |hours| (300.0 + hours * 4.0) * MI,
        requests: (0.25, 512.0 * MI),
    },
    Shown {
        name: "frontend",
        cores: |hours| 0.1 + 0.1 * day(hours),
        bytes: |_| 120.0 * MI,
        requests: (0.2, 256.0 * MI),
    },
];

fn openmetrics() -> String {
    let [mut cpu, mut memory, mut owners, mut above, mut requests] = [const { String::new() }; 5];
    for Shown { name, cores, bytes, requests: (cores_requested, bytes_requested) } in SHOWN {
        let (set, pod) = (format!("{name}-59f9fb6b8"), format!("{name}-59f9fb6b8-x2x4z"));
        let labels = format!(r#"namespace="shop",pod="{pod}",container="app""#);
        let start = NOW - DAYS * 86_400 - HOUR;
        let mut total = 0.0;
        for at in (start..=NOW).step_by(SCRAPE_INTERVAL as usize) {
            let hours = (at - start) as f64 / HOUR as f64;
            total += cores(hours) * SCRAPE_INTERVAL as f64;
            writeln!(cpu, "container_cpu_usage_seconds_total{{{labels}}} {total} {at}").expect("a text");
            writeln!(memory, "container_memory_working_set_bytes{{{labels}}} {} {at}", bytes(hours))
                .expect("a text");
        }
        for at in (start..=NOW).step_by(300) {
            let owner = |kind: &str, name: &str| format!(r#"owner_kind="{kind}",owner_name="{name}""#);
            let by_set = owner("ReplicaSet", &set);
            writeln!(owners, r#"kube_pod_owner{{namespace="shop",pod="{pod}",{by_set}}} 1 {at}"#)
                .expect("a text");
            let by_deployment = owner("Deployment", name);
            writeln!(
                above,
                r#"kube_replicaset_owner{{namespace="shop",replicaset="{set}",{by_deployment}}} 1 {at}"#
            )
            .expect("a text");
            for (resource, amount) in [("cpu", cores_requested), ("memory", bytes_requested)] {
                let metric = "kube_pod_container_resource_requests";
                writeln!(requests, r#"{metric}{{{labels},resource="{resource}"}} {amount} {at}"#)
                    .expect("a text");
            }
        }
    }
    format!(
        "# TYPE container_cpu_usage_seconds counter\n{cpu}# TYPE container_memory_working_set_bytes gauge\n{memory}\
         # TYPE kube_pod_owner gauge\n{owners}# TYPE kube_replicaset_owner gauge\n{above}\
         # TYPE kube_pod_container_resource_requests gauge\n{requests}# EOF\n"
    )
}

fn check(seen: &Visit, screen: Screen) {
    let measured = &seen.measured;
    assert_eq!(seen.console, [""; 0], "on {screen:?}");
    assert_eq!(measured.resources, [""; 0], "on {screen:?}");
    assert!(measured.page_width <= measured.window_width, "wider than {screen:?}: {}", measured.page_width);
    let (least, text) = (measured.text_size_min, &measured.text_smallest);
    assert!(least >= TEXT_SIZE_MIN, "{text:?} has {least} px on {screen:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_of_sizes_is_whole_in_a_browser_and_shows_usage_beside_the_advice() {
    needs!("prometheus", "promtool", "chromium");
    let prometheus = start(&openmetrics(), &[]).await;
    let address = ["--prometheus", &prometheus.url, "--at", AT, "--history", "7d"];
    let shown = ["--prices", "20,2.5", "--limits", "memory-as-request", "-o", "html"];
    let ran = recommend(&[&address[..], &shown].concat());
    assert_eq!(ran.code, 0, "{}", ran.err);
    // The address has a port that differs from run to run.
    let page = ran.out.replace(&prometheus.url, "http://prometheus.example");
    assert_eq!(page.matches("class=\"spark\"").count(), 2 * SHOWN.len(), "two graphs of each container");
    // Errors of this are written to the console.
    let script = "
        for (const svg of document.querySelectorAll('svg.spark')) {
          const usage = svg.querySelector('path.usage').getTotalLength();
          const lines = svg.querySelectorAll('line.request, line.advice').length;
          if (lines !== 2 || usage < 150) console.error(`${lines} lines, usage of ${usage}`);
        }";
    let page = page.replacen("</body>", &format!("<script>{script}</script></body>"), 1);
    for (screen, name) in [(DESKTOP, "desktop"), (PHONE, "phone"), (Screen { dark: true, ..DESKTOP }, "dark")]
    {
        let seen = tokio::task::block_in_place(|| visit(&page, screen));
        check(&seen, screen);
        if let Some(folder) = std::env::var_os("BERTH_SCREENSHOTS").map(PathBuf::from) {
            let path = folder.join(format!("sizes-{name}.png"));
            std::fs::write(path, &seen.picture).expect("BERTH_SCREENSHOTS is a folder that can be written");
        }
    }
}
