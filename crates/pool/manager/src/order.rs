// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What clients ask the writer for, and how an order changes the desired state. Pure.
//!
//! An order is carried out as a whole or refused; a refusal changes nothing. A dry run carries it out on a copy.
//!
//! Next on the path of an order: `writer/orders.rs`, which carries it out, and `fabric/src/desired/change.rs`, which
//! changes the desired state.

use std::fmt;

use aquifer_cxl_peers::{Act as SwitchAct, PortAct};
use aquifer_fabric::{
    Bytes, Capacity, Cause, Corrupt, Declaration, Desired, DeviceId, DonorId, Edit, HostId, LdId, Member, MemberId,
    NotApplied, Observed, Refusal, Slot, Source, Topology, Volume, VolumeId, VolumeName, VolumeSpec, Why, apply,
};
use ring::digest::{SHA256, digest};

use crate::adoption::adopt;
use crate::amendment::Amendment;

/// What an order asks for.
#[derive(Clone, Debug)]
pub(crate) enum Act {
    Adopt,
    Amend(Box<Amendment>),
    Apply(Box<Declaration>),
    Bind(VolumeName, HostId),
    Create(VolumeName, Box<VolumeSpec>),
    DeclareDead(HostId),
    Drain(DonorId, bool),
    Move(VolumeName, Option<DonorId>),
    /// `true` to unbind it as well, if it is bound.
    Release(VolumeName, bool),
    Resize(VolumeName, Bytes),
    Retire(DonorId),
    /// An order to a switch. It does not change the desired state.
    Switch(Box<SwitchAct>),
    Unbind(VolumeName),
}

impl Act {
    /// Returns the volume that this changes, if it is exactly one.
    pub(crate) fn volume(&self) -> Option<&VolumeName> {
        match self {
            Self::Bind(name, _)
            | Self::Create(name, _)
            | Self::Move(name, _)
            | Self::Release(name, _)
            | Self::Resize(name, _)
            | Self::Unbind(name) => Some(name),
            _ => None,
        }
    }
}

impl fmt::Display for Act {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Adopt => f.write_str("adopt what is in use"),
            Self::Amend(amendment) => {
                let names: Vec<&str> = amendment.names().map(VolumeName::as_str).collect();
                write!(f, "change volumes {}", names.join(", "))
            }
            Self::Apply(_) => f.write_str("apply a declaration"),
            Self::Bind(name, host) => write!(f, "bind volume {name} to host {host}"),
            Self::Create(name, spec) => write!(f, "create volume {name} of {}", spec.size),
            Self::DeclareDead(host) => write!(f, "declare host {host} gone"),
            Self::Drain(donor, true) => write!(f, "drain donor {donor}"),
            Self::Drain(donor, false) => write!(f, "use donor {donor} again"),
            Self::Move(name, Some(donor)) => write!(f, "move volume {name} off donor {donor}"),
            Self::Move(name, None) => write!(f, "move volume {name} to other donors"),
            Self::Release(name, false) => write!(f, "release volume {name}"),
            Self::Release(name, true) => write!(f, "release volume {name}, bound or not"),
            Self::Resize(name, size) => write!(f, "resize volume {name} to {size}"),
            Self::Retire(donor) => write!(f, "declare donor {donor} gone"),
            Self::Switch(act) => act.fmt(f),
            Self::Unbind(name) => write!(f, "unbind volume {name}"),
        }
    }
}

/// Length of a text about an amendment from which on the next change begins another text. An audit record cuts texts
/// that are longer than 2000 bytes, and a change takes less than 390.
const TEXT_BYTES: usize = 1600;

/// Returns what an order has changed, for the audit log, as one text or several. An amendment is described by its
/// changes; every other act says itself what it does.
pub(crate) fn descriptions(act: &Act, changes: &[String]) -> Vec<String> {
    if !matches!(act, Act::Amend(_)) {
        return vec![act.to_string()];
    }
    let mut texts: Vec<String> = Vec::new();
    // A change begins with a sign, for plans.
    for change in changes.iter().map(|change| change.split_once(' ').map_or(change.as_str(), |(_, what)| what)) {
        match texts.last_mut().filter(|text| text.len() < TEXT_BYTES) {
            Some(text) => *text = format!("{text}, {change}"),
            None => texts.push(change.to_owned()),
        }
    }
    texts
}

