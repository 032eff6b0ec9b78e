//! Server-sent events, cut at any byte.

/// Maximum size of an event: a description of 500 nodes takes some 100 KB.
const EVENT_MAX: usize = 8 << 20;

/// Puts events together.
#[derive(Debug, Default)]
pub struct EventReader {
    bytes: Vec<u8>,
}

/// Name and data of an event.
type Event = (String, String);

impl EventReader {
    /// Adds bytes of the stream. Returns the events that are complete now.
    ///
    /// # Errors
    /// An event is too long, or not text.
    pub fn add(&mut self, bytes: &[u8]) -> Result<Vec<Event>, String> {
        // The end may be split.
        let mut from = self.bytes.len().saturating_sub(1);
        self.bytes.extend_from_slice(bytes);
        let (mut begin, mut events) = (0, Vec::new());
        while let Some(length) = self.bytes[from..].windows(2).position(|two| two == b"\n\n") {
            let end = from + length;
            let text = std::str::from_utf8(&self.bytes[begin..end]).map_err(|error| error.to_string())?;
            events.extend(event(text));
            (begin, from) = (end + 2, end + 2);
        }
        self.bytes.drain(..begin);
        match self.bytes.len() > EVENT_MAX {
            true => Err(format!("an event has more than {EVENT_MAX} bytes")),
            false => Ok(events),
        }
    }
}

fn event(text: &str) -> Option<Event> {
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    Some((field("event")?.to_owned(), field("data")?.to_owned()))
}
