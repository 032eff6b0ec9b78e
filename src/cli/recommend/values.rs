//! Parsers of option values.

use jiff::Timestamp;

use crate::advise::Prices;
use berth_model::{ConfigDuration, Quantity};
use berth_prometheus::HttpHeader;
use berth_rightsizing::recommend::{AMOUNT_MAX, Amount};

/// Parses a duration as in the configuration file, or in whole days such as `8d`.
pub fn duration(text: &str) -> Result<ConfigDuration, String> {
    const DAY_SECS: u64 = 86_400;
    const DAYS_MAX: u64 = 365;
    let days = text.strip_suffix('d').and_then(|days| days.parse::<u64>().ok());
    let duration = match days {
        Some(days) if days <= DAYS_MAX => ConfigDuration::from_secs(days * DAY_SECS),
        Some(_) => return Err("it is longer than a year".to_owned()),
        None => text.parse::<ConfigDuration>().map_err(|error| format!("{error}, or 8d"))?,
    };
    match duration.get().is_zero() {
        true => Err("it must be longer than 0".to_owned()),
        false => Ok(duration),
    }
}

/// Returns a duration in words.
pub fn shown(duration: ConfigDuration) -> String {
    let seconds = duration.get().as_secs();
    match (seconds / 86_400, seconds % 86_400) {
        (1, 0) => "day".to_owned(),
        (days, 0) if days > 1 => format!("{days} days"),
        _ => duration.to_string(),
    }
}

/// Parses `NAME=VALUE`, or `NAME=@FILE`.
pub fn header(text: &str) -> Result<HttpHeader, String> {
    let (name, value) = text.split_once('=').ok_or("use NAME=VALUE or NAME=@FILE")?;
    let (value, value_file) = match value.strip_prefix('@') {
        Some(file) => (None, Some(file.into())),
        None => (Some(value.to_owned()), None),
    };
    Ok(HttpHeader { name: name.to_owned(), value, value_file })
}

pub fn timestamp(text: &str) -> Result<Timestamp, String> {
    text.parse().map_err(|_| "use a date, a time and an offset, such as 2026-01-31T12:00:00Z".to_owned())
}

pub fn cpu(text: &str) -> Result<Amount, String> {
    amount(text, Quantity::milli_value)
}

pub fn memory(text: &str) -> Result<Amount, String> {
    amount(text, Quantity::value)
}

fn amount(text: &str, unit: fn(Quantity) -> i64) -> Result<Amount, String> {
    let quantity = Quantity::parse(text).map_err(|error| error.to_string())?;
    match unit(quantity) {
        amount if (0..=AMOUNT_MAX).contains(&amount) => Ok(amount),
        _ => Err("it is negative or too large".to_owned()),
    }
}

pub fn positive(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| number.is_finite() && *number > 0.0);
    number.ok_or("it must be a number greater than 0".to_owned())
}

/// Parses a percentile: above 0, and at most 100.
pub fn percentile(text: &str) -> Result<f64, String> {
    let number = positive(text).ok().filter(|percent| *percent <= 100.0);
    number.ok_or("it must be a number greater than 0, and at most 100".to_owned())
}

/// Parses a percentage that is added.
pub fn margin(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| (0.0..=1_000.0).contains(number));
    number.ok_or("it must be a number from 0 to 1000".to_owned())
}

/// Parses the prices of a core and of a GiB.
pub fn prices(text: &str) -> Result<Prices, String> {
    let price =
        |text: &str| text.trim().parse().ok().filter(|price: &f64| price.is_finite() && *price >= 0.0);
    let parsed = text.split_once(',').and_then(|(core, gib)| Some((price(core)?, price(gib)?)));
    let (core, gib) = parsed.ok_or("use the price of a core and of a GiB for a month, such as 20,2.5")?;
    Ok(Prices { core, gib })
}
