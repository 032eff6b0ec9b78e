//! Servers of berth: HTTPS, the extender of kube-scheduler, and the guard (admission webhook of bindings).

use berth_model::validate::{MILLISECOND, SECOND, lasts, refuse, whole_number, within};
use berth_model::{ConfigDuration, InvalidField};
use std::net::SocketAddr;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Config;
use super::values::{names, optional_socket_address};

/// The HTTPS server: `/metrics`, `/explain` and `/fragmentation`, and with the features below `/extender/…`,
/// `/guard` and `/mutate-pods`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Serving {
    /// Address and port of HTTPS. Unset: HTTPS is off. In a pod it must be `0.0.0.0:PORT` or `[::]:PORT`.
    #[serde(deserialize_with = "optional_socket_address")]
    #[schemars(with = "Option<String>", regex(pattern = r"^([0-9.]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}$"))]
    pub address: Option<SocketAddr>,
    /// PEM file of the certificate, with the chain that leads to its CA. It and `keyFile` are reloaded when
    /// they change. If both are unset, berth issues its own certificate.
    pub cert_file: Option<PathBuf>,
    /// PEM file of the private key of `certFile`.
    pub key_file: Option<PathBuf>,
    /// PEM file of the CA of `certFile`, with which replicas verify each other. If unset, the chain in
    /// `certFile` must contain the CA.
    pub ca_file: Option<PathBuf>,
    /// PEM file of the CAs whose client certificates are accepted. It is reloaded when it changes.
    pub client_ca_file: Option<PathBuf>,
    /// DNS names, besides `localhost`, of the certificate that berth issues.
    #[serde(deserialize_with = "names")]
    pub names: Vec<String>,
    /// Secret, in the namespace of the Lease, in which the replicas share the CA and the certificate that
    /// berth issues. Empty: each process has its own, in memory.
    #[schemars(regex(pattern = "^([a-z0-9]([a-z0-9.-]*[a-z0-9])?)?$"))]
    pub secret: String,
    /// Secret, in the namespace of the Lease, in which the replicas share the secret end of the path of
    /// `/guard` and `/mutate-pods`. berth creates and renews it, and writes the path into the webhook
    /// configurations below. Empty: everybody who reaches the port may call these webhooks.
    #[schemars(regex(pattern = "^([a-z0-9]([a-z0-9.-]*[a-z0-9])?)?$"))]
    pub webhook_secret: String,
    /// Name of the ValidatingWebhookConfiguration into which berth writes the CA in `secret` and the path in
    /// `webhookSecret`. Empty: none.
    #[schemars(regex(pattern = "^([a-z0-9]([a-z0-9.-]*[a-z0-9])?)?$"))]
    pub webhook_configuration: String,
    /// Name of the MutatingWebhookConfiguration into which berth writes the same. Empty: none.
    #[schemars(regex(pattern = "^([a-z0-9]([a-z0-9.-]*[a-z0-9])?)?$"))]
    pub mutating_webhook_configuration: String,
    /// Maximum number of concurrent connections: a quarter for those on which no request was admitted yet, of
    /// which the oldest is closed for a newer one, a quarter for API servers that call the webhooks, and the rest
    /// for other clients. One address may have a quarter of each.
    #[serde(deserialize_with = "whole_number")]
    #[schemars(range(min = 1, max = 65536))]
    pub max_connections: u32,
    /// Time after the signal to stop during which a process with the extender or a webhook goes on as before,
    /// except that it is not ready: clients need it to go over to other replicas.
    pub shutdown_delay: ConfigDuration,
}

/// berth as an extender of kube-scheduler.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ExtenderConfig {
    /// Serve `/extender/filter`, `/extender/prioritize`, `/extender/preempt` and `/extender/bind`.
    pub enabled: bool,
    /// Also serve the extender in plain HTTP at `healthAddress`, which must be a loopback address: for a
    /// kube-scheduler on the same host or in the same pod. Every process there can then bind pods.
    pub plaintext: bool,
    /// Common names of the client certificates that may call the extender. Any other client needs the verb `post`
    /// on the nonResourceURLs of `/extender`, by RBAC.
    #[serde(deserialize_with = "names")]
    pub clients: Vec<String>,
    /// Maximum size of a request, in bytes. A list of nodes takes 20 KB per node if `nodeCacheCapable` is
    /// false.
    #[serde(deserialize_with = "whole_number")]
    #[schemars(range(min = 1048576, max = 1073741824))]
    pub max_body_bytes: u32,
}

