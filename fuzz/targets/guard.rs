//! Admission reviews. Bytes that are none are refused with a text, and every answer is JSON with the uid of its request.

use berth::placement::Binding;
use berth::serve::guard::wire::{Subject, answer, request};

use super::pod::schedule;

pub fn check(data: &[u8]) {
    let review = match request(data) {
        Ok(review) => review,
        Err(why) => return assert!(!why.is_empty()),
    };
    for refused in [None, Some("it does not fit")] {
        let answer = answer(&review.uid, refused).expect("an answer");
        let answer: serde_json::Value = serde_json::from_slice(&answer).expect("JSON");
        assert_eq!(answer["response"]["uid"], review.uid.as_str());
        assert_eq!(answer["response"]["allowed"], refused.is_none());
    }
    if let Subject::Placed(pod) = &review.subject {
        let node = pod.node_name.clone().expect("a placed pod has a node");
        let (uid, namespace, name) = (pod.uid.clone(), pod.namespace.clone(), pod.name.clone());
        schedule(pod, &Binding { uid, namespace, name, node });
    }
}
