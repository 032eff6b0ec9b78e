//! The verb `bind`: binds a pod of another scheduler through berth's ledger.

use std::collections::HashMap;
use std::sync::Arc;

use axum::body::Bytes;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::super::forward::{Elsewhere, Forward};
use super::wire::BindingArgs;
use berth_kube_io::PodReader;
use berth_kube_io::placement::{BindCounters, KubeStore, drive};
use berth_scheduler::engine::Engine;
use berth_scheduler::placement::{BindOutcome, Binding};
use berth_scheduler::scheduler::ExtenderBind;

/// Binds pods for kube-scheduler. A repeated request joins the bind that is in flight, and succeeds if the pod is on that node
/// already.
pub struct Binder {
    pub engine: Engine,
    pub store: KubeStore,
    pub reader: PodReader,
    pub counters: Arc<BindCounters>,
    /// Reaches the leader if this process does not lead.
    pub forward: Forward,
    under_way: Arc<Mutex<HashMap<Arc<str>, BindResult>>>,
}

/// The outcome of a bind in flight.
type BindResult = watch::Receiver<Option<BindOutcome>>;

impl Binder {
    pub fn new(
        engine: Engine,
        store: KubeStore,
        reader: PodReader,
        counters: Arc<BindCounters>,
        forward: Forward,
    ) -> Self {
        Binder { engine, store, reader, counters, forward, under_way: Arc::default() }
    }

    /// Binds the pod and returns when the outcome is certain. `body` is the request as received.
    ///
    /// # Errors
    /// Why the pod is not bound, for kube-scheduler and its events.
    pub async fn bind(&self, args: BindingArgs, body: Bytes) -> Result<(), String> {
        let decision = loop {
            match self.forward.begin_bind() {
                Some(decision) => break decision,
                None => {
                    if let Elsewhere::Answered(()) = self.forward.bind(body.clone()).await? {
                        return Ok(());
                    }
                }
            }
        };
        let wanted = Binding {
            uid: args.pod_uid.into(),
            namespace: args.pod_namespace.into(),
            name: args.pod_name.into(),
            node: args.node.into(),
            decision: None,
        };
        let first = self.start_bind(&wanted, None, decision.term);
        let ended = match first {
            Some(ended) => ended?,
            None => {
                let pod = self.reader.read(&wanted.namespace, &wanted.name).await?;
                let pod = pod.filter(|pod| pod.uid == wanted.uid);
                let pod = pod.ok_or_else(|| format!("pod with uid {} not found", wanted.uid))?;
                match &pod.node_name {
                    Some(node) if *node == wanted.node => return Ok(()),
                    Some(node) => return Err(format!("the pod is bound to node {node}")),
                    None => self
                        .start_bind(&wanted, Some(&pod), decision.term)
                        .ok_or("berth does not know the pod")??,
                }
            }
        };
        let Some(mut ended) = ended else {
            return Ok(());
        };
        let outcome = ended.wait_for(Option::is_some).await;
        match outcome.ok().and_then(|outcome| outcome.clone()) {
            Some(BindOutcome::Bound) => Ok(()),
            Some(BindOutcome::BoundElsewhere(node)) => Err(format!("the pod is bound to node {node}")),
            Some(BindOutcome::Vanished) => {
                Err("the pod is gone, is being deleted or has scheduling gates".to_owned())
            }
            Some(BindOutcome::Refused(why)) => Err(format!("binding rejected: {why}")),
            None => Err("berth stopped before the bind ended; retry".to_owned()),
        }
    }

    /// Starts the bind. `None`: the pod is not known. `Ok(None)`: it is bound already. Otherwise the outcome to wait for.
    fn start_bind(
        &self,
        wanted: &Binding,
        pod: Option<&berth_model::Pod>,
        term: u64,
    ) -> Option<Result<Option<BindResult>, String>> {
        // Held across the check, so that a caller that learns of a bind in flight finds it in this map.
        let mut under_way = self.under_way.lock();
        let binding = match self.engine.begin_extender_bind(wanted, pod) {
            ExtenderBind::Unknown => return None,
            ExtenderBind::Done => return Some(Ok(None)),
            ExtenderBind::Refused(why) => return Some(Err(why.to_string())),
            ExtenderBind::InFlight => {
                let ended = under_way.get(&wanted.uid).cloned();
                return Some(ended.map(Some).ok_or_else(|| "the bind has just ended; retry".to_owned()));
            }
            ExtenderBind::Begin(binding) => binding,
        };
        let (tell, ended) = watch::channel(None);
        under_way.insert(binding.uid.clone(), ended.clone());
        let (engine, store, counters) = (self.engine.clone(), self.store.clone(), self.counters.clone());
        let (forward, all) = (self.forward.clone(), self.under_way.clone());
        // Continues after the caller has gone: only the end of the bind shows what is on the node.
        tokio::spawn(async move {
            let leads = || forward.may_finish(term);
            let outcome = drive(&store, &binding, || engine.now(), leads, &counters).await;
            tracing::debug!(pod = %binding.name, node = %binding.node, ?outcome, "bind for the extender");
            {
                let mut all = all.lock();
                engine.extender_bind_finished(&binding, &outcome);
                all.remove(&binding.uid);
            }
            tell.send_replace(Some(outcome));
        });
        Some(Ok(Some(ended)))
    }
}
