//! Kubernetes quantities, parsed exactly as upstream does (`k8s.io/apimachinery/pkg/api/resource`).

use serde::{Deserialize, Serialize};

/// An amount in billionths (upstream's finest scale), at most `i64::MAX` units when parsed.
///
/// Upstream caps only binary suffixes (`Ki` to `Ei`) at that value. Its decimal quantities may be larger, but then its
/// `Value()` is 0 or wraps; here they are capped too and count as `i64::MAX`, so that an excessive quantity never
/// counts as a small one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Quantity {
    nano: i128,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct QuantityError(String);

const NANO_PER_UNIT: i128 = 1_000_000_000;
const NANO_PER_MILLI: i128 = 1_000_000;
const NANO_MAX: i128 = i64::MAX as i128 * NANO_PER_UNIT;

/// Multiplier of a suffix: `2^binary * 10^decimal`.
struct Scale {
    binary: u32,
    decimal: i32,
}

impl Quantity {
    pub const ZERO: Quantity = Quantity { nano: 0 };

    pub const fn from_units(units: i64) -> Quantity {
        Quantity { nano: units as i128 * NANO_PER_UNIT }
    }

    pub const fn from_milli(milli: i64) -> Quantity {
        Quantity { nano: milli as i128 * NANO_PER_MILLI }
    }

    /// Parses exactly the texts that `resource.ParseQuantity` accepts. Digits finer than a billionth round away from
    /// zero: a non-zero request never becomes zero.
    pub fn parse(text: &str) -> Result<Quantity, QuantityError> {
        if text.is_empty() {
            return Err(QuantityError(
                "a quantity must not be empty; write a number such as 500m or 1Gi".into(),
            ));
        }
        let (negative, unsigned) = match text.as_bytes()[0] {
            b'-' => (true, &text[1..]),
            b'+' => (false, &text[1..]),
            _ => (false, text),
        };
        let (whole, rest) = split_digits(unsigned);
        let (fraction, suffix) = match rest.strip_prefix('.') {
            Some(rest) => split_digits(rest),
            None => ("", rest),
        };
        let scale = Scale::parse(suffix).ok_or_else(|| bad_suffix(text, suffix))?;
        // Upstream accepts a lone suffix, sign or dot as zero, unless it takes its slow path.
        if whole.is_empty() && fraction.is_empty() && (scale.decimal < -9 || scale.binary >= 50) {
            return Err(QuantityError(format!("quantity {:?} has no digits", shown(text))));
        }
        let nano = scale.nano(whole.as_bytes(), fraction.as_bytes());
        Ok(Quantity { nano: if negative { -nano } else { nano } })
    }

    pub fn nano(self) -> i128 {
        self.nano
    }

    /// Returns whole units, rounded away from zero; saturates.
    pub fn value(self) -> i64 {
        self.rounded(NANO_PER_UNIT)
    }

    /// Returns thousandths, rounded away from zero; saturates.
    pub fn milli_value(self) -> i64 {
        self.rounded(NANO_PER_MILLI)
    }

    pub fn is_negative(self) -> bool {
        self.nano < 0
    }

    /// Returns the exact sum: rounding only happens in `value` and `milli_value`.
    pub fn saturating_add(self, other: Quantity) -> Quantity {
        Quantity { nano: self.nano.saturating_add(other.nano) }
    }

    /// Returns the exact difference.
    pub fn saturating_sub(self, other: Quantity) -> Quantity {
        Quantity { nano: self.nano.saturating_sub(other.nano) }
    }

    fn rounded(self, unit: i128) -> i64 {
        let rounded = self.nano / unit + (self.nano % unit).signum();
        rounded.clamp(i64::MIN.into(), i64::MAX.into()) as i64
    }
}

/// Formats bytes without rounding, with the largest suffix that leaves a whole number: `1536Mi`.
pub fn exact_bytes(bytes: i128) -> String {
    const SUFFIXES: [&str; 6] = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    let (mut rest, mut suffix) = (bytes, "");
    for larger in SUFFIXES {
        if rest == 0 || rest % 1024 != 0 {
            break;
        }
        (rest, suffix) = (rest / 1024, larger);
    }
    format!("{rest}{suffix}")
}