/// The admission webhook that denies bindings that do not fit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct GuardConfig {
    /// Serve `/guard`. A ValidatingWebhookConfiguration must send bindings to it.
    pub enabled: bool,
    /// Besides the secret path, callers need a client certificate of `serving.clientCaFile`, or a token, whose
    /// user has the verb `post` on the nonResourceURL `/guard`. An API server has neither unless it is
    /// configured to.
    pub require_client_certificate: bool,
    /// What the API server does with bindings while no replica answers: `Ignore` allows them, `Fail` refuses
    /// them. berth writes `Fail` into `serving.webhookConfiguration` while it reviews, and `Ignore` when the
    /// last replica stops.
    pub failure_policy: FailurePolicy,
    /// Time before a binding that does not fit is denied: the watch event that frees the capacity may still
    /// arrive. Keep it well below 1 s, the timeout of the API server's call.
    pub patience: ConfigDuration,
    /// Maximum time that an allowed binding keeps its capacity while the pod is neither bound nor deleted. It
    /// must exceed the `--request-timeout` of the API server, after which the binding cannot be written any
    /// more.
    pub hold: ConfigDuration,
}

/// What the API server does with a request that a webhook does not answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum FailurePolicy {
    #[default]
    Ignore,
    Fail,
}

impl FailurePolicy {
    /// Returns its name in the API.
    pub fn name(self) -> &'static str {
        match self {
            FailurePolicy::Ignore => "Ignore",
            FailurePolicy::Fail => "Fail",
        }
    }
}

impl Default for Serving {
    fn default() -> Self {
        Serving {
            address: None,
            cert_file: None,
            key_file: None,
            ca_file: None,
            client_ca_file: None,
            names: Vec::new(),
            secret: String::new(),
            webhook_secret: String::new(),
            webhook_configuration: String::new(),
            mutating_webhook_configuration: String::new(),
            max_connections: 1_024,
            shutdown_delay: ConfigDuration::from_secs(5),
        }
    }
}

impl Default for ExtenderConfig {
    fn default() -> Self {
        ExtenderConfig {
            enabled: false,
            plaintext: false,
            clients: vec!["system:kube-scheduler".to_owned()],
            max_body_bytes: 64 << 20,
        }
    }
}

impl Default for GuardConfig {
    fn default() -> Self {
        GuardConfig {
            enabled: false,
            require_client_certificate: false,
            failure_policy: FailurePolicy::Ignore,
            patience: ConfigDuration::new(std::time::Duration::from_millis(200)),
            hold: ConfigDuration::from_secs(65),
        }
    }
}

/// Validates the three against each other and the rest of the configuration.
pub(super) fn validate(config: &Config) -> Result<(), InvalidField> {
    let (serving, extender, guard) = (&config.serving, &config.extender, &config.guard);
    if serving.cert_file.is_some() != serving.key_file.is_some() {
        return refuse("serving.certFile", "set both certFile and keyFile, or neither");
    }
    if serving.cert_file.is_some() && !serving.secret.is_empty() {
        return refuse("serving.secret", "only for certificates that berth issues: unset it or certFile");
    }
    let has_secret = !(serving.secret.is_empty() && serving.webhook_secret.is_empty());
    for (setting, name) in [
        ("serving.webhookConfiguration", &serving.webhook_configuration),
        ("serving.mutatingWebhookConfiguration", &serving.mutating_webhook_configuration),
    ] {
        if !name.is_empty() && !has_secret {
            return refuse(
                setting,
                "set serving.secret, which keeps the CA, or serving.webhookSecret, which keeps the path",
            );
        }
    }
    within("serving.maxConnections", serving.max_connections, 1..=65_536)?;
    lasts(
        "serving.shutdownDelay",
        serving.shutdown_delay,
        ConfigDuration::from_secs(0)..=ConfigDuration::from_secs(300),
    )?;
    within("extender.maxBodyBytes", extender.max_body_bytes, 1 << 20..=1 << 30)?;
    if extender.enabled && extender.plaintext && !config.health_address.ip().is_loopback() {
        return refuse(
            "extender.plaintext",
            format!(
                "healthAddress {} is reachable from other hosts: use 127.0.0.1 or [::1], or serve HTTPS",
                config.health_address
            ),
        );
    }
    if extender.enabled && !extender.plaintext && serving.address.is_none() {
        return refuse(
            "extender.enabled",
            "set serving.address, or extender.plaintext with a loopback address",
        );
    }
    if extender.enabled && serving.address.is_some() && serving.client_ca_file.is_none() {
        return refuse(
            "extender.enabled",
            "HTTPS callers need client certificates: set serving.clientCaFile",
        );
    }
    if guard.enabled && serving.address.is_none() {
        return refuse("guard.enabled", "the API server calls it over HTTPS: set serving.address");
    }
    if guard.require_client_certificate && serving.client_ca_file.is_none() {
        return refuse("guard.requireClientCertificate", "set serving.clientCaFile");
    }
    lasts("guard.patience", guard.patience, MILLISECOND..=SECOND)?;
    lasts("guard.hold", guard.hold, SECOND..=ConfigDuration::from_secs(600))?;
    if config.leader_election.active_active && !guard.enabled {
        return refuse(
            "leaderElection.activeActive",
            "set guard.enabled: the guard resolves conflicts between replicas",
        );
    }
    Ok(())
}
