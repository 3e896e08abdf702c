// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The OpenAPI document, generated from the table of routes.

use serde_json::{Map, Value, json};

use super::routes::{Method, ROUTES, Route};

/// Returns the document.
pub fn openapi() -> Value {
    let mut paths: Map<String, Value> = Map::new();
    for route in ROUTES {
        let entry = paths.entry(route.path).or_insert_with(|| json!({}));
        entry[route.method.name().to_lowercase()] = operation(route);
    }
    json!({
        "openapi": "3.1.0",
        "info": { "title": "Aquifer fabric manager", "version": "1",
                  "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" } },
        "components": {
            "securitySchemes": {
                "token": { "type": "apiKey", "in": "header", "name": "X-Auth-Token" },
                "basic": { "type": "http", "scheme": "basic" },
            },
            "schemas": schemas(),
        },
        "paths": paths,
    })
}

/// Returns the properties that every answer has: a resource its names, an error its remedy.
fn schemas() -> Value {
    let text = json!({ "type": "string", "minLength": 1 });
    let message = json!({
        "type": "object", "required": ["MessageId", "Message", "MessageSeverity", "Resolution"],
        "properties": { "MessageId": text, "Message": text, "MessageSeverity": text, "Resolution": text },
    });
    let messages = json!({ "type": "array", "minItems": 1, "items": message });
    let error = json!({
        "type": "object", "required": ["code", "message", "@Message.ExtendedInfo"],
        "properties": { "code": text, "message": text, "@Message.ExtendedInfo": messages },
    });
    json!({
        "Error": { "type": "object", "required": ["error"], "properties": { "error": error } },
        "Resource": { "type": "object", "properties": {
            "@odata.id": text, "@odata.type": text, "@odata.etag": text, "Id": text, "Name": { "type": "string" },
            "Members": { "type": "array" }, "Members@odata.count": { "type": "integer", "minimum": 0 },
        } },
    })
}

/// Returns the answer to a request that was carried out.
fn done(route: &Route) -> Value {
    let media = route.media();
    let schema = match media {
        "application/json" => json!({ "$ref": "#/components/schemas/Resource" }),
        _ => json!({ "type": "string" }),
    };
    json!({ "description": "Done", "content": { media: { "schema": schema } } })
}

fn operation(route: &Route) -> Value {
    let names = route.path.split('/').filter_map(|segment| segment.strip_prefix('{')?.strip_suffix('}'));
    let parameters: Vec<Value> = names
        .map(|name| json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } }))
        .collect();
    let error = json!({ "description": "An error with its remedy",
                        "content": { "application/json": { "schema": { "$ref": "#/components/schemas/Error" } } } });
    let mut operation = json!({
        "summary": route.summary,
        "parameters": parameters,
        "responses": { "2XX": done(route), "4XX": error, "5XX": error },
    });
    if route.method != Method::Get {
        operation["responses"]["204"] = json!({ "description": "Done; there is no body" });
    }
    match route.needs {
        None => operation["security"] = json!([]),
        Some(role) => {
            operation["security"] = json!([{ "token": [] }, { "basic": [] }]);
            operation["x-role"] = role.name().into();
        }
    }
    if !route.body.is_empty() {
        let properties: Map<String, Value> =
            route.body.iter().map(|one| (one.name.to_owned(), json!({ "type": one.kind.name() }))).collect();
        let required: Vec<&str> = route.body.iter().filter(|one| one.is_required).map(|one| one.name).collect();
        let schema =
            json!({ "type": "object", "additionalProperties": false, "properties": properties, "required": required });
        operation["requestBody"] = json!({ "content": { "application/json": { "schema": schema } } });
    }
    operation
}
