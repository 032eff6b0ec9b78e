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
use berth_model::DEVICE_CLASS_PREFIX;

/// Fields whose words stay: CEL expressions and what they name, drivers of devices and volumes, and kinds of controllers.
const PLAIN: [(&str, &str); 9] = [
    ("DeviceAlternative", "selectors"),
    ("DeviceAlternative", "capacity"),
    ("DeviceClass", "selectors"),
    ("DeviceConstraint", "attribute"),
    ("DeviceTraits", "attributes"),
    ("DeviceTraits", "capacity"),
    ("PodOwner", "api_version"),
    ("PodOwner", "kind"),
    ("Opening", "version"),
];
/// The same in all types.
const DRIVERS: [&str; 2] = ["driver", "provisioner"];
/// Domains of keys that Kubernetes and berth know.
const DOMAINS: [&str; 4] = ["kubernetes.io", "k8s.io", "x-k8s.io", "berth.dev"];
/// Words that the scheduler knows.
const KNOWN: [&str; 4] = ["", "true", "false", "pods"];
/// Between the words of which one consists: the name of a claim for extended resources, and zones of a volume.
const BETWEEN: [&str; 2] = ["-extended-resources-", "__"];

/// The words of the records seen so far.
#[derive(Debug, Default)]
pub struct RecordedWords {
    words: RefCell<BTreeSet<String>>,
    plain: RefCell<BTreeSet<String>>,
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
        PLAIN.contains(&(of, field)) || DRIVERS.contains(&field)
    }

    fn word<'a>(&self, word: &'a str, apart: bool) -> Cow<'a, str> {
        let add = |all: &RefCell<BTreeSet<String>>, word: &str| {
            if !all.borrow().contains(word) {
                all.borrow_mut().insert(word.to_owned());
            }
        };
        if apart {
            add(&self.plain, word);
        } else {
            let part = |part: &str| {
                add(&self.words, part);
                String::new()
            };
            in_parts(word, &|_| false, &part);
        }
        Cow::Borrowed(word)
    }
}

/// What takes the place of words.
#[derive(Debug)]
pub struct Pseudonyms {
    numbers: BTreeMap<String, String>,
    /// Words that stay wherever they are.
    plain: BTreeSet<String>,
}

impl Pseudonyms {
    /// Returns those for all words that may tell whose cluster it is.
    pub fn of(found: RecordedWords) -> Pseudonyms {
        let (words, plain) = (found.words.into_inner(), found.plain.into_inner());
        let digits = words.len().to_string().len();
        let numbered = words.into_iter().enumerate().filter(|(_, word)| !plain.contains(word));
        // What has a domain, such as the name of a resource, is told from what has none.
        let number =
            |at: usize, word: &str| format!("n{at:0digits$}{}", if word.contains('/') { "/n" } else { "" });
        let numbers = numbered.map(|(at, word)| (word.clone(), number(at, &word))).collect();
        Pseudonyms { numbers, plain }
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
        let named = of_recorded.iter().map(|name| self.word(name, false)).collect::<Vec<_>>();
        let (same, of_decided) = subjects(decided);
        kind == same && named == of_decided
    }
}

impl Words for Pseudonyms {
    fn is_apart(&self, of: &'static str, field: &'static str) -> bool {
        PLAIN.contains(&(of, field)) || DRIVERS.contains(&field)
    }

    fn word<'a>(&self, word: &'a str, apart: bool) -> Cow<'a, str> {
        if apart {
            return Cow::Borrowed(word);
        }
        let number = |part: &str| self.numbers.get(part).map_or(part, |number| number).to_owned();
        Cow::Owned(in_parts(word, &|word| self.plain.contains(word), &number))
    }
}

/// Returns a word with other parts, but for those that stay.
fn in_parts(word: &str, stay: &dyn Fn(&str) -> bool, part: &dyn Fn(&str) -> String) -> String {
    if let Some(class) = word.strip_prefix(DEVICE_CLASS_PREFIX) {
        return format!("{DEVICE_CLASS_PREFIX}{}", in_parts(class, stay, part));
    }
    if stays(word) || stay(word) {
        return word.to_owned();
    }
    // A request and one of its alternatives; domains have dots.
    let is_pair = word.split_once('/').is_some_and(|(first, _)| !first.contains('.'));
    let between = BETWEEN.into_iter().find(|between| word.contains(between)).or(is_pair.then_some("/"));
    match between {
        Some(between) => {
            let parts: Vec<_> = word.split(between).map(|word| in_parts(word, stay, part)).collect();
            parts.join(between)
        }
        None => part(word),
    }
}

/// Returns whether a word tells nothing of whose cluster it is, or is known to the scheduler.
fn stays(word: &str) -> bool {
    let has_domain = |domain: &str| {
        let of_key = word.split_once('/').and_then(|(of, _)| of.strip_suffix(domain));
        of_key.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
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
