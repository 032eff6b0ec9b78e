//! The secret path of berth's admission webhooks.
//!
//! API servers present no certificate to a webhook unless their administrator has configured one, so berth cannot
//! authenticate them. Instead the path in the webhook configuration ends with a random token, which only those can know
//! who may read webhook configurations or the Secret in which the replicas share it. It is renewed every thirty days:
//! all replicas accept the next one before the API server learns of it, and the previous one for a while after.

mod plan;

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, anyhow};
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::Client;
use serde_json::{Value, json};

use super::shared_secret::{Renewal, SharedSecret};
use super::webhook_configurations::{RetryWarnings, WebhookConfiguration};
use berth_config::Serving;
use plan::renewed;
pub use plan::{FOLLOW_EVERY, Tokens};

/// Pause after a failure.
const RETRY: Duration = Duration::from_secs(2);
/// Keys of the Secret.
const KEYS: [&str; 3] = ["token", "token.next", "token.previous"];
/// Annotation of the Secret with the time of its last change.
const CHANGED: &str = "berth.dev/changed";

/// Keeps the tokens in a Secret, tells the server about them, and writes the path into the webhook configurations.
pub struct WebhookPaths {
    secret: SharedSecret,
    /// With their paths without a token.
    webhooks: Vec<(WebhookConfiguration, &'static str)>,
    warnings: RetryWarnings,
}

impl WebhookPaths {
    /// Uses `serving.webhookSecret` in this namespace and the webhook configurations that `serving` names; `guard` and
    /// `mutate` are the paths without a token.
    pub fn new(
        client: Client,
        namespace: &str,
        serving: &Serving,
        guard: &'static str,
        mutate: &'static str,
    ) -> Self {
        let webhooks = [
            (WebhookConfiguration::validating(&client, serving), guard),
            (WebhookConfiguration::mutating(&client, serving), mutate),
        ];
        WebhookPaths {
            secret: SharedSecret::new(
                client,
                namespace,
                &serving.webhook_secret,
                ("serving.webhookSecret", "Opaque"),
            ),
            webhooks: webhooks.into_iter().filter_map(|(webhook, path)| Some((webhook?, path))).collect(),
            warnings: RetryWarnings::default(),
        }
    }

    /// Calls `accept` with the tokens after each round. Never returns.
    pub async fn follow(mut self, every: Duration, accept: impl Fn(&Tokens)) {
        loop {
            let pause = match self.round(&accept).await {
                Ok(()) => every,
                Err(error) => {
                    self.warnings.warn("cannot keep the path of the webhooks", &error);
                    every.min(RETRY)
                }
            };
            tokio::time::sleep(pause).await;
        }
    }

    async fn round(&self, accept: impl Fn(&Tokens)) -> Result<()> {
        let tokens = self.keep(Timestamp::now()).await?;
        accept(&tokens);
        let mut told = Ok(());
        for (configuration, path) in &self.webhooks {
            let path = format!("{path}/{}", tokens.current);
            let change = |webhook: &Value| {
                let config = with_path(&webhook["clientConfig"], &path)?;
                Some(json!({"clientConfig": config}))
            };
            told = told.and(configuration.write("path", change).await);
        }
        told
    }

    /// Renews what is due and returns the tokens of the Secret.
    async fn keep(&self, now: Timestamp) -> Result<Tokens> {
        let renew = |secret: Secret| {
            let tokens = tokens_in(&secret);
            let renewed = renewed(&tokens, now, random_token);
            Ok(match renewed.map_err(|_| anyhow!("the system has no random numbers"))? {
                None => Renewal::Keep(tokens),
                Some(tokens) => {
                    let secret = with(secret, &tokens);
                    Renewal::Write(tokens, secret.into())
                }
            })
        };
        self.secret.keep(renew).await
    }
}

/// Returns 256 random bits in hexadecimal.
///
/// # Errors
/// The system has no random numbers.
pub fn random_token() -> Result<String, ring::error::Unspecified> {
    let bytes: [u8; 32] = ring::rand::generate(&ring::rand::SystemRandom::new())?.expose();
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Returns the part of a `clientConfig` that changes for this path; `None`: it has it.
fn with_path(config: &Value, path: &str) -> Option<Value> {
    let Some(url) = config["url"].as_str() else {
        return (config["service"]["path"] != path).then(|| json!({"service": {"path": path}}));
    };
    let host = url.strip_prefix("https://")?.split('/').next()?;
    let wanted = format!("https://{host}{path}");
    (url != wanted).then(|| json!({"url": wanted}))
}

fn tokens_in(secret: &Secret) -> Tokens {
    let value = |key: &str| {
        let value = secret.data.as_ref().and_then(|data| data.get(key))?;
        String::from_utf8(value.0.clone()).ok()
    };
    let [current, next, previous] = KEYS.map(value);
    let changed = secret.metadata.annotations.as_ref().and_then(|all| all.get(CHANGED)?.parse().ok());
    Tokens { current: current.unwrap_or_default(), next, previous, changed }
}

/// Sets berth's keys in the Secret; other keys stay.
fn with(mut secret: Secret, tokens: &Tokens) -> Secret {
    let data: &mut BTreeMap<_, _> = secret.data.get_or_insert_default();
    let values = [Some(&tokens.current), tokens.next.as_ref(), tokens.previous.as_ref()];
    for (key, value) in KEYS.into_iter().zip(values) {
        match value {
            Some(value) => data.insert(key.to_owned(), ByteString(value.as_bytes().to_vec())),
            None => data.remove(key),
        };
    }
    let changed = tokens.changed.map(|at| (CHANGED.to_owned(), at.to_string()));
    secret.metadata.annotations.get_or_insert_default().extend(changed);
    secret
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_is_set_in_urls_and_services_and_nothing_else_is_changed() {
        let service = json!({"service": {"name": "berth", "namespace": "berth-system", "port": 443}});
        assert_eq!(with_path(&service, "/guard/t"), Some(json!({"service": {"path": "/guard/t"}})));
        assert_eq!(with_path(&json!({"service": {"path": "/guard/t"}}), "/guard/t"), None);
        let url = json!({"url": "https://127.0.0.1:8443/guard"});
        assert_eq!(with_path(&url, "/guard/t"), Some(json!({"url": "https://127.0.0.1:8443/guard/t"})));
        assert_eq!(with_path(&json!({"url": "https://127.0.0.1:8443/guard/t"}), "/guard/t"), None);
    }

    #[test]
    fn a_secret_keeps_the_tokens_and_what_others_have_put_there() {
        let tokens = Tokens {
            current: "a".repeat(64),
            next: Some("b".repeat(64)),
            previous: None,
            changed: Some(Timestamp::UNIX_EPOCH),
        };
        let mut secret = Secret::default();
        secret.data.get_or_insert_default().insert("theirs".to_owned(), ByteString(vec![1]));
        let secret = with(secret, &tokens);
        assert_eq!(tokens_in(&secret), tokens);
        let secret = with(secret, &Tokens { next: None, ..tokens.clone() });
        assert_eq!(tokens_in(&secret).next, None);
        assert!(secret.data.is_some_and(|data| data.contains_key("theirs")));
    }

    #[test]
    fn tokens_are_long_and_never_the_same() {
        let [one, other] = [random_token(), random_token()].map(|token| token.expect("random bits"));
        assert_eq!((one.len(), one == other), (64, false));
    }
}
