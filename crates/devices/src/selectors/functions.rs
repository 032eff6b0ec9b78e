//! The functions that expressions may call: the standard ones here, the libraries in submodules.

mod kubernetes;
mod lists;
mod net;
mod strings;

use std::fmt;

pub(super) use kubernetes::parse_version;

use super::check::DYN;
use super::eval::{Failure, Run};
use super::operators::contains;
use super::value::Value;

/// Types of the parameters, with the receiver of a member function first, and of the result.
pub(super) type Overload = (&'static [&'static str], &'static str);

pub(super) type Outcome = Result<Value, Failure>;

/// A function. Its code fails with `no such overload` for arguments of other types than in `overloads`: of attributes
/// they are known only then.
pub(super) struct Function {
    pub name: &'static str,
    pub member: bool,
    pub overloads: &'static [Overload],
    pub call: fn(&[Value], &mut Run) -> Outcome,
}

impl fmt::Debug for Function {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name)
    }
}

const fn global(
    name: &'static str,
    overloads: &'static [Overload],
    call: fn(&[Value], &mut Run) -> Outcome,
) -> Function {
    Function { name, member: false, overloads, call }
}

const fn member(
    name: &'static str,
    overloads: &'static [Overload],
    call: fn(&[Value], &mut Run) -> Outcome,
) -> Function {
    Function { name, member: true, overloads, call }
}

/// Returns the function; the name of a global one may have dots.
pub(super) fn find(name: &str, member: bool) -> Option<&'static Function> {
    let libraries = [FUNCTIONS, strings::FUNCTIONS, lists::FUNCTIONS, kubernetes::FUNCTIONS, net::FUNCTIONS];
    libraries.into_iter().flatten().find(|function| function.name == name && function.member == member)
}

const SIZES: &[Overload] =
    &[(&["string"], "int"), (&["bytes"], "int"), (&["list"], "int"), (&["map"], "int")];
const OPTIONAL: &str = "optional_type";

const FUNCTIONS: &[Function] = &[
    global("size", SIZES, size),
    member("size", SIZES, size),
    global("type", &[(&[DYN], "type")], |arguments, run| {
        run.charge(1)?;
        Ok(Value::Type(arguments[0].type_name()))
    }),
    global("dyn", &[(&[DYN], DYN)], |arguments, run| {
        run.charge(1)?;
        Ok(arguments[0].clone())
    }),
    global("bool", &[(&["bool"], "bool"), (&["string"], "bool")], to_bool),
    global(
        "int",
        &[(&["int"], "int"), (&["uint"], "int"), (&["double"], "int"), (&["string"], "int")],
        to_int,
    ),
    global(
        "uint",
        &[(&["uint"], "uint"), (&["int"], "uint"), (&["double"], "uint"), (&["string"], "uint")],
        to_uint,
    ),
    global(
        "double",
        &[(&["double"], "double"), (&["int"], "double"), (&["uint"], "double"), (&["string"], "double")],
        to_double,
    ),
    global(
        "string",
        &[
            (&["string"], "string"),
            (&["bool"], "string"),
            (&["int"], "string"),
            (&["uint"], "string"),
            (&["double"], "string"),
            (&["bytes"], "string"),
            (&["net.IP"], "string"),
            (&["net.CIDR"], "string"),
        ],
        to_string,
    ),
    global("bytes", &[(&["bytes"], "bytes"), (&["string"], "bytes")], |arguments, run| match &arguments[0] {
        Value::Text(text) => {
            run.charge_pass(arguments[0].size())?;
            Ok(Value::Bytes(text.as_bytes().into()))
        }
        Value::Bytes(_) => Ok(arguments[0].clone()),
        _ => Err(Failure::no_such_overload()),
    }),
    member("includes", &[(&[DYN, DYN], "bool")], includes),
    global("optional.of", &[(&[DYN], OPTIONAL)], |arguments, run| {
        run.charge(1)?;
        Ok(Value::Optional(Some(arguments[0].clone().into())))
    }),
    global("optional.none", &[(&[], OPTIONAL)], |_, run| {
        run.charge(1)?;
        Ok(Value::Optional(None))
    }),
    global("optional.ofNonZeroValue", &[(&[DYN], OPTIONAL)], |arguments, run| {
        run.charge(1)?;
        let value = &arguments[0];
        Ok(Value::Optional((!value.is_zero()).then(|| value.clone().into())))
    }),
    global("optional.unwrap", &[(&["list"], "list")], unwrap),
    member("unwrapOpt", &[(&["list"], "list")], unwrap),
    member("hasValue", &[(&[OPTIONAL], "bool")], |arguments, run| {
        run.charge(1)?;
        match &arguments[0] {
            Value::Optional(value) => Ok(Value::Bool(value.is_some())),
            _ => Err(Failure::no_such_overload()),
        }
    }),
    member("value", &[(&[OPTIONAL], DYN)], |arguments, run| {
        run.charge(1)?;
        match &arguments[0] {
            Value::Optional(Some(value)) => Ok((**value).clone()),
            Value::Optional(None) => Err(Failure::error("optional.none() dereference")),
            _ => Err(Failure::no_such_overload()),
        }
    }),
];

fn size(arguments: &[Value], run: &mut Run) -> Outcome {
    run.charge(1)?;
    match &arguments[0] {
        value @ (Value::Text(_) | Value::Bytes(_) | Value::List(_) | Value::Map(_)) => {
            Ok(Value::Int(value.size() as i64))
        }
        _ => Err(Failure::no_such_overload()),
    }
}

