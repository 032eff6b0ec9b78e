//! Functions of strings: the standard ones, version 2 of the strings extension of `cel-go`, and the regular
//! expressions of Kubernetes.

use std::sync::Arc;

use super::{Function, Outcome, Overload, elements, global, member};
use crate::selectors::eval::{Failure, Run};
use crate::selectors::value::Value;

const TEXT_TEXT_BOOL: &[Overload] = &[(&["string", "string"], "bool")];
const TEXT_TEXT: &[Overload] = &[(&["string"], "string")];

pub(super) const FUNCTIONS: &[Function] = &[
    member("contains", TEXT_TEXT_BOOL, |arguments, run| {
        let (text, part) = two_texts(arguments)?;
        let cost = arguments[0].size().div_ceil(10) * arguments[1].size().div_ceil(10);
        run.charge(cost)?;
        Ok(Value::Bool(text.contains(&**part)))
    }),
    member("startsWith", TEXT_TEXT_BOOL, |arguments, run| {
        let (text, part) = two_texts(arguments)?;
        run.charge_pass(arguments[0].size())?;
        Ok(Value::Bool(text.starts_with(&**part)))
    }),
    member("endsWith", TEXT_TEXT_BOOL, |arguments, run| {
        let (text, part) = two_texts(arguments)?;
        run.charge_pass(arguments[0].size())?;
        Ok(Value::Bool(text.ends_with(&**part)))
    }),
    member("matches", TEXT_TEXT_BOOL, matches),
    global("matches", TEXT_TEXT_BOOL, matches),
    member("find", &[(&["string", "string"], "string")], |arguments, run| {
        let (text, pattern) = two_texts(arguments)?;
        let found = run.pattern(pattern, arguments[0].size())?.find(text);
        Ok(Value::text(found.map_or("", |found| found.as_str())))
    }),
    member("findAll", &[(&["string", "string"], "list"), (&["string", "string", "int"], "list")], find_all),
    member("charAt", &[(&["string", "int"], "string")], char_at),
    member("lowerAscii", TEXT_TEXT, |arguments, run| {
        let text = pass(&arguments[0], 1, run)?;
        Ok(Value::from(text.to_ascii_lowercase()))
    }),
    member("upperAscii", TEXT_TEXT, |arguments, run| {
        let text = pass(&arguments[0], 1, run)?;
        Ok(Value::from(text.to_ascii_uppercase()))
    }),
    member("trim", TEXT_TEXT, |arguments, run| {
        let text = pass(&arguments[0], 1, run)?;
        Ok(Value::text(text.trim()))
    }),
    member("substring", &[(&["string", "int"], "string"), (&["string", "int", "int"], "string")], substring),
    member(
        "replace",
        &[(&["string", "string", "string"], "string"), (&["string", "string", "string", "int"], "string")],
        replace,
    ),
    member("split", &[(&["string", "string"], "list"), (&["string", "string", "int"], "list")], split),
    member("join", &[(&["list"], "string"), (&["list", "string"], "string")], join),
    global("strings.quote", TEXT_TEXT, |arguments, run| {
        let text = pass(&arguments[0], 1, run)?;
        Ok(Value::from(quoted(text)))
    }),
];

fn text(value: &Value) -> Result<&Arc<str>, Failure> {
    match value {
        Value::Text(text) => Ok(text),
        _ => Err(Failure::no_such_overload()),
    }
}

fn two_texts(arguments: &[Value]) -> Result<(&Arc<str>, &Arc<str>), Failure> {
    Ok((text(&arguments[0])?, text(&arguments[1])?))
}

/// Returns the argument at this place, or this if there is none.
fn int_or(arguments: &[Value], at: usize, otherwise: i64) -> Result<i64, Failure> {
    match arguments.get(at) {
        None => Ok(otherwise),
        Some(Value::Int(value)) => Ok(*value),
        Some(_) => Err(Failure::no_such_overload()),
    }
}

/// Charges for this many passes over a text, and returns it.
fn pass<'a>(value: &'a Value, passes: u64, run: &mut Run) -> Result<&'a Arc<str>, Failure> {
    let text = text(value)?;
    run.charge_pass(value.size() * passes)?;
    Ok(text)
}

fn matches(arguments: &[Value], run: &mut Run) -> Outcome {
    let (text, pattern) = two_texts(arguments)?;
    Ok(Value::Bool(run.pattern(pattern, arguments[0].size())?.is_match(text)))
}

fn find_all(arguments: &[Value], run: &mut Run) -> Outcome {
    let (text, pattern) = two_texts(arguments)?;
    let limit = int_or(arguments, 2, -1)?;
    // Negative: all.
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let found = run.pattern(pattern, arguments[0].size())?.find_iter(text);
    Ok(found.take(limit).map(|found| Value::text(found.as_str())).collect())
}

fn out_of_range(index: i64) -> Failure {
    Failure::error(format!("index out of range: {index}"))
}

/// Returns where the character with this index begins; the index after the last character is the end.
fn offset(text: &str, index: i64) -> Result<usize, Failure> {
    let ends = text.char_indices().map(|(at, _)| at).chain([text.len()]);
    usize::try_from(index).ok().and_then(|index| { ends }.nth(index)).ok_or_else(|| out_of_range(index))
}

fn char_at(arguments: &[Value], run: &mut Run) -> Outcome {
    let text = text(&arguments[0])?;
    let index = int_or(arguments, 1, 0)?;
    run.charge(1 + arguments[0].size().div_ceil(10))?;
    let rest = &text[offset(text, index)?..];
    Ok(Value::from(rest.chars().take(1).collect::<String>()))
}

