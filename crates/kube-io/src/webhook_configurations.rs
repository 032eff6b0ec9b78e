//! The webhook configurations of berth itself, parts of which it writes: the CA, the secret path, and the failure policy.

use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};
use kube::api::{DynamicObject, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::Interner;
use crate::convert::selector_or_nothing;
use crate::lean::LeanLabelSelector;
use berth_config::Serving;
use berth_model::{LabelSelector, with_causes};

const GROUP: &str = "admissionregistration.k8s.io";
/// Minimum interval between identical warnings.
const WARN_EVERY: Duration = Duration::from_secs(300);

/// A webhook configuration that is berth's own.
#[derive(Clone)]
pub struct WebhookConfiguration {
    api: Api<DynamicObject>,
    kind: &'static str,
    name: String,
    /// The setting that names it.
    setting: &'static str,
}

impl WebhookConfiguration {
    /// Returns the ValidatingWebhookConfiguration of the guard, if it is named.
    pub fn validating(client: &Client, serving: &Serving) -> Option<Self> {
        let (kind, plural) = ("ValidatingWebhookConfiguration", "validatingwebhookconfigurations");
        Self::new(client, (kind, plural), &serving.webhook_configuration, "serving.webhookConfiguration")
    }

    /// Returns the MutatingWebhookConfiguration of new pods, if it is named.
    pub fn mutating(client: &Client, serving: &Serving) -> Option<Self> {
        let (kind, plural) = ("MutatingWebhookConfiguration", "mutatingwebhookconfigurations");
        let name = &serving.mutating_webhook_configuration;
        Self::new(client, (kind, plural), name, "serving.mutatingWebhookConfiguration")
    }

    fn new(
        client: &Client,
        (kind, plural): (&'static str, &str),
        name: &str,
        setting: &'static str,
    ) -> Option<Self> {
        if name.is_empty() {
            return None;
        }
        let resource = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(GROUP, "v1", kind), plural);
        let api = Api::all_with(client.clone(), &resource);
        Some(WebhookConfiguration { api, kind, name: name.to_owned(), setting })
    }

    /// Merges into each webhook what `change` returns for it. `what`: the part, for messages.
    ///
    /// # Errors
    /// Why it could not be read or written, and what to do.
    pub async fn write(&self, what: &str, change: impl Fn(&Value) -> Option<Value>) -> Result<()> {
        let WebhookConfiguration { api, kind, name, setting } = self;
        let explain = |error: kube::Error| {
            anyhow!(
                "cannot update the {what} of the {kind} {name}: check that berth's service account may get and patch it: {}",
                with_causes(&error)
            )
        };
        let Some(found) = api.get_opt(name).await.map_err(explain)? else {
            bail!("{kind} {name} not found: create it, or remove {setting}");
        };
        let all = found.data["webhooks"].as_array().map_or(&[][..], Vec::as_slice);
        let changes = all.iter().filter_map(|webhook| {
            let mut change = change(webhook)?;
            change["name"] = webhook["name"].clone();
            Some(change)
        });
        let changes: Vec<Value> = changes.collect();
        if changes.is_empty() {
            return Ok(());
        }
        let count = changes.len();
        // With the resource version: after a concurrent change, the next round reads the configuration again.
        let patch =
            json!({"metadata": {"resourceVersion": found.metadata.resource_version}, "webhooks": changes});
        api.patch(name, &PatchParams::default(), &Patch::Strategic(patch)).await.map_err(explain)?;
        tracing::info!(kind, configuration = name, webhooks = count, "wrote the {what}");
        Ok(())
    }

    /// Returns the selectors of the namespaces whose objects the webhooks see: those that one of them matches.
    ///
    /// # Errors
    /// Why it could not be read, and what to do.
    pub async fn namespaces(&self) -> Result<Vec<LabelSelector>> {
        let WebhookConfiguration { api, kind, name, .. } = self;
        let found = api.get_opt(name).await.map_err(|error| {
            anyhow!(
                "cannot read the {kind} {name}: check that berth's service account may get it: {}",
                with_causes(&error)
            )
        })?;
        let webhooks = found.as_ref().and_then(|found| found.data["webhooks"].as_array());
        Ok(webhooks.into_iter().flatten().map(namespaces_of).collect())
    }

    /// Sets what the API server does while no replica answers: `Fail` or `Ignore`.
    ///
    /// # Errors
    /// As [`WebhookConfiguration::write`].
    pub async fn set_failure_policy(&self, policy: &str) -> Result<()> {
        let change =
            |webhook: &Value| (webhook["failurePolicy"] != policy).then(|| json!({"failurePolicy": policy}));
        self.write("failurePolicy", change).await
    }
}

/// Returns the selector of the namespaces that a webhook sees. Without one, it sees all.
fn namespaces_of(webhook: &Value) -> LabelSelector {
    match serde_json::from_value::<Option<LeanLabelSelector>>(webhook["namespaceSelector"].clone()) {
        Ok(lean) => selector_or_nothing(Some(&lean.unwrap_or_default()), &mut Interner::default()),
        Err(_) => LabelSelector::Nothing,
    }
}

/// Warnings of work that is retried: each error is told at once, and again every five minutes.
#[derive(Default)]
pub struct RetryWarnings(Option<(String, Instant)>);

impl RetryWarnings {
    /// Warns that `what` fails and is retried.
    pub fn warn(&mut self, what: &str, error: &anyhow::Error) {
        let (text, now) = (format!("{error:#}"), Instant::now());
        if self.0.as_ref().is_none_or(|(last, at)| *last != text || now - *at >= WARN_EVERY) {
            tracing::warn!(error = text, "{what}, retrying");
            self.0 = Some((text, now));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_webhook_sees_the_namespaces_of_its_selector_and_all_without_one() {
        let sees = |webhook: Value, labels: &[(&'static str, &'static str)]| {
            namespaces_of(&webhook).matches(&labels.iter().copied().collect())
        };
        for all in [json!({}), json!({"namespaceSelector": null}), json!({"namespaceSelector": {}})] {
            assert!(sees(all.clone(), &[]) && sees(all, &[("team", "a")]));
        }
        let not = json!({"key": "team", "operator": "NotIn", "values": ["a"]});
        let selector =
            json!({"namespaceSelector": {"matchLabels": {"vpa": "on"}, "matchExpressions": [not]}});
        assert!(sees(selector.clone(), &[("vpa", "on"), ("team", "b")]));
        for labels in [&[("vpa", "on"), ("team", "a")][..], &[("team", "b")], &[]] {
            assert!(!sees(selector.clone(), labels), "{labels:?}");
        }
        // What is not understood selects nothing: no pod is evicted.
        let unknown = json!({"namespaceSelector": {"matchExpressions": [{"key": "x", "operator": "Like"}]}});
        assert!(!sees(unknown, &[("x", "y")]));
    }
}