impl Scale {
    fn parse(suffix: &str) -> Option<Scale> {
        let (binary, decimal) = match suffix {
            "n" => (0, -9),
            "u" => (0, -6),
            "m" => (0, -3),
            "" => (0, 0),
            "k" => (0, 3),
            "M" => (0, 6),
            "G" => (0, 9),
            "T" => (0, 12),
            "P" => (0, 15),
            "E" => (0, 18),
            "Ki" => (10, 0),
            "Mi" => (20, 0),
            "Gi" => (30, 0),
            "Ti" => (40, 0),
            "Pi" => (50, 0),
            "Ei" => (60, 0),
            _ => {
                let exponent = suffix.strip_prefix(['e', 'E'])?.parse::<i64>().ok()?;
                // Upstream truncates the exponent to 32 bits without a check.
                (0, exponent as i32)
            }
        };
        Some(Scale { binary, decimal })
    }

    /// Returns billionths of `whole.fraction` (ASCII digits) times this scale: rounded up, at most `NANO_MAX`.
    fn nano(&self, whole: &[u8], fraction: &[u8]) -> i128 {
        let unit = NANO_PER_UNIT << self.binary;
        let digits = || {
            let all = whole.iter().chain(fraction);
            all.map(|digit| i128::from(digit - b'0'))
        };
        let len = (whole.len() + fraction.len()) as i64;
        // A decimal exponent moves the point: this many digits stand before it.
        let point = whole.len() as i64 + i64::from(self.decimal);

        let mut units: i128 = 0;
        let zeros = (point - len).clamp(0, 20) as usize;
        let before = point.clamp(0, len) as usize;
        for digit in digits().take(before).chain(std::iter::repeat_n(0, zeros)) {
            units = (units * 10 + digit).min(NANO_MAX);
        }

        // From the right, since ceil((a + x) / 10) = ceil((a + ceil(x)) / 10) for an integer `a`: exact for any length.
        let mut nano: i128 = 0;
        for digit in digits().rev().take(len as usize - before) {
            nano = (digit * unit + nano + 9) / 10;
        }
        // After 40 more zeros it is 0 or 1, and no longer changes.
        for _ in 0..(-point).clamp(0, 40) {
            nano = (nano + 9) / 10;
        }
        units.checked_mul(unit).map_or(NANO_MAX, |whole| (whole + nano).min(NANO_MAX))
    }
}

fn split_digits(text: &str) -> (&str, &str) {
    let end = text.bytes().position(|b| !b.is_ascii_digit());
    text.split_at(end.unwrap_or(text.len()))
}

fn bad_suffix(text: &str, suffix: &str) -> QuantityError {
    QuantityError(format!(
        "quantity {:?} has the invalid suffix {:?}: use one of n u m k M G T P E Ki Mi Gi Ti Pi Ei, or an \
         exponent such as e3",
        shown(text),
        shown(suffix)
    ))
}

