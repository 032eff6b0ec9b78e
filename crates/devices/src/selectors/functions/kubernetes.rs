//! Quantities and semantic versions.

use std::cmp::Ordering;
use std::sync::Arc;

use berth_model::Quantity;
use semver::Version;

use super::{Function, Overload, global, member};
use crate::selectors::eval::{Failure, Run};
use crate::selectors::value::Value;

const QUANTITY: &str = "kubernetes.Quantity";
const SEMVER: &str = "kubernetes.Semver";

const SUMS: &[Overload] = &[(&[QUANTITY, QUANTITY], QUANTITY), (&[QUANTITY, "int"], QUANTITY)];
const COMPARISONS: &[Overload] = &[(&[QUANTITY, QUANTITY], "bool"), (&[SEMVER, SEMVER], "bool")];
const NUMBER_OF_VERSION: &[Overload] = &[(&[SEMVER], "int")];

pub(super) const FUNCTIONS: &[Function] = &[
    global("quantity", &[(&["string"], QUANTITY)], |arguments, run| {
        let text = parsed_text(arguments, run)?;
        let quantity = Quantity::parse(text).map_err(|error| Failure::error(error.to_string()))?;
        Ok(Value::Quantity(quantity))
    }),
    global("isQuantity", &[(&["string"], "bool")], |arguments, run| {
        let text = parsed_text(arguments, run)?;
        Ok(Value::Bool(Quantity::parse(text).is_ok()))
    }),
    global("sign", &[(&[QUANTITY], "int")], |arguments, run| {
        Ok(Value::Int(quantity(&arguments[0], run)?.nano().signum() as i64))
    }),
    member("asApproximateFloat", &[(&[QUANTITY], "double")], |arguments, run| {
        let nano = quantity(&arguments[0], run)?.nano();
        // Whole units exactly, as far as a double holds them.
        let units = if nano % NANO == 0 { (nano / NANO) as f64 } else { nano as f64 / NANO as f64 };
        Ok(Value::Double(units))
    }),
    member("asInteger", &[(&[QUANTITY], "int")], |arguments, run| {
        let units = whole_units(quantity(&arguments[0], run)?);
        units.map(Value::Int).ok_or_else(|| Failure::error("cannot convert value to integer"))
    }),
    member("isInteger", &[(&[QUANTITY], "bool")], |arguments, run| {
        Ok(Value::Bool(whole_units(quantity(&arguments[0], run)?).is_some()))
    }),
    member("add", SUMS, |arguments, run| {
        let (left, right) = (quantity(&arguments[0], run)?, quantity_or_int(&arguments[1])?);
        Ok(Value::Quantity(left.saturating_add(right)))
    }),
    member("sub", SUMS, |arguments, run| {
        let (left, right) = (quantity(&arguments[0], run)?, quantity_or_int(&arguments[1])?);
        Ok(Value::Quantity(left.saturating_sub(right)))
    }),
    member("isGreaterThan", COMPARISONS, |arguments, run| Ok(Value::Bool(compare(arguments, run)?.is_gt()))),
    member("isLessThan", COMPARISONS, |arguments, run| Ok(Value::Bool(compare(arguments, run)?.is_lt()))),
    member("compareTo", &[(&[QUANTITY, QUANTITY], "int"), (&[SEMVER, SEMVER], "int")], |arguments, run| {
        Ok(Value::Int(compare(arguments, run)? as i64))
    }),
    global("semver", &[(&["string"], SEMVER), (&["string", "bool"], SEMVER)], |arguments, run| {
        let version = parsed_version(arguments, run)?.map_err(Failure::error)?;
        Ok(Value::Version(Arc::new(version)))
    }),
    global("isSemver", &[(&["string"], "bool"), (&["string", "bool"], "bool")], |arguments, run| {
        Ok(Value::Bool(parsed_version(arguments, run)?.is_ok()))
    }),
    member("major", NUMBER_OF_VERSION, |arguments, run| {
        Ok(Value::Int(version(&arguments[0], run)?.major as i64))
    }),
    member("minor", NUMBER_OF_VERSION, |arguments, run| {
        Ok(Value::Int(version(&arguments[0], run)?.minor as i64))
    }),
    member("patch", NUMBER_OF_VERSION, |arguments, run| {
        Ok(Value::Int(version(&arguments[0], run)?.patch as i64))
    }),
];

const NANO: i128 = 1_000_000_000;

fn parsed_text<'a>(arguments: &'a [Value], run: &mut Run) -> Result<&'a str, Failure> {
    let Value::Text(text) = &arguments[0] else {
        return Err(Failure::no_such_overload());
    };
    run.charge_pass(arguments[0].size())?;
    Ok(text)
}

fn quantity(value: &Value, run: &mut Run) -> Result<Quantity, Failure> {
    run.charge(1)?;
    match value {
        Value::Quantity(quantity) => Ok(*quantity),
        _ => Err(Failure::no_such_overload()),
    }
}

fn quantity_or_int(value: &Value) -> Result<Quantity, Failure> {
    match value {
        Value::Quantity(quantity) => Ok(*quantity),
        Value::Int(units) => Ok(Quantity::from_units(*units)),
        _ => Err(Failure::no_such_overload()),
    }
}

fn whole_units(quantity: Quantity) -> Option<i64> {
    let nano = quantity.nano();
    if nano % NANO == 0 { i64::try_from(nano / NANO).ok() } else { None }
}

fn version<'a>(value: &'a Value, run: &mut Run) -> Result<&'a Version, Failure> {
    run.charge(1)?;
    match value {
        Value::Version(version) => Ok(version),
        _ => Err(Failure::no_such_overload()),
    }
}

fn compare(arguments: &[Value], run: &mut Run) -> Result<Ordering, Failure> {
    run.charge(1)?;
    match arguments {
        [Value::Quantity(left), Value::Quantity(right)] => Ok(left.cmp(right)),
        [Value::Version(left), Value::Version(right)] => Ok(left.cmp_precedence(right)),
        _ => Err(Failure::no_such_overload()),
    }
}

fn parsed_version(arguments: &[Value], run: &mut Run) -> Result<Result<Version, String>, Failure> {
    let text = parsed_text(arguments, run)?;
    match arguments.get(1) {
        None | Some(Value::Bool(false)) => Ok(parse_version(text)),
        Some(Value::Bool(true)) => Ok(parse_tolerant(text)),
        Some(_) => Err(Failure::no_such_overload()),
    }
}

/// Parses a semantic version.
pub(in crate::selectors) fn parse_version(text: &str) -> Result<Version, String> {
    Version::parse(text).map_err(|error| error.to_string())
}

/// Also accepts a `v` before the version, missing numbers and leading zeros.
fn parse_tolerant(text: &str) -> Result<Version, String> {
    let text = text.strip_prefix('v').unwrap_or(text);
    let mut parts: Vec<String> = text.splitn(3, '.').map(without_leading_zeros).collect();
    if parts.len() < 3 {
        if parts.last().is_some_and(|last| last.contains(['+', '-'])) {
            return Err("short version cannot contain PreRelease/Build meta data".to_owned());
        }
        parts.resize(3, "0".to_owned());
    }
    parse_version(&parts.join("."))
}

fn without_leading_zeros(part: &str) -> String {
    if part.len() < 2 {
        return part.to_owned();
    }
    let stripped = part.trim_start_matches('0');
    if stripped.starts_with(|c: char| c.is_ascii_digit()) {
        stripped.to_owned()
    } else {
        format!("0{stripped}")
    }
}
