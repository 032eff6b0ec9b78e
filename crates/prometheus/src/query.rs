//! PromQL queries for usage, and their evaluation times. No I/O.

use berth_rightsizing::usage::UsageKind;
use std::fmt::Write;

use super::config::{LabelNames, PrometheusConfig};
use super::metric::Matcher;
use berth_model::ConfigDuration;

/// Namespaces to query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueriedNamespaces<'a> {
    /// All namespaces.
    All,
    /// Only these namespaces; none if the list is empty.
    These(&'a [String]),
}

/// Prometheus evaluates a regular expression that is an alternation of up to 256 literals by lookups; beyond that it matches the
/// expression against every value of the label.
const NAMESPACES_PER_QUERY_MAX: usize = 250;
/// Servers and proxies limit forms to 64 KiB and more; names have 63 bytes at most.
const NAMESPACE_BYTES_PER_QUERY_MAX: usize = 16 << 10;

/// Groups namespaces by query, sorted and without duplicates; an empty group stands for all namespaces.
pub(super) fn groups(namespaces: QueriedNamespaces<'_>) -> Vec<Vec<String>> {
    let QueriedNamespaces::These(names) = namespaces else { return vec![Vec::new()] };
    let mut names = names.to_vec();
    names.sort_unstable();
    names.dedup();
    let mut groups: Vec<Vec<String>> = Vec::new();
    let mut bytes = 0;
    for name in names {
        bytes += name.len();
        match groups.last_mut() {
            Some(group)
                if group.len() < NAMESPACES_PER_QUERY_MAX && bytes <= NAMESPACE_BYTES_PER_QUERY_MAX =>
            {
                group.push(name);
            }
            _ => {
                bytes = name.len();
                groups.push(vec![name]);
            }
        }
    }
    groups
}

/// A measurement that can be queried.
pub(super) trait Measure: Copy + Send + Sync {
    /// Returns the query for usage in the namespaces of `group`. `window` is the window of rates.
    fn query(
        self,
        config: &PrometheusConfig,
        labels: &LabelNames,
        window: ConfigDuration,
        group: &[String],
    ) -> String;

    /// Returns the subset of `labels` that the result has; labels it does not have are empty.
    fn labels(self, labels: &LabelNames) -> LabelNames {
        labels.clone()
    }
}

impl Measure for UsageKind {
    fn query(
        self,
        config: &PrometheusConfig,
        labels: &LabelNames,
        window: ConfigDuration,
        group: &[String],
    ) -> String {
        usage(config, labels, self, window, group)
    }
}

/// Returns the query for usage in the namespaces of `group`, one series per container.
///
/// A container that was restarted, or is scraped twice, has several series at the same time. The largest value counts: a sum would
/// count one container twice. The aggregation also drops all other labels, which are most of the response.
pub(super) fn usage(
    config: &PrometheusConfig,
    labels: &LabelNames,
    kind: UsageKind,
    window: ConfigDuration,
    group: &[String],
) -> String {
    let LabelNames { namespace, pod, container } = labels;
    let selector = selector(config, labels, kind, group);
    let values = match kind {
        UsageKind::Cpu => format!("rate({selector}[{window}])"),
        UsageKind::Memory if config.memory_peaks => format!("max_over_time({selector}[{window}])"),
        UsageKind::Memory => selector,
    };
    format!("max by ({namespace}, {pod}, {container}) ({values})")
}

/// Returns a query that has a result exactly if there are series with these labels.
pub(super) fn any_container(config: &PrometheusConfig, labels: &LabelNames) -> String {
    format!("count({})", selector(config, labels, UsageKind::Memory, &[]))
}

/// Time in which scrapes are counted, in seconds.
pub(super) const SCRAPES_S: u64 = 300;

/// Returns a query for the number of samples that the CPU usage of most containers has in that time.
pub(super) fn scrapes(config: &PrometheusConfig, labels: &LabelNames) -> String {
    format!("quantile(0.5, count_over_time({}[{SCRAPES_S}s]))", selector(config, labels, UsageKind::Cpu, &[]))
}

/// Returns the window of a rate that always has two samples, and not more than four: a wider one hides how usage varies.
pub fn rate_window(scrape_interval: ConfigDuration) -> ConfigDuration {
    let seconds = (scrape_interval.get().as_secs() * 5).div_ceil(2);
    ConfigDuration::from_secs(seconds.max(2))
}