fn not_convertible(value: &Value, to: &str) -> Failure {
    Failure::error(format!("type conversion error from '{}' to '{to}'", value.type_name()))
}

fn to_bool(arguments: &[Value], run: &mut Run) -> Outcome {
    run.charge(1)?;
    match &arguments[0] {
        Value::Bool(value) => Ok(Value::Bool(*value)),
        Value::Text(text) => match &**text {
            "1" | "t" | "T" | "TRUE" | "true" | "True" => Ok(Value::Bool(true)),
            "0" | "f" | "F" | "FALSE" | "false" | "False" => Ok(Value::Bool(false)),
            _ => Err(not_convertible(&arguments[0], "bool")),
        },
        _ => Err(Failure::no_such_overload()),
    }
}

fn to_int(arguments: &[Value], run: &mut Run) -> Outcome {
    run.charge(1)?;
    let overflow = || Failure::error("integer overflow");
    match &arguments[0] {
        Value::Int(value) => Ok(Value::Int(*value)),
        Value::Uint(value) => i64::try_from(*value).map(Value::Int).map_err(|_| overflow()),
        // The limits of the type round to 2^63, which is out of range.
        Value::Double(value) if *value > i64::MIN as f64 && *value < i64::MAX as f64 => {
            Ok(Value::Int(*value as i64))
        }
        Value::Double(_) => Err(overflow()),
        Value::Text(text) => text.parse().map(Value::Int).map_err(|_| not_convertible(&arguments[0], "int")),
        _ => Err(Failure::no_such_overload()),
    }
}

fn to_uint(arguments: &[Value], run: &mut Run) -> Outcome {
    run.charge(1)?;
    let overflow = || Failure::error("unsigned integer overflow");
    match &arguments[0] {
        Value::Uint(value) => Ok(Value::Uint(*value)),
        Value::Int(value) => u64::try_from(*value).map(Value::Uint).map_err(|_| overflow()),
        Value::Double(value) if *value >= 0.0 && *value < u64::MAX as f64 => Ok(Value::Uint(*value as u64)),
        Value::Double(_) => Err(overflow()),
        // Upstream accepts no sign here.
        Value::Text(text) if !text.starts_with('+') => {
            text.parse().map(Value::Uint).map_err(|_| not_convertible(&arguments[0], "uint"))
        }
        Value::Text(_) => Err(not_convertible(&arguments[0], "uint")),
        _ => Err(Failure::no_such_overload()),
    }
}

fn to_double(arguments: &[Value], run: &mut Run) -> Outcome {
    run.charge(1)?;
    match &arguments[0] {
        Value::Double(value) => Ok(Value::Double(*value)),
        Value::Int(value) => Ok(Value::Double(*value as f64)),
        Value::Uint(value) => Ok(Value::Double(*value as f64)),
        Value::Text(text) => {
            text.parse().map(Value::Double).map_err(|_| not_convertible(&arguments[0], "double"))
        }
        _ => Err(Failure::no_such_overload()),
    }
}

fn to_string(arguments: &[Value], run: &mut Run) -> Outcome {
    if let Value::Bytes(bytes) = &arguments[0] {
        run.charge_pass(bytes.len() as u64)?;
        let text = std::str::from_utf8(bytes);
        return text
            .map(Value::text)
            .map_err(|_| Failure::error("invalid UTF-8 in bytes, cannot convert to string"));
    }
    run.charge(1)?;
    Ok(match &arguments[0] {
        Value::Text(text) => Value::Text(text.clone()),
        Value::Bool(value) => Value::from(value.to_string()),
        Value::Int(value) => Value::from(value.to_string()),
        Value::Uint(value) => Value::from(value.to_string()),
        Value::Double(value) => Value::from(double_text(*value)),
        Value::Address(address) => Value::from(address.to_string()),
        Value::Network(network) => Value::from(format!("{}/{}", network.address, network.prefix_bits)),
        _ => return Err(Failure::no_such_overload()),
    })
}

/// Formats as Go's `%g` does.
fn double_text(value: f64) -> String {
    if value.is_nan() {
        return "NaN".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "+Inf" } else { "-Inf" }.to_owned();
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..6).contains(&exponent) {
        return value.to_string();
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

/// Values that a list may have for `includes`: `resource.k8s.io/v1.ResourceSliceMaxAttributeValuesPerDevice`.
const INCLUDES_MAX: usize = 48;

fn includes(arguments: &[Value], run: &mut Run) -> Outcome {
    match &arguments[0] {
        Value::List(list) if list.len() > INCLUDES_MAX => {
            let (head, _) = list.split_at(INCLUDES_MAX);
            if contains(&head.iter().cloned().collect(), &arguments[1], run)? {
                return Ok(Value::Bool(true));
            }
            let message =
                format!("'includes' function cannot be applied to lists longer than {INCLUDES_MAX} values");
            Err(Failure::error(message))
        }
        list @ Value::List(_) => contains(list, &arguments[1], run).map(Value::Bool),
        value => value.same_element(&arguments[1], run).map(Value::Bool),
    }
}

fn unwrap(arguments: &[Value], run: &mut Run) -> Outcome {
    let list = elements(&arguments[0])?;
    run.charge(1 + list.len() as u64)?;
    let mut values = Vec::new();
    for element in list {
        match element {
            Value::Optional(value) => values.extend(value.as_ref().map(|value| (**value).clone())),
            _ => return Err(Failure::error("value is not optional")),
        }
    }
    Ok(Value::List(values.into()))
}

fn elements(value: &Value) -> Result<&[Value], Failure> {
    match value {
        Value::List(list) => Ok(list),
        _ => Err(Failure::no_such_overload()),
    }
}
