//! Values of CEL, with the equality and the order of `cel-go`.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use berth_model::Quantity;

use super::eval::{Failure, Run};

#[derive(Debug, Clone)]
pub(super) enum Value {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    Text(Arc<str>),
    Bytes(Arc<[u8]>),
    List(Arc<[Value]>),
    Map(Arc<Map>),
    Type(&'static str),
    Optional(Option<Arc<Value>>),
    Quantity(Quantity),
    Version(Arc<semver::Version>),
    Address(IpAddr),
    Network(Network),
}

/// A map; a key that is an integer is found by an equal number of another type.
#[derive(Debug, Clone, Default)]
pub(super) struct Map {
    pub entries: BTreeMap<Key, Value>,
    /// Each key that the map lacks has an empty map: `device.attributes` and `device.capacity`.
    pub empty_map_by_default: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Key {
    Bool(bool),
    Int(i64),
    Uint(u64),
    Text(Arc<str>),
}

/// An address with the length of a prefix of it, as `netip.Prefix`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Network {
    pub address: IpAddr,
    pub prefix_bits: u8,
}

impl Value {
    pub fn text(text: &str) -> Value {
        Value::Text(text.into())
    }

    /// Returns the name of the type, as `type(value)` prints it.
    pub fn type_name(&self) -> &'static str {
        match self {
            Value::Null => "null_type",
            Value::Bool(_) => "bool",
            Value::Int(_) => "int",
            Value::Uint(_) => "uint",
            Value::Double(_) => "double",
            Value::Text(_) => "string",
            Value::Bytes(_) => "bytes",
            Value::List(_) => "list",
            Value::Map(_) => "map",
            Value::Type(_) => "type",
            Value::Optional(_) => "optional_type",
            Value::Quantity(_) => "kubernetes.Quantity",
            Value::Version(_) => "kubernetes.Semver",
            Value::Address(_) => "net.IP",
            Value::Network(_) => "net.CIDR",
        }
    }

    /// Returns what upstream's cost model counts as the size: 1 for all that has none.
    pub fn size(&self) -> u64 {
        match self {
            Value::Text(text) => text.chars().count() as u64,
            Value::Bytes(bytes) => bytes.len() as u64,
            Value::List(list) => list.len() as u64,
            Value::Map(map) => map.entries.len() as u64,
            Value::Optional(Some(value)) => value.size(),
            Value::Address(address) => address_bits(address) / 8,
            Value::Network(network) => u64::from(network.prefix_bits).div_ceil(8),
            _ => 1,
        }
    }

    /// Whether it is the zero value of its type, as `optional.ofNonZeroValue` understands it.
    pub fn is_zero(&self) -> bool {
        match self {
            Value::Null => true,
            Value::Bool(value) => !value,
            Value::Int(value) => *value == 0,
            Value::Uint(value) => *value == 0,
            Value::Double(value) => *value == 0.0,
            Value::Text(text) => text.is_empty(),
            Value::Bytes(bytes) => bytes.is_empty(),
            Value::List(list) => list.is_empty(),
            Value::Map(map) => map.entries.is_empty(),
            Value::Optional(value) => value.as_ref().is_none_or(|value| value.is_zero()),
            _ => false,
        }
    }

    /// `self == other`. Values of different types are different; only the types that Kubernetes adds demand their own
    /// type on the right. Charges for each compared element, as lists may share elements.
    pub fn equals(&self, other: &Value, run: &mut Run) -> Result<bool, Failure> {
        Ok(match (self, other) {
            (Value::Null, Value::Null) => true,
            (Value::Null, _) | (_, Value::Null) => false,
            (Value::Bool(a), Value::Bool(b)) => a == b,
            (Value::Text(a), Value::Text(b)) => a == b,
            (Value::Bytes(a), Value::Bytes(b)) => a == b,
            (Value::Type(a), Value::Type(b)) => a == b,
            (Value::List(a), Value::List(b)) => {
                if a.len() != b.len() {
                    return Ok(false);
                }
                for (a, b) in a.iter().zip(b.iter()) {
                    if !a.alike(b, run)? {
                        return Ok(false);
                    }
                }
                true
            }
            (Value::Map(a), Value::Map(b)) => {
                if a.entries.len() != b.entries.len() {
                    return Ok(false);
                }
                for (key, a) in &a.entries {
                    match b.get(&key.to_value()) {
                        Some(b) if a.alike(b, run)? => {}
                        _ => return Ok(false),
                    }
                }
                true
            }
            (Value::Optional(a), Value::Optional(b)) => match (a, b) {
                (Some(a), Some(b)) => {
                    run.charge(1)?;
                    a.equals(b, run)?
                }
                (None, None) => true,
                _ => false,
            },
            (Value::Quantity(a), Value::Quantity(b)) => a == b,
            (Value::Version(a), Value::Version(b)) => a.cmp_precedence(b) == Ordering::Equal,
            (Value::Address(a), Value::Address(b)) => a == b,
            (Value::Network(a), Value::Network(b)) => a == b,
            (Value::Quantity(_) | Value::Version(_) | Value::Address(_) | Value::Network(_), _) => {
                return Err(Failure::no_such_overload());
            }
            _ => self.compare_numbers(other).is_some_and(|order| order == Some(Ordering::Equal)),
        })
    }

    /// Equality of the elements of two containers: as upstream has it, those that cannot be compared do not make the
    /// containers different.
    fn alike(&self, other: &Value, run: &mut Run) -> Result<bool, Failure> {
        run.charge(1)?;
        match self.equals(other, run) {
            Err(Failure::Error(_)) => Ok(true),
            other => other,
        }
    }

