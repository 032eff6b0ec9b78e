//! A Secret that berth's replicas share: any of them renews it, and the others use the result.

use anyhow::{Result, anyhow, bail};
use k8s_openapi::api::core::v1::Secret;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};

use berth_model::with_causes;

/// Maximum attempts per round when other replicas write at the same time.
const WRITE_TRIES: usize = 5;

pub(super) struct SharedSecret {
    api: Api<Secret>,
    namespace: String,
    pub name: String,
    /// The setting that names it.
    setting: &'static str,
    /// Its type if it is created here.
    type_: &'static str,
}

/// What to do with the content of a Secret.
pub(super) enum Renewal<T> {
    Keep(T),
    /// Replace the Secret by this one, unless it changed since it was read.
    Write(T, Box<Secret>),
}

impl SharedSecret {
    pub fn new(
        client: Client,
        namespace: &str,
        name: &str,
        (setting, type_): (&'static str, &'static str),
    ) -> Self {
        let api = Api::namespaced(client, namespace);
        SharedSecret { api, namespace: namespace.to_owned(), name: name.to_owned(), setting, type_ }
    }

    /// Renews what is due and returns the content. `renew` gets the Secret, an empty one if there is none; it is called again if another
    /// replica wrote first.
    ///
    /// # Errors
    /// Why it could not be read, renewed or written, and what to do.
    pub async fn keep<T>(&self, renew: impl Fn(Secret) -> Result<Renewal<T>>) -> Result<T> {
        for _ in 0..WRITE_TRIES {
            let found = self.api.get_opt(&self.name).await.map_err(|error| self.explained("read", &error))?;
            let is_new = found.is_none();
            let (content, secret) = match renew(found.unwrap_or_else(|| self.empty()))? {
                Renewal::Keep(content) => return Ok(content),
                Renewal::Write(content, secret) => (content, secret),
            };
            let params = PostParams::default();
            let written = match is_new {
                true => self.api.create(&params, &secret).await,
                false => self.api.replace(&self.name, &params, &secret).await,
            };
            match written {
                Ok(_) => return Ok(content),
                // Another replica wrote first: read its result.
                Err(kube::Error::Api(status)) if [404, 409].contains(&status.code) => {}
                Err(error) => return Err(self.explained("written", &error)),
            }
        }
        let SharedSecret { namespace, name, setting, .. } = self;
        bail!("the Secret {namespace}/{name} of {setting} was changed by another client on every attempt")
    }

    fn empty(&self) -> Secret {
        let metadata = ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() };
        Secret { metadata, type_: Some(self.type_.to_owned()), ..Secret::default() }
    }

    fn explained(&self, what: &str, error: &kube::Error) -> anyhow::Error {
        let SharedSecret { namespace, name, setting, .. } = self;
        let hint = match error {
            kube::Error::Api(status) if status.is_forbidden() => {
                ": berth's service account may get and update it, and create Secrets, only with the Role of the chart"
            }
            _ => "",
        };
        anyhow!("the Secret {namespace}/{name} of {setting} cannot be {what}{hint}: {}", with_causes(error))
    }
}
