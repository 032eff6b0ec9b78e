//! Labels of workloads, as kube-state-metrics exports them, and selectors of workloads by them.

use std::str::FromStr;

use jiff::Timestamp;

use super::config::{LabelNames, PrometheusConfig};
use super::error::SourceError;
use super::query::{QueriedNamespaces, extra_matchers, literal, namespace_matcher, quoted};
use super::source::{PrometheusSource, ReadSummary};

/// A kind of workloads whose labels kube-state-metrics can export.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LabelledKind {
    /// Such as `Deployment`.
    pub kind: &'static str,
    /// The resource, as in `--metric-labels-allowlist` of kube-state-metrics.
    pub resource: &'static str,
    metric: &'static str,
    /// Label of the metric with the name of the workload.
    name: &'static str,
}

impl LabelledKind {
    const ALL: [LabelledKind; 7] = [
        Self::new("Deployment", "deployments", "kube_deployment_labels", "deployment"),
        Self::new("StatefulSet", "statefulsets", "kube_statefulset_labels", "statefulset"),
        Self::new("DaemonSet", "daemonsets", "kube_daemonset_labels", "daemonset"),
        Self::new("ReplicaSet", "replicasets", "kube_replicaset_labels", "replicaset"),
        Self::new("CronJob", "cronjobs", "kube_cronjob_labels", "cronjob"),
        Self::new("Job", "jobs", "kube_job_labels", "job_name"),
        Self::new("Pod", "pods", "kube_pod_labels", "pod"),
    ];

    const fn new(
        kind: &'static str,
        resource: &'static str,
        metric: &'static str,
        name: &'static str,
    ) -> Self {
        Self { kind, resource, metric, name }
    }

    /// Returns the kind of this name, if kube-state-metrics knows its labels.
    pub fn of(kind: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|each| each.kind == kind)
    }
}

/// A label selector as `kubectl get --selector` takes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkloadSelector {
    requirements: Vec<LabelRequirement>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct LabelRequirement {
    key: String,
    /// Operator and value of PromQL.
    matcher: String,
}

/// A string that is no label selector.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}; use label selectors as kubectl does, such as team=a,tier!=web or 'team in (a, b)'")]
pub struct SelectorError(String);

impl FromStr for WorkloadSelector {
    type Err = SelectorError;

    fn from_str(text: &str) -> Result<Self, SelectorError> {
        let requirements = parts(text).into_iter().map(LabelRequirement::parse).collect::<Result<_, _>>()?;
        Ok(Self { requirements })
    }
}

/// Splits at the commas that are not in parentheses.
fn parts(text: &str) -> Vec<&str> {
    let mut depth = 0_i32;
    let at_comma = |c: char| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        c == ',' && depth <= 0
    };
    text.split(at_comma).map(str::trim).collect()
}

