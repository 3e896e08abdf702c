// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A change of several volumes, all of them or none: what a declaration would say of them. Pure.
//!
//! Each entry is merged into the volume's declaration, as JSON Merge Patch (RFC 7396) has it, or is `null` for a volume
//! that is released. Volumes that are not listed stay as they are. A client that has read volumes before names their
//! ETags, so that it changes only what it has seen.

use std::collections::BTreeMap;

use aquifer_fabric::{Declaration, DeclaredVolume, Desired, VolumeName};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::order::{NotDone, etag, matches};

/// Volumes of one amendment at most: as many as the logical devices of four MLDs.
const VOLUMES_MAX: usize = 64;

/// A change of several volumes.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Amendment {
    /// What changes in each volume's declaration; `null` releases the volume, and unbinds it before.
    #[serde(rename = "Volumes")]
    volumes: BTreeMap<VolumeName, Option<Map<String, Value>>>,
    /// The ETag that a volume must still have; `null` if there must be no such volume.
    #[serde(rename = "Match", default)]
    matches: BTreeMap<VolumeName, Option<String>>,
}

impl Amendment {
    /// Checks what does not depend on the state. The error is one line.
    pub(crate) fn check(&self) -> Result<(), String> {
        match self.volumes.len() {
            0 => Err("it lists no volume; send one at least".into()),
            count if count > VOLUMES_MAX => Err(format!("it lists {count} volumes; send {VOLUMES_MAX} at most")),
            _ => Ok(()),
        }
    }

    /// Returns the names of the volumes that it changes.
    pub(crate) fn names(&self) -> impl Iterator<Item = &VolumeName> {
        self.volumes.keys()
    }

    /// Returns the declaration that the amended state fulfils.
    pub(crate) fn applied_to(&self, desired: &Desired) -> Result<Declaration, NotDone> {
        for (name, expected) in &self.matches {
            let found = desired.volume_named(name).map(|(_, volume)| etag(volume));
            let is_as_read = match (expected, found) {
                (Some(expected), Some(found)) => matches(expected, &found),
                (None, None) => true,
                _ => false,
            };
            if !is_as_read {
                return Err(NotDone::Stale);
            }
        }
        let mut declaration = Declaration::of(desired);
        for (name, change) in &self.volumes {
            let Some(change) = change else {
                declaration.volumes.remove(name);
                continue;
            };
            let before = declaration.volumes.get(name).map(|volume| serde_json::to_value(volume).expect("it is JSON"));
            let merged = merged(before.unwrap_or_default(), change);
            let volume: DeclaredVolume = serde_json::from_value(merged).map_err(|error| {
                NotDone::Malformed(format!("volume {name}: {error}; begin with what an export says"))
            })?;
            declaration.volumes.insert(name.clone(), volume);
        }
        Ok(declaration)
    }
}

/// Merges a change into a value. The depth is that of the body, which its parser bounds.
fn merged(before: Value, change: &Map<String, Value>) -> Value {
    let mut map = match before {
        Value::Object(map) => map,
        _ => Map::new(),
    };
    for (name, value) in change {
        match value {
            Value::Null => drop(map.remove(name)),
            Value::Object(inner) => {
                let before = map.remove(name).unwrap_or_default();
                map.insert(name.clone(), merged(before, inner));
            }
            value => drop(map.insert(name.clone(), value.clone())),
        }
    }
    Value::Object(map)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn desired() -> Desired {
        let volume = |name: &str| {
            json!({ "name": name, "spec": { "size": "8MiB", "pool": "main", "zone": "lab", "class": "tcp",
                                            "labels": { "a": "1", "b": "2" } },
                    "spans": [], "next_member": 1, "next_span": 1 })
        };
        let state = json!({ "format": 1, "version": 3, "pools": { "main": {} }, "zones": { "lab": { "quota": "1GiB" } },
                            "volumes": { "0000000000000001": volume("v1"), "0000000000000002": volume("v2") } });
        serde_json::from_value(state).expect("a state")
    }

    fn amendment(value: Value) -> Amendment {
        serde_json::from_value(value).expect("an amendment")
    }

    #[test]
    fn what_is_listed_is_merged_and_the_rest_stays() {
        let spec = json!({ "size": "2MiB", "pool": "main", "zone": "lab", "class": "tcp" });
        let amended = amendment(json!({ "Volumes": {
            "v1": { "host": "h1", "spec": { "size": "4MiB", "labels": { "a": null, "c": "3" } } },
            "v2": null, "v3": { "spec": spec }, "v4": null,
        } }));
        let declaration = amended.applied_to(&desired()).expect("a declaration");
        let names: Vec<&str> = declaration.volumes.keys().map(VolumeName::as_str).collect();
        assert_eq!(names, ["v1", "v3"]);
        let v1 = serde_json::to_value(&declaration.volumes[&"v1".parse().expect("a name")]).expect("it is JSON");
        assert_eq!(
            (&v1["host"], &v1["spec"]["size"], &v1["spec"]["labels"]),
            (&json!("h1"), &json!("4MiB"), &json!({ "b": "2", "c": "3" }))
        );
    }

    #[test]
    fn only_what_was_seen_is_changed() {
        let desired = desired();
        let (_, v1) = desired.volume_named(&"v1".parse().expect("a name")).expect("it is there");
        let outcome =
            |matches: Value| amendment(json!({ "Volumes": { "v1": null }, "Match": matches })).applied_to(&desired);
        assert!(outcome(json!({ "v1": etag(v1), "v9": null })).is_ok());
        for stale in [json!({ "v1": "\"other\"" }), json!({ "v1": null }), json!({ "v9": "*" })] {
            assert_eq!(outcome(stale), Err(NotDone::Stale));
        }
    }

    #[test]
    fn what_is_no_declaration_of_a_volume_is_refused() {
        for entry in
            [json!({}), json!({ "spec": { "size": "2MiB" } }), json!({ "spec": 1 }), json!({ "colour": "red" })]
        {
            let refused = amendment(json!({ "Volumes": { "v3": entry } })).applied_to(&desired()).expect_err("refused");
            assert!(matches!(&refused, NotDone::Malformed(line) if line.starts_with("volume v3: ")), "{refused:?}");
        }
        assert!(amendment(json!({ "Volumes": {} })).check().is_err());
        let many: Map<String, Value> = (0..=VOLUMES_MAX).map(|number| (format!("v{number}"), Value::Null)).collect();
        assert!(amendment(json!({ "Volumes": many })).check().is_err());
        assert!(serde_json::from_value::<Amendment>(json!({ "Volumes": { "a b": null } })).is_err());
    }
}