/// A client's order to the writer.
#[derive(Clone, Debug)]
pub(crate) struct Order {
    pub(crate) act: Act,
    pub(crate) who: String,
    /// The ETag that the volume must still have for the order to be carried out.
    pub(crate) if_match: Option<String>,
    /// `true` to report what would change, and change nothing.
    pub(crate) is_dry_run: bool,
    /// The request that contained the order.
    pub(crate) cause: Cause,
}

/// Why an order is not carried out.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum NotDone {
    /// No manager could read the state that the order leads to.
    Inconsistent(Corrupt),
    /// What is sent of a volume is no declaration; the line says why.
    Malformed(String),
    NotApplied(NotApplied),
    /// What is sent of a volume cannot be changed while the volume exists.
    NotInPlace(VolumeName),
    Refused(Refusal),
    /// The store refuses every change, or this one for now; the line says why.
    NotStored(String),
    /// The volume no longer has the ETag that the order names.
    Stale,
    /// The change is too large for the store; the line says why.
    TooLarge(String),
    /// The switch refused the order, or its target belongs to a volume. The line says which.
    Switch(String),
    /// A donor or a host is not in the topology.
    Unknown(String),
    UnknownVolume(VolumeName),
}

impl fmt::Display for NotDone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Inconsistent(corrupt) => write!(
                f,
                "nothing is changed, since afterwards {}; report this bug, with what 'aquifer fabric export' prints",
                corrupt.cause()
            ),
            Self::NotApplied(not) => not.fmt(f),
            Self::NotInPlace(name) => write!(
                f,
                "only the host, size, labels, presentation and expiry of volume {name} can be changed; release it, then \
                 create it again"
            ),
            Self::Refused(refusal) => refusal.fmt(f),
            Self::Stale => f.write_str("the resource was changed since its ETag was read; read it again"),
            Self::Malformed(line) | Self::NotStored(line) | Self::Switch(line) | Self::TooLarge(line) => {
                f.write_str(line)
            }
            Self::Unknown(what) => write!(
                f,
                "this manager knows no {what}; 'aquifer fabric donors' and 'aquifer fabric hosts' list the names"
            ),
            Self::UnknownVolume(name) => {
                write!(f, "there is no volume {name}; list those that exist")
            }
        }
    }
}

impl From<Refusal> for NotDone {
    fn from(refusal: Refusal) -> NotDone {
        NotDone::Refused(refusal)
    }
}

/// Returns the ETag of a volume: a hash of everything that is desired of it.
pub(crate) fn etag(volume: &Volume) -> String {
    let text = serde_json::to_vec(volume).expect("a volume is JSON");
    etag_of(&text)
}

/// Returns an ETag of bytes.
pub(crate) fn etag_of(bytes: &[u8]) -> String {
    let hash = digest(&SHA256, bytes);
    let hex: String = hash.as_ref().iter().take(12).map(|byte| format!("{byte:02x}")).collect();
    format!("\"{hex}\"")
}

/// Returns whether an If-Match header admits an ETag.
pub(crate) fn matches(if_match: &str, etag: &str) -> bool {
    let bare = |tag: &str| tag.trim().trim_start_matches("W/").to_owned();
    if_match.trim() == "*" || if_match.split(',').any(|tag| bare(tag) == etag)
}

