// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Reads the event logs of a switch and of its devices with dynamic capacity, clears the records that it has read, and
//! turns them into notices for people, and into doubts: that the state of a device has changed since it was read, or
//! that an LD has been used.
//!
//! Another manager reads and clears the same logs. So the newest records stay in a switch's log for the others; how a
//! log is read on from its bookmark: `event_log.rs`. What devices write about their own health: `device_logs.rs`.
//!
//! The log of a device with dynamic capacity has a bookmark as well. It says whether the region's setting was changed
//! that makes the device wipe what is released.

use std::collections::BTreeMap;
use std::fmt;

use aquifer_fabric::{DeviceId, SwitchId};
use aquifer_fmapi::{
    BindingStatus, CapacityEventKind, ErrorKind, EventData, EventLog, EventRecord, PortEventKind, VppbEventKind,
};
use aquifer_fmapi_client::{Client, Clock, Failure, Hop};

use crate::event_log::{Bookmark, Mark, OwnBind, Seen, has_no_such_log, read_log};
use crate::inventory::{DeviceView, Inventory, is_up};
use crate::step_failure::is_unsupported;

/// Maximum number of answers that are read of one log in one round. Each has some 60 records; the rest of the log of a
/// peer that records faster is read in the next round.
const ANSWERS_MAX: usize = 16;
/// How many of the newest records stay in a switch's log: more than a switch writes between two rounds of another
/// manager.
const KEPT: usize = 32;
/// The bookmark alone stays in a device's log, which may have little room: QEMU's holds eight records.
pub(crate) const KEPT_AT_A_DEVICE: usize = 1;
/// The logs by severity.
pub(crate) const LOGS: [EventLog; 4] = [EventLog::Informational, EventLog::Warning, EventLog::Failure, EventLog::Fatal];

/// How serious a notice is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The notice is for information only.
    Ok,
    /// Something may need attention.
    Warning,
    /// Something has failed.
    Critical,
}

/// Something that happened at a switch, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// Its kind, as the manager's registry of messages names it.
    pub kind: &'static str,
    /// How serious it is.
    pub severity: Severity,
    /// What happened, in one line.
    pub message: String,
}

/// What the records of a round say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Said {
    /// Lines for people.
    pub(crate) notices: Vec<Notice>,
    /// Ports and LDs that were bound; without an LD, the port as a whole.
    pub(crate) bound: Vec<(u8, Option<u8>)>,
    /// Ports whose link changed: the device was reset, or used elsewhere, or another one may be there.
    pub(crate) changed_ports: Vec<u8>,
    /// Devices whose region may have had another setting, so that capacity was released without being wiped.
    pub(crate) doubtful_blocks: Vec<DeviceId>,
    /// `true` if records were lost, so that anything may have happened.
    pub(crate) has_lost: bool,
}

/// Which logs a peer has.
#[derive(Clone, Debug, Default)]
pub(crate) struct Events {
    /// `true` once the switch has said that it has no logs.
    is_unsupported: bool,
    marks: [Mark; LOGS.len()],
    /// The bookmarks of devices with dynamic capacity.
    device_marks: BTreeMap<DeviceId, Mark>,
    /// The latest bind of this manager.
    own_bind: Option<OwnBind>,
}

impl Events {
    /// Notes what this manager is about to bind. It has read the logs just before.
    pub(crate) fn expect(&mut self, bind: OwnBind) {
        self.own_bind = Some(bind);
    }

    /// Returns whether the switch has no logs, so that what happens between two rounds leaves no trace.
    pub(crate) fn are_missing(&self) -> bool {
        self.is_unsupported
    }

    /// Reads and clears the logs of a switch.
    pub(crate) fn read(
        &mut self,
        client: &mut Client,
        clock: &dyn Clock,
        switch: &SwitchId,
        said: &mut Said,
    ) -> Result<(), Failure> {
        for (log, mark) in LOGS.into_iter().zip(&mut self.marks) {
            if self.is_unsupported {
                break;
            }
            let bookmark = Bookmark { mark, own: self.own_bind.as_ref(), kept: KEPT, answers_max: ANSWERS_MAX };
            match read_log(client, clock, &[], log, bookmark, &mut |seen| match seen {
                Seen::Record(record) => note(switch, None, record, said),
                Seen::Cleared | Seen::Lost(_) => said.has_lost = true,
            }) {
                Ok(()) => {}
                Err(failure) if is_unsupported(&failure) => self.is_unsupported = true,
                Err(failure) => return Err(failure),
            }
        }
        Ok(())
    }

