//! Regular expressions with the meaning that they have for Go.

use std::iter::Peekable;
use std::str::Chars;

use regex::{Regex, RegexBuilder};

/// Different patterns that one expression, and one evaluation, may compile; upstream has no such limit. A pattern
/// compiles in well under a millisecond unless it is made to be large.
pub(super) const COUNT_MAX: usize = 32;

/// Bytes that a compiled pattern may take.
const PATTERN_BYTES_MAX: usize = 1 << 20;

/// Compiles a pattern with the meaning that it has for Go, where `\d`, `\s`, `\w` and `\b` are of ASCII only.
pub(super) fn compile(pattern: &str) -> Result<Regex, String> {
    let compiled = RegexBuilder::new(&for_regex_crate(pattern)?)
        .size_limit(PATTERN_BYTES_MAX)
        .dfa_size_limit(PATTERN_BYTES_MAX)
        .nest_limit(100)
        .build();
    compiled.map_err(|error| {
        let reason = error.to_string();
        let last_line = reason.lines().last().unwrap_or_default().trim_start_matches("error: ");
        format!("error parsing regexp: {last_line}")
    })
}

/// Rewrites what the `regex` crate understands differently from Go.
fn for_regex_crate(pattern: &str) -> Result<String, String> {
    let mut rewritten = String::with_capacity(pattern.len());
    let mut in_class = false;
    let mut class_start = false;
    let mut characters = pattern.chars().peekable();
    while let Some(character) = characters.next() {
        let starts_class = std::mem::take(&mut class_start);
        match character {
            '\\' => {
                let escaped = characters.next();
                if escaped == Some('Q') && !in_class {
                    rewritten.push_str(&regex::escape(&quoted(&mut characters)));
                    continue;
                }
                let ascii = match (escaped, in_class) {
                    (Some('d'), _) => "[0-9]",
                    (Some('D'), _) => "[^0-9]",
                    (Some('w'), _) => "[0-9A-Za-z_]",
                    (Some('W'), _) => "[^0-9A-Za-z_]",
                    (Some('s'), _) => r"[\t\n\f\r ]",
                    (Some('S'), _) => r"[^\t\n\f\r ]",
                    (Some('b'), false) => r"(?-u:\b)",
                    _ => "",
                };
                if ascii.is_empty() {
                    rewritten.push('\\');
                    rewritten.extend(escaped);
                } else {
                    rewritten.push_str(ascii);
                }
            }
            '[' if !in_class => {
                in_class = true;
                class_start = true;
                rewritten.push('[');
                if characters.peek() == Some(&'^') {
                    characters.next();
                    rewritten.push('^');
                }
            }
            '[' if characters.peek() == Some(&':') => rewritten.push_str(&posix_class(&mut characters)?),
            // Within a class these are operators of the crate, and plain characters in Go.
            '[' | '&' | '~' if in_class => rewritten.extend(['\\', character]),
            ']' if in_class && !starts_class => {
                in_class = false;
                rewritten.push(']');
            }
            ']' if in_class => rewritten.push_str(r"\]"),
            _ => rewritten.push(character),
        }
    }
    Ok(rewritten)
}

/// Reads on to the end of `\Q...\E`, of which the start is already read.
fn quoted(characters: &mut Peekable<Chars>) -> String {
    let rest: String = characters.clone().collect();
    let (literal, ended) = rest.split_once(r"\E").map_or((&*rest, false), |(literal, _)| (literal, true));
    for _ in 0..literal.chars().count() + if ended { 2 } else { 0 } {
        characters.next();
    }
    literal.to_owned()
}

const POSIX_CLASSES: [&str; 14] = [
    "alnum", "alpha", "ascii", "blank", "cntrl", "digit", "graph", "lower", "print", "punct", "space",
    "upper", "word", "xdigit",
];

/// Reads on to the end of `[:name:]`, of which the first character is already read.
fn posix_class(characters: &mut Peekable<Chars>) -> Result<String, String> {
    let rest: String = characters.clone().skip(1).collect();
    let Some((name, _)) = rest.split_once(":]") else {
        return Ok(r"\[".to_owned());
    };
    if !POSIX_CLASSES.contains(&name.strip_prefix('^').unwrap_or(name)) {
        return Err("error parsing regexp: invalid character class range".to_owned());
    }
    for _ in 0..name.len() + 3 {
        characters.next();
    }
    Ok(format!("[:{name}:]"))
}
