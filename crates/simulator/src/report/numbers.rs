//! Number formatting for readers. The output never contains "NaN" or "inf".

/// Placeholder for a missing number.
pub const NONE: &str = "–";

/// Formats three significant digits, with thousands separators: `0.0123`, `1.23`, `12,346`.
pub fn number(value: f64) -> String {
    if !value.is_finite() {
        return NONE.to_owned();
    }
    if value == 0.0 {
        return "0".to_owned();
    }
    let decimals = (2 - value.abs().log10().floor() as i32).clamp(0, 6) as usize;
    grouped(&format!("{value:.decimals$}"))
}

/// Formats a whole number, with thousands separators.
pub fn count(value: f64) -> String {
    if value.is_finite() { grouped(&format!("{value:.0}")) } else { NONE.to_owned() }
}

/// Same as [`number`], without trailing zeros, and with `k`, `M`, `G` from ten thousand on: for axes.
pub fn short(value: f64) -> String {
    if !value.is_finite() {
        return NONE.to_owned();
    }
    let size = value.abs();
    let (scaled, suffix) = match size {
        _ if size >= 1e15 => return format!("{value:.0e}"),
        _ if size >= 1e9 => (value / 1e9, "G"),
        _ if size >= 1e6 => (value / 1e6, "M"),
        _ if size >= 1e4 => (value / 1e3, "k"),
        _ if size > 0.0 && size < 1e-4 => return format!("{value:.0e}"),
        _ => (value, ""),
    };
    let text = format!("{scaled:.4}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    format!("{}{suffix}", grouped(text))
}

/// Formats a share of 1 as `95.0 %`.
pub fn percent(share: f64) -> String {
    let percents = 100.0 * share;
    if percents.is_finite() { format!("{percents:.1}\u{a0}%") } else { NONE.to_owned() }
}

/// Formats the relative difference to `base`, as `−42 %`; `None` where it is meaningless.
pub fn change(value: f64, base: f64) -> Option<String> {
    let percents = 100.0 * (value / base - 1.0);
    (base > 0.0 && percents.is_finite()).then(|| format!("{}\u{a0}%", signed(percents)))
}

/// Formats the difference of two shares in percentage points.
pub fn points(share: f64, base: f64) -> Option<String> {
    let points = 100.0 * (share - base);
    points.is_finite().then(|| format!("{}\u{a0}pp", signed(points)))
}

/// Formats with one decimal below ten, and with a real minus sign.
fn signed(value: f64) -> String {
    let size = value.abs();
    let text = if size < 9.95 { format!("{size:.1}") } else { count(size) };
    let sign = match value {
        _ if text == "0.0" => "±",
        _ if value < 0.0 => "−",
        _ => "+",
    };
    format!("{sign}{text}")
}

fn grouped(text: &str) -> String {
    let (sign, text) = text.strip_prefix('-').map_or(("", text), |rest| ("−", rest));
    let (whole, rest) = text.split_at(text.find('.').unwrap_or(text.len()));
    let mut out = sign.to_owned();
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && (whole.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_significant_digits() {
        let shown = [0.0, 0.012_345, 1.2345, 45.67, 999.4, 12_345.6, -3.0, f64::NAN].map(number);
        assert_eq!(shown, ["0", "0.0123", "1.23", "45.7", "999", "12,346", "−3.00", "–"]);
    }

    #[test]
    fn axis_labels_are_short() {
        let shown = [0.0, 0.1 + 0.2, 2.5, 1_250.0, 12_500.0, 3e6, 1e-5].map(short);
        assert_eq!(shown, ["0", "0.3", "2.5", "1,250", "12.5k", "3M", "1e-5"]);
    }

    #[test]
    fn differences_have_a_sign_and_say_nothing_without_a_base() {
        assert_eq!(change(58.0, 100.0).unwrap(), "−42\u{a0}%");
        assert_eq!(change(100.0, 100.0).unwrap(), "±0.0\u{a0}%");
        assert_eq!(change(103.25, 100.0).unwrap(), "+3.2\u{a0}%");
        assert_eq!(change(3_000.0, 1.0).unwrap(), "+299,900\u{a0}%");
        assert_eq!(points(0.95, 0.8).unwrap(), "+15\u{a0}pp");
        assert_eq!((change(1.0, 0.0), change(f64::NAN, 1.0), points(f64::NAN, 1.0)), (None, None, None));
    }
}
