// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What the labels of volumes must say, so that the next start shows every binding at the same vPPB. Pure.
//!
//! Only what this program has shown itself changes a label: a binding of somebody else that is shown at a vPPB gets it
//! as its label, and the label goes when that binding has gone. So an operator may write a label before a bind. A label
//! beyond the last vPPB stays, because another program may show more of them.

use aquifer_cxl_switch::{Adopted, AdoptedBinding, Progress};
use serde_json::{Value, json};

use crate::places::Places;
use crate::view::{LABEL, Ld, View, VolumeView};

/// Returns the label of a volume at a vPPB.
pub(crate) fn label_of(host: &str, vppb_id: u8) -> String {
    format!("{host}/{vppb_id}")
}

/// Returns how a volume's declaration changes with its label.
pub(crate) fn labelled(label: Value) -> Value {
    json!({ "spec": { "labels": { LABEL: label } } })
}

fn at<'a>(state: &'a Adopted, places: &Places, ld: &Ld) -> Option<&'a AdoptedBinding> {
    let device = places.device_of(&ld.0)?;
    state.bindings.iter().find(|it| (it.device, it.ld_id) == (device, ld.1))
}

/// Returns what the label of a volume must say; none where it may stay as it is.
fn wanted(
    volume: &VolumeView,
    places: &Places,
    was: Option<&AdoptedBinding>,
    is: Option<&AdoptedBinding>,
) -> Option<Value> {
    match is {
        // Until its host lets go, the label of that binding is still needed.
        Some(is) if is.progress == Progress::Unbinding => None,
        Some(is) => {
            let host = places.host(is.vcs_id)?.as_str();
            let is_said = volume
                .label
                .as_ref()
                .is_some_and(|(of, vppb_id)| of == host && (*vppb_id == is.vppb_id || *vppb_id >= places.vppbs));
            (!is_said).then(|| label_of(host, is.vppb_id).into())
        }
        None => {
            let is_over = was.is_some() && volume.host.is_none() && volume.leaving_hosts.is_empty();
            (is_over && volume.label.is_some()).then_some(Value::Null)
        }
    }
}

/// Returns the labels that must change after the switch has gone from one state to another, by their volumes.
pub(crate) fn labels<'a>(
    view: &'a View,
    places: &'a Places,
    was: &'a Adopted,
    is: &'a Adopted,
) -> impl Iterator<Item = (&'a Ld, &'a VolumeView, Value)> {
    let own = view.volumes.iter().filter(|(_, volume)| volume.is_in_place);
    own.filter_map(|(ld, volume)| {
        let label = wanted(volume, places, at(was, places, ld), at(is, places, ld))?;
        Some((ld, volume, label))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_follow_what_is_shown() {
        let places = Places {
            donors: vec![Some("d1".parse().expect("a name"))],
            hosts: vec![Some("h1".parse().expect("a name"))],
            vppbs: 8,
        };
        let label =
            |text: &str| text.rsplit_once('/').map(|(host, vppb)| (host.to_owned(), vppb.parse().expect("a number")));
        let volume = |host: Option<&str>, labelled: Option<&str>| VolumeView {
            host: host.map(str::to_owned),
            label: labelled.and_then(label),
            is_in_place: true,
            ..VolumeView::default()
        };
        let leaving = VolumeView { leaving_hosts: vec!["h1".into()], ..volume(None, Some("h1/4")) };
        let at = |vppb_id: u8, progress| AdoptedBinding { vcs_id: 0, vppb_id, device: 0, ld_id: vppb_id, progress };
        let (bound, binding) = (|at_vppb| Some(at(at_vppb, Progress::Bound)), Some(at(1, Progress::Binding)));
        let cases = [
            (volume(Some("h1"), Some("h1/0")), None, bound(0), None),
            (volume(Some("h1"), None), None, binding, Some(json!("h1/1"))),
            (volume(Some("h1"), Some("h2/2")), None, bound(2), Some(json!("h1/2"))),
            (volume(Some("h1"), Some("h1/7")), bound(3), bound(3), Some(json!("h1/3"))),
            (leaving, bound(4), Some(at(4, Progress::Unbinding)), None),
            (volume(Some("h1"), Some("h1/12")), None, bound(5), None),
            (volume(None, Some("h1/6")), None, None, None),
            (volume(None, Some("h1/7")), bound(7), None, Some(Value::Null)),
            (volume(None, None), None, None, None),
            (volume(Some("h9"), Some("h9/1")), None, None, None),
        ];
        let ld = |ld_id: usize| ("d1".parse().expect("a name"), u8::try_from(ld_id).expect("few"));
        let volumes = cases.iter().enumerate().map(|(number, (volume, ..))| (ld(number), volume.clone())).collect();
        let view = View { volumes, ..View::default() };
        let state = |bindings: Vec<Option<AdoptedBinding>>| Adopted {
            bindings: bindings.into_iter().flatten().collect(),
            ..Adopted::default()
        };
        let was = state(cases.iter().map(|(_, was, ..)| *was).collect());
        let is = state(cases.iter().map(|(_, _, is, _)| *is).collect());
        let found: Vec<(u8, Value)> = labels(&view, &places, &was, &is).map(|(ld, _, label)| (ld.1, label)).collect();
        let expected =
            cases.iter().enumerate().filter_map(|(number, (.., label))| Some((ld(number).1, label.clone()?)));
        assert_eq!(found, expected.collect::<Vec<_>>());
    }
}
