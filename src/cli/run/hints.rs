//! Placement hints from the statuses of ServiceScalers, passed to the scheduler and to the webhook. Runs in
//! every process; the scaler writes the statuses, in any process.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use parking_lot::RwLock;
use tokio::sync::watch;

use berth_config::Config;
use berth_controllers::tasks::Tasks;
use berth_kube_io::scaling::LeanServiceScaler;
use berth_kube_io::{Listed, WatchChange, WatchStore, watch_if_served};
use berth_scheduler::engine::Engine;
use berth_scheduler::hints::{Hint, Hints};
use berth_server::metrics::MetricSources;

/// Batching interval: the statuses of many services change at once when a window ends.
const GATHER: Duration = Duration::from_secs(1);

/// Namespace and name of a ServiceScaler.
type Name = (Arc<str>, Arc<str>);

/// The hints of each ServiceScaler that has any.
#[derive(Debug, Default)]
struct HintsByService {
    of: BTreeMap<Name, Vec<Hint>>,
    listed: Listed<BTreeSet<Name>>,
}

impl HintsByService {
    /// Applies a change; returns whether the hints changed.
    fn take(&mut self, change: WatchChange<LeanServiceScaler>) -> bool {
        match change {
            WatchChange::ListBegins => {
                self.listed.begin();
                false
            }
            WatchChange::Apply(Ok(object)) => {
                let meta = &object.metadata;
                let name = name_of(meta.namespace.as_deref(), meta.name.as_deref());
                self.listed.note(name.clone());
                self.set(name, object.hints())
            }
            WatchChange::Apply(Err(bad)) => {
                self.set(name_of(Some(&bad.id.namespace), Some(&bad.id.name)), Vec::new())
            }
            WatchChange::Delete(id) => self.set(name_of(Some(&id.namespace), Some(&id.name)), Vec::new()),
            WatchChange::NotServed => {
                let before = self.of.len();
                self.of.clear();
                before > 0
            }
            WatchChange::ListEnds => {
                let listed = self.listed.end();
                let before = self.of.len();
                self.of.retain(|name, _| listed.contains(name));
                self.of.len() < before
            }
            WatchChange::Refused => false,
        }
    }

    fn set(&mut self, name: Name, hints: Vec<Hint>) -> bool {
        match hints.is_empty() {
            true => self.of.remove(&name).is_some(),
            false => {
                self.of.get(&name) != Some(&hints) && {
                    self.of.insert(name, hints);
                    true
                }
            }
        }
    }
}

fn name_of(namespace: Option<&str>, name: Option<&str>) -> Name {
    (namespace.unwrap_or_default().into(), name.unwrap_or_default().into())
}

/// Watches ServiceScalers, if hints are enabled; keeps them in the store, too.
pub(super) fn follow(
    tasks: &mut Tasks,
    client: &Client,
    config: &Config,
    sources: &MetricSources,
    watches: &WatchStore,
    (engine, to_webhook): (&Engine, Arc<RwLock<Hints>>),
) {
    let Some(metrics) = sources.scaler.clone().filter(|_| config.scaling.hints) else { return };
    let (tell, mut told) = watch::channel(HintsByService::default());
    let (client, counters) = (client.clone(), sources.object_watches.clone());
    let mut follower = watches.follower::<LeanServiceScaler>();
    tasks.spawn("watch of ServiceScalers", async move {
        let sink = |change| {
            if let Some(follower) = &mut follower {
                follower(&change);
            }
            tell.send_if_modified(|known| known.take(change));
        };
        watch_if_served(client, &counters, |()| {}, sink).await;
    });
    let engine = engine.clone();
    tasks.spawn("hints", async move {
        while told.changed().await.is_ok() {
            tokio::time::sleep(GATHER).await;
            let hints: Vec<Hint> = told.borrow_and_update().of.values().flatten().cloned().collect();
            *to_webhook.write() = Hints::new(hints.iter().cloned()).0;
            let taken = engine.hints_changed(hints);
            metrics.hints(taken.in_force);
            tracing::info!(
                in_force = taken.in_force,
                refused = taken.refused,
                namespaces = taken.namespaces,
                "placement hints of services changed"
            );
        }
    });
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use berth_kube_io::{BadObject, ObjectId};

    fn scaler(name: &str, selector: &str, hints: Value) -> WatchChange<LeanServiceScaler> {
        let object = json!({
            "metadata": {"namespace": "shop", "name": name},
            "spec": {"target": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name}},
            "status": {"selector": selector, "hints": hints, "memory": "{}"},
        });
        WatchChange::Apply(Ok(serde_json::from_value(object).expect("a ServiceScaler")))
    }

    fn hint(service: &str, selector: &str, placement: &str, weight: i32) -> Value {
        json!({"service": service, "selector": selector, "placement": placement, "weight": weight, "resource": "CPU"})
    }

    fn weights(known: &HintsByService) -> Vec<i32> {
        known.of.values().flatten().map(|hint| hint.weight).collect()
    }

    #[test]
    fn hints_follow_the_statuses_and_only_changes_are_passed_on() {
        let mut known = HintsByService::default();
        let web = || {
            let hints = [hint("shop/db", "app=db", "Apart", 80), hint("bank/api", "app=api", "Together", 40)];
            scaler("web", "app=web", json!(hints))
        };
        assert!(!known.take(scaler("cart", "app=cart", json!([]))), "it has none");
        assert!(known.take(web()));
        assert_eq!(weights(&known), [-80, 40]);
        let namespaces: Vec<_> = known.of.values().flatten().map(|it| it.other.namespace.clone()).collect();
        assert_eq!(namespaces, ["shop".into(), "bank".into()]);
        assert!(!known.take(web()), "it is as it was");
        assert!(known.take(scaler("web", "app=web", json!([hint("shop/db", "app=db", "Apart", 90)]))));
        assert_eq!(weights(&known), [-90]);
        assert!(known.take(scaler("web", "app=web", json!([]))));
        assert!(known.of.is_empty());
    }

    #[test]
    fn what_is_gone_or_cannot_be_understood_gives_no_hints() {
        let id = || ObjectId { namespace: "shop".into(), name: "web".into(), ..ObjectId::default() };
        let known = || {
            let mut known = HintsByService::default();
            assert!(known.take(scaler("web", "app=web", json!([hint("shop/db", "app=db", "Apart", 80)]))));
            known
        };
        assert!(known().take(WatchChange::Delete(id())));
        let bad = BadObject { id: id(), error: "bad".into() };
        assert!(known().take(WatchChange::Apply(Err(bad))));
        let mut listed_anew = known();
        assert!(!listed_anew.take(WatchChange::ListBegins));
        assert!(listed_anew.take(WatchChange::ListEnds), "the list is empty");
        for (selector, hints) in [
            ("", json!([hint("shop/db", "app=db", "Apart", 80)])),
            ("app=web", json!([hint("shop/db", "", "Apart", 80)])),
            ("app=web", json!([hint("db", "app=db", "Apart", 80)])),
        ] {
            assert!(!HintsByService::default().take(scaler("web", selector, hints)));
        }
    }
}