/// Returns a matcher for the namespaces of `group`, with a comma after it; empty for all namespaces.
pub(super) fn namespace_matcher(label: &str, group: &[String]) -> String {
    match group {
        [] => String::new(),
        [only] => format!("{label}={}, ", quoted(only)),
        several => {
            let names: Vec<String> = several.iter().map(|name| literal(name)).collect();
            format!("{label}=~{}, ", quoted(&names.join("|")))
        }
    }
}

/// Returns the configured matchers of every query, each with a comma after it.
pub(super) fn extra_matchers(config: &PrometheusConfig) -> String {
    // A checked configuration has valid matchers only.
    let matchers = config.matchers.iter().filter_map(|text| Matcher::parse(text).ok());
    matchers.map(|matcher| format!("{matcher}, ")).collect()
}

pub(super) fn selector(
    config: &PrometheusConfig,
    labels: &LabelNames,
    kind: UsageKind,
    group: &[String],
) -> String {
    let metric = match kind {
        UsageKind::Cpu => &config.cpu_metric,
        UsageKind::Memory => &config.memory_metric,
    };
    let LabelNames { namespace, pod, container } = labels;
    let mut text = format!("{metric}{{");
    // Writing to a string cannot fail.
    if !config.job_name.is_empty() {
        let _ = write!(text, "job={}, ", quoted(&config.job_name));
    }
    text.push_str(&extra_matchers(config));
    text.push_str(&namespace_matcher(namespace, group));
    // Series without a container are sums over a pod or a node, and `POD` is the pause container.
    let _ = write!(text, r#"{pod}=~".+", {container}!="POD", {container}!=""}}"#);
    text
}

/// Returns a regular expression (RE2) that matches only `text`.
pub(super) fn literal(text: &str) -> String {
    let mut expression = String::with_capacity(text.len());
    for c in text.chars() {
        if r"\.+*?()|[]{}^$".contains(c) {
            expression.push('\\');
        }
        expression.push(c);
    }
    expression
}

/// Quotes a PromQL string literal.
pub(super) fn quoted(text: &str) -> String {
    let mut literal = String::with_capacity(text.len() + 2);
    literal.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => literal.extend(['\\', c]),
            '\n' => literal.push_str("\\n"),
            c => literal.push(c),
        }
    }
    literal.push('"');
    literal
}

/// Evaluation times of a range query: `count` points, `step` seconds apart. Never empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Points {
    /// The first point, in seconds since 1970.
    pub start: i64,
    /// Seconds.
    pub step: i64,
    pub count: i64,
}

impl Points {
    /// Returns the last point, in seconds since 1970.
    pub fn end(self) -> i64 {
        self.start + (self.count - 1) * self.step
    }

    /// Splits into pieces of at most `count_max` points, oldest first.
    pub fn pieces(self, count_max: i64) -> impl Iterator<Item = Points> {
        let count_max = count_max.max(1);
        (0..self.count).step_by(usize::try_from(count_max).unwrap_or(usize::MAX)).map(move |first| Points {
            start: self.start + first * self.step,
            step: self.step,
            count: count_max.min(self.count - first),
        })
    }
}

