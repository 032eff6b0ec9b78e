//! Lists of the API server's objects, page by page, to compare them with the caches of the watches.

use k8s_openapi::api::core::v1::Namespace;
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

/// Returns the names of all namespaces.
pub async fn list_namespaces(client: &Client) -> kube::Result<Vec<String>> {
    let api = Api::<Namespace>::all(client.clone());
    let mut params = ListParams::default().limit(PAGE_SIZE);
    let mut names = Vec::new();
    loop {
        let page = api.list_metadata(&params).await?;
        names.extend(page.items.into_iter().filter_map(|namespace| namespace.metadata.name));
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(names),
        }
    }
}

/// Lists the live pods of a namespace. `take` receives each page: the pods that can be parsed, and the uids of all others.
pub async fn list_live_pods(
    client: &Client,
    namespace: &str,
    take: impl FnMut(Vec<Pod>, Vec<String>),
) -> kube::Result<()> {
    pages_of_pods(Api::namespaced(client.clone(), namespace), LIVE_PODS, take).await
}

/// Lists the live pods of all namespaces that have no node, in the same way.
pub async fn list_pods_without_node(
    client: &Client,
    take: impl FnMut(Vec<Pod>, Vec<String>),
) -> kube::Result<()> {
    pages_of_pods(Api::all(client.clone()), &format!("spec.nodeName=,{LIVE_PODS}"), take).await
}

async fn pages_of_pods(
    api: Api<Guarded<LeanPod>>,
    fields: &str,
    mut take: impl FnMut(Vec<Pod>, Vec<String>),
) -> kube::Result<()> {
    let mut interner = Interner::default();
    pages(api, Some(fields), |page| {
        let (mut pods, mut bad) = (Vec::with_capacity(page.len()), Vec::new());
        for pod in page {
            match pod.into_result() {
                Ok(pod) => pods.push(pod.into_pod(&mut interner)),
                Err(object) => bad.push(object.id.uid),
            }
        }
        take(pods, bad);
    })
    .await
}

/// Lists all nodes. `take` receives each page: the nodes that can be parsed, and the names of all others.
pub async fn list_nodes(client: &Client, mut take: impl FnMut(Vec<Node>, Vec<String>)) -> kube::Result<()> {
    let mut interner = Interner::default();
    pages(Api::<Guarded<LeanNode>>::all(client.clone()), None, |page| {
        let (mut nodes, mut bad) = (Vec::with_capacity(page.len()), Vec::new());
        for node in page {
            match node.into_result() {
                Ok(node) => nodes.push(node.into_node(&mut interner)),
                Err(object) => bad.push(object.id.name),
            }
        }
        take(nodes, bad);
    })
    .await
}

/// Lists the objects that match a field selector. `take` receives each page.
async fn pages<K>(
    api: Api<Guarded<K>>,
    fields: Option<&str>,
    mut take: impl FnMut(Vec<Guarded<K>>),
) -> kube::Result<()>
where
    K: Clone + DeserializeOwned + std::fmt::Debug,
{
    let mut params = ListParams::default().limit(PAGE_SIZE);
    params.field_selector = fields.map(str::to_owned);
    loop {
        let page = api.list(&params).await?;
        take(page.items);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(()),
        }
    }
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
    pages(api, fields, |page| page.into_iter().map(Guarded::into_result).for_each(&mut take)).await
}
