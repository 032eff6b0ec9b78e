//! Full lists of the API server's objects, to compare them with the caches of the watches.

use kube::api::{Api, ListParams};
use kube::{Client, Resource};
use serde::de::DeserializeOwned;

use super::{BadObject, Guarded, Interner, LIVE_PODS, LeanNode, LeanPod};
use berth_model::{Node, Pod};

const PAGE_SIZE: u32 = 500;

/// Lists all live pods and all nodes that can be parsed.
pub async fn list_cluster(client: &Client) -> kube::Result<(Vec<Pod>, Vec<Node>)> {
    let mut interner = Interner::default();
    let mut pods = Vec::new();
    let mut take = |pod: Result<LeanPod, _>| pods.extend(pod.ok().map(|pod| pod.into_pod(&mut interner)));
    list_all(client, Some(LIVE_PODS), &mut take).await?;
    let mut nodes = Vec::new();
    let mut take =
        |node: Result<LeanNode, _>| nodes.extend(node.ok().map(|node| node.into_node(&mut interner)));
    list_all(client, None, &mut take).await?;
    Ok((pods, nodes))
}

/// Lists all objects of one kind that match a field selector.
pub async fn list_all<K>(
    client: &Client,
    fields: Option<&str>,
    take: impl FnMut(Result<K, BadObject>),
) -> kube::Result<()>
where
    K: Resource<DynamicType: Default> + Clone + DeserializeOwned + std::fmt::Debug,
{
    list_version(client, &K::DynamicType::default(), fields, take).await
}

/// Lists all objects of one kind in this version.
pub async fn list_version<K>(
    client: &Client,
    version: &K::DynamicType,
    fields: Option<&str>,
    mut take: impl FnMut(Result<K, BadObject>),
) -> kube::Result<()>
where
    K: Resource + Clone + DeserializeOwned + std::fmt::Debug,
{
    let api: Api<Guarded<K>> = Api::all_with(client.clone(), version);
    let mut params = ListParams::default().limit(PAGE_SIZE);
    params.field_selector = fields.map(str::to_owned);
    loop {
        let page = api.list(&params).await?;
        page.items.into_iter().map(Guarded::into_result).for_each(&mut take);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(()),
        }
    }
}
