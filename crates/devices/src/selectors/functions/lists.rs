//! Functions of lists: those of Kubernetes, version 3 of the lists extension of `cel-go`, and its sets extension.

use super::{Function, Outcome, Overload, elements, global, member, strings};
use crate::selectors::check::DYN;
use crate::selectors::eval::{Failure, Run};
use crate::selectors::fold::sorted;
use crate::selectors::operators::{add, contains};
use crate::selectors::value::Value;

const LIST_LIST: &[Overload] = &[(&["list"], "list")];
const LIST_DYN: &[Overload] = &[(&["list"], DYN)];
const TWO_LISTS: &[Overload] = &[(&["list", "list"], "bool")];
const INDEX: &[Overload] =
    &[(&["list", DYN], "int"), (&["string", "string"], "int"), (&["string", "string", "int"], "int")];

pub(super) const FUNCTIONS: &[Function] = &[
    member("isSorted", &[(&["list"], "bool")], |arguments, run| {
        let list = pass(&arguments[0], run)?;
        for pair in list.windows(2) {
            if pair[0].compare(&pair[1])?.is_gt() {
                return Ok(Value::Bool(false));
            }
        }
        Ok(Value::Bool(true))
    }),
    member("sum", LIST_DYN, |arguments, run| {
        let list = pass(&arguments[0], run)?;
        let zero = match list.first() {
            None | Some(Value::Int(_)) => Value::Int(0),
            Some(Value::Uint(_)) => Value::Uint(0),
            Some(Value::Double(_)) => Value::Double(0.0),
            Some(_) => return Err(Failure::no_such_overload()),
        };
        list.iter().try_fold(zero, |sum, value| add(&sum, value, run))
    }),
    member("min", LIST_DYN, |arguments, run| extreme("min", &arguments[0], run)),
    member("max", LIST_DYN, |arguments, run| extreme("max", &arguments[0], run)),
    member("indexOf", INDEX, |arguments, run| match &arguments[0] {
        Value::List(list) if arguments.len() == 2 => index_of(list.iter().enumerate(), &arguments[1], run),
        _ => strings::index_of(arguments, run),
    }),
    member("lastIndexOf", INDEX, |arguments, run| match &arguments[0] {
        Value::List(list) if arguments.len() == 2 => {
            index_of(list.iter().enumerate().rev(), &arguments[1], run)
        }
        _ => strings::last_index_of(arguments, run),
    }),
    member("slice", &[(&["list", "int", "int"], "list")], slice),
    member("flatten", &[(&["list"], "list"), (&["list", "int"], "list")], |arguments, run| {
        let list = elements(&arguments[0])?;
        let depth = match arguments.get(1) {
            None => 1,
            Some(Value::Int(depth)) if *depth < 0 => {
                return Err(Failure::error("level must be non-negative"));
            }
            Some(Value::Int(depth)) => *depth,
            Some(_) => return Err(Failure::no_such_overload()),
        };
        run.charge(ALLOCATING_COST)?;
        let mut flat = Vec::new();
        flatten(list, depth, &mut flat, run)?;
        Ok(Value::List(flat.into()))
    }),
    global("lists.range", &[(&["int"], "list")], |arguments, run| match &arguments[0] {
        Value::Int(end) => {
            run.charge(ALLOCATING_COST.saturating_add(u64::try_from(*end).unwrap_or(0)))?;
            Ok((0..*end).map(Value::Int).collect())
        }
        _ => Err(Failure::no_such_overload()),
    }),
    member("reverse", LIST_LIST, |arguments, run| {
        let list = elements(&arguments[0])?;
        run.charge(ALLOCATING_COST + list.len() as u64)?;
        Ok(list.iter().rev().cloned().collect())
    }),
    member("distinct", LIST_LIST, |arguments, run| {
        let list = elements(&arguments[0])?;
        run.charge(ALLOCATING_COST)?;
        let mut distinct: Vec<Value> = Vec::new();
        for value in list {
            let mut seen = false;
            for other in &distinct {
                // Upstream counts each pair twice.
                run.charge(1)?;
                seen = seen || value.same_element(other, run)?;
            }
            run.charge(2)?;
            if !seen {
                distinct.push(value.clone());
            }
        }
        Ok(Value::List(distinct.into()))
    }),
    member("sort", LIST_LIST, |arguments, run| {
        let list = elements(&arguments[0])?;
        sorted(list, list, run)
    }),
    member("first", &[(&["list"], "optional_type")], |arguments, run| {
        run.charge(1)?;
        Ok(Value::Optional(elements(&arguments[0])?.first().map(|value| value.clone().into())))
    }),
    member("last", &[(&["list"], "optional_type")], |arguments, run| {
        run.charge(1)?;
        Ok(Value::Optional(elements(&arguments[0])?.last().map(|value| value.clone().into())))
    }),
    global("sets.contains", TWO_LISTS, |arguments, run| {
        run.charge(1)?;
        contains_all(&arguments[0], elements(&arguments[1])?, run).map(Value::Bool)
    }),
    global("sets.equivalent", TWO_LISTS, |arguments, run| {
        run.charge(1)?;
        let [left, right] = arguments else {
            return Err(Failure::no_such_overload());
        };
        let equivalent =
            contains_all(left, elements(right)?, run)? && contains_all(right, elements(left)?, run)?;
        Ok(Value::Bool(equivalent))
    }),
    global("sets.intersects", TWO_LISTS, |arguments, run| {
        run.charge(1)?;
        elements(&arguments[1])?;
        for value in elements(&arguments[0])? {
            if contains(&arguments[1], value, run)? {
                return Ok(Value::Bool(true));
            }
        }
        Ok(Value::Bool(false))
    }),
];

