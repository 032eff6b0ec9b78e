//! Quantities of the API, in thousandths.

/// # Panics
/// It is no quantity, or needs an exponent or a unit that scenarios do not have.
pub fn thousandths(text: &str) -> i128 {
    const UNITS: [(&str, i128); 9] = [
        ("Ki", 1 << 10),
        ("Mi", 1 << 20),
        ("Gi", 1 << 30),
        ("Ti", 1 << 40),
        ("k", 1_000),
        ("M", 1_000_000),
        ("G", 1_000_000_000),
        ("T", 1_000_000_000_000),
        ("", 1),
    ];
    let number = |digits: &str| digits.parse::<i128>().unwrap_or_else(|_| panic!("{text} is no quantity"));
    if let Some(digits) = text.strip_suffix('m') {
        return number(digits);
    }
    let unit = UNITS.iter().find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, factor)));
    let (digits, factor) = unit.expect("the last unit is empty");
    number(digits) * factor * 1_000
}

/// Rounds up to a whole number, as upstream does where it computes with whole numbers.
pub fn rounded_up(thousandths: i128) -> i128 {
    thousandths.div_euclid(1_000) * 1_000 + if thousandths.rem_euclid(1_000) == 0 { 0 } else { 1_000 }
}
