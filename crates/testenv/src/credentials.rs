//! Users of the API server: bearer tokens and the kubeconfig files that contain them.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::json;

/// The user of [`super::ControlPlane::kubeconfig`], with all permissions.
const ADMIN: &str = "admin";

/// A user besides the administrator, with the permissions that RBAC objects grant to the user or its groups.
#[derive(Clone, Debug)]
pub struct User {
    pub name: String,
    pub groups: Vec<String>,
}

/// A user and its token.
struct Login {
    user: User,
    token: String,
}

/// The users of one control plane, whose API server keeps its address for its whole life.
pub(super) struct Credentials {
    logins: Vec<Login>,
    folder: PathBuf,
}

impl Credentials {
    /// Gives the administrator and `users` random tokens. Writes files to `folder`, which only the current user may read.
    pub(super) fn new(users: Vec<User>, folder: &Path) -> Result<Self> {
        let admin = User { name: ADMIN.to_owned(), groups: vec!["system:masters".to_owned()] };
        let mut logins: Vec<Login> = Vec::new();
        for user in [admin].into_iter().chain(users) {
            for name in user.groups.iter().chain([&user.name]) {
                let plain = |c: char| c.is_ascii_alphanumeric() || "-_.:@".contains(c);
                ensure!(
                    !name.is_empty() && name.chars().all(plain),
                    "{name:?} cannot be a user or group here"
                );
            }
            let is_new = logins.iter().all(|login| login.user.name != user.name);
            ensure!(is_new, "the user {:?} is given twice", user.name);
            logins.push(Login { user, token: random_token()? });
        }
        Ok(Self { logins, folder: folder.to_owned() })
    }

    /// Writes the file for `--token-auth-file`.
    pub(super) fn write_tokens(&self) -> Result<PathBuf> {
        let mut lines = String::new();
        for Login { user: User { name, groups }, token } in &self.logins {
            writeln!(lines, "{token},{name},{name},\"{}\"", groups.join(","))?;
        }
        let path = self.folder.join("tokens.csv");
        fs::write(&path, lines)?;
        Ok(path)
    }

    /// Writes every user's kubeconfig, for the API server at `url` with the certificate chain in the file `authority`.
    /// Returns the administrator's.
    pub(super) fn write_kubeconfigs(&self, url: &str, authority: &Path) -> Result<PathBuf> {
        for Login { user, token } in &self.logins {
            // JSON is YAML, and escapes the path of the temporary folder.
            let kubeconfig = json!({
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "berth",
                "contexts": [{"name": "berth", "context": {"cluster": "berth", "user": user.name}}],
                "clusters": [{"name": "berth", "cluster": {"server": url, "certificate-authority": authority}}],
                "users": [{"name": user.name, "user": {"token": token}}],
            });
            fs::write(self.path_of(&user.name), format!("{kubeconfig:#}\n"))?;
        }
        Ok(self.admin_kubeconfig())
    }

    pub(super) fn admin_kubeconfig(&self) -> PathBuf {
        self.path_of(ADMIN)
    }

    /// Returns the kubeconfig file of a user that was given at the start.
    pub(super) fn kubeconfig_for(&self, user: &str) -> Result<PathBuf> {
        let known = self.logins.iter().any(|login| login.user.name == user);
        ensure!(known, "the control plane was started without the user {user:?}");
        Ok(self.path_of(user))
    }

    fn path_of(&self, user: &str) -> PathBuf {
        self.folder.join(format!("{user}.kubeconfig"))
    }
}

/// Reads one of these kubeconfig files for a client on loopback: proxies from the environment are ignored.
pub(super) async fn config_from(kubeconfig: &Path) -> Result<kube::Config> {
    let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
    let mut config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    config.proxy_url = None;
    Ok(config)
}

/// Returns 128 random bits, in hexadecimal.
fn random_token() -> Result<String> {
    let mut bytes = [0; 16];
    let mut source = File::open("/dev/urandom").context("no source of random tokens")?;
    source.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(name: &str, group: &str) -> User {
        User { name: name.to_owned(), groups: vec![group.to_owned()] }
    }

    #[test]
    fn the_administrator_is_a_master_and_others_have_only_their_groups() {
        let folder = tempfile::tempdir().unwrap();
        let users = vec![user("system:serviceaccount:berth:berth", "system:serviceaccounts")];
        let credentials = Credentials::new(users, folder.path()).unwrap();
        let tokens = fs::read_to_string(credentials.write_tokens().unwrap()).unwrap();
        let without_token: Vec<&str> = tokens.lines().map(|line| line.split_once(',').unwrap().1).collect();
        let name = "system:serviceaccount:berth:berth";
        assert_eq!(
            without_token,
            [
                "admin,admin,\"system:masters\"".to_owned(),
                format!("{name},{name},\"system:serviceaccounts\"")
            ]
        );
        let token = |line: &str| line.split_once(',').unwrap().0.to_owned();
        let tokens: Vec<String> = tokens.lines().map(token).collect();
        assert!(tokens.iter().all(|token| token.len() == 32));
        assert_ne!(tokens[0], tokens[1]);
    }

    #[test]
    fn names_that_would_break_the_token_file_or_leave_the_folder_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        for (name, group) in
            [("a,b", "c"), ("a\"b", "c"), ("a\nb", "c"), ("../a", "c"), ("", "c"), ("a", "c,d")]
        {
            assert!(Credentials::new(vec![user(name, group)], folder.path()).is_err(), "{name:?} {group:?}");
        }
        assert!(Credentials::new(vec![user(ADMIN, "c")], folder.path()).is_err());
    }

    #[test]
    fn a_kubeconfig_is_there_only_for_a_known_user() {
        let folder = tempfile::tempdir().unwrap();
        let credentials = Credentials::new(vec![user("eve", "c")], folder.path()).unwrap();
        credentials.write_kubeconfigs("https://127.0.0.1:1", Path::new("/ca \"x\"")).unwrap();
        let kubeconfig = Kubeconfig::read_from(credentials.kubeconfig_for("eve").unwrap()).unwrap();
        assert_eq!(
            kubeconfig.clusters[0].cluster.as_ref().unwrap().certificate_authority.as_deref(),
            Some("/ca \"x\"")
        );
        assert!(credentials.kubeconfig_for("adam").is_err());
    }
}
