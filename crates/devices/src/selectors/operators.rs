//! Operators, and selecting and indexing.

use std::sync::Arc;

use super::eval::{Failure, Run};
use super::syntax::Operator;
use super::value::Value;

type Outcome = Result<Value, Failure>;

/// Selects or indexes. With an optional container, or if asked for an optional, what is missing is no error.
pub(super) fn lookup(container: &Value, key: &Value, optional: bool) -> Outcome {
    let found = |value: Option<Value>| Value::Optional(value.map(Arc::new));
    match container {
        Value::Optional(None) => Ok(Value::Optional(None)),
        Value::Optional(Some(inner)) => Ok(found(find(inner, key)?)),
        _ if optional => Ok(found(find(container, key)?)),
        Value::List(_) => find(container, key)?
            .ok_or_else(|| Failure::error(format!("index out of bounds: {}", shown(key)))),
        _ => find(container, key)?.ok_or_else(|| Failure::error(format!("no such key: {}", shown(key)))),
    }
}

/// Values that have no elements miss all of them.
fn find(container: &Value, key: &Value) -> Result<Option<Value>, Failure> {
    match container {
        Value::Map(map) => Ok(map.find(key)),
        Value::List(list) => {
            let index = match key {
                Value::Int(index) => usize::try_from(*index).ok(),
                Value::Uint(index) => usize::try_from(*index).ok(),
                Value::Double(index) if index.fract() == 0.0 && *index >= 0.0 => Some(*index as usize),
                Value::Double(index) if index.fract() == 0.0 => None,
                _ => {
                    return Err(Failure::error(format!(
                        "unsupported index type '{}' in list",
                        key.type_name()
                    )));
                }
            };
            Ok(index.and_then(|index| list.get(index)).cloned())
        }
        _ => Ok(None),
    }
}

/// A key in a message.
fn shown(key: &Value) -> String {
    match key {
        Value::Text(text) => text.chars().take(100).collect(),
        Value::Int(value) => value.to_string(),
        Value::Uint(value) => value.to_string(),
        Value::Double(value) => value.to_string(),
        Value::Bool(value) => value.to_string(),
        other => other.type_name().to_owned(),
    }
}

pub(super) fn overflow() -> Failure {
    Failure::error("integer overflow")
}

/// Applies an operator to values.
pub(super) fn binary(operator: Operator, left: &Value, right: &Value, run: &mut Run) -> Outcome {
    match operator {
        Operator::Equal | Operator::NotEqual => {
            run.charge_pass(equality_size(left).min(equality_size(right)))?;
            match left.equals(right, run) {
                Ok(equal) => Ok(Value::Bool(equal == (operator == Operator::Equal))),
                // What cannot be compared is certainly not equal.
                Err(Failure::Error(_)) if operator == Operator::NotEqual => Ok(Value::Bool(true)),
                Err(failure) => Err(failure),
            }
        }
        Operator::Less | Operator::LessEqual | Operator::Greater | Operator::GreaterEqual => {
            run.charge_pass(left.size().min(right.size()))?;
            let order = left.compare(right)?;
            Ok(Value::Bool(match operator {
                Operator::Less => order.is_lt(),
                Operator::LessEqual => order.is_le(),
                Operator::Greater => order.is_gt(),
                _ => order.is_ge(),
            }))
        }
        Operator::In => contains(right, left, run).map(Value::Bool),
        Operator::Add => add(left, right, run),
        _ => {
            run.charge(1)?;
            arithmetic(operator, left, right)
        }
    }
}

/// What upstream charges for an equality: 1 for the types of Kubernetes.
fn equality_size(value: &Value) -> u64 {
    match value {
        Value::Address(_) | Value::Network(_) => 1,
        value => value.size(),
    }
}

/// `value in container`.
pub(super) fn contains(container: &Value, value: &Value, run: &mut Run) -> Result<bool, Failure> {
    match container {
        Value::List(list) => {
            for element in list.iter() {
                if value.same_element(element, run)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        Value::Map(map) => {
            run.charge(1)?;
            Ok(map.get(value).is_some())
        }
        _ => Err(Failure::no_such_overload()),
    }
}

/// Charges for the length of the result, also for lists, which upstream does not copy.
pub(super) fn add(left: &Value, right: &Value, run: &mut Run) -> Outcome {
    match (left, right) {
        (Value::Text(a), Value::Text(b)) => {
            run.charge_pass((a.len() + b.len()) as u64)?;
            Ok(Value::from([&**a, &**b].concat()))
        }
        (Value::Bytes(a), Value::Bytes(b)) => {
            run.charge_pass((a.len() + b.len()) as u64)?;
            Ok(Value::Bytes([&**a, &**b].concat().into()))
        }
        (Value::List(a), Value::List(b)) => {
            run.charge(1 + (a.len() + b.len()) as u64)?;
            Ok(a.iter().chain(b.iter()).cloned().collect())
        }
        _ => {
            run.charge(1)?;
            arithmetic(Operator::Add, left, right)
        }
    }
}

/// Computes with integers of either kind; `None`: the result is out of range.
macro_rules! checked {
    ($operator:expr, $a:expr, $b:expr) => {
        match $operator {
            Operator::Add => $a.checked_add(*$b),
            Operator::Subtract => $a.checked_sub(*$b),
            Operator::Multiply => $a.checked_mul(*$b),
            Operator::Divide => $a.checked_div(*$b),
            Operator::Modulo => $a.checked_rem(*$b),
            _ => return Err(Failure::no_such_overload()),
        }
    };
}

fn arithmetic(operator: Operator, left: &Value, right: &Value) -> Outcome {
    let by_zero = |zero: bool| match operator {
        Operator::Divide if zero => Err(Failure::error("division by zero")),
        Operator::Modulo if zero => Err(Failure::error("modulus by zero")),
        _ => Ok(()),
    };
    match (left, right) {
        (Value::Int(a), Value::Int(b)) => {
            by_zero(*b == 0)?;
            checked!(operator, a, b).map(Value::Int).ok_or_else(overflow)
        }
        (Value::Uint(a), Value::Uint(b)) => {
            by_zero(*b == 0)?;
            checked!(operator, a, b)
                .map(Value::Uint)
                .ok_or_else(|| Failure::error("unsigned integer overflow"))
        }
        (Value::Double(a), Value::Double(b)) => Ok(Value::Double(match operator {
            Operator::Add => a + b,
            Operator::Subtract => a - b,
            Operator::Multiply => a * b,
            Operator::Divide => a / b,
            _ => return Err(Failure::no_such_overload()),
        })),
        _ => Err(Failure::no_such_overload()),
    }
}