    /// Reads and clears the logs of devices with dynamic capacity. One that does not answer is read later.
    pub(crate) fn read_devices(
        &mut self,
        client: &mut Client,
        clock: &dyn Clock,
        switch: &SwitchId,
        inventory: &Inventory,
        said: &mut Said,
    ) -> Result<(), Failure> {
        let devices = inventory.devices.iter().filter(|(_, device)| device.is_reachable && device.capacity.is_some());
        for (name, device) in devices {
            match self.read_device(client, clock, switch, name, device, said) {
                Err(failure) if failure.is_fatal() => return Err(failure),
                Ok(_) | Err(_) => {}
            }
        }
        Ok(())
    }

    /// Reads and clears the log of a device with dynamic capacity. Returns whether it has one.
    pub(crate) fn read_device(
        &mut self,
        client: &mut Client,
        clock: &dyn Clock,
        switch: &SwitchId,
        name: &DeviceId,
        device: &DeviceView,
        said: &mut Said,
    ) -> Result<bool, Failure> {
        let (path, log) = ([Hop::Port(device.ports[0])], EventLog::DynamicCapacity);
        let mark = self.device_marks.entry(name.clone()).or_default();
        let bookmark = Bookmark { mark, own: None, kept: KEPT_AT_A_DEVICE, answers_max: ANSWERS_MAX };
        match read_log(client, clock, &path, log, bookmark, &mut |seen| match seen {
            Seen::Record(record) => note(switch, Some(name), record, said),
            // What hosts have is read in each round, whatever the records say.
            Seen::Cleared | Seen::Lost(_) => said.doubtful_blocks.push(name.clone()),
        }) {
            Ok(()) => Ok(true),
            Err(failure) if is_unsupported(&failure) || has_no_such_log(&failure) => Ok(false),
            Err(failure) => Err(failure),
        }
    }
}

/// Takes note of one record.
fn note(switch: &SwitchId, device: Option<&DeviceId>, record: &EventRecord, said: &mut Said) {
    let of = |what: fmt::Arguments<'_>| format!("switch {switch}: {what}");
    let (kind, severity, message) = match record.meaning() {
        Some(EventData::Port(event)) => {
            let (port_id, is_up) = (event.port.port_id, is_up(&event.port));
            said.changed_ports.push(port_id);
            match event.kind {
                PortEventKind::LinkStateChange if is_up => {
                    ("PortLinkUp", Severity::Ok, of(format_args!("the link of port {port_id} is up")))
                }
                PortEventKind::LinkStateChange => {
                    ("PortLinkDown", Severity::Warning, of(format_args!("the link of port {port_id} is down")))
                }
                _ => ("PortSlotChanged", Severity::Ok, of(format_args!("the slot of port {port_id} has changed"))),
            }
        }
        Some(EventData::Vppb(event)) => {
            let (vcs_id, vppb_id, vppb) = (event.vcs_id, event.vppb_id, event.vppb);
            let is_failure = record.flags & 3 != 0;
            let place = format!("vPPB {vppb_id} of VCS {vcs_id}");
            match (event.kind, vppb.status) {
                (VppbEventKind::BindingChange, BindingStatus::Ld) => {
                    said.bound.push((vppb.port_id, Some(vppb.ld_id)));
                    let what = of(format_args!("{place} is bound to LD {} at port {}", vppb.ld_id, vppb.port_id));
                    ("VppbBound", severity(is_failure), what)
                }
                (VppbEventKind::BindingChange, BindingStatus::Port) => {
                    said.bound.push((vppb.port_id, None));
                    ("VppbBound", severity(is_failure), of(format_args!("{place} is bound to port {}", vppb.port_id)))
                }
                (VppbEventKind::BindingChange, _) => {
                    ("VppbUnbound", severity(is_failure), of(format_args!("{place} is not bound any more")))
                }
                (kind, _) => ("VppbChanged", Severity::Ok, of(format_args!("{place}: {kind:?}"))),
            }
        }
        Some(EventData::MldPort(event)) => {
            let severity = if event.kind == ErrorKind::Fatal { Severity::Critical } else { Severity::Warning };
            let what = of(format_args!("port {} reports an error of its device: {:?}", event.port_id, event.kind));
            ("DeviceError", severity, what)
        }
        Some(EventData::Capacity(event)) => {
            if event.kind == CapacityEventKind::RegionConfigurationUpdated {
                said.doubtful_blocks.extend(device.cloned());
            }
            let name = device.map(|device| format!("device {device}")).unwrap_or_default();
            let what = match event.kind {
                CapacityEventKind::AddResponse if event.extent.length == 0 => "has refused what it was offered",
                CapacityEventKind::AddResponse => "has accepted what it was offered",
                CapacityEventKind::Released => "has given capacity back",
                _ => "has another configuration of its capacity",
            };
            ("DynamicCapacity", Severity::Ok, of(format_args!("{name}: host {} {what}", event.host_id)))
        }
        Some(EventData::Dram(_) | EventData::Media(_) | EventData::Module(_)) | None => return,
    };
    said.notices.push(Notice { kind, severity, message });
}

