//! What macros that iterate gather: quantifiers, lists and maps.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::eval::{Failure, LIST_COST, Run};
use super::syntax::MacroKind;
use super::value::{Key, Map, Value};

/// Returns what the variables are in each step.
pub(super) fn steps(range: &Value, two: bool) -> Result<Vec<(Value, Option<Value>)>, Failure> {
    Ok(match (range, two) {
        (Value::List(list), false) => list.iter().map(|value| (value.clone(), None)).collect(),
        (Value::List(list), true) => {
            let indexed = list.iter().enumerate();
            indexed.map(|(index, value)| (Value::Int(index as i64), Some(value.clone()))).collect()
        }
        (Value::Map(map), false) => map.entries.keys().map(|key| (key.to_value(), None)).collect(),
        (Value::Map(map), true) => {
            map.entries.iter().map(|(key, value)| (key.to_value(), Some(value.clone()))).collect()
        }
        (other, _) => {
            return Err(Failure::error(format!("got '{}', expected iterable type", other.type_name())));
        }
    })
}

/// What a macro has gathered so far.
pub(super) struct Fold {
    kind: MacroKind,
    values: Vec<Value>,
    entries: BTreeMap<Key, Value>,
    /// Elements for which the predicate holds; for `all`: does not hold.
    count: usize,
    failed: Option<Failure>,
}

impl Fold {
    pub fn new(kind: MacroKind) -> Fold {
        Fold { kind, values: Vec::new(), entries: BTreeMap::new(), count: 0, failed: None }
    }

    pub fn absorbs_errors(&self) -> bool {
        matches!(self.kind, MacroKind::All | MacroKind::Exists)
    }

    pub fn is_decided(&self) -> bool {
        self.absorbs_errors() && self.count > 0
    }

    /// The cost of upstream's loop around the body.
    pub fn step_cost(&self) -> u64 {
        match self.kind {
            MacroKind::Exists => 4,
            MacroKind::All => 3,
            MacroKind::ExistsOne => 1,
            _ => 2,
        }
    }

    /// Keeps the first error of a quantifier.
    pub fn fail(&mut self, failure: Failure) {
        self.failed.get_or_insert(failure);
    }

    pub fn add(&mut self, first: Value, value: Value, run: &mut Run) -> Result<(), Failure> {
        match self.kind {
            MacroKind::All | MacroKind::Exists | MacroKind::ExistsOne | MacroKind::Filter => {
                let Value::Bool(holds) = value else {
                    return Err(Failure::no_such_overload());
                };
                match self.kind {
                    MacroKind::All => self.count += usize::from(!holds),
                    MacroKind::Filter if holds => {
                        run.charge(LIST_COST)?;
                        self.values.push(first);
                    }
                    _ => self.count += usize::from(holds),
                }
            }
            MacroKind::Map | MacroKind::SortBy => {
                run.charge(LIST_COST)?;
                self.values.push(value);
            }
            MacroKind::TransformMap => self.insert(Key::from_value(&first)?, value)?,
            MacroKind::TransformMapEntry => {
                let Value::Map(map) = value else {
                    return Err(Failure::no_such_overload());
                };
                run.charge(map.entries.len() as u64)?;
                for (key, value) in &map.entries {
                    self.insert(key.clone(), value.clone())?;
                }
            }
            // These do not iterate.
            MacroKind::Bind | MacroKind::OptMap | MacroKind::OptFlatMap => {}
        }
        Ok(())
    }

    fn insert(&mut self, key: Key, value: Value) -> Result<(), Failure> {
        match self.entries.insert(key, value) {
            None => Ok(()),
            Some(_) => Err(Failure::error("insert failed: key already exists")),
        }
    }

    pub fn finish(self, range: &Value, run: &mut Run) -> Result<Value, Failure> {
        match self.kind {
            MacroKind::All | MacroKind::Exists => {
                let decided = self.count > 0;
                match self.failed {
                    Some(failure) if !decided => Err(failure),
                    _ => Ok(Value::Bool(decided == (self.kind == MacroKind::Exists))),
                }
            }
            MacroKind::ExistsOne => Ok(Value::Bool(self.count == 1)),
            MacroKind::TransformMap | MacroKind::TransformMapEntry => {
                Ok(Value::Map(Arc::new(Map::new(self.entries))))
            }
            MacroKind::SortBy => {
                let Value::List(list) = range else {
                    return Err(Failure::no_such_overload());
                };
                sorted(list, &self.values, run)
            }
            _ => Ok(Value::List(self.values.into())),
        }
    }
}

/// Returns the values in the order of their keys.
pub(super) fn sorted(values: &[Value], keys: &[Value], run: &mut Run) -> Result<Value, Failure> {
    let size = keys.len() as u64;
    run.charge(size.saturating_mul(size).saturating_mul(2).saturating_add(1 + LIST_COST))?;
    if let Some(first) = keys.first() {
        if keys.iter().any(|key| key.type_name() != first.type_name()) {
            return Err(Failure::error("list elements must have the same type"));
        }
        first.compare(first).map_err(|_| Failure::error("list elements must be comparable"))?;
    }
    let mut order: Vec<usize> = (0..values.len()).collect();
    // NaN has no order: it counts as equal to all, as upstream does it.
    let compare = |a: usize, b: usize| keys[a].compare(&keys[b]).unwrap_or(Ordering::Equal);
    insertion_sort(&mut order, compare);
    Ok(order.into_iter().map(|at| values[at].clone()).collect())
}

/// A stable sort that no inconsistent order can make panic; the caller has paid for its quadratic time.
fn insertion_sort(order: &mut [usize], compare: impl Fn(usize, usize) -> Ordering) {
    for sorted in 1..order.len() {
        let mut at = sorted;
        while at > 0 && compare(order[at - 1], order[at]) == Ordering::Greater {
            order.swap(at - 1, at);
            at -= 1;
        }
    }
}
