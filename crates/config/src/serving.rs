//! What berth serves to others: over TLS, to kube-scheduler (extender), and to the API server (guard).

use berth_model::ConfigDuration;
use berth_model::InvalidField;
use berth_model::validate::MILLISECOND;
use berth_model::validate::SECOND;
use berth_model::validate::lasts;
use berth_model::validate::refuse;
use berth_model::validate::whole_number;
use berth_model::validate::within;
use std::net::SocketAddr;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Config;
use super::values::{names, optional_socket_address};

/// HTTPS: `/metrics`, `/explain` and `/fragmentation`, and with the features below `/extender/…`, `/guard` and `/mutate-pods`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Serving {
    /// Address and port of HTTPS; without it there is none. In a pod it must be `0.0.0.0:PORT` or `[::]:PORT`.
    #[serde(deserialize_with = "optional_socket_address")]
    #[schemars(with = "Option<String>", regex(pattern = r"^([0-9.]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}$"))]
    pub address: Option<SocketAddr>,
    /// PEM file of the certificate, with the chain that leads to its CA. It and `keyFile` are read again when they change.
    /// Without both, berth issues a certificate to itself.
    pub cert_file: Option<PathBuf>,
    /// PEM file of the key of `certFile`.
    pub key_file: Option<PathBuf>,
    /// PEM file of the CA of `certFile`, by which replicas know each other. Without it, the chain in `certFile` must have it.
    pub ca_file: Option<PathBuf>,
    /// PEM file of the CAs whose client certificates are accepted. It is read again when it changes.
    pub client_ca_file: Option<PathBuf>,
    /// DNS names that the certificate which berth issues to itself is valid for, besides `localhost`.
    #[serde(deserialize_with = "names")]
    pub names: Vec<String>,
    /// The Secret, in the namespace of the Lease, in which the replicas share the CA and the certificate that berth issues.
    /// Empty: each process has its own, in memory.
    #[schemars(regex(pattern = "^([a-z0-9]([a-z0-9.-]*[a-z0-9])?)?$"))]
    pub secret: String,
    /// The ValidatingWebhookConfiguration whose `caBundle`s berth keeps equal to the CA in `secret`. Empty: none.
    #[schemars(regex(pattern = "^([a-z0-9]([a-z0-9.-]*[a-z0-9])?)?$"))]
    pub webhook_configuration: String,
    /// The MutatingWebhookConfiguration, likewise. Empty: none.
    #[schemars(regex(pattern = "^([a-z0-9]([a-z0-9.-]*[a-z0-9])?)?$"))]
    pub mutating_webhook_configuration: String,
    /// Connections at the same time; further ones are closed at once.
    #[serde(deserialize_with = "whole_number")]
    #[schemars(range(min = 1, max = 65536))]
    pub max_connections: u32,
}

/// A scheduler extender of kube-scheduler.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Extender {
    /// Serve `/extender/filter`, `/extender/prioritize`, `/extender/preempt` and `/extender/bind`.
    pub enabled: bool,
    /// Serve them in plain HTTP at `healthAddress`, too, which must be a loopback address: for a kube-scheduler on the same
    /// host or in the same pod. Whoever runs there may then bind pods.
    pub plaintext: bool,
    /// Common names of the client certificates that may call it. Empty: every certificate of `serving.clientCaFile`.
    #[serde(deserialize_with = "names")]
    pub clients: Vec<String>,
    /// Bytes that one request may have. A list of nodes takes 20 KB a node when `nodeCacheCapable` is false.
    #[serde(deserialize_with = "whole_number")]
    #[schemars(range(min = 1048576, max = 1073741824))]
    pub max_body_bytes: u32,
}

/// The admission webhook that refuses bindings which do not fit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Guard {
    /// Serve `/guard`. A ValidatingWebhookConfiguration must send bindings there.
    pub enabled: bool,
    /// Only to callers whose client certificate is of `serving.clientCaFile`: API servers have one only when they are
    /// configured so.
    pub require_client_certificate: bool,
    /// What does not fit is refused only after so long, in which what freed the room may still be seen. Must leave the API
    /// server, which waits 1 s, time to hear it.
    pub patience: ConfigDuration,
    /// A binding that was allowed keeps its room until the pod is seen bound or gone, or is still unbound after so long, when
    /// the API server has given up the request (`--request-timeout`).
    pub hold: ConfigDuration,
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
            webhook_configuration: String::new(),
            mutating_webhook_configuration: String::new(),
            max_connections: 1_024,
        }
    }
}

impl Default for Extender {
    fn default() -> Self {
        Extender { enabled: false, plaintext: false, clients: Vec::new(), max_body_bytes: 64 << 20 }
    }
}

impl Default for Guard {
    fn default() -> Self {
        Guard {
            enabled: false,
            require_client_certificate: false,
            patience: ConfigDuration::new(std::time::Duration::from_millis(200)),
            hold: ConfigDuration::from_secs(65),
        }
    }
}

/// Checks the three against each other and the rest of the configuration.
pub(super) fn validate(config: &Config) -> Result<(), InvalidField> {
    let (serving, extender, guard) = (&config.serving, &config.extender, &config.guard);
    if serving.cert_file.is_some() != serving.key_file.is_some() {
        return refuse("serving.certFile", "certFile and keyFile go together: give both or none");
    }
    if serving.cert_file.is_some() && !serving.secret.is_empty() {
        return refuse(
            "serving.secret",
            "it is for certificates that berth issues: leave it out when there is a certFile",
        );
    }
    if !serving.webhook_configuration.is_empty() && serving.secret.is_empty() {
        return refuse(
            "serving.webhookConfiguration",
            "the CA it shall name is kept in serving.secret, which is empty",
        );
    }
    if !serving.mutating_webhook_configuration.is_empty() && serving.secret.is_empty() {
        return refuse(
            "serving.mutatingWebhookConfiguration",
            "the CA it shall name is kept in serving.secret, which is empty",
        );
    }
    within("serving.maxConnections", serving.max_connections, 1..=65_536)?;
    within("extender.maxBodyBytes", extender.max_body_bytes, 1 << 20..=1 << 30)?;
    if extender.enabled && extender.plaintext && !config.health_address.ip().is_loopback() {
        return refuse(
            "extender.plaintext",
            format!(
                "healthAddress is {}, which others can reach: use 127.0.0.1 or [::1], or serve HTTPS",
                config.health_address
            ),
        );
    }
    if extender.enabled && !extender.plaintext && serving.address.is_none() {
        return refuse(
            "extender.enabled",
            "it needs serving.address, or extender.plaintext on a loopback address",
        );
    }
    if extender.enabled && serving.address.is_some() && serving.client_ca_file.is_none() {
        return refuse(
            "extender.enabled",
            "over HTTPS its callers show client certificates: set serving.clientCaFile",
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
            "replicas that schedule at the same time need guard.enabled, which settles their conflicts",
        );
    }
    Ok(())
}
