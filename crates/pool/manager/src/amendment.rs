// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A change of several volumes, all of them or none: the edits that follow from what a client sends. Pure.
//!
//! Each entry is merged into the volume's declaration, as JSON Merge Patch (RFC 7396) has it, or is `null` for a volume
//! that is released. Volumes that are not listed stay as they are. A client that has read volumes before names their
//! ETags, so that it changes only what it has seen.

use std::collections::BTreeMap;

use aquifer_fabric::{Change, Declaration, DeclaredVolume, Desired, Refusal, VolumeName, diff};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::order::{NotDone, etag, matches};

/// Volumes of one amendment at most: as many as the logical devices of four MLDs.
const VOLUMES_MAX: usize = 64;

/// A change of several volumes.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Amendment {
    /// What changes in each volume's declaration; `null` releases the volume.
    #[serde(rename = "Volumes")]
    volumes: BTreeMap<VolumeName, Option<Map<String, Value>>>,
    /// The ETag that a volume must still have; `null` if there must be no such volume.
    #[serde(rename = "Match", default)]
    matches: BTreeMap<VolumeName, Option<String>>,
    /// `true` to release bound volumes as well, as the header `Aquifer-Unbind` says.
    #[serde(skip)]
    pub(crate) unbinds: bool,
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

    /// Returns the changes in the order in which they are made: those that make room come first. Refuses what a single
    /// request would not do either: to move a volume from host to host, to take a bound volume away unasked, or to
    /// release a volume and create another one in its place.
    pub(crate) fn changes(&self, desired: &Desired) -> Result<Vec<Change>, NotDone> {
        self.check_match(desired)?;
        // Only of the volumes that are listed, so that the others cost nothing.
        let (mut from, mut to) = (Declaration::default(), Declaration::default());
        for (name, change) in &self.volumes {
            let before = desired.volume_named(name).map(|(_, volume)| DeclaredVolume::of(volume));
            if let Some(change) = change {
                to.volumes.insert(name.clone(), amended(name, before.as_ref(), change)?);
            }
            from.volumes.extend(before.map(|before| (name.clone(), before)));
        }
        let changes = diff(&from, &to);
        let replaced = changes.iter().find_map(|change| match change {
            Change::Create(name, _) if from.volumes.contains_key(name) => Some(name.clone()),
            _ => None,
        });
        if let Some(name) = replaced {
            return Err(NotDone::NotInPlace(name));
        }
        changes.iter().try_for_each(|change| self.check_change(change, &from, &to))?;
        Ok(changes)
    }

    fn check_match(&self, desired: &Desired) -> Result<(), NotDone> {
        let is_as_read = |(name, expected): (&VolumeName, &Option<String>)| {
            let found = desired.volume_named(name).map(|(_, volume)| etag(volume));
            match (expected, found) {
                (Some(expected), Some(found)) => matches(expected, &found),
                (None, None) => true,
                _ => false,
            }
        };
        if self.matches.iter().all(is_as_read) { Ok(()) } else { Err(NotDone::Stale) }
    }

    fn check_change(&self, change: &Change, from: &Declaration, to: &Declaration) -> Result<(), NotDone> {
        let host_in = |state: &Declaration, name| state.volumes.get(name).and_then(|volume| volume.host.clone());
        let (volume, host) = match change {
            Change::Unbind(name, host) if host_in(to, name).is_some() => {
                return Err(Refusal::Bound { volume: name.clone(), host: host.clone() }.into());
            }
            Change::Unbind(name, host) if !to.volumes.contains_key(name) => (name.clone(), host.clone()),
            // A volume that expires is released, bound or not.
            Change::Expire(name, Some(_)) => match host_in(from, name) {
                Some(host) => (name.clone(), host),
                None => return Ok(()),
            },
            _ => return Ok(()),
        };
        if self.unbinds { Ok(()) } else { Err(Refusal::StillBound { volume, host }.into()) }
    }
}

