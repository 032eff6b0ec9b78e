//! Audit log: the API server's own record of all binds and their senders.

use std::path::{Path, PathBuf};

use berth_testenv::{Options, User};
use jiff::Timestamp;
use serde::Deserialize;
use tempfile::TempDir;

const POLICY: &str = r#"{
  "apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"],
  "rules": [
    {"level": "Metadata", "verbs": ["create"], "resources": [{"group": "", "resources": ["pods/binding"]}]},
    {"level": "Metadata", "verbs": ["create", "update"], "resources": [{"group": "coordination.k8s.io", "resources": ["leases"]}]},
    {"level": "None"}
  ]
}"#;

/// Where a control plane writes its audit log.
pub struct Audit {
    folder: TempDir,
}

/// An answered request.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Request {
    user: Requester,
    object_ref: ObjectRef,
    #[serde(default)]
    response_status: Response,
    request_received_timestamp: Timestamp,
}

#[derive(Debug, Clone, Deserialize)]
struct Requester {
    username: String,
}

#[derive(Debug, Clone, Deserialize)]
struct ObjectRef {
    resource: String,
    #[serde(default)]
    name: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
struct Response {
    #[serde(default)]
    code: u16,
}

impl Request {
    pub fn user(&self) -> &str {
        &self.user.username
    }

    pub fn is_bind(&self) -> bool {
        self.object_ref.resource == "pods"
    }

    pub fn is_lease(&self) -> bool {
        self.object_ref.resource == "leases"
    }

    /// The pod or the lease.
    pub fn name(&self) -> &str {
        &self.object_ref.name
    }

    pub fn succeeded(&self) -> bool {
        matches!(self.response_status.code, 200 | 201)
    }

    pub fn at(&self) -> Timestamp {
        self.request_received_timestamp
    }
}

impl Audit {
    pub fn new() -> Audit {
        let folder = tempfile::tempdir().expect("a temporary folder");
        std::fs::write(folder.path().join("policy.json"), POLICY).expect("the policy is written");
        Audit { folder }
    }

    fn log(&self) -> PathBuf {
        self.folder.path().join("audit.log")
    }

    /// Returns options of a control plane with an audit log and these users, who may do everything.
    pub fn options(&self, users: &[&str]) -> Options {
        let flag = |name: &str, file: &Path| format!("--{name}={}", file.display());
        let users = users
            .iter()
            .map(|name| User { name: (*name).to_owned(), groups: vec!["system:masters".to_owned()] });
        Options {
            api_server_args: vec![
                flag("audit-policy-file", &self.folder.path().join("policy.json")),
                flag("audit-log-path", &self.log()),
                "--audit-log-mode=blocking".to_owned(),
            ],
            users: users.collect(),
            ..Options::default()
        }
    }

    /// All requests so far, in the order in which they arrived.
    pub fn requests(&self) -> Vec<Request> {
        let text = std::fs::read_to_string(self.log()).unwrap_or_default();
        // The last line may be incomplete.
        let lines = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        let mut requests: Vec<Request> = lines
            .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
            .collect();
        requests.sort_by_key(Request::at);
        requests
    }

    /// Binds that were carried out, by their user.
    pub fn binds_of(&self, user: &str) -> usize {
        let requests = self.requests();
        let mine = |request: &&Request| request.is_bind() && request.succeeded() && request.user() == user;
        requests.iter().filter(mine).count()
    }
}
