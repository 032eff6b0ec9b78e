//! Validity of the serving certificate, and when to warn about it. Has no clock of its own.

use std::time::Duration;

use jiff::Timestamp;

use berth_kube_io::certificates::Certificate;

/// Warns when less time than this, or than a tenth of the certificate's lifetime, is left.
const LITTLE: Duration = Duration::from_secs(86_400);
/// Interval between repeated warnings.
const TELL_EVERY: Duration = Duration::from_secs(3_600);

#[derive(Debug, Clone)]
pub(super) struct Validity {
    from: Timestamp,
    to: Timestamp,
    reported: Option<(Trouble, Timestamp)>,
}

/// Why clients refuse the certificate, or will soon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trouble {
    Ended,
    NotYet,
    EndsSoon,
}

impl Trouble {
    /// Text for the log.
    pub fn text(self) -> &'static str {
        match self {
            Trouble::Ended => {
                "the serving certificate has expired: API servers no longer call berth's webhooks, and pods are created \
                 unchanged"
            }
            Trouble::NotYet => "the serving certificate is not valid yet: check the clock of this machine",
            Trouble::EndsSoon => "the serving certificate expires soon",
        }
    }
}

impl Validity {
    pub fn of(certificate: &Certificate) -> Validity {
        Validity { from: certificate.not_before, to: certificate.not_after, reported: None }
    }

    pub fn end(&self) -> Timestamp {
        self.to
    }

    /// Returns the trouble to log now: a new one, or one that was last logged an interval ago.
    pub fn due_warning(&mut self, now: Timestamp) -> Option<Trouble> {
        let trouble = self.trouble(now);
        let is_told = |(before, at): (Trouble, Timestamp)| {
            Some(before) == trouble && (at..at + TELL_EVERY).contains(&now)
        };
        if self.reported.is_some_and(is_told) {
            return None;
        }
        self.reported = trouble.map(|trouble| (trouble, now));
        trouble
    }

    fn trouble(&self, now: Timestamp) -> Option<Trouble> {
        let seconds = |from: Timestamp, to: Timestamp| to.as_second().saturating_sub(from.as_second());
        let little = (seconds(self.from, self.to) / 10).min(LITTLE.as_secs().cast_signed());
        if self.to <= now {
            Some(Trouble::Ended)
        } else if now < self.from {
            Some(Trouble::NotYet)
        } else {
            (seconds(now, self.to) < little).then_some(Trouble::EndsSoon)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(life: i64, times: &[i64]) -> Vec<Option<Trouble>> {
        let at = |second| Timestamp::from_second(second).unwrap();
        let mut validity = Validity { from: at(1_000), to: at(1_000 + life), reported: None };
        times.iter().map(|time| validity.due_warning(at(1_000 + time))).collect()
    }

    #[test]
    fn what_is_wrong_is_told_when_it_begins_and_once_an_hour() {
        use Trouble::{Ended, EndsSoon, NotYet};
        assert_eq!(told(36_000, &[-20, -10, 0, 10]), [Some(NotYet), None, None, None]);
        assert_eq!(
            told(36_000, &[32_400, 32_401, 32_411, 36_000]),
            [None, Some(EndsSoon), None, Some(Ended)]
        );
        assert_eq!(told(36_000, &[36_000, 39_599, 39_600, 39_610]), [Some(Ended), None, Some(Ended), None]);
        // The warning starts a day before the end at most.
        let year = 365 * 86_400;
        assert_eq!(told(year, &[year - 86_400, year - 86_399]), [None, Some(EndsSoon)]);
        // The clock was set back.
        assert_eq!(told(36_000, &[90_000, 36_010, 36_020]), [Some(Ended), Some(Ended), None]);
    }
}
