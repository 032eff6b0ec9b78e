//! Self-issued serving certificates, shared by the replicas in a Secret.
//!
//! Each replica polls the Secret, serves its certificate, and renews it when due. The resource version makes sure that only one
//! replica's write succeeds; the other replicas read that result.

mod issue;
mod plan;
mod read;

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::webhook_configurations::{RetryWarnings, WebhookConfiguration};
use berth_config::Serving;
use berth_model::with_causes;
pub use issue::{Authority, Issued};
use plan::{Kept, Plan, plan, renewed};
pub use read::{Certificate, certificates_of};

/// Poll interval of the Secret.
pub const FOLLOW_EVERY: Duration = Duration::from_secs(30);
/// Maximum attempts per round when other replicas write at the same time.
const WRITE_TRIES: usize = 5;
/// Pause after a failure.
const RETRY: Duration = Duration::from_secs(2);
/// Keys of the Secret: the first three are conventional, the last is specific to berth.
const KEYS: [&str; 4] = ["tls.crt", "tls.key", "ca.crt", "ca.key"];

/// Rotates the certificates in a Secret and passes them to the server.
pub struct Rotation {
    secrets: Api<Secret>,
    namespace: String,
    secret: String,
    webhooks: Vec<WebhookConfiguration>,
    names: Vec<String>,
    warnings: RetryWarnings,
}

impl Rotation {
    /// Uses `serving.secret` in this namespace, `serving.webhookConfiguration` and `serving.mutatingWebhookConfiguration`.
    pub fn new(client: Client, namespace: &str, serving: &Serving) -> Rotation {
        Rotation {
            secrets: Api::namespaced(client.clone(), namespace),
            namespace: namespace.to_owned(),
            secret: serving.secret.clone(),
            webhooks: [
                WebhookConfiguration::validating(&client, serving),
                WebhookConfiguration::mutating(&client, serving),
            ]
            .into_iter()
            .flatten()
            .collect(),
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
            tracing::info!(secret = self.secret, expires, "serving HTTPS with the certificate of the Secret");
            *shown = Some(kept.issued.clone());
        }
        self.write_ca_bundles(&kept.issued.authorities).await
    }

    /// Renews what is due and returns the content of the Secret.
    async fn keep(&self, now: Timestamp) -> Result<Kept> {
        for _ in 0..WRITE_TRIES {
            let found = self.secrets.get_opt(&self.secret).await;
            let found = found.map_err(|error| self.explained("read", &error))?;
            let kept = kept_in(found.as_ref());
            let plan = plan(&kept, &self.names, now);
            if plan == Plan::Keep {
                return Ok(kept);
            }
            let kept = renewed(&kept, &plan, &self.names, now)
                .context("cannot issue a certificate: check serving.names")?;
            match self.write(found, &kept).await {
                Ok(_) => {
                    tracing::info!(secret = self.secret, ?plan, "renewed the HTTPS certificates");
                    return Ok(kept);
                }
                // Another replica wrote first: read its result.
                Err(kube::Error::Api(status)) if [404, 409].contains(&status.code) => {}
                Err(error) => return Err(self.explained("written", &error)),
            }
        }
        bail!(
            "the Secret {}/{} of serving.secret was changed by another client on every attempt",
            self.namespace,
            self.secret
        )
    }

    /// Creates or replaces the Secret, unless it changed since it was read.
    async fn write(&self, found: Option<Secret>, kept: &Kept) -> kube::Result<Secret> {
        let params = PostParams::default();
        match found {
            Some(secret) => self.secrets.replace(&self.secret, &params, &with(secret, kept)).await,
            None => self.secrets.create(&params, &with(self.new_secret(), kept)).await,
        }
    }

    fn new_secret(&self) -> Secret {
        let metadata = ObjectMeta { name: Some(self.secret.clone()), ..ObjectMeta::default() };
        Secret { metadata, type_: Some("kubernetes.io/tls".to_owned()), ..Secret::default() }
    }

    fn explained(&self, what: &str, error: &kube::Error) -> anyhow::Error {
        let (namespace, name) = (&self.namespace, &self.secret);
        let hint = match error {
            kube::Error::Api(status) if status.is_forbidden() => {
                ": berth's service account may get and update it, and create Secrets, only with the Role of the chart"
            }
            _ => "",
        };
        anyhow::anyhow!(
            "the Secret {namespace}/{name} of serving.secret cannot be {what}{hint}: {}",
            with_causes(error)
        )
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

fn kept_in(secret: Option<&Secret>) -> Kept {
    let data = secret.and_then(|secret| secret.data.as_ref());
    let text = |key: &str| {
        let bytes = data.and_then(|data| data.get(key)).map(|value| value.0.clone()).unwrap_or_default();
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
