//! NodeResourcesBalancedAllocation: prefers nodes whose requested shares of CPU and memory would be similar, so that
//! neither is stranded.

use super::resources_fit::RequestedShares;

pub const STEPS: u16 = 16;

/// 0 is best, `STEPS - 1` worst.
#[inline]
pub fn preference(shares: &RequestedShares) -> u16 {
    let gap = (shares.cpu.min(1.0) - shares.memory.min(1.0)).abs();
    ((gap * f64::from(STEPS)) as u16).min(STEPS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_even_node_is_better_than_a_lopsided_one() {
        let even = preference(&RequestedShares { cpu: 0.5, memory: 0.5 });
        let lopsided = preference(&RequestedShares { cpu: 0.9, memory: 0.1 });
        assert_eq!(even, 0);
        assert!(lopsided > even);
        assert_eq!(preference(&RequestedShares { cpu: 1.0, memory: 0.0 }), STEPS - 1);
    }

    #[test]
    fn a_resource_that_is_overcommitted_is_as_full_as_one_that_is_full() {
        assert_eq!(preference(&RequestedShares { cpu: 7.0, memory: 1.0 }), 0);
        assert_eq!(preference(&RequestedShares { cpu: 1.0, memory: 7.0 }), 0);
    }
}