fn substring(arguments: &[Value], run: &mut Run) -> Outcome {
    let text = pass(&arguments[0], 1, run)?;
    let start = int_or(arguments, 1, 0)?;
    if arguments.len() == 2 {
        return Ok(Value::text(&text[offset(text, start)?..]));
    }
    let end = int_or(arguments, 2, 0)?;
    if start > end {
        return Err(Failure::error(format!("invalid substring range. start: {start}, end: {end}")));
    }
    let (start, end) = (offset(text, start)?, offset(text, end)?);
    Ok(Value::text(&text[start..end]))
}

/// Charges for the result, too, which may be many times as long as the text.
fn replace(arguments: &[Value], run: &mut Run) -> Outcome {
    let text = pass(&arguments[0], 1, run)?;
    let (old, new) = two_texts(&arguments[1..])?;
    // Negative: all.
    let limit = usize::try_from(int_or(arguments, 3, -1)?).unwrap_or(usize::MAX);
    let count = text.matches(&**old).take(limit).count();
    run.charge_pass((text.len() + count.saturating_mul(new.len())) as u64)?;
    Ok(Value::from(text.replacen(&**old, new, limit)))
}

fn split(arguments: &[Value], run: &mut Run) -> Outcome {
    let text = pass(&arguments[0], 2, run)?;
    let separator = self::text(&arguments[1])?;
    let limit = int_or(arguments, 2, -1)?;
    // Negative: all.
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    if limit == 0 {
        return Ok(Value::List([].into()));
    }
    if !separator.is_empty() {
        return Ok(text.splitn(limit, &**separator).map(Value::text).collect());
    }
    // Between all characters; the last part is the rest.
    let mut parts = Vec::new();
    let mut rest = &**text;
    while let Some(first) = rest.chars().next() {
        if parts.len() + 1 == limit {
            parts.push(Value::text(rest));
            break;
        }
        let (head, tail) = rest.split_at(first.len_utf8());
        parts.push(Value::text(head));
        rest = tail;
    }
    Ok(Value::List(parts.into()))
}

fn join(arguments: &[Value], run: &mut Run) -> Outcome {
    let list = elements(&arguments[0])?;
    let separator = match arguments.get(1) {
        Some(separator) => text(separator)?,
        None => "",
    };
    let mut joined = String::new();
    for (at, element) in list.iter().enumerate() {
        let Value::Text(part) = element else {
            return Err(Failure::error(format!("join: invalid input: {}", element.type_name())));
        };
        let separator = if at == 0 { "" } else { separator };
        run.charge_pass(2 * (separator.len() + part.len()) as u64)?;
        joined.push_str(separator);
        joined.push_str(part);
    }
    Ok(Value::from(joined))
}

fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for character in text.chars() {
        match character {
            '\x07' => quoted.push_str("\\a"),
            '\x08' => quoted.push_str("\\b"),
            '\x0c' => quoted.push_str("\\f"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            '\x0b' => quoted.push_str("\\v"),
            '\\' => quoted.push_str("\\\\"),
            '"' => quoted.push_str("\\\""),
            other => quoted.push(other),
        }
    }
    quoted.push('"');
    quoted
}

/// `text.indexOf(part)`, by characters, from an offset.
pub(super) fn index_of(arguments: &[Value], run: &mut Run) -> Outcome {
    let (text, part) = search(arguments, run)?;
    let offset = int_or(arguments, 2, 0)?;
    if part.is_empty() {
        return Ok(Value::Int(offset));
    }
    let start = usize::try_from(offset).map_err(|_| out_of_range(offset))?;
    let Some((at, _)) = text.char_indices().nth(start) else {
        return Ok(Value::Int(-1));
    };
    let found = text[at..].find(&**part).map(|found| text[..at + found].chars().count() as i64);
    Ok(Value::Int(found.unwrap_or(-1)))
}

/// `text.lastIndexOf(part)`, by characters, from an offset backwards.
pub(super) fn last_index_of(arguments: &[Value], run: &mut Run) -> Outcome {
    let (text, part) = search(arguments, run)?;
    let size = arguments[0].size() as i64;
    let offset = int_or(arguments, 2, size - 1)?;
    if part.is_empty() {
        return Ok(Value::Int(if arguments.len() == 3 { offset } else { size }));
    }
    if text.len() < part.len() && arguments.len() == 2 {
        return Ok(Value::Int(-1));
    }
    let last = usize::try_from(offset).map_err(|_| out_of_range(offset))?;
    let Some((at, _)) = text.char_indices().nth(last) else {
        return Ok(Value::Int(-1));
    };
    // A match may begin at `at` and end after it.
    let end = (at + part.len()).min(text.len());
    let within = text.get(..end).unwrap_or(text);
    let starts = within.rmatch_indices(&**part).find(|(start, _)| *start <= at);
    Ok(Value::Int(starts.map_or(-1, |(start, _)| text[..start].chars().count() as i64)))
}

/// Charges for comparing the part at each place of the text.
fn search<'a>(arguments: &'a [Value], run: &mut Run) -> Result<(&'a Arc<str>, &'a Arc<str>), Failure> {
    let (text, part) = two_texts(arguments)?;
    run.charge_pass(arguments[0].size())?;
    run.charge_pass(arguments[1].size())?;
    Ok((text, part))
}
