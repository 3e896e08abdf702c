// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The indexes agree with the volumes after any change.

use std::collections::BTreeMap;

use super::*;
use crate::bytes::Bytes;
use crate::desired::{Leaving, Why};
use crate::id::{MemberId, SpanId};
use crate::volume::{Member, Place, Span};

fn volume(number: u64) -> Volume {
    let spec = r#"{"size": "1GiB", "pool": "main", "zone": "lab", "class": "tcp"}"#;
    Volume {
        name: format!("v{number}").parse().expect("a name"),
        spec: serde_json::from_str(spec).expect("a specification"),
        spans: Vec::new(),
        leaving: BTreeMap::new(),
        host: None,
        released: false,
        next_member: MemberId(9),
        next_span: SpanId(9),
    }
}

fn host(number: u64) -> HostId {
    format!("h{number}").parse().expect("a name")
}

fn source(number: u64) -> Source {
    Source::Slabs { donor: format!("d{number}").parse().expect("a name") }
}

fn member(id: u64, on: u64) -> Member {
    Member { id: MemberId(id), source: source(on), bytes: Bytes::gib(1), vppb: None }
}

fn check(volumes: &Volumes) {
    let ids = |of: &dyn Fn(&Volume) -> bool| -> Vec<VolumeId> {
        volumes.iter().filter(|(_, volume)| of(volume)).map(|(id, _)| *id).collect()
    };
    for number in 0..4 {
        let (host, source) = (host(number), source(number));
        let is_its = |volume: &Volume| hosts(volume).any(|of| *of == host);
        assert_eq!(volumes.of_host(&host).collect::<Vec<_>>(), ids(&is_its));
        let is_on = |volume: &Volume| sources(volume).any(|on| *on == source);
        assert_eq!(volumes.on(&source).collect::<Vec<_>>(), ids(&is_on));
        let name = volume(number).name;
        let named = ids(&|volume| volume.name == name && !volume.released);
        assert_eq!(volumes.named(&name).map(|(id, _)| id), named.first().copied());
        let now = Millis(number);
        let is_over = |volume: &Volume| !volume.released && volume.spec.expires_at.is_some_and(|at| at <= now);
        let mut expired: Vec<VolumeId> = volumes.expired(now).collect();
        expired.sort();
        assert_eq!(expired, ids(&is_over));
    }
    assert_eq!(volumes.ending().collect::<Vec<_>>(), ids(&|one| one.released || !one.leaving.is_empty()));
    assert_eq!(volumes.bound_count(), ids(&|one| one.host.is_some()).len());
    assert_eq!(volumes.wanted_count(), ids(&|one| !one.released).len());
}

#[test]
fn indexes_say_what_a_look_at_all_volumes_says() {
    let mut volumes = Volumes::default();
    for step in 0..400_u64 {
        // Numbers without a common factor, so that the combinations vary.
        let (id, on) = (VolumeId(step * 7 % 5), step % 4);
        match step % 11 {
            0..=3 => volumes.insert(id, volume(step % 4)),
            4 => {
                volumes.remove(&id);
            }
            5 => drop(volumes.change(id, |one| one.host = (step % 2 == 0).then(|| host(on)))),
            6 => {
                let span = Span { id: SpanId(1), members: vec![member(1, on), member(2, (on + 1) % 4)] };
                volumes.change(id, |one| one.spans = vec![span]);
            }
            7 => {
                let place = Place { span: SpanId(1), shard: 0 };
                let leaving = Leaving { member: member(3, on), place, host: host(on), why: Why::Lost, is_gone: false };
                volumes.change(id, |one| one.leaving.insert(MemberId(3), leaving));
            }
            8 => drop(volumes.change(id, |one| one.leaving.clear())),
            9 => drop(volumes.change(id, |one| one.spec.expires_at = Some(Millis(on)))),
            _ => drop(volumes.change(id, |one| one.released = !one.released)),
        }
        check(&volumes);
    }
    let text = serde_json::to_string(&volumes).expect("JSON");
    let read: Volumes = serde_json::from_str(&text).expect("what was written");
    check(&read);
    assert_eq!(read, volumes);
}
