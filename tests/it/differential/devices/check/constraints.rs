//! Constraints between the devices of one claim.

use serde_json::Value;

use super::super::json::{list, text};
use super::Use;

pub fn check(claim: &Value, uses: &[Use]) -> Result<(), String> {
    list(&claim["constraints"]).iter().try_for_each(|constraint| {
        let uses = || uses.iter().filter(|one| covers(constraint, &one.result.request));
        let distinct = constraint["distinctAttribute"].is_string();
        let name = text(&constraint[if distinct { "distinctAttribute" } else { "matchAttribute" }]);
        let values: Vec<_> = uses().map(|one| attribute(one, name)).collect();
        if values.contains(&None) {
            return Err(format!("a device without the attribute {name}"));
        }
        let mut pairs =
            values.iter().enumerate().flat_map(|(at, value)| values[..at].iter().map(move |it| (it, value)));
        match pairs.find(|(one, other)| (one == other) == distinct) {
            Some((one, other)) => {
                Err(format!("the constraint {constraint} does not hold: {one:?}, {other:?}"))
            }
            None => Ok(()),
        }
    })
}

fn covers(constraint: &Value, request: &str) -> bool {
    let names = list(&constraint["requests"]);
    let parent = request.split('/').next().unwrap_or_default();
    names.is_empty() || names.iter().any(|name| name == request || name == parent)
}

fn attribute<'a>(one: &Use<'a>, name: &str) -> Option<&'a Value> {
    let attributes = &one.device.device["attributes"];
    let own = name.strip_prefix(one.pool.driver).and_then(|rest| rest.strip_prefix('/'));
    attributes.get(name).or_else(|| attributes.get(own?))
}