/// Changes the desired state as an order asks. Returns the remarks of an adoption. On failure `desired` may be half
/// changed: the caller works on a copy, and counts `capacity` again from what it keeps.
pub(crate) fn change(
    topology: &Topology,
    desired: &mut Desired,
    observed: &Observed,
    capacity: &mut Capacity,
    order: &Order,
    mut draw: impl FnMut() -> VolumeId,
) -> Result<Vec<String>, NotDone> {
    check(topology, desired, order)?;
    if let Act::Apply(declaration) = &order.act {
        return apply(topology, desired, observed, declaration, draw).map(|_| Vec::new()).map_err(NotDone::NotApplied);
    }
    if let Act::Amend(amendment) = &order.act {
        let (changes, version) = (amendment.changes(desired)?, desired.version);
        let mut edit = Edit { topology, desired, capacity };
        changes.iter().try_for_each(|change| edit.make(change, &mut draw))?;
        // All of it together makes one version.
        desired.version = desired.version.min(version + 1);
        return Ok(Vec::new());
    }
    let id = order.act.volume().and_then(|name| desired.volume_named(name)).map(|(id, _)| id);
    let unknown = || NotDone::UnknownVolume(order.act.volume().expect("only acts on volumes ask").clone());
    let id = || id.ok_or_else(unknown);
    let mut edit = Edit { topology, desired, capacity };
    match &order.act {
        Act::Adopt => return adopt(&mut edit, observed, draw),
        Act::Amend(_) | Act::Apply(_) => {}
        Act::Bind(_, host) => edit.bind(id()?, host)?,
        Act::Create(name, spec) => edit.create(draw(), name.clone(), (**spec).clone())?,
        Act::DeclareDead(host) => edit.declare_dead(host, observed),
        Act::Drain(donor, draining) => edit.drain(donor, *draining),
        Act::Move(_, donor) => {
            for member in to_move(&edit.desired.volumes[&id()?], donor.as_ref()) {
                edit.replace(id()?, member, Why::Replaced, observed)?;
            }
        }
        Act::Release(_, unbinds) => {
            let id = id()?;
            if *unbinds {
                edit.unbind(id)?;
            }
            edit.release(id)?;
        }
        Act::Resize(_, size) => {
            let id = id()?;
            match *size > edit.desired.volumes[&id].spec.size {
                true => edit.grow(id, *size)?,
                false => edit.shrink(id, *size)?,
            }
        }
        Act::Retire(donor) => edit.retire(donor, observed),
        Act::Switch(_) => {}
        Act::Unbind(_) => edit.unbind(id()?)?,
    }
    Ok(Vec::new())
}

/// Returns the members of a volume on a donor, or all on donors. Members on devices stay: a move is to other donors,
/// and an LD that is replaced by another one costs a copy and a wipe for nothing.
fn to_move(volume: &Volume, from: Option<&DonorId>) -> Vec<MemberId> {
    let is_there = |source: &Source| match source {
        Source::Slabs { donor } => from.is_none_or(|from| donor == from),
        Source::DynamicCapacity { .. } | Source::LogicalDevice { .. } => false,
    };
    volume.places().filter(|(_, member)| is_there(&member.source)).map(|(_, member)| member.id).collect()
}

/// Checks names and the ETag.
fn check(topology: &Topology, desired: &Desired, order: &Order) -> Result<(), NotDone> {
    let parts = topology.parts();
    match &order.act {
        Act::Drain(donor, _) | Act::Retire(donor) | Act::Move(_, Some(donor)) if !parts.donors.contains_key(donor) => {
            return Err(NotDone::Unknown(format!("donor {donor}")));
        }
        Act::Switch(act) => return check_switch(topology, desired, act),
        Act::Bind(_, host) | Act::DeclareDead(host) if !parts.hosts.contains_key(host) => {
            return Err(NotDone::Unknown(format!("host {host}")));
        }
        _ => {}
    }
    let (Some(name), Some(if_match)) = (order.act.volume(), &order.if_match) else { return Ok(()) };
    let (_, volume) = desired.volume_named(name).ok_or_else(|| NotDone::UnknownVolume(name.clone()))?;
    if matches(if_match, &etag(volume)) { Ok(()) } else { Err(NotDone::Stale) }
}

