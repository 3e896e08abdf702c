// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Request bodies: one JSON object, with the properties that the route's table lists and no others.

use aquifer_fabric::{Bytes, PlainJson, VolumeSpec};
use serde_json::{Map, Value};

use super::answer::Problem;
use super::routes::{Kind, Property};

/// Longest body: a declaration of some thousand volumes.
pub(crate) const DECLARATION_BYTES_MAX: usize = 4 << 20;
/// Longest body of other changes. It is also the longest that a stranger can send: a certificate signing request and a
/// token take a tenth of it.
pub(crate) const BODY_BYTES_MAX: usize = 64 << 10;
/// Longest body of a login: a name and a password.
pub(super) const LOGIN_BYTES_MAX: usize = 16 << 10;

/// Parses a body and checks it against a route's properties. Ignores OData annotations, which clients send back
/// unchanged. If `is_update`, refuses a body that contains only annotations.
pub(super) fn parse(bytes: &[u8], properties: &[Property], is_update: bool) -> Result<Map<String, Value>, Problem> {
    if bytes.is_empty() && !is_update && properties.iter().all(|property| !property.is_required) {
        return Ok(Map::new());
    }
    let malformed = |what: String| {
        Problem::new(
            400,
            "Base.1.18.MalformedJSON",
            what,
            "send one JSON object with the properties of the OpenAPI document",
        )
    };
    // serde_json refuses depths over 128, so that parsing cannot exhaust the stack.
    let PlainJson(value) =
        serde_json::from_slice(bytes).map_err(|error| malformed(format!("the body is not JSON: {error}")))?;
    let Value::Object(mut map) = value else { return Err(malformed("the body is not an object".into())) };
    map.retain(|name, _| !name.contains("@odata."));
    if is_update && map.is_empty() {
        let what = "the body changes nothing";
        return Err(Problem::new(400, "Base.1.18.NoOperation", what, "send the properties to change"));
    }
    for (name, value) in &map {
        let Some(property) = properties.iter().find(|property| property.name == name) else {
            let known: Vec<&str> = properties.iter().map(|property| property.name).collect();
            let message = format!("property {:?} is not known here", name.chars().take(80).collect::<String>());
            let remedy =
                if known.is_empty() { "send no body".to_owned() } else { format!("use only {}", known.join(", ")) };
            return Err(Problem::new(400, "Base.1.18.PropertyUnknown", message, remedy));
        };
        let is_right = match property.kind {
            Kind::Boolean => value.is_boolean(),
            Kind::Integer => value.is_u64(),
            Kind::List => value.is_array(),
            Kind::Object => value.is_object(),
            Kind::Text => value.is_string(),
        };
        if !is_right {
            let message = format!("property {name} is not of type {}", property.kind.name());
            return Err(Problem::new(400, "Base.1.18.PropertyValueTypeError", message, "send a value of this type"));
        }
    }
    if let Some(missing) = properties.iter().find(|property| property.is_required && !map.contains_key(property.name)) {
        let message = format!("property {} is missing", missing.name);
        return Err(Problem::new(400, "Base.1.18.PropertyMissing", message, "send it"));
    }
    Ok(map)
}

/// Returns a text property, parsed.
pub(super) fn parsed<T: std::str::FromStr<Err: std::fmt::Display>>(
    map: &Map<String, Value>,
    name: &str,
) -> Result<Option<T>, Problem> {
    let Some(text) = map.get(name).and_then(Value::as_str) else { return Ok(None) };
    text.parse().map(Some).map_err(|error| Problem::value(name, error))
}

/// Returns a size in MiB.
pub(super) fn mebibytes(map: &Map<String, Value>, name: &str) -> Result<Bytes, Problem> {
    let mib = map.get(name).and_then(Value::as_u64).unwrap_or_default();
    mib.checked_mul(1 << 20).map(Bytes).ok_or_else(|| Problem::value(name, "the size is too large; ask for less"))
}

/// Returns the rest of the `@odata.id` of a link after a prefix.
pub(super) fn linked<'a>(link: &'a Value, prefix: &str) -> Result<&'a str, Problem> {
    let rest = link.get("@odata.id").and_then(Value::as_str).and_then(|id| id.strip_prefix(prefix));
    rest.ok_or_else(|| Problem::value("@odata.id", format!("a link is not to {prefix}...; copy it from a resource")))
}

/// Decodes bytes as the body of each route, which must never panic, for fuzzing.
pub fn take_body(bytes: &[u8]) {
    for route in super::routes::ROUTES {
        if let Ok(map) = parse(bytes, route.body, false)
            && let Some(oem) = map.get("Oem")
        {
            let _ = serde_json::from_value::<VolumeSpec>(oem.clone());
        }
    }
    if let Ok(declaration) = serde_json::from_slice::<aquifer_fabric::Declaration>(bytes) {
        let text = serde_json::to_vec(&declaration).expect("what was read can be written");
        assert_eq!(serde_json::from_slice::<aquifer_fabric::Declaration>(&text).ok(), Some(declaration));
    }
}

#[cfg(test)]
mod tests {
    use aquifer_fabric::{Declaration, LatencyClass};
    use serde_json::json;

    use super::*;
    use crate::rest::routes::ROUTES;

    /// What `aquifer fabric export` prints, and `aquifer fabric apply` sends.
    #[test]
    fn a_declaration_of_ten_thousand_volumes_is_taken() {
        let spec = json!({
            "size": "8GiB", "pool": "main", "zone": "lab", "class": LatencyClass::ALL[0],
            "redundancy": { "parity": { "data": 4, "parity": 2 } }, "width": 4, "expires_at": 4_000_000_000_000u64,
        });
        let spec: VolumeSpec = serde_json::from_value(spec).expect("a specification");
        let volume =
            |number: u32| (format!("volume-{number}"), json!({ "spec": spec, "host": format!("host-{number}") }));
        let volumes: Map<String, Value> = (0..10_000).map(volume).collect();
        let declaration: Declaration = serde_json::from_value(json!({ "volumes": volumes })).expect("a declaration");
        let body = json!({ "Declaration": declaration }).to_string();
        assert!(body.len() < DECLARATION_BYTES_MAX, "{}", body.len());
        let route = ROUTES.iter().find(|route| route.path.ends_with("/Aquifer.Apply")).expect("it is there");
        let map = parse(body.as_bytes(), route.body, false);
        assert!(map.is_ok_and(|map| map["Declaration"]["volumes"]["volume-9999"]["host"] == "host-9999"));
    }

    #[test]
    fn a_body_of_many_values_is_refused() {
        let body = format!(r#"{{"Declaration": {{"": [{}0]}}}}"#, r#"{"":0},"#.repeat(590_000));
        assert!(body.len() < DECLARATION_BYTES_MAX);
        let route = ROUTES.iter().find(|route| route.path.ends_with("/Aquifer.Apply")).expect("it is there");
        let refused = parse(body.as_bytes(), route.body, false).expect_err("too many");
        assert!(refused.status == 400 && refused.message.contains("more than 262144 values"), "{refused:?}");
    }
}
