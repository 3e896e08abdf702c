// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Query parameters that change the form of any resource: `$select` and `$expand`. `collection.rs` has those that only
//! collections support.

use serde_json::{Map, Value};

use super::collection::{Expansion, Query};

/// Maximum number of links that one answer replaces by their resources, not counting the members of a collection.
const EXPANDED_MAX: usize = 256;

/// Keeps only the properties that `$select` names, and the resource's own annotations. For a collection, this applies
/// to its members.
pub(super) fn select(query: &Query, body: Value) -> Value {
    if query.select.is_empty() {
        return body;
    }
    match body {
        Value::Object(mut map) if map.contains_key("Members") => {
            if let Some(Value::Array(members)) = map.get_mut("Members") {
                members.iter_mut().for_each(|member| *member = selected(&query.select, std::mem::take(member)));
            }
            Value::Object(map)
        }
        body => selected(&query.select, body),
    }
}

fn selected(paths: &[Vec<String>], body: Value) -> Value {
    let map = match body {
        Value::Object(map) => map,
        other => return other,
    };
    let mut kept = Map::new();
    for (name, value) in map {
        if name.starts_with("@odata.") {
            kept.insert(name, value);
            continue;
        }
        let of = paths.iter().filter(|path| path.first() == Some(&name));
        let rests: Vec<Vec<String>> = of.map(|path| path[1..].to_vec()).collect();
        if rests.iter().any(Vec::is_empty) {
            kept.insert(name, value);
        } else if !rests.is_empty() && value.is_object() {
            kept.insert(name, selected(&rests, value));
        }
    }
    Value::Object(kept)
}

/// Replaces the links of a resource by the resources, one level deep. `fetch` returns nothing for a resource that the
/// caller may not read; its link stays.
pub(super) fn expand(how: Expansion, body: &mut Value, fetch: &mut impl FnMut(&str) -> Option<Value>) {
    let mut left = EXPANDED_MAX;
    let Value::Object(map) = body else { return };
    for (name, value) in map.iter_mut() {
        let is_links = name == "Links";
        let is_wanted = match how {
            Expansion::All => true,
            Expansion::Links => is_links,
            Expansion::NotLinks => !is_links,
        };
        if is_wanted && name != "Members" {
            replace(value, &mut left, fetch);
        }
    }
}

fn replace(value: &mut Value, left: &mut usize, fetch: &mut impl FnMut(&str) -> Option<Value>) {
    match value {
        Value::Array(all) => all.iter_mut().for_each(|one| replace(one, left, fetch)),
        Value::Object(map) => match (map.len(), map.get("@odata.id").and_then(Value::as_str)) {
            (1, Some(path)) => {
                if *left > 0
                    && let Some(body) = fetch(path)
                {
                    *left -= 1;
                    *value = body;
                }
            }
            _ => map.values_mut().for_each(|one| replace(one, left, fetch)),
        },
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn query(text: &str) -> Query {
        Query::parse(text).expect(text)
    }

    #[test]
    fn selected_properties_stay_with_the_annotations() {
        let body = json!({ "@odata.id": "/a", "Id": "a", "Status": { "State": "Enabled", "Health": "OK" }, "Size": 1 });
        let chosen = select(&query("$select=Size,Status/State"), body.clone());
        assert_eq!(chosen, json!({ "@odata.id": "/a", "Status": { "State": "Enabled" }, "Size": 1 }));
        let collection = json!({ "Members": [body], "Name": "All" });
        let chosen = select(&query("$select=Id"), collection);
        assert_eq!(chosen, json!({ "Members": [{ "@odata.id": "/a", "Id": "a" }], "Name": "All" }));
    }

    #[test]
    fn links_are_replaced_one_level_deep() {
        let link = |to: &str| json!({ "@odata.id": to });
        let body = json!({ "@odata.id": "/a", "Part": link("/b"), "Links": { "All": [link("/c"), link("/secret")] } });
        let ask = |how: Expansion| {
            let (mut body, mut asked) = (body.clone(), Vec::new());
            expand(how, &mut body, &mut |path: &str| {
                asked.push(path.to_owned());
                (path != "/secret").then(|| json!({ "@odata.id": path, "Next": link("/d") }))
            });
            (body, asked.join(" "))
        };
        let (all, asked) = ask(Expansion::All);
        assert_eq!(asked, "/c /secret /b");
        assert_eq!((&all["Part"]["Next"], &all["Links"]["All"][1]), (&link("/d"), &link("/secret")));
        assert_eq!(ask(Expansion::Links).1, "/c /secret");
        assert_eq!(ask(Expansion::NotLinks).1, "/b");
    }
}
