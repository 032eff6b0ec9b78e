//! ImageLocality: prefers nodes that already have the pod's images, by the bytes that need not be pulled.
//!
//! Upstream scales a size by the share of nodes that have the image, so that its score does not depend on one node
//! alone. Here the answer is node-local; as the last preference it only decides between nodes that are otherwise equal.

use std::sync::Arc;

use super::RuleAnswer;
use berth_model::Node;

const MIB: i64 = 1 << 20;
/// Below this size, pulling is cheap enough to ignore (upstream: `minThreshold`).
const LEAST_BYTES: i64 = 23 * MIB;
/// Above this size per container, more makes no difference (upstream: `maxContainerThreshold`).
const MOST_BYTES: i64 = 1000 * MIB;
/// No relevant image is present; 0 is the best answer.
pub const WORST: RuleAnswer = 7;

pub fn answer(images: &[Arc<str>], containers: u32, node: &Node) -> RuleAnswer {
    if node.images.is_empty() {
        return WORST;
    }
    let present = images.iter().filter_map(|image| node.image_size(image)).fold(0i64, i64::saturating_add);
    let most = MOST_BYTES * i64::from(containers.max(1));
    let gain = present.clamp(LEAST_BYTES, most) - LEAST_BYTES;
    WORST - (gain / ((most - LEAST_BYTES) / i64::from(WORST))).min(i64::from(WORST)) as RuleAnswer
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_model::Image;

    #[test]
    fn the_more_bytes_are_present_the_better_within_the_thresholds() {
        let node = |size_bytes| Node {
            images: [Image { name: "app:1".into(), size_bytes }].into(),
            ..Node::default()
        };
        let images = [Arc::from("app:1")];
        assert_eq!(answer(&images, 1, &Node::default()), WORST);
        assert_eq!(answer(&images, 1, &node(10 * MIB)), WORST);
        assert_eq!(answer(&images, 1, &node(500 * MIB)), 4);
        assert_eq!(answer(&images, 1, &node(i64::MAX)), 0);
        assert_eq!(answer(&[Arc::from("other:1")], 1, &node(i64::MAX)), WORST);
    }

    #[test]
    fn of_two_containers_each_may_gain_by_as_much_as_one() {
        let images = [Image { name: "app:1".into(), size_bytes: 500 * MIB }].into();
        let node = Node { images, ..Node::default() };
        assert_eq!(answer(&[Arc::from("app:1")], 2, &node), 6);
    }
}
