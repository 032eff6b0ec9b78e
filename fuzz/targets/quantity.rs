//! Quantities: every value that parses is bounded, rounds away from zero, and is the same after it is written and parsed again.

use berth_model::Quantity;

const NANO_PER_UNIT: i128 = 1_000_000_000;
const NANO_PER_MILLI: i128 = 1_000_000;

pub fn check(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let quantity = match Quantity::parse(text) {
        Ok(quantity) => quantity,
        Err(error) => return assert!(error.to_string().len() < 1_000, "the error text is short"),
    };
    let nano = quantity.nano();
    assert!(nano.abs() <= i128::from(i64::MAX) * NANO_PER_UNIT);
    assert_eq!(quantity.is_negative(), nano < 0);
    rounds_away_from_zero(nano, quantity.value().into(), NANO_PER_UNIT);
    if nano.abs() <= i128::from(i64::MAX) * NANO_PER_MILLI {
        rounds_away_from_zero(nano, quantity.milli_value().into(), NANO_PER_MILLI);
    }
    let sign = if nano < 0 { "-" } else { "" };
    let (whole, fraction) = (nano.abs() / NANO_PER_UNIT, nano.abs() % NANO_PER_UNIT);
    for again in [format!("{sign}{whole}.{fraction:09}"), format!("{nano}n")] {
        assert_eq!(Quantity::parse(&again), Ok(quantity), "{text:?} written as {again:?}");
    }
}

fn rounds_away_from_zero(nano: i128, rounded: i128, unit: i128) {
    let more = rounded.abs() * unit - nano.abs();
    assert!(
        (0..unit).contains(&more) && rounded.signum() == nano.signum(),
        "{nano} n is {rounded} of {unit} n"
    );
}
