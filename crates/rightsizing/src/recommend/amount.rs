//! Amounts of a resource: whole millicores of CPU, whole bytes of memory.
//!
//! Upstream: `pkg/recommender/model/types.go`. Conversions from a float truncate towards zero.

/// Millicores or bytes.
pub type Amount = i64;

/// Maximum recommendation for either resource; upstream's `MaxResourceAmount`.
pub const AMOUNT_MAX: Amount = 100_000_000_000_000;

/// Truncates towards zero and clamps to 0..=[`AMOUNT_MAX`]; NaN becomes 0.
pub fn from_float(amount: f64) -> Amount {
    if amount > AMOUNT_MAX as f64 { AMOUNT_MAX } else { amount.max(0.0) as Amount }
}

/// Converts cores to millicores.
pub fn cpu_from_cores(cores: f64) -> Amount {
    from_float(cores * 1000.0)
}

/// Converts millicores to cores.
pub fn cores(millicores: Amount) -> f64 {
    millicores as f64 / 1000.0
}

/// Returns whether a value in base units (cores or bytes) is a valid usage.
pub fn is_usage(value: f64) -> bool {
    value.is_finite() && value >= 0.0
}

/// Multiplies `amount` by `factor`, with the truncation of [`from_float`].
pub fn scale(amount: Amount, factor: f64) -> Amount {
    from_float(amount as f64 * factor)
}

/// The unit to round to is not positive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("scale must be greater than zero")]
pub struct ScaleError;

/// Returns the smallest multiple of `unit` that is at least `amount`.
pub fn round_up(amount: Amount, unit: Amount) -> Result<Amount, ScaleError> {
    if unit <= 0 {
        return Err(ScaleError);
    }
    Ok(match amount.rem_euclid(unit) {
        0 => amount,
        rest => amount.saturating_add(unit - rest),
    })
}

/// Formats bytes with two decimals in the largest binary unit that is at most the value, as upstream's
/// `--humanize-memory` does. The result is not exact.
pub fn humanize_memory(bytes: Amount) -> String {
    const UNITS: [(&str, u32); 4] = [("Ti", 40), ("Gi", 30), ("Mi", 20), ("Ki", 10)];
    match UNITS.iter().find(|(_, shift)| bytes >= 1 << shift) {
        Some((unit, shift)) => format!("{:.2}{unit}", bytes as f64 / (1_i64 << shift) as f64),
        None => bytes.to_string(),
    }
}

/// Formats `amount` (thousandths or units) as the API server writes a decimal quantity: with the largest suffix
/// that leaves a whole number.
pub fn to_quantity(amount: Amount, is_milli: bool) -> String {
    const SUFFIXES: [&str; 8] = ["m", "", "k", "M", "G", "T", "P", "E"];
    let (mut rest, mut suffix) = (amount, usize::from(!is_milli));
    if amount == 0 {
        return "0".to_owned();
    }
    while rest % 1000 == 0 && suffix + 1 < SUFFIXES.len() {
        rest /= 1000;
        suffix += 1;
    }
    format!("{rest}{}", SUFFIXES[suffix])
}

#[cfg(test)]
mod tests {
    use super::*;

    const MI: Amount = 1 << 20;

    // Figures of upstream's `model/types_test.go`.
    #[test]
    fn cores_are_truncated_to_millicores() {
        let cases = [
            (0.069946, 69),
            (0.61535112, 615),
            (0.0172071, 17),
            (0.00455, 4),
            (0.0123456789, 12),
            (0.00123456789, 1),
            (-1.0, 0),
            (f64::NAN, 0),
            (f64::INFINITY, AMOUNT_MAX),
            (1e300, AMOUNT_MAX),
        ];
        for (cores, millicores) in cases {
            assert_eq!(cpu_from_cores(cores), millicores, "{cores}");
        }
    }

    #[test]
    fn a_scaled_amount_is_truncated() {
        let cases =
            [(4, 2.124, 8), (12, 1.1, 13), (1213, 1.2414, 1505), (0, 1.0, 0), (11, 0.0, 0), (41208, 1e-6, 0)];
        for (amount, factor, scaled) in cases {
            assert_eq!(scale(amount, factor), scaled, "{amount} x {factor}");
        }
        assert_eq!(scale(0, f64::INFINITY), 0);
        assert_eq!(scale(1, f64::INFINITY), AMOUNT_MAX);
    }

    #[test]
    fn amounts_round_up_to_a_multiple() {
        let cases = [
            (100, 7, 105),
            (100, 10, 100),
            (0, 5, 0),
            (1_231_241, 13, 1_231_243),
            (839_500_000, 128 * MI, 896 * MI),
            (262_144_000, 256 * MI, 256 * MI),
            (Amount::MAX, 1000, Amount::MAX),
        ];
        for (amount, unit, rounded) in cases {
            assert_eq!(round_up(amount, unit), Ok(rounded), "{amount} to {unit}");
        }
        for unit in [0, -3, Amount::MIN] {
            assert_eq!(round_up(5, unit).unwrap_err().to_string(), "scale must be greater than zero");
        }
    }

    #[test]
    fn amounts_are_written_as_the_api_server_does() {
        let cases = [
            (25, true, "25m"),
            (1000, true, "1"),
            (1500, true, "1500m"),
            (2_000_000, true, "2k"),
            (AMOUNT_MAX, true, "100G"),
            (262_144_000, false, "262144k"),
            (104_857_601, false, "104857601"),
            (AMOUNT_MAX, false, "100T"),
            (0, true, "0"),
        ];
        for (amount, is_milli, text) in cases {
            assert_eq!(to_quantity(amount, is_milli), text);
            let read = berth_model::Quantity::parse(text).unwrap();
            assert_eq!(if is_milli { read.milli_value() } else { read.value() }, amount, "{text}");
        }
    }

    #[test]
    fn memory_for_people_has_two_digits_after_the_point() {
        let cases = [
            (1023, "1023"),
            (1537, "1.50Ki"),
            (4_992_073_454, "4.65Gi"),
            (839_500_000, "800.61Mi"),
            (3 << 40, "3.00Ti"),
        ];
        for (bytes, text) in cases {
            assert_eq!(humanize_memory(bytes), text);
        }
    }
}
