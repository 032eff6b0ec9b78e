//! A small graph of a container's usage over the history, with its request and the advice.

use std::fmt::Write;

use crate::advise::advice::{Current, ResourceAdvice};
use berth_rightsizing::recommend::Amount;

const WIDTH: f64 = 192.0;
const HEIGHT: f64 = 40.0;

/// Draws one resource. `per_unit`: amounts in one unit of the history, which is cores or bytes. Empty without usage.
pub fn graph(size: &ResourceAdvice, history: &[f32], per_unit: f64, label: &str) -> String {
    let in_units = |amount: Amount| amount as f64 / per_unit;
    let request = match size.request {
        Current::Set(request) => Some(in_units(request)),
        Current::Unset | Current::Unknown => None,
    };
    let target = size.target.map(in_units);
    let usage = history.iter().map(|value| f64::from(*value)).filter(|value| value.is_finite());
    let highest = usage.clone().chain(request).chain(target).fold(0.0, f64::max);
    if usage.count() == 0 || highest <= 0.0 {
        return String::new();
    }
    let y = |value: f64| HEIGHT - 1.0 - value / highest * (HEIGHT - 2.0);
    let mut svg = format!(
        "<svg class=\"spark\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" role=\"img\" aria-label=\"{label}\">"
    );
    for (class, value) in [("request", request), ("advice", target)] {
        if let Some(value) = value {
            let y = y(value);
            let _ =
                write!(svg, "<line class=\"{class}\" x1=\"0\" x2=\"{WIDTH}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>");
        }
    }
    let step = WIDTH / history.len() as f64;
    // Where there are no samples, the line is interrupted.
    let mut path = String::new();
    let mut is_drawn = false;
    for (at, value) in history.iter().enumerate() {
        if value.is_finite() {
            let (x, y) = ((at as f64 + 0.5) * step, y(f64::from(*value)));
            let _ = write!(path, "{}{x:.1} {y:.1}", if is_drawn { 'L' } else { 'M' });
        }
        is_drawn = value.is_finite();
    }
    let _ = write!(svg, "<path class=\"usage\" d=\"{path}\"/></svg>");
    svg
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::advise::{LimitRule, Reason, Severity};

    #[test]
    fn usage_is_drawn_below_its_request_and_interrupted_where_it_is_unknown() {
        let size = ResourceAdvice {
            severity: Severity::Unknown,
            request: Current::Set(2_000),
            limit: Current::Unset,
            limit_rule: LimitRule::Unchanged,
            reason: Reason::Usage,
            target: Some(1_000),
            lower: None,
            upper: None,
        };
        let svg = graph(&size, &[0.5, 1.0, f32::NAN, 0.0], 1_000.0, "CPU");
        assert!(svg.contains(r#"d="M24.0 29.5L72.0 20.0M168.0 39.0""#), "{svg}");
        assert!(svg.contains(r#"class="request" x1="0" x2="192" y1="1.0""#), "{svg}");
        assert!(svg.contains(r#"class="advice" x1="0" x2="192" y1="20.0""#), "{svg}");
        assert_eq!(graph(&size, &[f32::NAN], 1_000.0, "CPU"), "");
        assert_eq!(graph(&size, &[], 1_000.0, "CPU"), "");
    }
}
