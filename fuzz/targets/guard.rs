//! Admission reviews. Invalid bytes are rejected with a text, and every response is JSON with the uid of its request.

use berth_scheduler::placement::Binding;
use berth_server::guard::subject::{ReviewSubject, subject};
use berth_server::review::{ReviewRequest, allowed, refused};

use super::pod::schedule;

pub fn check(data: &[u8]) {
    let read = ReviewRequest::read(data).and_then(|request| Ok((subject(&request)?, request)));
    let (subject, request) = match read {
        Ok(read) => read,
        Err(why) => return assert!(!why.is_empty()),
    };
    for (is_allowed, answer) in
        [(true, allowed(&request.uid, None)), (false, refused(&request.uid, "it does not fit"))]
    {
        let answer: serde_json::Value = serde_json::from_slice(&answer.expect("an answer")).expect("JSON");
        assert_eq!(answer["response"]["uid"], request.uid.as_str());
        assert_eq!(answer["response"]["allowed"], is_allowed);
    }
    if let ReviewSubject::Placed(pod) = &subject {
        let node = pod.node_name.clone().expect("a placed pod has a node");
        let (uid, namespace, name) = (pod.uid.clone(), pod.namespace.clone(), pod.name.clone());
        schedule(pod, &Binding { uid, namespace, name, node, decision: None });
    }
}
