//! Rules of leader election over a Lease. Pure.
//!
//! As in client-go, no wall clock is trusted: a lease has expired when its record has not changed for the lease
//! duration by the *local* monotonic clock. The leader stops before any other candidate can consider the lease expired:
//! at the renew deadline, counted from the moment before its last successful renewal was sent.

use std::net::SocketAddr;
use std::time::Duration;

use jiff::Timestamp;

/// Names and times of a lease. The defaults of the times are kube-scheduler's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseConfig {
    pub namespace: String,
    pub name: String,
    /// Unique per process, also between two runs of one pod.
    pub identity: String,
    /// Lease duration in whole seconds. Other candidates take over after this time without a renewal.
    pub duration: Duration,
    /// A leader that could not renew for this long steps down.
    pub renew_deadline: Duration,
    /// Interval between two attempts to acquire or renew the lease.
    pub retry_period: Duration,
    /// Address at which the holder serves other replicas over HTTPS; written into the lease.
    pub address: Option<SocketAddr>,
    /// Group of a member lease. A member lease only announces that its holder is alive; no other process competes for it.
    pub member_of: Option<String>,
}

/// An invalid [`LeaseConfig`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LeaseConfigError {
    #[error("the lease duration must be a whole number of seconds between 1 and 3600, it is {0:?}")]
    Duration(Duration),
    #[error("the renew deadline ({renew_deadline:?}) must be shorter than the lease duration ({duration:?})")]
    Deadline { renew_deadline: Duration, duration: Duration },
    #[error(
        "the retry period ({retry_period:?}) must be above 0 and below half the renew deadline ({renew_deadline:?})"
    )]
    Retry { retry_period: Duration, renew_deadline: Duration },
    #[error("the lease needs a name, a namespace and an identity")]
    Names,
}

impl LeaseConfig {
    /// Creates a configuration with kube-scheduler's times: 15 s, 10 s, 2 s.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>, identity: impl Into<String>) -> Self {
        LeaseConfig {
            namespace: namespace.into(),
            name: name.into(),
            identity: identity.into(),
            duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
            address: None,
            member_of: None,
        }
    }

    /// Validates the configuration.
    ///
    /// # Errors
    /// When leadership could overlap or never be renewed with these times.
    pub fn check(&self) -> Result<(), LeaseConfigError> {
        let (duration, renew_deadline, retry_period) =
            (self.duration, self.renew_deadline, self.retry_period);
        if duration.subsec_nanos() != 0 || !(1..=3600).contains(&duration.as_secs()) {
            return Err(LeaseConfigError::Duration(duration));
        }
        if renew_deadline >= duration {
            return Err(LeaseConfigError::Deadline { renew_deadline, duration });
        }
        if retry_period.is_zero() || retry_period * 2 >= renew_deadline {
            return Err(LeaseConfigError::Retry { retry_period, renew_deadline });
        }
        if [&self.namespace, &self.name, &self.identity].iter().any(|name| name.is_empty()) {
            return Err(LeaseConfigError::Names);
        }
        Ok(())
    }
}

/// The election record in the spec of a `Lease`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseRecord {
    /// Empty: released.
    pub holder: String,
    pub duration: Duration,
    pub acquired: Option<Timestamp>,
    pub renewed: Option<Timestamp>,
    pub transitions: i32,
}

/// A record, and when it was first observed with these values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observed {
    pub record: LeaseRecord,
    /// Monotonic.
    pub since: Duration,
}

impl Observed {
    /// Stores a record and its time if it changed. Edits of other fields of the object don't count.
    pub fn update(observed: &mut Option<Observed>, record: LeaseRecord, now: Duration) {
        if observed.as_ref().is_none_or(|seen| seen.record != record) {
            *observed = Some(Observed { record, since: now });
        }
    }

    /// Returns the time until other candidates may take the lease if it is not renewed.
    pub fn expires_in(&self, config: &LeaseConfig, now: Duration) -> Duration {
        // A duration shorter than the configured one is ignored: its writer may count differently.
        let lasts = self.record.duration.max(config.duration);
        lasts.saturating_sub(now.saturating_sub(self.since))
    }

    /// Whether its holder may still be alive.
    pub fn is_held(&self, config: &LeaseConfig, now: Duration) -> bool {
        !self.record.holder.is_empty() && self.expires_in(config, now) > Duration::ZERO
    }
}

/// Next step of a candidate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaseStep {
    /// There is no lease.
    Create(LeaseRecord),
    /// The lease is held by this process, released or expired. The write must fail if the object has changed since it was read.
    Replace(LeaseRecord),
    /// Another holder may still be alive.
    Wait,
}