/// Truncates a text for an error message: an object may hold megabytes.
fn shown(text: &str) -> String {
    text.chars().take(40).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> Quantity {
        Quantity::parse(text).unwrap()
    }

    /// Upstream's results, generated by `tools/quantity-vectors`.
    const VECTORS: &str = include_str!("../../../tests/data/quantities.txt");

    #[test]
    fn quantities_are_what_upstream_makes_of_them() {
        let mut parsed = 0;
        for line in VECTORS.lines().filter(|line| !line.starts_with('#')) {
            let columns: Vec<&str> = line.split('\t').collect();
            let [input, verdict, value, milli, nano] = columns[..] else {
                panic!("not five columns: {line:?}");
            };
            let ours = Quantity::parse(input);
            assert_eq!(ours.is_ok(), verdict == "ok", "{line:?}: {ours:?}");
            let Ok(ours) = ours else { continue };
            parsed += 1;
            let exact = nano.parse::<i128>().unwrap_or(i128::MAX);
            if exact.abs() > NANO_MAX {
                // Upstream's decimals are not capped here, and their Value() wraps or is 0.
                assert_eq!(ours.nano().abs(), NANO_MAX, "{line:?}");
                assert_eq!(ours.value().unsigned_abs(), i64::MAX as u64, "{line:?}");
                continue;
            }
            assert_eq!(ours.nano(), exact, "{line:?}");
            for (unit, theirs, ours) in
                [(NANO_PER_UNIT, value, ours.value()), (NANO_PER_MILLI, milli, ours.milli_value())]
            {
                if exact.abs() / unit >= i64::MAX.into() {
                    assert!(ours.unsigned_abs() >= i64::MAX as u64, "{line:?}");
                    continue;
                }
                // For negative quantities upstream's result depends on their representation (and -1Pi is -2882303760);
                // this does not matter, as negative amounts are rejected everywhere.
                if exact >= 0 {
                    assert_eq!(ours.to_string(), theirs, "{line:?}");
                }
            }
        }
        assert!(parsed > 1500, "only {parsed} valid vectors");
    }

    #[test]
    fn what_is_no_quantity_is_refused_with_a_reason() {
        let error = |text: &str| Quantity::parse(text).unwrap_err().to_string();
        assert!(error("").contains("must not be empty"));
        assert!(error("1Gb").contains("\"Gb\""));
        assert!(error("Ei").contains("no digits"));
        assert!(error(&"x".repeat(1 << 20)).len() < 300);
    }

    #[test]
    fn an_amount_beyond_what_can_be_counted_is_the_most_that_can_be_counted() {
        for text in ["8Ei", "10E", "1e100", "99999999999999999999", "1e2147483647"] {
            assert_eq!(parse(text).value(), i64::MAX, "{text}");
            assert_eq!(parse(text).milli_value(), i64::MAX, "{text}");
            assert_eq!(parse(&format!("-{text}")).value(), -i64::MAX, "{text}");
        }
    }

    #[test]
    fn a_sum_is_rounded_once() {
        let third = parse("0.3m");
        let sum = third.saturating_add(third).saturating_add(third);
        assert_eq!((third.milli_value(), sum.milli_value()), (1, 1));
        assert!(sum > third && Quantity::ZERO < third && parse("-1") < Quantity::ZERO);
        assert_eq!(Quantity::from_units(2), parse("2"));
        assert_eq!(Quantity::from_milli(100), parse("0.1"));
    }

    /// `whole.fraction * 2^binary * 10^decimal` in billionths, rounded up, by schoolbook arithmetic on digits.
    fn reference(whole: &str, fraction: &str, binary: u32, decimal: i32) -> String {
        // Least significant digit first; the value is digits * 10^exponent.
        let mut digits: Vec<u8> = format!("{whole}{fraction}").bytes().rev().map(|b| b - b'0').collect();
        let mut exponent = decimal - fraction.len() as i32 + 9;
        for _ in 0..binary {
            let mut carry = 0;
            for digit in &mut digits {
                let double = *digit * 2 + carry;
                (*digit, carry) = (double % 10, double / 10);
            }
            digits.push(carry);
        }
        while exponent > 0 {
            digits.insert(0, 0);
            exponent -= 1;
        }
        let cut = digits.len().min(-exponent as usize);
        let lost = digits.drain(..cut).any(|digit| digit != 0);
        let mut carry = u8::from(lost);
        for digit in &mut digits {
            (*digit, carry) = ((*digit + carry) % 10, (*digit + carry) / 10);
        }
        digits.push(carry);
        let text: String = digits.iter().rev().map(|d| char::from(b'0' + d)).collect();
        match text.trim_start_matches('0') {
            "" => "0".into(),
            text => text.into(),
        }
    }

    proptest! {
        #[test]
        fn parsing_agrees_with_schoolbook_arithmetic(
            sign in "[+-]?", whole in "[0-9]{1,25}", fraction in "[0-9]{0,40}", suffix in 0..17usize, exponent in -40..40i32
        ) {
            const SUFFIXES: [(&str, u32, i32); 16] = [
                ("n", 0, -9), ("u", 0, -6), ("m", 0, -3), ("", 0, 0), ("k", 0, 3), ("M", 0, 6), ("G", 0, 9),
                ("T", 0, 12), ("P", 0, 15), ("E", 0, 18), ("Ki", 10, 0), ("Mi", 20, 0), ("Gi", 30, 0),
                ("Ti", 40, 0), ("Pi", 50, 0), ("Ei", 60, 0),
            ];
            let (suffix, binary, decimal) = match SUFFIXES.get(suffix) {
                Some(&(suffix, binary, decimal)) => (suffix.to_string(), binary, decimal),
                None => (format!("e{exponent}"), 0, exponent),
            };
            let ours = parse(&format!("{sign}{whole}.{fraction}{suffix}")).nano();
            let exact = reference(&whole, &fraction, binary, decimal);
            let capped = exact.parse::<i128>().unwrap_or(NANO_MAX).min(NANO_MAX);
            prop_assert_eq!(ours, if sign == "-" { -capped } else { capped });
        }

        #[test]
        fn no_text_makes_parsing_panic(text in "\\PC{0,20}", odd in "[+-]?[0-9.]{0,30}[eEinumkKMGTP]{0,3}[+-]?[0-9]{0,25}") {
            let _ = Quantity::parse(&text);
            let _ = Quantity::parse(&odd);
        }
    }
}