fn severity(is_failure: bool) -> Severity {
    if is_failure { Severity::Warning } else { Severity::Ok }
}

#[cfg(test)]
mod tests {
    use super::*;
    use aquifer_fmapi::{CapacityEvent, PortEvent, PortStatus, Vppb, VppbEvent};

    #[test]
    fn records_become_notices_and_doubt() {
        let switch = "s0".parse().expect("a name");
        let mut said = Said::default();
        let vppb = Vppb { status: BindingStatus::Ld, port_id: 3, ld_id: 2 };
        let bound = VppbEvent { vcs_id: 1, vppb_id: 4, kind: VppbEventKind::BindingChange, vppb };
        let failed = VppbEvent { vppb: Vppb::default(), ..bound };
        let port = PortStatus { port_id: 7, ..PortStatus::default() };
        let down = PortEvent { kind: PortEventKind::LinkStateChange, slot_status: 0, port };
        note(&switch, None, &EventData::Vppb(bound).record(0), &mut said);
        note(&switch, None, &EventData::Vppb(failed).record(1), &mut said);
        note(&switch, None, &EventData::Port(down).record(1), &mut said);
        let lines: Vec<(&str, Severity, &str)> =
            said.notices.iter().map(|notice| (notice.kind, notice.severity, notice.message.as_str())).collect();
        assert_eq!(
            lines,
            [
                ("VppbBound", Severity::Ok, "switch s0: vPPB 4 of VCS 1 is bound to LD 2 at port 3"),
                ("VppbUnbound", Severity::Warning, "switch s0: vPPB 4 of VCS 1 is not bound any more"),
                ("PortLinkDown", Severity::Warning, "switch s0: the link of port 7 is down"),
            ]
        );
        assert_eq!((said.bound, said.changed_ports), (vec![(3, Some(2))], vec![7]));
        assert_eq!(said.doubtful_blocks, []);
    }

    #[test]
    fn only_a_change_of_a_region_makes_blocks_doubtful() {
        let (switch, device) = ("s0".parse().expect("a name"), "s0.1".parse().expect("a name"));
        let mut said = Said::default();
        for kind in [CapacityEventKind::AddResponse, CapacityEventKind::Released] {
            let event = CapacityEvent { kind, ..CapacityEvent::default() };
            note(&switch, Some(&device), &EventData::Capacity(event).record(0), &mut said);
        }
        assert_eq!(said.doubtful_blocks, []);
        let kind = CapacityEventKind::RegionConfigurationUpdated;
        let event = CapacityEvent { kind, ..CapacityEvent::default() };
        note(&switch, Some(&device), &EventData::Capacity(event).record(0), &mut said);
        assert_eq!(said.doubtful_blocks, [device]);
    }
}