impl LabelRequirement {
    fn parse(text: &str) -> Result<Self, SelectorError> {
        let one = |key: &str, operator: &str, value: &str| {
            let value = label_value(value.trim())?;
            Ok(Self { key: label_key(key)?, matcher: format!("{operator}{}", quoted(value)) })
        };
        if let Some(key) = text.strip_prefix('!') {
            return Ok(Self { key: label_key(key)?, matcher: r#"="""#.to_owned() });
        }
        for (sign, operator) in [("!=", "!="), ("==", "="), ("=", "=")] {
            if let Some((key, value)) = text.split_once(sign) {
                return one(key, operator, value);
            }
        }
        for (word, operator) in [(" notin ", "!~"), (" in ", "=~")] {
            if let Some((key, values)) = text.split_once(word) {
                let values = values.trim().strip_prefix('(').and_then(|values| values.strip_suffix(')'));
                let values =
                    values.ok_or_else(|| SelectorError(format!("`{}` has no (list)", shown(text))))?;
                let values: Vec<String> = values
                    .split(',')
                    .map(|value| Ok(literal(label_value(value.trim())?)))
                    .collect::<Result<_, SelectorError>>()?;
                return Ok(Self {
                    key: label_key(key)?,
                    matcher: format!("{operator}{}", quoted(&values.join("|"))),
                });
            }
        }
        Ok(Self { key: label_key(text)?, matcher: r#"!="""#.to_owned() })
    }
}

fn shown(text: &str) -> String {
    text.escape_debug().take(80).collect()
}

/// Checks the key of a label: a name, and perhaps a domain before it.
fn label_key(text: &str) -> Result<String, SelectorError> {
    let text = text.trim();
    let is_key = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
    match (1..=317).contains(&text.len()) && text.chars().all(is_key) {
        true => Ok(text.to_owned()),
        false => Err(SelectorError(format!("`{}` is not the key of a label", shown(text)))),
    }
}

/// Checks the value of a label. Prometheus has no empty values: such a label is as none.
fn label_value(text: &str) -> Result<&str, SelectorError> {
    let is_value = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    match (1..=63).contains(&text.len()) && text.chars().all(is_value) {
        true => Ok(text),
        false => Err(SelectorError(format!("`{}` is not the value of a label, or is empty", shown(text)))),
    }
}

/// Returns the label that kube-state-metrics exports for a label of Kubernetes: `appName` and `app-name` become `label_app_name`.
fn exported(key: &str) -> String {
    let mut name = "label_".to_owned();
    let mut before = '_';
    for c in key.chars() {
        if c.is_ascii_uppercase() && (before.is_ascii_lowercase() || before.is_ascii_digit()) {
            name.push('_');
        }
        name.push(if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' });
        before = c;
    }
    name
}

impl WorkloadSelector {
    /// Returns the keys of all its labels.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.requirements.iter().map(|requirement| &*requirement.key)
    }

    /// Queries the workloads of a kind that it selects now.
    fn query(&self, kind: LabelledKind, config: &PrometheusConfig, group: &[String]) -> String {
        let LabelledKind { metric, name, .. } = kind;
        let (extra, names) = (extra_matchers(config), namespace_matcher("namespace", group));
        let matcher = |one: &LabelRequirement| format!("{}{}", exported(&one.key), one.matcher);
        let own: Vec<String> = self.requirements.iter().map(matcher).collect();
        format!("max by (namespace, {name}) ({metric}{{{extra}{names}{}}})", own.join(", "))
    }
}

impl PrometheusSource {
    /// Passes namespace and name of every workload of this kind that the selector selects now to `sink`.
    ///
    /// # Errors
    /// Why not everything could be read. Results before the error have been passed on.
    pub async fn selected(
        &self,
        kind: LabelledKind,
        selector: &WorkloadSelector,
        namespaces: QueriedNamespaces<'_>,
        now: Timestamp,
        mut sink: impl FnMut(&str, &str) + Send,
    ) -> Result<ReadSummary, SourceError> {
        let labels =
            LabelNames { namespace: "namespace".into(), pod: kind.name.into(), container: String::new() };
        let query = |group: &[String]| selector.query(kind, self.config(), group);
        self.in_groups(query, labels, namespaces, now, |series| sink(series.namespace, series.pod)).await
    }

    /// Returns whether any workload of this kind has this label now, as far as kube-state-metrics exports it.
    ///
    /// # Errors
    /// The query failed.
    pub async fn has_label(
        &self,
        kind: LabelledKind,
        key: &str,
        now: Timestamp,
    ) -> Result<bool, SourceError> {
        let extra = extra_matchers(self.client().config());
        let query = format!(r#"count({}{{{extra}{}!=""}})"#, kind.metric, exported(key));
        self.client().has_result(&query, now.as_second()).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(selector: &str) -> Result<String, String> {
        let deployment = LabelledKind::of("Deployment").expect("a kind");
        let selector: WorkloadSelector =
            selector.parse().map_err(|error: SelectorError| error.to_string())?;
        Ok(selector.query(deployment, &PrometheusConfig::default(), &["shop".to_owned()]))
    }

    #[test]
    fn a_selector_of_kubectl_becomes_matchers_of_the_exported_labels() {
        for (selector, matchers) in [
            ("team=a", r#"label_team="a""#),
            ("team==a", r#"label_team="a""#),
            ("team != a", r#"label_team!="a""#),
            ("app.kubernetes.io/name=web", r#"label_app_kubernetes_io_name="web""#),
            ("teamName", r#"label_team_name!="""#),
            ("!team", r#"label_team="""#),
            ("team in (a, b.c),tier notin (x)", r#"label_team=~"a|b\\.c", label_tier!~"x""#),
        ] {
            let expected = format!(
                r#"max by (namespace, deployment) (kube_deployment_labels{{namespace="shop", {matchers}}})"#
            );
            assert_eq!(query(selector), Ok(expected), "{selector}");
        }
    }

    #[test]
    fn what_is_no_selector_is_refused_with_an_example() {
        for wrong in [
            "",
            "a,",
            "team=",
            "team=a b",
            "te\"am=a",
            "team in a",
            "team in ()",
            "team in (a",
            "=a",
            "a=b=c",
        ] {
            let problem = query(wrong).expect_err(wrong);
            assert!(problem.contains("team=a,tier!=web"), "{problem}");
        }
    }
}
