//! NodeDeclaredFeatures: a node's kubelet must declare all features that the pod needs.

use berth_model::{Node, PodSpec};

pub fn lacks(spec: &PodSpec, node: &Node) -> bool {
    spec.features.iter().any(|feature| node.declared_features.binary_search(feature).is_err())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_feature_that_the_pod_needs_must_be_declared() {
        let spec = |features: &[&str]| PodSpec {
            features: features.iter().map(|f| (*f).into()).collect(),
            ..PodSpec::default()
        };
        let node = Node { declared_features: ["A".into(), "B".into()].into(), ..Node::default() };
        assert!(!lacks(&spec(&[]), &Node::default()));
        assert!(lacks(&spec(&["A"]), &Node::default()));
        assert!(!lacks(&spec(&["B"]), &node) && lacks(&spec(&["B", "C"]), &node));
    }
}
