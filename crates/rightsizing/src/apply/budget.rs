//! Disruption budget: the number of pods of one controller that may be disturbed at a time.
//!
//! Upstream: `pkg/updater/restriction/pods_restriction_factory.go`.

/// Pods of one controller in one round.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Budget {
    /// Desired number of pods.
    pub configured: usize,
    pub running: usize,
    /// Number of pods that may be missing.
    pub tolerance: usize,
    /// Pods evicted or resized in this round.
    pub disturbed: usize,
    /// Whether these are fewer pods than may be restarted.
    pub is_too_small: bool,
}

impl Budget {
    /// Creates a budget. `tolerance` is the share of the pods that may be missing.
    pub fn new(configured: usize, running: usize, tolerance: f64) -> Budget {
        let tolerance = (configured as f64 * tolerance.clamp(0.0, 1.0)) as usize;
        Budget { configured, running, tolerance, ..Budget::default() }
    }

    /// Returns whether one more pod may be disturbed.
    pub fn allows(&self) -> bool {
        let must_run = self.configured.saturating_sub(self.tolerance);
        let runs = self.running.saturating_sub(self.disturbed);
        let is_whole = self.configured == self.running;
        runs > must_run || (is_whole && self.tolerance == 0 && self.disturbed == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts how many of `running` pods one round disturbs.
    fn disturbed(configured: usize, running: usize, tolerance: f64) -> usize {
        let mut budget = Budget::new(configured, running, tolerance);
        while budget.allows() {
            budget.disturbed += 1;
        }
        budget.disturbed
    }

    #[test]
    fn half_of_the_pods_may_be_missing_and_one_when_that_is_none() {
        let cases = [(2, 2, 1), (3, 3, 1), (4, 4, 2), (5, 5, 2), (5, 3, 0), (4, 3, 1), (1, 1, 1), (1, 0, 0)];
        for (configured, running, expected) in cases {
            assert_eq!(disturbed(configured, running, 0.5), expected, "{running} of {configured}");
        }
        assert_eq!(disturbed(3, 3, 0.1), 1, "a tolerance below one pod still allows one");
        assert_eq!(disturbed(3, 2, 0.1), 0, "unless one is missing already");
        assert_eq!(disturbed(3, 3, 1.0), 3);
        assert_eq!(disturbed(3, 4, f64::NAN), 1, "more than desired");
    }
}
