//! Records without names.
//!
//! Each word becomes a number, by its place in the order of all words: equal words stay equal, and words sort as before, so that what
//! depends on names is decided as before wherever it can be.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::RecordError;
use super::renamed::{Renamed, Words};

/// Fields whose words CEL expressions name, and the expressions themselves.
const SPOKEN_OF: [(&str, &str); 7] = [
    ("DeviceAlternative", "selectors"),
    ("DeviceAlternative", "capacity"),
    ("DeviceClass", "selectors"),
    ("DeviceConstraint", "attribute"),
    ("DeviceTraits", "attributes"),
    ("DeviceTraits", "capacity"),
    ("PoolId", "driver"),
];
const VERSION: (&str, &str) = ("Opening", "version");
/// Domains of keys that Kubernetes and berth know.
const DOMAINS: [&str; 3] = ["kubernetes.io", "k8s.io", "berth.dev"];
/// Words that the scheduler knows.
const KNOWN: [&str; 4] = ["", "true", "false", "pods"];
/// Between the names of which that of a claim for extended resources consists.
const INFIX: &str = "-extended-resources-";

/// The words of the records seen so far.
#[derive(Debug, Default)]
pub struct RecordedWords {
    words: RefCell<BTreeSet<String>>,
    spoken_of: RefCell<BTreeSet<String>>,
}

impl RecordedWords {
    /// Adds those of this record.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn see(&self, record: &impl Serialize) -> Result<(), RecordError> {
        let written = serde_json::to_writer(io::sink(), &Renamed::new(record, self));
        written.map_err(|error| RecordError(error.to_string()))
    }
}

impl Words for RecordedWords {
    fn is_apart(&self, of: &'static str, field: &'static str) -> bool {
        SPOKEN_OF.contains(&(of, field)) || (of, field) == VERSION
    }

    fn word<'a>(&self, word: &'a str, apart: bool) -> Cow<'a, str> {
        let all = if apart { &self.spoken_of } else { &self.words };
        let mut all = all.borrow_mut();
        for part in word.split(INFIX).filter(|part| !all.contains(*part)).collect::<Vec<_>>() {
            all.insert(part.to_owned());
        }
        Cow::Borrowed(word)
    }
}

/// What takes the place of each word; the others stay.
#[derive(Debug)]
pub struct Pseudonyms(BTreeMap<String, String>);

impl Pseudonyms {
    /// Returns those for all words that may tell whose cluster it is.
    pub fn of(found: RecordedWords) -> Pseudonyms {
        let (words, spoken_of) = (found.words.into_inner(), found.spoken_of.into_inner());
        let digits = words.len().to_string().len();
        let numbered =
            words.into_iter().enumerate().filter(|(_, word)| !stays(word) && !spoken_of.contains(word));
        // What has a domain, such as the name of a resource, is told from what has none.
        let number =
            |at: usize, word: &str| format!("n{at:0digits$}{}", if word.contains('/') { "/n" } else { "" });
        Pseudonyms(numbered.map(|(at, word)| (word.clone(), number(at, &word))).collect())
    }

    /// Returns the record without names.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn applied<T: Serialize + DeserializeOwned>(&self, record: &T) -> Result<T, RecordError> {
        let renamed = serde_json::to_vec(&Renamed::new(record, self));
        renamed.and_then(|json| serde_json::from_slice(&json)).map_err(|error| RecordError(error.to_string()))
    }

    /// Returns whether it is the same decision but for the names.
    pub fn are_all(&self, recorded: &str, decided: &str) -> bool {
        let (kind, of_recorded) = subjects(recorded);
        let named = of_recorded.iter().map(|name| self.one(name)).collect::<Vec<_>>();
        (kind, named) == subjects(decided)
    }

    fn one<'a>(&'a self, word: &'a str) -> &'a str {
        self.0.get(word).map_or(word, |number| number)
    }
}

impl Words for Pseudonyms {
    fn is_apart(&self, of: &'static str, field: &'static str) -> bool {
        (of, field) == VERSION
    }

    fn word<'a>(&self, word: &'a str, apart: bool) -> Cow<'a, str> {
        if apart {
            return Cow::Borrowed(word);
        }
        let parts: Vec<_> = word.split(INFIX).map(|part| self.one(part)).collect();
        Cow::Owned(parts.join(INFIX))
    }
}

/// Returns whether a word tells nothing of whose cluster it is, or is known to the scheduler.
fn stays(word: &str) -> bool {
    let has_domain = |domain: &str| {
        let of_key = word.split_once('/').map(|(domain, _)| domain);
        of_key
            .and_then(|of| of.strip_suffix(domain))
            .is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    };
    KNOWN.contains(&word) || word.parse::<i64>().is_ok() || DOMAINS.iter().any(|domain| has_domain(domain))
}

/// Returns the kind of a decision, and the names of its pods and nodes.
fn subjects(decision: &str) -> (&str, Vec<&str>) {
    let words: Vec<_> = decision.split(' ').collect();
    let kind = words.first().copied().unwrap_or_default();
    let places: &[usize] = match kind {
        "bind" | "evict" | "nominate" => &[1, 3],
        "claim" => &[2, 4],
        "report" => &[1],
        _ => &[],
    };
    let names = places.iter().filter_map(|at| words.get(*at));
    (kind, names.flat_map(|name| name.trim_end_matches(':').split('/')).collect())
}
