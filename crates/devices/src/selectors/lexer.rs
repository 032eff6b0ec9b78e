//! Tokens of CEL.

use std::sync::Arc;

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Token {
    /// The magnitude: a sign is a token of its own.
    Int(u64),
    Uint(u64),
    Double(f64),
    Text(Arc<str>),
    Bytes(Arc<[u8]>),
    /// Also a word such as `true`, `null` or `in`.
    Name(Arc<str>),
    Symbol(&'static str),
    End,
}

/// Longer symbols first.
const SYMBOLS: [&str; 25] = [
    "==", "!=", "<=", ">=", "&&", "||", "<", ">", "[", "]", "{", "}", "(", ")", ".", ",", "-", "!", "?", ":",
    "+", "*", "/", "%", "=",
];

/// Returns the tokens, each with the position of its first byte. The last is [`Token::End`].
pub(super) fn tokens(source: &str) -> Result<Vec<(usize, Token)>, (usize, String)> {
    let mut tokens = Vec::new();
    let mut at = 0;
    loop {
        at += blank_len(&source[at..]);
        let rest = &source[at..];
        let Some(first) = rest.chars().next() else {
            tokens.push((at, Token::End));
            return Ok(tokens);
        };
        let (token, len) = if let Some(quote) = literal_start(rest) {
            quoted(rest, quote).map_err(|message| (at, message))?
        } else if first.is_ascii_digit()
            || first == '.' && rest[1..].starts_with(|c: char| c.is_ascii_digit())
        {
            number(rest).map_err(|message| (at, message))?
        } else if first.is_ascii_alphabetic() || first == '_' {
            let len = span(rest, |c| c.is_ascii_alphanumeric() || c == b'_');
            (Token::Name(rest[..len].into()), len)
        } else if let Some(symbol) = SYMBOLS.into_iter().find(|symbol| rest.starts_with(symbol)) {
            (Token::Symbol(symbol), symbol.len())
        } else {
            return Err((at, format!("unexpected character {first:?}")));
        };
        tokens.push((at, token));
        at += len;
    }
}

fn span(text: &str, accept: impl Fn(u8) -> bool) -> usize {
    text.bytes().position(|byte| !accept(byte)).unwrap_or(text.len())
}

/// Length of the blanks and comments at the start.
fn blank_len(text: &str) -> usize {
    let mut at = 0;
    loop {
        at += span(&text[at..], |byte| b"\t \r\n\x0c".contains(&byte));
        if !text[at..].starts_with("//") {
            return at;
        }
        at += span(&text[at..], |byte| byte != b'\n');
    }
}

fn number(text: &str) -> Result<(Token, usize), String> {
    let digits = |text: &str| span(text, |byte| byte.is_ascii_digit());
    if let Some(hex) = text.strip_prefix("0x") {
        let len = span(hex, |byte| byte.is_ascii_hexdigit());
        if len > 0 {
            let value = u64::from_str_radix(&hex[..len], 16).map_err(|_| "integer is too large")?;
            return Ok(integer(value, &hex[len..], len + 2));
        }
    }
    let whole = digits(text);
    let mut len = whole;
    if text[len..].starts_with('.') && digits(&text[len + 1..]) > 0 {
        len += 1 + digits(&text[len + 1..]);
    }
    if let Some(exponent) = text[len..].strip_prefix(['e', 'E']) {
        let unsigned = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
        if digits(unsigned) > 0 {
            len += 1 + exponent.len() - unsigned.len() + digits(unsigned);
        }
    }
    if len > whole {
        let value: f64 = text[..len].parse().map_err(|_| "invalid double")?;
        if value.is_infinite() {
            return Err("double is too large".into());
        }
        return Ok((Token::Double(value), len));
    }
    let value = text[..whole].parse().map_err(|_| "integer is too large")?;
    Ok(integer(value, &text[whole..], whole))
}

fn integer(value: u64, rest: &str, len: usize) -> (Token, usize) {
    if rest.starts_with(['u', 'U']) { (Token::Uint(value), len + 1) } else { (Token::Int(value), len) }
}

/// How a literal of a string or of bytes begins.
#[derive(Clone, Copy)]
struct Quote {
    bytes: bool,
    raw: bool,
    /// `"`, `'`, `"""` or `'''`.
    mark: &'static str,
    /// Length of the prefix and the mark.
    len: usize,
}

fn literal_start(text: &str) -> Option<Quote> {
    let (bytes, rest) = match text.strip_prefix(['b', 'B']) {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let (raw, rest) = match rest.strip_prefix(['r', 'R']) {
        Some(rest) => (true, rest),
        None => (false, rest),
    };
    let mark = ["\"\"\"", "'''", "\"", "'"].into_iter().find(|mark| rest.starts_with(mark))?;
    Some(Quote { bytes, raw, mark, len: text.len() - rest.len() + mark.len() })
}

fn quoted(text: &str, quote: Quote) -> Result<(Token, usize), String> {
    let unfinished = || "unfinished string".to_owned();
    let mut value: Vec<u8> = Vec::new();
    let mut at = quote.len;
    loop {
        let rest = &text[at..];
        let next = rest.chars().next().ok_or_else(unfinished)?;
        if rest.starts_with(quote.mark) {
            at += quote.mark.len();
            break;
        }
        if next == '\\' && !quote.raw {
            at += escape(rest, quote.bytes, &mut value)?;
        } else if quote.mark.len() == 1 && (next == '\n' || next == '\r') {
            return Err(unfinished());
        } else if next == '\r' {
            // Line ends are newlines.
            at += if rest[1..].starts_with('\n') { 2 } else { 1 };
            value.push(b'\n');
        } else {
            at += next.len_utf8();
            value.extend_from_slice(next.encode_utf8(&mut [0; 4]).as_bytes());
        }
    }
    if quote.bytes {
        return Ok((Token::Bytes(value.into()), at));
    }
    let text = String::from_utf8(value).map_err(|_| "invalid UTF-8")?;
    Ok((Token::Text(text.into()), at))
}

/// Appends what the escape at the start of the text stands for, and returns its length.
fn escape(text: &str, bytes: bool, value: &mut Vec<u8>) -> Result<usize, String> {
    let invalid = || "invalid escape sequence".to_owned();
    let kind = text[1..].chars().next().ok_or_else(invalid)?;
    let simple = match kind {
        'a' => Some(0x07),
        'b' => Some(0x08),
        'f' => Some(0x0c),
        'n' => Some(b'\n'),
        'r' => Some(b'\r'),
        't' => Some(b'\t'),
        'v' => Some(0x0b),
        '"' | '\'' | '\\' | '?' | '`' => Some(kind as u8),
        _ => None,
    };
    if let Some(byte) = simple {
        value.push(byte);
        return Ok(2);
    }
    let (from, digits, radix) = match kind {
        'x' | 'X' => (2, 2, 16),
        'u' if !bytes => (2, 4, 16),
        'U' if !bytes => (2, 8, 16),
        '0'..='3' => (1, 3, 8),
        _ => return Err(invalid()),
    };
    let code = text.get(from..from + digits).ok_or_else(invalid)?;
    if !code.chars().all(|digit| digit.is_digit(radix)) {
        return Err(invalid());
    }
    let code = u32::from_str_radix(code, radix).map_err(|_| invalid())?;
    if bytes {
        value.push(u8::try_from(code).map_err(|_| invalid())?);
    } else {
        let character = char::from_u32(code).ok_or_else(|| "invalid unicode code point".to_owned())?;
        value.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
    }
    Ok(from + digits)
}
