//! Minimizer of JSON values that show a difference.

use serde_json::Value;

/// Fields that the API server requires, or that identify the object.
const REQUIRED: &[&str] = &[
    "reset",
    "metadata",
    "name",
    "namespace",
    "uid",
    "spec",
    "status",
    "nodeName",
    // Without them, upstream orders pods randomly.
    "startTime",
    "claimName",
    "volumeName",
    "storageClassName",
    "provisioner",
    "volumeBindingMode",
    "drivers",
    "allocatable",
    "pods",
    "key",
    "operator",
    "values",
    "value",
    "effect",
    "weight",
    "preference",
    "podAffinityTerm",
    "topologyKey",
    "whenUnsatisfiable",
    "maxSkew",
    "nodeSelectorTerms",
];
/// Lists that the API server requires to be non-empty.
const NOT_EMPTY: &[&str] = &["values", "nodeSelectorTerms"];

/// Tries to remove each part of the value at the JSON pointer `path`, large parts before their own parts.
pub fn simplify(root: &mut Value, path: &str, differs: &mut impl FnMut(&Value) -> bool) {
    halve(root, path, differs);
    let parts: Vec<String> = match root.pointer(path) {
        Some(Value::Object(fields)) => fields.keys().cloned().collect(),
        // From the end: the indexes of the remaining parts stay valid.
        Some(Value::Array(items)) => (0..items.len()).rev().map(|at| at.to_string()).collect(),
        _ => return,
    };
    for part in parts {
        let mut smaller = root.clone();
        if remove(&mut smaller, path, &part) && differs(&smaller) {
            *root = smaller;
        } else {
            simplify(root, &format!("{path}/{}", part.replace('~', "~0").replace('/', "~1")), differs);
        }
    }
}

/// Removes half of a long list at once, while that works.
fn halve(root: &mut Value, path: &str, differs: &mut impl FnMut(&Value) -> bool) {
    while let Some(length) = root.pointer(path).and_then(Value::as_array).map(Vec::len).filter(|n| *n > 3) {
        let half = |range: std::ops::Range<usize>| {
            let mut smaller = root.clone();
            let items = smaller.pointer_mut(path).and_then(Value::as_array_mut).expect("it was one");
            items.drain(range);
            smaller
        };
        let halves = [half(0..length / 2), half(length / 2..length)];
        match halves.into_iter().find(|half| differs(half)) {
            Some(half) => *root = half,
            None => return,
        }
    }
}

/// Returns whether the part existed and could be removed.
fn remove(root: &mut Value, path: &str, part: &str) -> bool {
    match root.pointer_mut(path) {
        Some(Value::Object(fields)) => !REQUIRED.contains(&part) && fields.remove(part).is_some(),
        Some(Value::Array(items)) => {
            let last_needed = items.len() == 1 && NOT_EMPTY.iter().any(|name| path.ends_with(name));
            let at = part.parse::<usize>().ok().filter(|at| *at < items.len() && !last_needed);
            at.map(|at| items.remove(at)).is_some()
        }
        _ => false,
    }
}
