//! Everything the API server has, listed anew, for the comparison with what the watches have told.

use kube::api::{Api, ListParams};
use kube::{Client, Resource};
use serde::de::DeserializeOwned;

use super::{Guarded, Interner, LIVE_PODS, LeanNode, LeanPod};
use crate::model::{Node, Pod};

const PAGE_SIZE: u32 = 500;

/// All live pods and all nodes that can be read.
pub async fn list_cluster(client: &Client) -> kube::Result<(Vec<Pod>, Vec<Node>)> {
    let mut interner = Interner::default();
    let mut pods = Vec::new();
    let fields = ListParams::default().fields(LIVE_PODS);
    list::<LeanPod>(client, fields, |pod| pods.push(pod.into_pod(&mut interner))).await?;
    let mut nodes = Vec::new();
    list::<LeanNode>(client, ListParams::default(), |node| nodes.push(node.into_node(&mut interner))).await?;
    Ok((pods, nodes))
}

async fn list<K>(client: &Client, params: ListParams, mut take: impl FnMut(K)) -> kube::Result<()>
where
    K: Resource<DynamicType: Default> + Clone + DeserializeOwned + std::fmt::Debug,
{
    let api: Api<Guarded<K>> = Api::all(client.clone());
    let mut params = params.limit(PAGE_SIZE);
    loop {
        let page = api.list(&params).await?;
        page.items.into_iter().filter_map(|object| object.into_result().ok()).for_each(&mut take);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(()),
        }
    }
}
