//! Shared watches: what the scheduler, the recommender, the updater and the scaler read of the API server.

use std::collections::BTreeMap;

use axum::http::{Method, Uri};

use super::*;
use crate::support::{Fate, Flaky};

/// Recommender, updater and scaler, with rounds of a second.
const EVERYTHING: &str = "recommender: {enabled: true, interval: 1s, prometheus: {url: 'http://127.0.0.1:9'}, \
     apply: {updater: true, interval: 1s}, autoCreate: {enabled: true}}\nscaling: {enabled: true, interval: 1s}";
/// Kinds that are read from watches only.
const WATCHED: [&str; 11] = [
    "pods",
    "nodes",
    "verticalpodautoscalers",
    "limitranges",
    "replicasets",
    "replicationcontrollers",
    "deployments",
    "statefulsets",
    "daemonsets",
    "jobs",
    "cronjobs",
];

/// Returns the numbers of lists, of watches and of reads of single objects.
fn reads(requests: &[(Method, Uri)], plural: &str) -> (usize, usize, usize) {
    let reads = requests.iter().filter(|(method, _)| *method == Method::GET).map(|(_, uri)| uri);
    let is_list = |uri: &&Uri| uri.path().ends_with(&format!("/{plural}"));
    let is_watch = |uri: &&Uri| uri.query().is_some_and(|query| query.contains("watch=true"));
    let of_kind: Vec<&Uri> = reads.clone().filter(is_list).collect();
    let watches = of_kind.iter().copied().filter(is_watch).count();
    let single = reads.filter(|uri| uri.path().contains(&format!("/{plural}/"))).count();
    (of_kind.len() - watches, watches, single)
}

#[tokio::test(flavor = "multi_thread")]
async fn each_kind_is_listed_once_and_then_watched_whatever_runs() {
    let control_plane = start_control_plane().await;
    let client = control_plane.client();
    create_crds(&client).await;
    create_nodes(&client, &Nodes::default()).await;
    create_workload(&client, "web", 2).await;
    create(&vpas(&client), vpa("web", "web", "berth")).await;
    let proxy = Flaky::start(client.clone(), |_, _, _| Fate::Pass).await;
    let berth = Berth::start(&proxy.kubeconfig(), EVERYTHING);
    berth.await_ready().await;
    rounds(&berth, 3).await;
    await_until(LIMIT, "the VPA has its conditions", async || {
        status(&client, "web").await["conditions"].is_array()
    })
    .await;
    await_until(LIMIT, "the updater has made its rounds", async || {
        berth
            .find_metric(r#"berth_updater_rounds_total{result="done"}"#)
            .await
            .is_some_and(|rounds| rounds > 2.0)
    })
    .await;
    let mut requests = proxy.requests();
    // A new leader reads which pods are bound, by metadata, to know the binds of its predecessor, unless its watch has listed
    // them since.
    let of_leader = |uri: &Uri| uri.query().is_some_and(|query| query.contains("spec.nodeName%21%3D"));
    let terms = requests.extract_if(.., |(_, uri)| of_leader(uri)).count();
    assert!(terms <= 1, "one term, at most one page: {terms}");
    let counted: BTreeMap<&str, _> =
        WATCHED.iter().map(|plural| (*plural, reads(&requests, plural))).collect();
    println!("lists, watches and single reads: {counted:?}");
    for (plural, (lists, watches, single)) in counted {
        assert_eq!((lists, single), (1, 0), "{plural}");
        // A watch ends after some minutes, and is then continued.
        assert!(watches >= 1, "{plural}");
    }
}