/// Returns the declaration of a volume after a change.
fn amended(
    name: &VolumeName,
    before: Option<&DeclaredVolume>,
    change: &Map<String, Value>,
) -> Result<DeclaredVolume, NotDone> {
    let before = before.map(|volume| serde_json::to_value(volume).expect("it is JSON"));
    serde_json::from_value(merged(before.unwrap_or_default(), change))
        .map_err(|error| NotDone::Malformed(format!("volume {name}: {error}; begin with what an export says")))
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

    /// Returns the changes as text.
    fn changes(desired: &Desired, value: Value) -> Result<Vec<String>, NotDone> {
        let changes = amendment(value).changes(desired)?;
        Ok(changes.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn what_is_listed_is_merged_and_the_rest_stays() {
        let spec = json!({ "size": "2MiB", "pool": "main", "zone": "lab", "class": "tcp" });
        let amended = amendment(json!({ "Volumes": {
            "v1": { "host": "h1", "spec": { "size": "4MiB", "labels": { "a": null, "c": "3" } } },
            "v2": null, "v3": { "spec": spec }, "v4": null,
        } }));
        let changes = amended.changes(&desired()).expect("changes");
        let shown: Vec<String> = changes.iter().map(ToString::to_string).collect();
        assert_eq!(
            shown,
            [
                "- release volume v2",
                "- shrink volume v1 from 8MiB to 4MiB",
                "+ create volume v3: 2MiB, redundancy none, pool main, zone lab",
                "~ label volume v1: a removed, c=3",
                "+ bind volume v1 to host h1",
            ]
        );
        let labels = changes.iter().find_map(|change| match change {
            Change::SetLabels(_, _, labels) => serde_json::to_value(labels).ok(),
            _ => None,
        });
        assert_eq!(labels, Some(json!({ "b": "2", "c": "3" })));
    }

    #[test]
    fn a_bound_volume_is_taken_away_only_as_single_requests_do_it() {
        let mut state = serde_json::to_value(desired()).expect("it is JSON");
        state["volumes"]["0000000000000001"]["host"] = json!("h1");
        let bound: Desired = serde_json::from_value(state).expect("a state");
        let entry = |entry: Value| json!({ "Volumes": { "v1": entry } });
        for taken in [Value::Null, json!({ "spec": { "expires_at": 1 } })] {
            let refused = changes(&bound, entry(taken.clone())).expect_err("it is bound");
            assert!(matches!(refused, NotDone::Refused(Refusal::StillBound { .. })), "{refused}");
            let allowed = Amendment { unbinds: true, ..amendment(entry(taken.clone())) };
            assert!(allowed.changes(&bound).is_ok(), "{taken}");
            assert!(changes(&desired(), entry(taken)).is_ok(), "it is not bound");
        }
        let refused = changes(&bound, entry(json!({ "host": "h2" }))).expect_err("another host has it");
        assert!(matches!(refused, NotDone::Refused(Refusal::Bound { .. })), "{refused}");
        let unbound = changes(&bound, entry(json!({ "host": null })));
        assert_eq!(unbound, Ok(vec!["- unbind volume v1 from host h1".to_owned()]));
        for spec in
            [json!({ "class": "rdma" }), json!({ "zone": "z2" }), json!({ "donor": "d1" }), json!({ "width": 2 })]
        {
            for state in [&bound, &desired()] {
                let refused = changes(state, entry(json!({ "spec": spec }))).expect_err("not in place");
                assert_eq!(refused, NotDone::NotInPlace("v1".parse().expect("a name")), "{spec}");
            }
        }
    }

    #[test]
    fn only_what_was_seen_is_changed() {
        let desired = desired();
        let (_, v1) = desired.volume_named(&"v1".parse().expect("a name")).expect("it is there");
        let outcome = |matches: Value| changes(&desired, json!({ "Volumes": { "v1": null }, "Match": matches }));
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
            let refused = changes(&desired(), json!({ "Volumes": { "v3": entry } })).expect_err("refused");
            assert!(matches!(&refused, NotDone::Malformed(line) if line.starts_with("volume v3: ")), "{refused:?}");
        }
        assert!(amendment(json!({ "Volumes": {} })).check().is_err());
        let many: Map<String, Value> = (0..=VOLUMES_MAX).map(|number| (format!("v{number}"), Value::Null)).collect();
        assert!(amendment(json!({ "Volumes": many })).check().is_err());
        assert!(serde_json::from_value::<Amendment>(json!({ "Volumes": { "a b": null } })).is_err());
    }
}
