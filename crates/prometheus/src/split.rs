//! Splitter of a Prometheus response, which arrives in pieces of any length, into its fields and the single elements of
//! `data.result`. Holds at most one of them in memory. No I/O.
//!
//! It only finds where values begin and end; `serde_json` decodes them.

/// A part of the response.
pub(super) enum Part<'a> {
    /// A field of the response or of its `data`, as JSON.
    Field(&'a str, &'a [u8]),
    /// `data.result` is a list; its elements follow.
    List,
    /// An element of the list, as JSON.
    Element(&'a [u8]),
    /// An element with more than [`ELEMENT_BYTES_MAX`] bytes, which was skipped.
    TooLong,
}

/// The text is not JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NotJson {
    /// Offset of the byte, from the beginning.
    pub at: u64,
    pub found: u8,
}

/// Ten times the size of 11,000 points, Prometheus's limit, in their longest form.
pub(super) const ELEMENT_BYTES_MAX: usize = 8 << 20;
/// Longer fields are ignored as if they were unset: no field that is read needs to be longer.
const FIELD_BYTES_MAX: usize = 64 << 10;
const KEY_BYTES_MAX: usize = 64;

pub(super) struct Splitter {
    /// Bytes before the current piece.
    offset: u64,
    level: Level,
    expects: Expects,
    /// The last key of the object at this level.
    key: String,
    value: ValueEnd,
    /// The beginning of a value that has not ended yet.
    held: Vec<u8>,
    is_too_long: bool,
}

/// The container of the current value.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    Answer,
    Data,
    Result,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Expects {
    /// The `{` of the response.
    Start,
    KeyOrEnd,
    InKey,
    Colon,
    Value,
    /// Like `Value`, or the `]` of an empty list.
    ElementOrEnd,
    InValue,
    CommaOrEnd,
    /// Only white space.
    Nothing,
}

impl Splitter {
    pub fn new() -> Self {
        Self {
            offset: 0,
            level: Level::Answer,
            expects: Expects::Start,
            key: String::new(),
            value: ValueEnd::default(),
            held: Vec::new(),
            is_too_long: false,
        }
    }

    /// Bytes read.
    pub fn bytes(&self) -> u64 {
        self.offset
    }

    /// Whether the response has ended.
    pub fn is_complete(&self) -> bool {
        self.expects == Expects::Nothing
    }

