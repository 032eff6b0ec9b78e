//! Amounts as Kubernetes quantities.

use crate::advise::advice::{Current, Reason, ResourceAdvice};
use crate::advise::costs::MonthlyCost;
use berth_rightsizing::recommend::{AMOUNT_MAX, Amount};

/// Placeholder for an unknown value.
pub const UNKNOWN: &str = "?";
pub const UNSET: &str = "unset";

/// Formats millicores: `250m`, `1500m`, or `2` for whole cores.
pub fn cpu(millicores: Amount) -> String {
    match millicores {
        AMOUNT_MAX.. => "any".to_owned(),
        _ if millicores % 1000 == 0 => (millicores / 1000).to_string(),
        _ => format!("{millicores}m"),
    }
}

/// Formats bytes with at least three digits, in the largest unit that allows it; rounded.
pub fn memory(bytes: Amount) -> String {
    const UNITS: [(&str, u32); 4] = [("Ti", 40), ("Gi", 30), ("Mi", 20), ("Ki", 10)];
    if bytes >= AMOUNT_MAX {
        return "any".to_owned();
    }
    let magnitude = bytes.unsigned_abs();
    let Some((unit, shift)) = UNITS.iter().find(|(_, shift)| magnitude >= 1 << shift) else {
        return bytes.to_string();
    };
    let value = bytes as f64 / (1_i64 << shift) as f64;
    match value {
        _ if value.fract() == 0.0 || value.abs() >= 100.0 => format!("{value:.0}{unit}"),
        _ if value.abs() >= 10.0 => format!("{value:.1}{unit}"),
        _ => format!("{value:.2}{unit}"),
    }
}

/// Formats the target of a resource, or why there is none.
pub fn target(size: &ResourceAdvice, unit: fn(Amount) -> String) -> String {
    match size.reason {
        Reason::Autoscaler => "HPA".to_owned(),
        _ => estimate(size.target, unit),
    }
}

pub fn current(current: Current, unit: fn(Amount) -> String) -> String {
    match current {
        Current::Unknown => UNKNOWN.to_owned(),
        Current::Unset => UNSET.to_owned(),
        Current::Set(amount) => unit(amount),
    }
}

pub fn estimate(amount: Option<Amount>, unit: fn(Amount) -> String) -> String {
    amount.map_or(UNKNOWN.to_owned(), unit)
}

/// Formats a cost now and as advised, with an arrow between them.
pub fn cost(cost: Option<MonthlyCost>, arrow: &str) -> String {
    cost.map_or(UNKNOWN.to_owned(), |MonthlyCost { current, advised }| {
        format!("{current:.2} {arrow} {advised:.2}")
    })
}

/// Adds the currency, if it is known.
pub fn money(amount: &str, currency: &str) -> String {
    format!("{amount} {}", cut(currency, CURRENCY_WIDTH_MAX)).trim_end().to_owned()
}

const CURRENCY_WIDTH_MAX: usize = 16;

/// Returns kubectl's short name of a kind.
pub fn kind(kind: &str) -> &str {
    match kind {
        "Deployment" => "deploy",
        "StatefulSet" => "sts",
        "DaemonSet" => "ds",
        "ReplicaSet" => "rs",
        "ReplicationController" => "rc",
        "CronJob" => "cj",
        "Job" => "job",
        "Pod" => "po",
        "Node" => "no",
        other => other,
    }
}

/// Shortens to at most `width` characters, with an ellipsis in the middle, as names differ at both ends. Control
/// characters are escaped.
pub fn cut(text: &str, width: usize) -> String {
    let escaped: String = text
        .chars()
        .flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] })
        .collect();
    let count = escaped.chars().count();
    if count <= width {
        return escaped;
    }
    let tail = width.saturating_sub(1) / 2;
    let head = width.saturating_sub(1) - tail;
    escaped.chars().take(head).chain(['…']).chain(escaped.chars().skip(count - tail)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_written_as_in_a_spec() {
        let cases = [(0, "0"), (25, "25m"), (1500, "1500m"), (2000, "2"), (AMOUNT_MAX, "any")];
        for (millicores, text) in cases {
            assert_eq!(cpu(millicores), text);
        }
        let cases = [
            (0, "0"),
            (1023, "1023"),
            (250 << 20, "250Mi"),
            (262_144_001, "250Mi"),
            (1_181_116_006, "1.10Gi"),
            (12_884_901_889, "12.0Gi"),
            (4 << 30, "4Gi"),
            (-(4 << 30), "-4Gi"),
            (AMOUNT_MAX, "any"),
        ];
        for (bytes, text) in cases {
            assert_eq!(memory(bytes), text);
        }
    }

    #[test]
    fn long_names_keep_both_ends() {
        assert_eq!(cut("short", 8), "short");
        assert_eq!(cut("a-very-long-name", 9), "a-ve…name");
        assert_eq!(cut("x\u{1b}[31m", 20), "x\\u{1b}[31m");
    }
}
