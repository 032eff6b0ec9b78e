//! Namespaces that the recommender processes, and namespaces where it creates VPAs.

use berth_model::InvalidField;
use berth_model::names::{is_dns_label, is_qualified_name};
use berth_model::validate::refuse;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Recommender;

/// Creates VPAs in mode `Off` for all workloads of the namespaces that request it, as Goldilocks does. A VPA
/// is deleted when its namespace no longer requests it, or when there is another VPA for the workload. VPAs
/// edited by a user are never deleted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct AutoCreate {
    /// Create VPAs. Created VPAs stay when this is disabled.
    pub enabled: bool,
    /// Label of the namespaces that request VPAs, with the value `true`. A workload with this label set to
    /// `false` gets none.
    #[schemars(length(min = 1, max = 317))]
    pub label: String,
}

impl Default for AutoCreate {
    fn default() -> Self {
        Self { enabled: false, label: "berth.dev/recommend".to_owned() }
    }
}

pub(super) fn validate(config: &Recommender) -> Result<(), InvalidField> {
    for (field, names) in [
        ("recommender.namespaces", &config.namespaces),
        ("recommender.ignoredNamespaces", &config.ignored_namespaces),
    ] {
        if let Some(name) = names.iter().find(|name| !is_dns_label(name)) {
            return refuse(field, format!("`{name}` is not a valid namespace name"));
        }
    }
    if !config.namespaces.is_empty() && !config.ignored_namespaces.is_empty() {
        return refuse(
            "recommender.ignoredNamespaces",
            "set either namespaces or ignoredNamespaces, not both",
        );
    }
    if !is_label_key(&config.auto_create.label) {
        let label = &config.auto_create.label;
        return refuse(
            "recommender.autoCreate.label",
            format!("`{label}` is not a valid label key, such as berth.dev/recommend"),
        );
    }
    Ok(())
}

fn is_label_key(text: &str) -> bool {
    match text.split_once('/') {
        None => is_qualified_name(text),
        Some((prefix, name)) => {
            prefix.len() <= 253 && prefix.split('.').all(is_dns_label) && is_qualified_name(name)
        }
    }
}

impl Recommender {
    /// Returns whether VPAs of this namespace are processed.
    pub fn covers(&self, namespace: &str) -> bool {
        let is_in = |names: &[String]| names.iter().any(|name| name == namespace);
        (self.namespaces.is_empty() || is_in(&self.namespaces)) && !is_in(&self.ignored_namespaces)
    }

    /// Returns the namespaces to list, one list request each; `None`: one list of all namespaces.
    pub fn lists(&self) -> impl Iterator<Item = Option<&str>> {
        let all = self.namespaces.is_empty().then_some(None);
        all.into_iter().chain(self.namespaces.iter().map(|name| Some(name.as_str())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_namespaces_that_are_named_are_covered_and_never_ignored_ones() {
        let all = Recommender::default();
        assert!(all.covers("shop"));
        assert_eq!(all.lists().collect::<Vec<_>>(), [None]);
        let some = Recommender { namespaces: vec!["shop".into(), "bank".into()], ..Recommender::default() };
        assert!(some.covers("bank") && !some.covers("kube-system"));
        assert_eq!(some.lists().collect::<Vec<_>>(), [Some("shop"), Some("bank")]);
        let ignoring =
            Recommender { ignored_namespaces: vec!["kube-system".into()], ..Recommender::default() };
        assert!(ignoring.covers("shop") && !ignoring.covers("kube-system"));
    }

    #[test]
    fn names_that_cannot_be_and_both_lists_together_are_refused() {
        let refused = |change: fn(&mut Recommender)| {
            let mut config = Recommender::default();
            change(&mut config);
            validate(&config).unwrap_err().field
        };
        assert_eq!(refused(|it| it.namespaces = vec!["Shop".into()]), "recommender.namespaces");
        assert_eq!(refused(|it| it.ignored_namespaces = vec!["a/b".into()]), "recommender.ignoredNamespaces");
        assert_eq!(
            refused(|it| {
                (it.namespaces, it.ignored_namespaces) = (vec!["a".into()], vec!["b".into()]);
            }),
            "recommender.ignoredNamespaces"
        );
        for label in ["", "a b", "a/b/c", "/x", "Upper.dev/x", "x&y=z"] {
            let auto_create = AutoCreate { label: label.into(), ..AutoCreate::default() };
            assert!(validate(&Recommender { auto_create, ..Recommender::default() }).is_err(), "{label}");
        }
        for label in ["recommend", "berth.dev/recommend"] {
            let auto_create = AutoCreate { label: label.into(), ..AutoCreate::default() };
            assert_eq!(validate(&Recommender { auto_create, ..Recommender::default() }), Ok(()), "{label}");
        }
    }
}