/// Refuses an order to a switch that concerns a member of a volume: such a change is made through the volume.
fn check_switch(topology: &Topology, desired: &Desired, act: &SwitchAct) -> Result<(), NotDone> {
    let members = desired.volumes.values().flat_map(|volume| {
        let leaving = volume.leaving.values().map(|leaving| &leaving.member);
        volume.places().map(|(_, member)| member).chain(leaving).map(move |member| (&volume.name, member))
    });
    let is_of = |member: &Member, device: &DeviceId| match &member.source {
        Source::DynamicCapacity { device: of } | Source::LogicalDevice { device: of, .. } => of == device,
        Source::Slabs { .. } => false,
    };
    let is_ld = |member: &Member, device: &DeviceId, ld_id: LdId| {
        member.source == Source::LogicalDevice { device: device.clone(), ld_id }
    };
    let is_concerned = |member: &Member| match act {
        SwitchAct::Bind { vppb, device, ld_id } => member.vppb.as_ref() == Some(vppb) || is_ld(member, device, *ld_id),
        SwitchAct::ControlPort { act: PortAct::Enable, .. } => false,
        SwitchAct::ControlPort { switch, port_id, .. } => {
            let at_port = |slot: &Slot| slot.switch == *switch && slot.port_id == *port_id;
            let devices = topology.parts().devices.keys();
            devices.filter(|device| topology.slot(device).is_some_and(at_port)).any(|device| is_of(member, device))
        }
        SwitchAct::SetBandwidth { .. } | SwitchAct::SetCongestion { .. } => false,
        SwitchAct::SetSize { device, ld_id, .. } => is_ld(member, device, *ld_id),
        SwitchAct::Unbind { vppb } => member.vppb.as_ref() == Some(vppb),
    };
    match members.into_iter().find(|(_, member)| is_concerned(member)) {
        Some((name, _)) => {
            Err(NotDone::Switch(format!("volume {name} uses this memory; unbind, move or release the volume")))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use aquifer_fabric::{NO_LD, Span, SpanId};

    use super::*;

    fn member(id: u64, source: Source) -> Member {
        Member { id: MemberId(id), source, bytes: Bytes::gib(1), vppb: None }
    }

    #[test]
    fn a_move_takes_what_is_on_donors_and_leaves_devices_alone() {
        let slabs = |donor: &str| Source::Slabs { donor: donor.parse().expect("a name") };
        let device = || "m0".parse().expect("a name");
        let ld = Source::LogicalDevice { device: device(), ld_id: NO_LD };
        let members = vec![
            member(1, slabs("d0")),
            member(2, ld),
            member(3, slabs("d1")),
            member(4, Source::DynamicCapacity { device: device() }),
        ];
        let spec = r#"{"size": "1GiB", "pool": "main", "zone": "lab", "class": "tcp"}"#;
        let volume = Volume {
            name: "v".parse().expect("a name"),
            spec: serde_json::from_str(spec).expect("a specification"),
            spans: vec![Span { id: SpanId(1), members }],
            leaving: Default::default(),
            host: None,
            released: false,
            next_member: MemberId(5),
            next_span: SpanId(2),
        };
        assert_eq!(to_move(&volume, None), [MemberId(1), MemberId(3)]);
        assert_eq!(to_move(&volume, Some(&"d1".parse().expect("a name"))), [MemberId(3)]);
        assert_eq!(to_move(&volume, Some(&"m0".parse().expect("a name"))), []);
    }

    #[test]
    fn if_match_takes_lists_and_weak_tags() {
        assert!(matches("*", "\"a\"") && matches("\"b\", W/\"a\"", "\"a\""));
        assert!(!matches("\"b\"", "\"a\"") && !matches("a", "\"a\""));
    }

    #[test]
    fn long_amendments_are_described_in_several_texts_that_no_record_cuts() {
        let act = Act::Amend(Box::default());
        let changes: Vec<String> =
            (0..64).map(|number| format!("+ bind volume {} to host h{number}", "v".repeat(63))).collect();
        let texts = descriptions(&act, &changes);
        assert!(texts.len() > 1 && texts.iter().all(|text| text.len() <= 2000), "{texts:?}");
        assert!(texts[0].starts_with("bind volume v"), "{}", texts[0]);
        let all = texts.join(", ");
        assert!((0..64).all(|number| all.contains(&format!("to host h{number}"))), "{all}");
        assert_eq!(descriptions(&Act::Adopt, &changes), ["adopt what is in use"]);
    }
}
