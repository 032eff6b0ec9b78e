//! Requests for objects of any kind, by the path of their collection.

use anyhow::{Context, Result};
use futures::{StreamExt, TryStreamExt, stream};
use kube::Client;
use kube::api::{DeleteParams, GetParams, ListParams, Patch, PatchParams, PostParams};
use kube::core::Request;
use kube::core::metadata::PartialObjectMeta;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::Value;

use super::workload::DEMO_LABEL;

const DELETIONS_IN_FLIGHT: usize = 16;
const PAGE_SIZE: u32 = 500;

/// Posts an object to a collection. Returns the answer.
pub async fn post<T: DeserializeOwned>(client: &Client, collection: &str, object: &Value) -> Result<T> {
    let request = Request::new(collection).create(&PostParams::default(), serde_json::to_vec(object)?)?;
    Ok(client.request(request).await?)
}

/// Creates an object. One that exists is an error.
pub async fn create_object(client: &Client, collection: &str, object: &Value) -> Result<()> {
    let answer = post::<IgnoredAny>(client, collection, object).await;
    answer.with_context(|| format!("cannot create {} in {collection}", object["metadata"]["name"]))?;
    Ok(())
}

/// Creates or updates an object by server-side apply.
pub async fn apply_object(client: &Client, collection: &str, name: &str, object: &Value) -> kube::Result<()> {
    let params = PatchParams::apply("berth-demo").force();
    let request = Request::new(collection)
        .patch(name, &params, &Patch::Apply(object))
        .map_err(kube::Error::BuildRequest)?;
    client.request::<IgnoredAny>(request).await.map(drop)
}

/// Returns an object, or `None` if it does not exist.
pub async fn get_object(client: &Client, collection: &str, name: &str) -> Result<Option<Value>> {
    let request = Request::new(collection).get(name, &GetParams::default())?;
    let answer = existing(client.request::<Value>(request).await);
    answer.with_context(|| format!("cannot read {name} in {collection}"))
}

/// A name and the value of [`DEMO_LABEL`].
pub type Labelled = (String, String);

/// Returns the objects that have [`DEMO_LABEL`], with any value or with `value`.
pub async fn list_labelled(client: &Client, collection: &str, value: Option<&str>) -> Result<Vec<Labelled>> {
    let selector = value.map_or(DEMO_LABEL.to_owned(), |value| format!("{DEMO_LABEL}={value}"));
    let mut params = ListParams::default().labels(&selector).limit(PAGE_SIZE);
    let mut found = Vec::new();
    loop {
        let request = Request::new(collection).list_metadata(&params)?;
        let page: kube::core::ObjectList<PartialObjectMeta> =
            client.request(request).await.with_context(|| format!("cannot list {collection}"))?;
        found.extend(page.items.into_iter().filter_map(|object| {
            let label = object.metadata.labels?.remove(DEMO_LABEL)?;
            Some((object.metadata.name?, label))
        }));
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(found),
        }
    }
}

/// Deletes the objects; those that are gone are no error.
pub async fn delete_objects(
    client: &Client,
    collection: &str,
    names: impl IntoIterator<Item = String>,
) -> Result<()> {
    let deletions = names.into_iter().map(|name| async move {
        let request = Request::new(collection).delete(&name, &DeleteParams::default())?;
        let deleted = existing(client.request::<IgnoredAny>(request).await);
        deleted.with_context(|| format!("cannot delete {name} in {collection}"))
    });
    stream::iter(deletions).buffer_unordered(DELETIONS_IN_FLIGHT).try_for_each(|_| async { Ok(()) }).await
}

/// Deletes all objects of the collection, pods without waiting for kubelets.
pub async fn delete_collection(client: &Client, collection: &str) -> Result<()> {
    let at_once = DeleteParams::default().grace_period(0);
    let request = Request::new(collection).delete_collection(&at_once, &ListParams::default())?;
    let deleted = existing(client.request::<IgnoredAny>(request).await);
    deleted.with_context(|| format!("cannot delete {collection}")).map(drop)
}

fn existing<T>(answer: kube::Result<T>) -> kube::Result<Option<T>> {
    match answer {
        Ok(object) => Ok(Some(object)),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        Err(error) => Err(error),
    }
}
