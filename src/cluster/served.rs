//! Kinds that a server need not have, or has in one of several versions: watched while they are served.
//!
//! A server without the kind costs one request every [`LOOK_EVERY`]; one that gets it later is watched from the next look on.

use std::fmt::Debug;
use std::time::Duration;

use http::{Method, StatusCode};
use kube::client::Body;
use kube::{Client, Resource};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::client::{Answer, exchange, request};
use super::objects::LeanObject;
use super::watch::{Change, WatchCounters, watch_while_served};

const LOOK_EVERY: Duration = Duration::from_secs(30);
/// After a look that told nothing, and before a watch that ended is tried again.
const PAUSE: Duration = Duration::from_secs(2);

/// A kind that a server need not have.
pub trait OptionalKind: LeanObject + Resource<DynamicType: Copy + Send + Sync + 'static> {
    /// The best one first. Not empty.
    const VERSIONS: &'static [Self::DynamicType];
}

/// Watches all objects of a kind whenever the server has it; as long as it does not, there are none. Never returns. `chosen`
/// is told the version that is read from now on.
pub async fn watch_if_served<K>(
    client: Client,
    counters: &WatchCounters,
    chosen: impl Fn(K::DynamicType),
    mut sink: impl FnMut(Change<K>),
) where
    K: OptionalKind + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let kind = format!("{}.{}", K::plural(&K::VERSIONS[0]), K::group(&K::VERSIONS[0]));
    let mut told_absent = false;
    loop {
        match served::<K>(&client).await {
            Ok(Some(version)) => {
                tracing::info!(kind, version = &*K::version(&version), "the cluster has this kind");
                chosen(version);
                watch_while_served(client.clone(), &version, counters, &mut sink).await;
                tell_absent(&kind, &mut sink);
                told_absent = true;
                tokio::time::sleep(PAUSE).await;
            }
            Ok(None) => {
                if !std::mem::replace(&mut told_absent, true) {
                    tell_absent(&kind, &mut sink);
                }
                tokio::time::sleep(LOOK_EVERY).await;
            }
            Err(error) => {
                tracing::debug!(kind, error, "cannot find out whether the cluster has this kind");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// While an API server starts it answers 503 for what it does not know yet, so a 404 can be trusted.
fn tell_absent<K>(kind: &str, sink: &mut impl FnMut(Change<K>)) {
    tracing::info!(kind, "the cluster does not have this kind");
    sink(Change::ListBegins);
    sink(Change::ListEnds);
}

/// The best version of the kind that the server has.
async fn served<K: OptionalKind>(client: &Client) -> Result<Option<K::DynamicType>, String> {
    #[derive(Deserialize)]
    struct Group {
        versions: Vec<Version>,
    }
    #[derive(Deserialize)]
    struct Version {
        version: String,
    }
    #[derive(Deserialize)]
    struct Resources {
        resources: Vec<Named>,
    }
    #[derive(Deserialize)]
    struct Named {
        name: String,
    }
    let folder = format!("/apis/{}", K::group(&K::VERSIONS[0]));
    let group: Group = match read(client, &folder).await? {
        Found::Some(group) => group,
        Found::None => return Ok(None),
        // Whoever may not look can still try.
        Found::Forbidden => return Ok(Some(K::VERSIONS[0])),
    };
    for version in K::VERSIONS {
        let name = K::version(version);
        if !group.versions.iter().any(|it| it.version == name) {
            continue;
        }
        if let Found::Some(Resources { resources }) = read(client, &format!("{folder}/{name}")).await?
            && resources.iter().any(|resource| resource.name == K::plural(version))
        {
            return Ok(Some(*version));
        }
    }
    Ok(None)
}

enum Found<T> {
    Some(T),
    None,
    Forbidden,
}

async fn read<T: DeserializeOwned>(client: &Client, path: &str) -> Result<Found<T>, String> {
    let request = request(Method::GET, path).body(Body::empty()).map_err(|error| error.to_string())?;
    let answer: Answer = exchange(client, request).await?;
    match answer.status {
        status if status.is_success() => {
            serde_json::from_slice(&answer.body).map(Found::Some).map_err(|error| error.to_string())
        }
        StatusCode::NOT_FOUND => Ok(Found::None),
        StatusCode::FORBIDDEN | StatusCode::UNAUTHORIZED => Ok(Found::Forbidden),
        _ => Err(answer.message()),
    }
}