/// Decides the next step. `now` is monotonic; `wall` is only recorded for people.
pub fn evaluate(
    observed: Option<&Observed>,
    config: &LeaseConfig,
    now: Duration,
    wall: Timestamp,
) -> LeaseStep {
    let mine = |acquired: Option<Timestamp>, transitions: i32| LeaseRecord {
        holder: config.identity.clone(),
        duration: config.duration,
        acquired: acquired.or(Some(wall)),
        renewed: Some(wall),
        transitions,
    };
    let Some(observed) = observed else {
        return LeaseStep::Create(mine(None, 0));
    };
    let record = &observed.record;
    if record.holder == config.identity {
        return LeaseStep::Replace(mine(record.acquired, record.transitions));
    }
    if !observed.is_held(config, now) {
        return LeaseStep::Replace(mine(None, record.transitions.saturating_add(1)));
    }
    LeaseStep::Wait
}

/// Returns the record that releases a lease: any candidate may take it at once.
pub fn released(record: &LeaseRecord, wall: Timestamp) -> LeaseRecord {
    LeaseRecord {
        holder: String::new(),
        duration: Duration::from_secs(1),
        acquired: Some(wall),
        renewed: Some(wall),
        transitions: record.transitions,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wall(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("in range")
    }

    fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn config() -> LeaseConfig {
        LeaseConfig::new("kube-system", "berth", "me")
    }

    fn record(holder: &str, transitions: i32) -> LeaseRecord {
        LeaseRecord {
            holder: holder.into(),
            duration: secs(15),
            acquired: Some(wall(100)),
            renewed: Some(wall(200)),
            transitions,
        }
    }

    fn mine(acquired: i64, transitions: i32) -> LeaseRecord {
        LeaseRecord { acquired: Some(wall(acquired)), renewed: Some(wall(1000)), ..record("me", transitions) }
    }

    #[test]
    fn the_lease_is_taken_only_when_nobody_can_still_hold_it() {
        let cases = [
            ("none yet", None, 0, LeaseStep::Create(mine(1000, 0))),
            ("own", Some(record("me", 4)), 3, LeaseStep::Replace(mine(100, 4))),
            ("own, not renewed for long", Some(record("me", 4)), 99, LeaseStep::Replace(mine(100, 4))),
            ("released", Some(record("", 4)), 0, LeaseStep::Replace(mine(1000, 5))),
            ("another's, fresh", Some(record("you", 4)), 0, LeaseStep::Wait),
            ("another's, at its last second", Some(record("you", 4)), 14, LeaseStep::Wait),
            ("another's, expired", Some(record("you", 4)), 15, LeaseStep::Replace(mine(1000, 5))),
        ];
        for (name, record, age, expected) in cases {
            let observed = record.map(|record| Observed { record, since: secs(50) });
            let step = evaluate(observed.as_ref(), &config(), secs(50 + age), wall(1000));
            assert_eq!(step, expected, "{name}");
        }
    }

    #[test]
    fn a_longer_duration_of_the_holder_is_respected() {
        let observed =
            Observed { record: LeaseRecord { duration: secs(60), ..record("you", 0) }, since: secs(0) };
        assert_eq!(evaluate(Some(&observed), &config(), secs(59), wall(0)), LeaseStep::Wait);
    }

    #[test]
    fn only_a_change_of_the_record_starts_its_time_anew() {
        let mut observed = None;
        Observed::update(&mut observed, record("you", 1), secs(1));
        Observed::update(&mut observed, record("you", 1), secs(9));
        assert_eq!(observed.as_ref().map(|it| it.since), Some(secs(1)));
        let renewed = LeaseRecord { renewed: Some(wall(201)), ..record("you", 1) };
        Observed::update(&mut observed, renewed, secs(10));
        assert_eq!(observed.map(|it| it.since), Some(secs(10)));
    }

    #[test]
    fn times_that_would_let_two_lead_are_refused() {
        assert_eq!(config().check(), Ok(()));
        let with = |change: fn(&mut LeaseConfig)| {
            let mut config = config();
            change(&mut config);
            config.check().expect_err("refused").to_string()
        };
        assert!(with(|it| it.duration = Duration::from_millis(1500)).contains("whole number of seconds"));
        assert!(with(|it| it.renew_deadline = it.duration).contains("renew deadline"));
        assert!(with(|it| it.retry_period = secs(5)).contains("retry period"));
        assert!(with(|it| it.retry_period = secs(0)).contains("retry period"));
        assert!(with(|it| it.identity.clear()).contains("identity"));
    }
}
