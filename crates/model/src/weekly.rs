//! Weekly windows of time, such as `Mon-Fri 22:00-05:00`.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Deserialize, Deserializer};
use serde::{Serialize, Serializer};

const DAY_S: i64 = 86_400;
const DAY_MINUTES: u16 = 24 * 60;
/// Names of the days, in the order of their numbers.
const DAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];
/// The number of the first of January 1970.
const THURSDAY: i64 = 3;
const DAYS_PATTERN: &str = "(Mon|Tue|Wed|Thu|Fri|Sat|Sun)";

/// A window of some days of the week, in UTC. It may pass midnight, and then belongs to the day on which it begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WeeklyWindow {
    /// By number of the day.
    days: [bool; 7],
    /// Minutes since midnight; `until` is later than `from`, or on the next day.
    from: u16,
    until: u16,
}

/// Error of parsing a window.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is not a window of time: {problem}, write for example Mon-Fri 22:00-05:00 or Sat,Sun 00:00-24:00"
)]
pub struct WeeklyWindowError {
    text: String,
    problem: &'static str,
}

impl WeeklyWindow {
    /// Returns whether it contains a time in seconds since 1970.
    pub fn contains(&self, time_s: i64) -> bool {
        let day = (time_s.div_euclid(DAY_S) + THURSDAY).rem_euclid(7) as usize;
        let minute = (time_s.rem_euclid(DAY_S) / 60) as u16;
        let (today, yesterday) = (self.days[day], self.days[(day + 6) % 7]);
        match self.from < self.until {
            true => today && (self.from..self.until).contains(&minute),
            false => (today && minute >= self.from) || (yesterday && minute < self.until),
        }
    }
}

impl FromStr for WeeklyWindow {
    type Err = WeeklyWindowError;

    fn from_str(text: &str) -> Result<Self, WeeklyWindowError> {
        parse(text).map_err(|problem| WeeklyWindowError { text: text.to_owned(), problem })
    }
}

fn parse(text: &str) -> Result<WeeklyWindow, &'static str> {
    let (day_list, hours) = text.split_once(' ').ok_or("a space stands between days and hours")?;
    let day = |name: &str| {
        DAYS.iter().position(|day| *day == name).ok_or("days are Mon, Tue, Wed, Thu, Fri, Sat and Sun")
    };
    let mut days = [false; 7];
    for range in day_list.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (day(first)?, day(last)?);
        // `Sat-Mon` passes the end of the week.
        let length = (last + 7 - first) % 7;
        (0..=length).for_each(|after| days[(first + after) % 7] = true);
    }
    let (from, until) = hours.split_once('-').ok_or("a hyphen stands between two times of the day")?;
    let (from, until) = (minutes(from)?, minutes(until)?);
    if from == until || from == DAY_MINUTES {
        return Err("it is empty");
    }
    Ok(WeeklyWindow { days, from, until })
}

fn minutes(text: &str) -> Result<u16, &'static str> {
    const WRONG: &str = "times are from 00:00 to 24:00";
    let (hours, minutes) = text.split_once(':').filter(|_| text.len() == 5).ok_or(WRONG)?;
    let number = |text: &str| {
        let is_number = text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse::<u16>().ok().filter(|_| is_number).ok_or(WRONG)
    };
    let (hours, minutes) = (number(hours)?, number(minutes)?);
    let sum = hours * 60 + minutes;
    if minutes < 60 && sum <= DAY_MINUTES { Ok(sum) } else { Err(WRONG) }
}

impl fmt::Display for WeeklyWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> =
            DAYS.into_iter().zip(self.days).filter(|(_, on)| *on).map(|(name, _)| name).collect();
        let time = |minutes: u16| format!("{:02}:{:02}", minutes / 60, minutes % 60);
        write!(f, "{} {}-{}", names.join(","), time(self.from), time(self.until))
    }
}

impl Serialize for WeeklyWindow {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for WeeklyWindow {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

impl JsonSchema for WeeklyWindow {
    fn schema_name() -> Cow<'static, str> {
        "WeeklyWindow".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let days = format!("{DAYS_PATTERN}(-{DAYS_PATTERN})?");
        let time = "[0-2][0-9]:[0-5][0-9]";
        json_schema!({"type": "string", "pattern": format!("^{days}(,{days})* {time}-{time}$")})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-11-23, a Monday, 00:00.
    const MONDAY: i64 = 1_795_392_000;

    fn window(text: &str) -> WeeklyWindow {
        text.parse().unwrap()
    }

    fn contains(text: &str, day: i64, hours: i64, minutes: i64) -> bool {
        window(text).contains(MONDAY + day * DAY_S + hours * 3_600 + minutes * 60)
    }

    #[test]
    fn a_window_is_of_its_days_and_hours() {
        let text = "Mon,Wed-Fri 08:30-17:00";
        let open: Vec<i64> = (0..7).filter(|day| contains(text, *day, 12, 0)).collect();
        assert_eq!(open, [0, 2, 3, 4]);
        assert!(!contains(text, 0, 8, 29) && contains(text, 0, 8, 30));
        assert!(contains(text, 0, 16, 59) && !contains(text, 0, 17, 0));
        assert!(contains("Sun 00:00-24:00", 6, 23, 59) && !contains("Sun 00:00-24:00", 7, 0, 0));
        assert!(contains("Sun 00:00-24:00", -1, 0, 0), "last Sunday");
    }

    #[test]
    fn a_window_past_midnight_belongs_to_the_day_on_which_it_begins() {
        let text = "Fri-Mon 22:00-05:00";
        assert!(contains(text, 0, 23, 0) && contains(text, 1, 4, 59) && !contains(text, 1, 5, 0));
        assert!(!contains(text, 1, 22, 0), "Tuesday");
        assert!(contains(text, 0, 1, 0), "since Sunday");
        assert!(!contains(text, 4, 1, 0), "not since Thursday");
        assert!(!contains(text, 0, 12, 0));
    }

    #[test]
    fn what_is_wrong_is_told() {
        for (text, problem) in [
            ("Mon", "a space"),
            ("Mo 01:00-02:00", "days are"),
            ("Mon 01:00", "a hyphen"),
            ("Mon 1:00-02:00", "times are"),
            ("Mon 01:60-02:00", "times are"),
            ("Mon 24:01-02:00", "times are"),
            ("Mon +1:00-02:00", "times are"),
            ("Mon 01:00-01:00", "it is empty"),
            ("Mon 24:00-01:00", "it is empty"),
            ("", "a space"),
        ] {
            let error = text.parse::<WeeklyWindow>().unwrap_err().to_string();
            assert!(error.contains(problem), "{text}: {error}");
        }
    }

    #[test]
    fn a_window_is_read_as_it_is_written() {
        for (text, written) in [
            ("Fri-Mon 22:00-05:00", "Mon,Fri,Sat,Sun 22:00-05:00"),
            ("Sat,Sun 00:00-24:00", "Sat,Sun 00:00-24:00"),
        ] {
            assert_eq!(window(text).to_string(), written);
            assert_eq!(window(written), window(text));
        }
    }
}
