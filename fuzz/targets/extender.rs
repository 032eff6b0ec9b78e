//! Requests to the extender. Bytes that are not a request are rejected with a text.

use berth_scheduler::placement::Binding;
use berth_server::extender::wire::{binding_args, extender_args, preemption_args};

use super::pod::schedule;

pub fn check(data: &[u8]) {
    match extender_args(data) {
        Ok(args) => {
            let nodes: Vec<&str> = args.nodes.names().collect();
            assert_eq!(nodes.len(), args.nodes.names().len());
            let pod = &args.pod;
            let node = nodes.first().copied().unwrap_or("n").into();
            let (uid, namespace, name) = (pod.uid.clone(), pod.namespace.clone(), pod.name.clone());
            schedule(pod, &Binding { uid, namespace, name, node, decision: None });
        }
        Err(why) => assert!(!why.is_empty()),
    }
    match binding_args(data) {
        Ok(args) => {
            let said = [args.pod_name, args.pod_namespace, args.pod_uid, args.node];
            assert!(said.iter().all(|text| !text.is_empty()));
        }
        Err(why) => assert!(!why.is_empty()),
    }
    match preemption_args(data) {
        // The response to kube-scheduler is JSON.
        Ok(args) => assert!(serde_json::to_string(&args.victims).is_ok()),
        Err(why) => assert!(!why.is_empty()),
    }
}
