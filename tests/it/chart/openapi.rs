//! JSON schemas for kubeconform from the API server itself, instead of a server on the internet.

use std::fs;
use std::path::Path;

use kube::Client;
use kube::api::GetParams;
use kube::core::Request;
use serde_json::{Value, json};

/// Writes one JSON schema per kind, generated from the API server's OpenAPI: `deployment-apps-v1.json`.
pub async fn write_schemas(client: &Client, folder: &Path) {
    let request = Request::new("").get("openapi/v2", &GetParams::default()).unwrap();
    let openapi: Value = serde_json::from_str(&client.request_text(request).await.unwrap()).unwrap();
    let mut definitions = openapi["definitions"].as_object().unwrap().clone();
    for (name, definition) in &mut definitions {
        close(name, definition);
    }
    for (name, definition) in &definitions {
        let Some([kind]) = definition["x-kubernetes-group-version-kind"].as_array().map(Vec::as_slice) else {
            continue;
        };
        let part = |key: &str| kind[key].as_str().unwrap();
        let group = if part("group").is_empty() { part("version") } else { part("group") };
        let file = format!("{}-{group}-{}.json", part("kind").to_lowercase(), part("version"));
        let schema = json!({
            "$schema": "http://json-schema.org/draft-07/schema#",
            "$ref": format!("#/definitions/{name}"),
            "definitions": reachable(name, &definitions),
        });
        fs::write(folder.join(file), schema.to_string()).unwrap();
    }
}

/// Makes a definition reject unknown fields, and accept all spellings of quantities and ports.
fn close(name: &str, definition: &mut Value) {
    if name.ends_with(".api.resource.Quantity") || name.ends_with(".util.intstr.IntOrString") {
        *definition = json!({"type": ["string", "number"]});
    } else if definition.get("properties").is_some() {
        definition["additionalProperties"] = json!(false);
    }
}

/// Returns the definition `root` and all definitions that it refers to.
fn reachable(root: &str, definitions: &serde_json::Map<String, Value>) -> serde_json::Map<String, Value> {
    let mut found = serde_json::Map::new();
    let mut open = vec![root.to_owned()];
    while let Some(name) = open.pop() {
        if found.contains_key(&name) {
            continue;
        }
        let definition = definitions[&name].clone();
        references(&definition, &mut open);
        found.insert(name, definition);
    }
    found
}

fn references(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            if let Some(name) = map.get("$ref").and_then(Value::as_str) {
                found.extend(name.strip_prefix("#/definitions/").map(str::to_owned));
            }
            map.values().for_each(|value| references(value, found));
        }
        Value::Array(list) => list.iter().for_each(|value| references(value, found)),
        _ => {}
    }
}
