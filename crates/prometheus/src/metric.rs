//! Queries for metrics besides those of CPU and memory. No I/O.

use berth_rightsizing::usage::SeriesScope;
use std::fmt::{self, Write};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::config::{LabelNames, PrometheusConfig, is_name};
use super::query::{Measure, extra_matchers, namespace_matcher, quoted};
use berth_model::ConfigDuration;

/// Type of a metric's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum MetricKind {
    /// A counter: usage is its increase per second.
    Rate,
    /// A gauge: usage is its value.
    Gauge,
}

/// A metric of which the usage of containers or pods is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Metric {
    /// Name in Prometheus.
    pub name: String,
    pub kind: MetricKind,
    pub scope: SeriesScope,
    /// Only series with these labels.
    pub matchers: Vec<Matcher>,
    /// Labels of the parts of a container or pod, such as network interfaces: the values of the parts are summed. Series that differ
    /// only in other labels are the same part, read twice; the largest one counts.
    pub sum_over: Vec<String>,
}

/// A label matcher.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Matcher {
    label: String,
    /// One of `=`, `!=`, `=~` and `!~`.
    operator: &'static str,
    value: String,
}

/// A string that is not a matcher.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a matcher such as interface=eth0, device!=/dev/sda or device!~/dev/dm-.*")]
pub struct MatcherError(String);

impl Matcher {
    /// Parses `LABEL=VALUE`, `LABEL!=VALUE`, `LABEL=~EXPRESSION` or `LABEL!~EXPRESSION`. The value is the whole rest, without quotes.
    ///
    /// # Errors
    /// It has no operator, its label is invalid, or its value is in quotes, which would become part of the value.
    pub fn parse(text: &str) -> Result<Self, MatcherError> {
        let no_matcher = || MatcherError(text.chars().filter(|c| !c.is_control()).collect());
        let at = text.find(['=', '!']).ok_or_else(no_matcher)?;
        let (label, rest) = text.split_at(at);
        let (operator, value) = ["=~", "!~", "!=", "="]
            .into_iter()
            .find_map(|operator| Some((operator, rest.strip_prefix(operator)?)))
            .ok_or_else(no_matcher)?;
        let is_quoted = value.starts_with(['"', '\'', '`']);
        if !is_name(label, "") || is_quoted || value.chars().any(char::is_control) {
            return Err(no_matcher());
        }
        Ok(Self { label: label.to_owned(), operator, value: value.to_owned() })
    }
}

impl fmt::Display for Matcher {
    /// Writes the matcher as PromQL.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}{}", self.label, self.operator, quoted(&self.value))
    }
}

impl Metric {
    fn selector(&self, config: &PrometheusConfig, labels: &LabelNames, group: &[String]) -> String {
        let LabelNames { namespace, pod, container } = labels;
        let mut text = format!("{}{{", self.name);
        // Writing to a string cannot fail.
        let has_job = self.matchers.iter().any(|matcher| matcher.label == "job");
        if !config.job_name.is_empty() && !has_job {
            let _ = write!(text, "job={}, ", quoted(&config.job_name));
        }
        text.push_str(&extra_matchers(config));
        text.push_str(&namespace_matcher(namespace, group));
        for matcher in &self.matchers {
            let _ = write!(text, "{matcher}, ");
        }
        let _ = write!(text, r#"{pod}=~".+""#);
        if self.scope == SeriesScope::Container {
            let _ = write!(text, r#", {container}!="POD", {container}!="""#);
        }
        text.push('}');
        text
    }
}

impl Measure for &Metric {
    /// Returns one series per container or pod.
    fn query(
        self,
        config: &PrometheusConfig,
        labels: &LabelNames,
        window: ConfigDuration,
        group: &[String],
    ) -> String {
        let selector = self.selector(config, labels, group);
        let values = match self.kind {
            MetricKind::Rate => format!("rate({selector}[{window}])"),
            MetricKind::Gauge => selector,
        };
        let LabelNames { namespace, pod, container } = labels;
        let whole = match self.scope {
            SeriesScope::Container => format!("{namespace}, {pod}, {container}"),
            SeriesScope::Pod => format!("{namespace}, {pod}"),
        };
        if self.sum_over.is_empty() {
            return format!("max by ({whole}) ({values})");
        }
        let parts = self.sum_over.join(", ");
        format!("sum by ({whole}) (max by ({whole}, {parts}) ({values}))")
    }

    fn labels(self, labels: &LabelNames) -> LabelNames {
        match self.scope {
            SeriesScope::Container => labels.clone(),
            SeriesScope::Pod => LabelNames { container: String::new(), ..labels.clone() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received() -> Metric {
        Metric {
            name: "container_network_receive_bytes_total".to_owned(),
            kind: MetricKind::Rate,
            scope: SeriesScope::Pod,
            matchers: Vec::new(),
            sum_over: vec!["interface".to_owned()],
        }
    }

    fn query(metric: &Metric, config: &PrometheusConfig, group: &[String]) -> String {
        metric.query(config, &LabelNames::modern(), ConfigDuration::from_secs(300), group)
    }

    #[test]
    fn parts_are_added_up_after_what_is_read_twice_was_taken_once() {
        let config = PrometheusConfig::default();
        assert_eq!(
            query(&received(), &config, &["shop".to_owned()]),
            r#"sum by (namespace, pod) (max by (namespace, pod, interface) (rate(container_network_receive_bytes_total{namespace="shop", pod=~".+"}[5m])))"#
        );
        let queue = Metric {
            name: "queue_length".to_owned(),
            kind: MetricKind::Gauge,
            scope: SeriesScope::Container,
            matchers: vec![Matcher::parse(r#"queue!~in"out"#).unwrap()],
            sum_over: Vec::new(),
        };
        assert_eq!(
            query(&queue, &config, &[]),
            r#"max by (namespace, pod, container) (queue_length{queue!~"in\"out", pod=~".+", container!="POD", container!=""})"#
        );
    }

    #[test]
    fn a_matcher_of_the_job_stands_for_the_one_of_all_queries() {
        let config = PrometheusConfig { job_name: "kubelet".to_owned(), ..PrometheusConfig::default() };
        assert!(query(&received(), &config, &[]).contains(r#"{job="kubelet", "#));
        let other = Metric { matchers: vec![Matcher::parse("job=cadvisor").unwrap()], ..received() };
        assert!(query(&other, &config, &[]).contains(r#"{job="cadvisor", pod"#));
    }

    #[test]
    fn a_matcher_is_a_label_an_operator_and_the_rest() {
        for (text, promql) in [
            ("a=b", r#"a="b""#),
            ("a!=b=c", r#"a!="b=c""#),
            ("a=~b|c", r#"a=~"b|c""#),
            ("_a!~/dev/dm-.*", r#"_a!~"/dev/dm-.*""#),
            (r"a=~\d", r#"a=~"\\d""#),
            ("a=", r#"a="""#),
        ] {
            assert_eq!(Matcher::parse(text).unwrap().to_string(), promql);
        }
        for text in ["", "a", "=b", "a!b", "a b=c", "1=b", "a=\"b\"", "a='b'", "a=b\n", "a}or up{b=c", "ä=b"]
        {
            assert!(Matcher::parse(text).is_err(), "{text}");
        }
    }
}
