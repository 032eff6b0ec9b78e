//! Self-issued serving certificates, shared by the replicas in a Secret.
//!
//! Each replica polls the Secret, serves its certificate, and renews it when due. The resource version makes sure that only one
//! replica's write succeeds; the other replicas read that result.

mod issue;
mod plan;
mod read;

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result};
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::Client;
use serde_json::{Value, json};

use super::shared_secret::{Renewal, SharedSecret};
use super::webhook_configurations::{RetryWarnings, WebhookConfiguration};
use berth_config::Serving;
pub use issue::{Authority, Issued};
use plan::{Kept, Plan, plan, renewed};
pub use read::{Certificate, certificates_of};

/// Poll interval of the Secret.
pub const FOLLOW_EVERY: Duration = Duration::from_secs(30);
/// Pause after a failure.
const RETRY: Duration = Duration::from_secs(2);
/// Keys of the Secret: the first three are conventional, the last is specific to berth.
const KEYS: [&str; 4] = ["tls.crt", "tls.key", "ca.crt", "ca.key"];

/// Rotates the certificates in a Secret and passes them to the server.
pub struct Rotation {
    secret: SharedSecret,
    webhooks: Vec<WebhookConfiguration>,
    names: Vec<String>,
    warnings: RetryWarnings,
}

impl Rotation {
    /// Uses `serving.secret` in this namespace, `serving.webhookConfiguration` and `serving.mutatingWebhookConfiguration`.
    pub fn new(client: Client, namespace: &str, serving: &Serving) -> Rotation {
        let webhooks = [
            WebhookConfiguration::validating(&client, serving),
            WebhookConfiguration::mutating(&client, serving),
        ];
        Rotation {
            webhooks: webhooks.into_iter().flatten().collect(),
            secret: SharedSecret::new(
                client,
                namespace,
                &serving.secret,
                ("serving.secret", "kubernetes.io/tls"),
            ),
            names: serving.names.clone(),
            warnings: RetryWarnings::default(),
        }
    }

    /// Calls `install` with the first certificate and with every new one. Never returns.
    pub async fn follow(mut self, every: Duration, install: impl Fn(&Issued) -> Result<()>) {
        let mut shown = None;
        loop {
            let pause = match self.round(&mut shown, &install).await {
                Ok(()) => every,
                Err(error) => {
                    self.warnings.warn("certificate rotation failed", &error);
                    every.min(RETRY)
                }
            };
            tokio::time::sleep(pause).await;
        }
    }

    async fn round(&self, shown: &mut Option<Issued>, install: impl Fn(&Issued) -> Result<()>) -> Result<()> {
        let kept = self.keep(Timestamp::now()).await?;
        if shown.as_ref() != Some(&kept.issued) {
            install(&kept.issued)?;
            let expires =
                certificates_of(&kept.issued.certificate).first().map(|it| it.not_after.to_string());
            tracing::info!(
                secret = self.secret.name,
                expires,
                "serving HTTPS with the certificate of the Secret"
            );
            *shown = Some(kept.issued.clone());
        }
        self.write_ca_bundles(&kept.issued.authorities).await
    }

    /// Renews what is due and returns the content of the Secret.
    async fn keep(&self, now: Timestamp) -> Result<Kept> {
        let renew = |secret: Secret| {
            let kept = kept_in(&secret);
            let plan = plan(&kept, &self.names, now);
            if plan == Plan::Keep {
                return Ok(Renewal::Keep(kept));
            }
            let kept = renewed(&kept, &plan, &self.names, now)
                .context("cannot issue a certificate: check serving.names")?;
            tracing::info!(secret = self.secret.name, ?plan, "renewing the HTTPS certificates");
            let secret = with(secret, &kept);
            Ok(Renewal::Write(kept, secret.into()))
        };
        self.secret.keep(renew).await
    }

    /// Writes `authorities` into the `caBundle`s of the webhook configurations.
    async fn write_ca_bundles(&self, authorities: &str) -> Result<()> {
        let bundle = json!(ByteString(authorities.as_bytes().to_vec()));
        let change = |webhook: &Value| {
            let is_other = webhook["clientConfig"]["caBundle"] != bundle;
            is_other.then(|| json!({"clientConfig": {"caBundle": bundle}}))
        };
        let mut told = Ok(());
        for configuration in &self.webhooks {
            told = told.and(configuration.write("caBundle", change).await);
        }
        told
    }
}

fn kept_in(secret: &Secret) -> Kept {
    let text = |key: &str| {
        let bytes = secret
            .data
            .as_ref()
            .and_then(|data| data.get(key))
            .map(|value| value.0.clone())
            .unwrap_or_default();
        String::from_utf8(bytes).unwrap_or_default()
    };
    let [certificate, key, authorities, authority_key] = KEYS.map(text);
    Kept { issued: Issued { certificate, key, authorities }, authority_key }
}

/// Sets berth's keys in the Secret; other keys stay.
fn with(mut secret: Secret, kept: &Kept) -> Secret {
    let data: &mut BTreeMap<_, _> = secret.data.get_or_insert_default();
    let values = [&kept.issued.certificate, &kept.issued.key, &kept.issued.authorities, &kept.authority_key];
    for (key, value) in KEYS.into_iter().zip(values) {
        data.insert(key.to_owned(), ByteString(value.as_bytes().to_vec()));
    }
    secret
}
