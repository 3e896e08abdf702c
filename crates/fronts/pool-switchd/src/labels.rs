// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What the labels of volumes must say, so that the next start shows every binding at the same vPPB. Pure.

use aquifer_cxl_switch::{Adopted, Progress};
use serde_json::{Value, json};

use crate::amendment::{Change, body};
use crate::places::Places;
use crate::view::{LABEL, Ld, View, VolumeView};

/// Labels that one request changes; the manager takes 64 volumes at most.
const LABELS_MAX: usize = 64;

/// Returns what the label of a volume that is shown at a vPPB, or at none, must say; none where it may stay as it is.
fn wanted(ld: &Ld, volume: &VolumeView, places: &Places, shown: &Adopted) -> Option<Value> {
    let device = places.device_of(&ld.0)?;
    let at = shown.bindings.iter().find(|it| (it.device, it.ld_id) == (device, ld.1));
    match (at, &volume.label) {
        // While a host has it, the label of its binding is still needed.
        (Some(at), _) if at.progress == Progress::Unbinding => None,
        (Some(at), label) => {
            let host = places.host(at.vcs_id)?.as_str();
            let is_there = label.as_ref().is_some_and(|(of, vppb_id)| of == host && *vppb_id == at.vppb_id);
            (!is_there).then(|| label_of(host, at.vppb_id).into())
        }
        (None, Some(_)) if volume.host.is_none() && volume.leaving_hosts.is_empty() => Some(Value::Null),
        (None, _) => None,
    }
}

/// Returns the label of a volume at a vPPB.
pub(crate) fn label_of(host: &str, vppb_id: u8) -> String {
    format!("{host}/{vppb_id}")
}

/// Returns the request that makes the labels say what is shown; none if they do.
pub(crate) fn labelled(view: &View, places: &Places, shown: &Adopted) -> Option<Value> {
    let own = view.volumes.iter().filter(|(_, volume)| volume.is_in_place);
    let changes = own.filter_map(|(ld, volume)| {
        let label = wanted(ld, volume, places, shown)?;
        Some(Change { ld: ld.clone(), change: json!({ "spec": { "labels": { LABEL: label } } }), found: Some(volume) })
    });
    let changes: Vec<Change<'_>> = changes.take(LABELS_MAX).collect();
    (!changes.is_empty()).then(|| body(&changes))
}

#[cfg(test)]
mod tests {
    use aquifer_cxl_switch::AdoptedBinding;

    use super::*;

    #[test]
    fn labels_follow_what_is_shown() {
        let places = Places {
            donors: vec![Some("d1".parse().expect("a name"))],
            hosts: vec![Some("h1".parse().expect("a name"))],
        };
        let label =
            |text: &str| text.rsplit_once('/').map(|(host, vppb)| (host.to_owned(), vppb.parse().expect("a number")));
        let volume = |host: Option<&str>, labelled: Option<&str>| VolumeView {
            etag: "\"e\"".into(),
            host: host.map(str::to_owned),
            label: labelled.and_then(label),
            is_in_place: true,
            ..VolumeView::default()
        };
        let leaving = VolumeView { leaving_hosts: vec!["h1".into()], ..volume(None, Some("h1/4")) };
        let volumes = [
            volume(Some("h1"), Some("h1/0")),
            volume(Some("h1"), None),
            volume(Some("h1"), Some("h2/2")),
            volume(None, Some("h1/3")),
            leaving,
            volume(None, None),
            volume(Some("h9"), Some("h9/1")),
        ];
        let ld = |ld_id: u8| ("d1".parse().expect("a name"), ld_id);
        let view = View {
            volumes: (0..).zip(volumes).map(|(ld_id, volume)| (ld(ld_id), volume)).collect(),
            ..View::default()
        };
        let at = |vppb_id: u8, progress| AdoptedBinding { vcs_id: 0, vppb_id, device: 0, ld_id: vppb_id, progress };
        let bindings =
            vec![at(0, Progress::Bound), at(1, Progress::Binding), at(2, Progress::Bound), at(4, Progress::Unbinding)];
        let body = labelled(&view, &places, &Adopted { bindings, ..Adopted::default() }).expect("a change");
        let changes = body["Volumes"].as_object().expect("a map");
        let labels: Vec<_> =
            changes.iter().map(|(name, change)| (name.as_str(), &change["spec"]["labels"][LABEL])).collect();
        assert_eq!(
            labels,
            [("fm-d1-1", &json!("h1/1")), ("fm-d1-2", &json!("h1/2")), ("fm-d1-3", &Value::Null)],
            "a host that is not here has places of its own"
        );
        assert_eq!(body["Match"]["fm-d1-1"], "\"e\"");
        let bound = [(ld(0), volume(Some("h1"), Some("h1/0")))].into();
        let shown = Adopted { bindings: vec![at(0, Progress::Bound)], ..Adopted::default() };
        assert_eq!(labelled(&View { volumes: bound, ..View::default() }, &places, &shown), None);
    }
}
