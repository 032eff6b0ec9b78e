//! Validation of a configuration beyond its types.

use berth_model::InvalidField;
use berth_model::names::{is_dns_label, is_dns_label_of_any_length, is_qualified_name};
use berth_model::validate::{DAY, HOUR, MILLISECOND, SECOND, lasts, refuse, within};

use super::{BackoffConfig, Config, LeaderElection};

impl Config {
    /// Checks the limits of fields, and fields against each other.
    ///
    /// # Errors
    /// The first invalid field.
    pub fn validate(&self) -> Result<(), InvalidField> {
        scheduler_names(&self.scheduler_names)?;
        self.validate_profiles()?;
        within("agents", self.agents, 0..=64)?;
        within("cacheMemoryMiB", self.cache_memory_mib, 16..=65_536)?;
        lasts("cacheMaxAge", self.cache_max_age, SECOND..=DAY)?;
        within("candidateWidth", self.candidate_width, 1..=1_000)?;
        within("bindsInFlight", self.binds_in_flight, 1..=1_024)?;
        within("maxWaitingBinds", self.max_waiting_binds, 1..=65_536)?;
        within("maxWaitingClasses", self.max_waiting_classes, 1..=1_000_000)?;
        within("rememberedDecisions", self.remembered_decisions, 0..=1_000_000)?;
        if self.annotate_decisions && self.remembered_decisions == 0 {
            refuse("annotateDecisions", "it needs rememberedDecisions above 0")?;
        }
        self.tracing.validate(self.remembered_decisions)?;
        within("maxPlacementTries", self.max_placement_tries, 1..=100)?;
        self.pod_topology_spread.validate()?;
        self.backoff.validate()?;
        if !self.reserve_after.get().is_zero() {
            lasts("reserveAfter", self.reserve_after, SECOND..=DAY)?;
        }
        lasts("volumeBindTimeout", self.volume_bind_timeout, SECOND..=DAY)?;
        lasts("selfCheckInterval", self.self_check_interval, SECOND..=DAY)?;
        self.recorder.validate()?;
        self.fragmentation.validate()?;
        self.leader_election.validate()?;
        super::serving::validate(self)?;
        super::recommender::validate(self)?;
        super::scaling::validate(self)?;
        match &self.estimator_file {
            Some(path) if path.as_os_str().is_empty() => {
                refuse("estimatorFile", "it is empty; unset it to keep no latencies")
            }
            _ => Ok(()),
        }
    }
}

impl BackoffConfig {
    fn validate(self) -> Result<(), InvalidField> {
        lasts("backoff.initial", self.initial, MILLISECOND..=HOUR)?;
        lasts("backoff.max", self.max, MILLISECOND..=HOUR)?;
        if self.max < self.initial {
            return refuse(
                "backoff.max",
                format!("{} is shorter than backoff.initial ({})", self.max, self.initial),
            );
        }
        Ok(())
    }
}

impl LeaderElection {
    /// Validates even if leader election is disabled, so that enabling it later cannot fail.
    fn validate(&self) -> Result<(), InvalidField> {
        if !self.namespace.is_empty() && !is_dns_label(&self.namespace) {
            return refuse(
                "leaderElection.namespace",
                format!("`{}` is not a valid namespace name", self.namespace),
            );
        }
        if self.name.len() > 253 || !self.name.split('.').all(is_dns_label_of_any_length) {
            return refuse(
                "leaderElection.name",
                format!(
                    "`{}` is not a valid object name: lower case letters, digits, '-' and '.'",
                    self.name
                ),
            );
        }
        // The Lease object holds whole seconds: with a fraction, other processes would wait for less time
        // than this one renews for.
        lasts("leaderElection.leaseDuration", self.lease_duration, SECOND..=HOUR)?;
        if self.lease_duration.get().subsec_nanos() != 0 {
            return refuse(
                "leaderElection.leaseDuration",
                format!("{} is not a whole number of seconds", self.lease_duration),
            );
        }
        lasts("leaderElection.retryPeriod", self.retry_period, MILLISECOND..=HOUR)?;
        if self.renew_deadline <= self.retry_period {
            return refuse(
                "leaderElection.renewDeadline",
                format!("{} must be longer than retryPeriod ({})", self.renew_deadline, self.retry_period),
            );
        }
        if self.lease_duration <= self.renew_deadline {
            return refuse(
                "leaderElection.leaseDuration",
                format!(
                    "{} must be longer than renewDeadline ({})",
                    self.lease_duration, self.renew_deadline
                ),
            );
        }
        Ok(())
    }
}

/// The API server takes an event only when its reporting controller, which is the scheduler's name, is a qualified
/// name (`ValidateQualifiedName` in pkg/apis/core/validation/events.go); the form with a prefix is left out here.
fn scheduler_names(names: &[String]) -> Result<(), InvalidField> {
    const FIELD: &str = "schedulerNames";
    if names.is_empty() {
        return refuse(FIELD, "it is empty; at least one name is needed, such as [berth]");
    }
    for (position, name) in names.iter().enumerate() {
        if !is_qualified_name(name) {
            return refuse(
                FIELD,
                format!(
                    "`{name}` is not 1 to 63 letters, digits, '-', '_' and '.' with a letter or digit at both ends"
                ),
            );
        }
        if names[..position].contains(name) {
            return refuse(FIELD, format!("`{name}` is listed twice"));
        }
    }
    Ok(())
}