    /// Processes the next piece.
    ///
    /// # Errors
    /// The bytes cannot be a JSON object. Must not be called again after that.
    pub fn push(&mut self, piece: &[u8], found: &mut impl FnMut(Part<'_>)) -> Result<(), NotJson> {
        let mut at = 0;
        while at < piece.len() {
            let byte = piece[at];
            if self.expects == Expects::InValue {
                at = self.value(piece, at, found);
                continue;
            }
            if self.expects == Expects::InKey {
                self.key_byte(byte);
            } else if !byte.is_ascii_whitespace() {
                match self.token(byte, found) {
                    Some(true) => {}
                    // The value reader takes the first byte of a value.
                    Some(false) => continue,
                    None => return Err(NotJson { at: self.offset + at as u64, found: byte }),
                }
            }
            at += 1;
        }
        self.offset += piece.len() as u64;
        Ok(())
    }

    /// Processes a byte between keys and values: returns whether it is consumed, or `None` if it is not allowed here.
    fn token(&mut self, byte: u8, found: &mut impl FnMut(Part<'_>)) -> Option<bool> {
        match (self.expects, byte) {
            (Expects::Start, b'{') => self.expects = Expects::KeyOrEnd,
            (Expects::KeyOrEnd, b'"') => {
                self.key.clear();
                self.expects = Expects::InKey;
            }
            (Expects::Colon, b':') => self.expects = Expects::Value,
            (Expects::CommaOrEnd, b',') if self.level == Level::Result => self.expects = Expects::Value,
            (Expects::CommaOrEnd, b',') => self.expects = Expects::KeyOrEnd,
            (Expects::CommaOrEnd | Expects::KeyOrEnd, b'}') if self.level != Level::Result => self.leave(),
            (Expects::CommaOrEnd | Expects::ElementOrEnd, b']') if self.level == Level::Result => {
                self.leave()
            }
            (Expects::Value, b'{') if self.level == Level::Answer && self.key == "data" => {
                self.level = Level::Data;
                self.expects = Expects::KeyOrEnd;
            }
            (Expects::Value, b'[') if self.level == Level::Data && self.key == "result" => {
                self.level = Level::Result;
                self.expects = Expects::ElementOrEnd;
                found(Part::List);
            }
            (
                Expects::Value | Expects::ElementOrEnd,
                b'"' | b'{' | b'[' | b'-' | b'a'..=b'z' | b'0'..=b'9',
            ) => {
                self.value = ValueEnd::default();
                self.expects = Expects::InValue;
                return Some(false);
            }
            _ => return None,
        }
        Some(true)
    }

    fn leave(&mut self) {
        (self.level, self.expects) = match self.level {
            Level::Result => (Level::Data, Expects::CommaOrEnd),
            Level::Data => (Level::Answer, Expects::CommaOrEnd),
            Level::Answer => (Level::Answer, Expects::Nothing),
        };
    }

    /// Keys with escapes never match; an escaped quote would end the key too early, and the rest would not be JSON.
    fn key_byte(&mut self, byte: u8) {
        if byte == b'"' {
            self.expects = Expects::Colon;
        } else if self.key.len() < KEY_BYTES_MAX {
            self.key.push(char::from(byte));
        }
    }

    /// Reads the value that begins or continues at `from`; returns the position of its end, or the end of the piece.
    fn value(&mut self, piece: &[u8], from: usize, found: &mut impl FnMut(Part<'_>)) -> usize {
        let end = self.value.find(&piece[from..]).map(|length| from + length);
        let here = &piece[from..end.unwrap_or(piece.len())];
        let bytes_max = if self.level == Level::Result { ELEMENT_BYTES_MAX } else { FIELD_BYTES_MAX };
        self.is_too_long |= self.held.len() + here.len() > bytes_max;
        if self.is_too_long {
            self.held.clear();
        } else if end.is_none() || !self.held.is_empty() {
            self.held.extend_from_slice(here);
        }
        let Some(end) = end else { return piece.len() };
        let value = if self.held.is_empty() { here } else { &self.held };
        match (self.level, self.is_too_long) {
            (Level::Result, false) => found(Part::Element(value)),
            (Level::Result, true) => found(Part::TooLong),
            (_, false) => found(Part::Field(&self.key, value)),
            (_, true) => {}
        }
        self.held.clear();
        self.is_too_long = false;
        self.expects = Expects::CommaOrEnd;
        end
    }
}

/// Finds the end of one JSON value, which may arrive in pieces.
#[derive(Default)]
struct ValueEnd {
    /// Open braces and brackets.
    depth: u32,
    in_text: bool,
    is_escaped: bool,
}

impl ValueEnd {
    /// Returns the length of the value's part of `bytes`, if the value ends in them.
    fn find(&mut self, bytes: &[u8]) -> Option<usize> {
        let mut at = 0;
        while at < bytes.len() {
            let byte = bytes[at];
            if self.in_text {
                match byte {
                    _ if self.is_escaped => self.is_escaped = false,
                    b'\\' => self.is_escaped = true,
                    b'"' => {
                        self.in_text = false;
                        if self.depth == 0 {
                            return Some(at + 1);
                        }
                    }
                    _ => {}
                }
            } else {
                match byte {
                    b'"' => self.in_text = true,
                    b'{' | b'[' => self.depth += 1,
                    // The end of a number or literal.
                    b'}' | b']' | b',' if self.depth == 0 => return Some(at),
                    b'}' | b']' => {
                        self.depth -= 1;
                        if self.depth == 0 {
                            return Some(at + 1);
                        }
                    }
                    _ if self.depth == 0 && byte.is_ascii_whitespace() => return Some(at),
                    _ => {}
                }
            }
            at += 1;
        }
        None
    }
}