/// A call and a new list.
const ALLOCATING_COST: u64 = 11;

/// Charges for one look at each element, and returns them.
fn pass<'a>(list: &'a Value, run: &mut Run) -> Result<&'a [Value], Failure> {
    let list = elements(list)?;
    for element in list {
        match element {
            Value::Text(_) | Value::Bytes(_) => run.charge_pass(element.size())?,
            _ => run.charge(1)?,
        }
    }
    Ok(list)
}

fn extreme(name: &str, list: &Value, run: &mut Run) -> Outcome {
    let mut found: Option<&Value> = None;
    for value in pass(list, run)? {
        let better = match found {
            None => true,
            Some(best) if name == "min" => best.compare(value)?.is_gt(),
            Some(best) => best.compare(value)?.is_lt(),
        };
        if better {
            found = Some(value);
        }
    }
    found.cloned().ok_or_else(|| Failure::error(format!("{name} called on empty list")))
}

fn index_of<'a>(list: impl Iterator<Item = (usize, &'a Value)>, searched: &Value, run: &mut Run) -> Outcome {
    for (index, value) in list {
        if value.same_element(searched, run)? {
            return Ok(Value::Int(index as i64));
        }
    }
    Ok(Value::Int(-1))
}

fn slice(arguments: &[Value], run: &mut Run) -> Outcome {
    let list = elements(&arguments[0])?;
    let (Value::Int(start), Value::Int(end)) = (&arguments[1], &arguments[2]) else {
        return Err(Failure::no_such_overload());
    };
    let refused = |reason: String| Err(Failure::error(format!("cannot slice({start}, {end}), {reason}")));
    let (Ok(from), Ok(to)) = (usize::try_from(*start), usize::try_from(*end)) else {
        return refused("negative indexes not supported".to_owned());
    };
    if from > to {
        return refused("start index must be less than or equal to end index".to_owned());
    }
    if to > list.len() {
        return refused(format!("list is length {}", list.len()));
    }
    run.charge(ALLOCATING_COST + (to - from) as u64)?;
    Ok(list[from..to].iter().cloned().collect())
}

/// Recurses as deep as lists are nested: no deeper than the expression that made them.
fn flatten(list: &[Value], depth: i64, flat: &mut Vec<Value>, run: &mut Run) -> Result<(), Failure> {
    for value in list {
        run.charge(1)?;
        match value {
            Value::List(inner) if depth > 0 => flatten(inner, depth - 1, flat, run)?,
            value => flat.push(value.clone()),
        }
    }
    Ok(())
}

fn contains_all(list: &Value, values: &[Value], run: &mut Run) -> Result<bool, Failure> {
    elements(list)?;
    for value in values {
        if !contains(list, value, run)? {
            return Ok(false);
        }
    }
    Ok(true)
}