    /// Equality when searching for an element: those that cannot be compared are different.
    pub fn same_element(&self, other: &Value, run: &mut Run) -> Result<bool, Failure> {
        run.charge(1)?;
        match self.equals(other, run) {
            Err(Failure::Error(_)) => Ok(false),
            other => other,
        }
    }

    /// The order for `<` and its like; numbers of different types have one.
    pub fn compare(&self, other: &Value) -> Result<Ordering, Failure> {
        match (self, other) {
            (Value::Bool(a), Value::Bool(b)) => Ok(a.cmp(b)),
            (Value::Text(a), Value::Text(b)) => Ok(a.cmp(b)),
            (Value::Bytes(a), Value::Bytes(b)) => Ok(a.cmp(b)),
            _ => match self.compare_numbers(other) {
                Some(Some(order)) => Ok(order),
                Some(None) => Err(Failure::error("NaN values cannot be ordered")),
                None => Err(Failure::no_such_overload()),
            },
        }
    }

    /// `None`: not two numbers. `Some(None)`: one of them is NaN.
    fn compare_numbers(&self, other: &Value) -> Option<Option<Ordering>> {
        Some(match (self, other) {
            (Value::Int(a), Value::Int(b)) => Some(a.cmp(b)),
            (Value::Uint(a), Value::Uint(b)) => Some(a.cmp(b)),
            (Value::Int(a), Value::Uint(b)) => Some(i128::from(*a).cmp(&i128::from(*b))),
            (Value::Uint(a), Value::Int(b)) => Some(i128::from(*a).cmp(&i128::from(*b))),
            (Value::Double(a), Value::Double(b)) => a.partial_cmp(b),
            (Value::Double(a), Value::Int(b)) => {
                compare_double(*a, *b as f64, i64::MIN as f64, i64::MAX as f64)
            }
            (Value::Double(a), Value::Uint(b)) => compare_double(*a, *b as f64, 0.0, u64::MAX as f64),
            (Value::Int(_) | Value::Uint(_), Value::Double(_)) => {
                other.compare_numbers(self)?.map(Ordering::reverse)
            }
            _ => return None,
        })
    }
}

/// Compares with an integer that is already rounded; values outside of the integer's type are never equal to it.
fn compare_double(double: f64, integer: f64, min: f64, max: f64) -> Option<Ordering> {
    if double < min {
        Some(Ordering::Less)
    } else if double > max {
        Some(Ordering::Greater)
    } else {
        double.partial_cmp(&integer)
    }
}

impl Map {
    pub fn new(entries: BTreeMap<Key, Value>) -> Map {
        Map { entries, empty_map_by_default: false }
    }

    /// Returns the value that is really in the map.
    pub fn get(&self, key: &Value) -> Option<&Value> {
        let find = |key: Key| self.entries.get(&key);
        match key {
            Value::Bool(key) => find(Key::Bool(*key)),
            Value::Text(key) => find(Key::Text(key.clone())),
            Value::Int(int) => find(Key::Int(*int)).or_else(|| find(Key::Uint(u64::try_from(*int).ok()?))),
            Value::Uint(uint) => {
                find(Key::Uint(*uint)).or_else(|| find(Key::Int(i64::try_from(*uint).ok()?)))
            }
            Value::Double(double) => {
                // Only integers that a double holds exactly; the casts saturate.
                let (int, uint) = (*double as i64, *double as u64);
                let by_int = || (int as f64 == *double).then(|| find(Key::Int(int))).flatten();
                let by_uint = || (uint as f64 == *double).then(|| find(Key::Uint(uint))).flatten();
                by_int().or_else(by_uint)
            }
            _ => None,
        }
    }

    /// Returns what selecting or indexing finds.
    pub fn find(&self, key: &Value) -> Option<Value> {
        match self.get(key) {
            Some(value) => Some(value.clone()),
            None if self.empty_map_by_default => Some(Value::Map(Arc::default())),
            None => None,
        }
    }
}

impl Key {
    pub fn from_value(value: &Value) -> Result<Key, Failure> {
        Ok(match value {
            Value::Bool(key) => Key::Bool(*key),
            Value::Int(key) => Key::Int(*key),
            Value::Uint(key) => Key::Uint(*key),
            Value::Text(key) => Key::Text(key.clone()),
            other => return Err(Failure::error(format!("unsupported key type: {}", other.type_name()))),
        })
    }

    pub fn to_value(&self) -> Value {
        match self {
            Key::Bool(key) => Value::Bool(*key),
            Key::Int(key) => Value::Int(*key),
            Key::Uint(key) => Value::Uint(*key),
            Key::Text(key) => Value::Text(key.clone()),
        }
    }
}

/// Returns 32 or 128.
pub(super) fn address_bits(address: &IpAddr) -> u64 {
    if address.is_ipv4() { 32 } else { 128 }
}

impl From<bool> for Value {
    fn from(value: bool) -> Value {
        Value::Bool(value)
    }
}

impl From<i64> for Value {
    fn from(value: i64) -> Value {
        Value::Int(value)
    }
}

impl From<String> for Value {
    fn from(value: String) -> Value {
        Value::Text(value.into())
    }
}

impl FromIterator<Value> for Value {
    fn from_iter<I: IntoIterator<Item = Value>>(values: I) -> Value {
        Value::List(values.into_iter().collect())
    }
}