/// Splits the history into slices, oldest first. The last point is `now`, and each point is in exactly one slice; the very first
/// point belongs to the first slice, which makes that slice longer by one.
pub(super) fn slices(config: &PrometheusConfig, now: i64) -> impl Iterator<Item = Points> + use<> {
    let seconds = |duration: ConfigDuration| i64::try_from(duration.get().as_secs()).unwrap_or(i64::MAX);
    // A checked configuration has at least one second and at most one year here.
    let step = seconds(config.history_resolution).max(1);
    let steps = seconds(config.history_length) / step;
    let steps_per_slice = (seconds(config.slice) / step).max(1);
    let start = now - steps * step;
    let first = Points { start, step, count: steps_per_slice.min(steps) + 1 };
    let rest = Points { start: first.end() + step, step, count: steps + 1 - first.count };
    std::iter::once(first).chain(rest.pieces(steps_per_slice))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn usage_is_asked_for_containers_of_the_namespaces_only() {
        let mut config = PrometheusConfig::default();
        let hour = ConfigDuration::from_secs(3_600);
        assert_eq!(
            usage(&config, &LabelNames::modern(), UsageKind::Cpu, hour, &names(&["a", "b"])),
            r#"max by (namespace, pod, container) (rate(container_cpu_usage_seconds_total{namespace=~"a|b", pod=~".+", container!="POD", container!=""}[1h]))"#
        );
        config.job_name = r#"kube"let\"#.to_owned();
        assert_eq!(
            usage(&config, &LabelNames::legacy(), UsageKind::Memory, hour, &names(&["a"])),
            r#"max by (namespace, pod_name, container_name) (container_memory_working_set_bytes{job="kube\"let\\", namespace="a", pod_name=~".+", container_name!="POD", container_name!=""})"#
        );
        config = PrometheusConfig { memory_peaks: true, ..PrometheusConfig::default() };
        assert_eq!(
            usage(&config, &LabelNames::modern(), UsageKind::Memory, hour, &[]),
            r#"max by (namespace, pod, container) (max_over_time(container_memory_working_set_bytes{pod=~".+", container!="POD", container!=""}[1h]))"#
        );
        assert_eq!(
            any_container(&PrometheusConfig::default(), &LabelNames::modern()),
            r#"count(container_memory_working_set_bytes{pod=~".+", container!="POD", container!=""})"#
        );
    }

    #[test]
    fn a_namespace_is_matched_as_text_whatever_is_in_it() {
        let config = PrometheusConfig::default();
        let group = names(&["a.b", "c|d", "\"}\n"]);
        let query = selector(&config, &LabelNames::modern(), UsageKind::Memory, &group);
        assert!(query.contains(r#"namespace=~"a\\.b|c\\|d|\"\\}\n","#), "{query}");
    }

    #[test]
    fn no_namespaces_are_no_queries_and_all_namespaces_are_one() {
        assert_eq!(groups(QueriedNamespaces::These(&[])), Vec::<Vec<String>>::new());
        assert_eq!(groups(QueriedNamespaces::All), vec![Vec::<String>::new()]);
    }

    #[test]
    fn many_namespaces_are_asked_for_in_groups() {
        let many: Vec<String> = (0..600).map(|index| format!("n-{index:03}")).rev().collect();
        let made = groups(QueriedNamespaces::These(&[many.clone(), many.clone()].concat()));
        assert_eq!(made.iter().map(Vec::len).collect::<Vec<_>>(), [250, 250, 100]);
        assert_eq!(made.concat(), many.into_iter().rev().collect::<Vec<_>>());
        let long: Vec<String> = (0..3).map(|index| format!("{index}").repeat(7_000)).collect();
        assert_eq!(groups(QueriedNamespaces::These(&long)).len(), 2);
    }

    #[test]
    fn eight_days_by_the_hour_are_sixteen_slices_with_193_points() {
        let now = 1_700_000_123;
        let made: Vec<Points> = slices(&PrometheusConfig::default(), now).collect();
        assert_eq!(made.len(), 16);
        assert_eq!(made[0], Points { start: now - 8 * 86_400, step: 3_600, count: 13 });
        assert_eq!(made[15].end(), now);
        assert_eq!(made.iter().map(|slice| slice.count).sum::<i64>(), 193);
    }

    proptest! {
        #[test]
        fn slices_and_their_pieces_have_each_point_once_and_in_order(
            step in 1_i64..5_000, steps in 1_i64..500, slice in 1_i64..600, piece in 1_i64..50, odd in 0_i64..100,
        ) {
            let duration = |seconds: i64| ConfigDuration::from_secs(seconds.unsigned_abs());
            let config = PrometheusConfig {
                history_resolution: duration(step),
                history_length: duration(step * steps + odd.min(step - 1)),
                slice: duration(step * slice + odd.min(step - 1)),
                ..PrometheusConfig::default()
            };
            let now = 1_700_000_000;
            let points: Vec<i64> = slices(&config, now)
                .inspect(|made| assert!(made.count >= 1 && made.count <= slice + 1))
                .flat_map(|made| made.pieces(piece))
                .inspect(|made| assert!(made.count >= 1 && made.count <= piece))
                .flat_map(|made| (0..made.count).map(move |index| made.start + index * made.step))
                .collect();
            let expected: Vec<i64> = (0..=steps).map(|index| now - (steps - index) * step).collect();
            prop_assert_eq!(points, expected);
        }
    }
}
