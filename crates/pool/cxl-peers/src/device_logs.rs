// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Reads what devices write about themselves into their event logs: errors of their memory, changes of their health.
//! Each record becomes a notice, and is cleared, except the newest of each log, which is the bookmark.
//!
//! A switch may have many devices, and a failing one may write many records: the logs are read every two seconds, a
//! bounded part of each, and of that part a bounded number of records becomes a line each. A device that has no such
//! logs is asked once on each connection.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use aquifer_fabric::DeviceId;
use aquifer_fmapi::{
    DramErrorKind, EventData, EventLog, EventRecord, MediaErrorKind, ModuleEvent, ModuleEventKind, Transaction,
};
use aquifer_fmapi_client::{Client, Clock, Failure, Hop};

use crate::event_log::{Bookmark, Mark, Seen, has_no_such_log, read_log};
use crate::events::{KEPT_AT_A_DEVICE, LOGS, Notice, Said, Severity};
use crate::inventory::{DeviceView, Inventory};
use crate::step_failure::is_unsupported;

/// How often the logs are read.
const EVERY: Duration = Duration::from_secs(2);
/// Maximum number of answers that are read of one log at a time. Each has up to some 60 records.
const ANSWERS_MAX: usize = 2;
/// Maximum number of records of one log that become a line each at a time. The others are counted.
const LINES_MAX: usize = 8;

/// How far the devices' logs were read.
#[derive(Clone, Debug, Default)]
pub(crate) struct DeviceLogs {
    marks: BTreeMap<DeviceId, [Mark; LOGS.len()]>,
    /// Devices that have said on this connection that they have no such logs.
    without: BTreeSet<DeviceId>,
    read_at: Option<Duration>,
}

impl DeviceLogs {
    /// Asks all devices again, on a new connection.
    pub(crate) fn ask_again(&mut self) {
        self.without.clear();
    }

    /// Reads and clears the logs of all devices, if it is time. A device that does not answer is read later.
    pub(crate) fn read(
        &mut self,
        client: &mut Client,
        clock: &dyn Clock,
        inventory: &Inventory,
        said: &mut Said,
    ) -> Result<(), Failure> {
        let now = clock.now();
        if self.read_at.is_some_and(|read_at| now.saturating_sub(read_at) < EVERY) {
            return Ok(());
        }
        self.read_at = Some(now);
        for (name, device) in inventory.devices.iter().filter(|(_, device)| device.is_reachable) {
            if self.without.contains(name) {
                continue;
            }
            match self.read_device(client, clock, name, device, said) {
                Ok(()) => {}
                Err(failure) if failure.is_fatal() => return Err(failure),
                Err(failure) if is_unsupported(&failure) || has_no_such_log(&failure) => {
                    self.without.insert(name.clone());
                }
                Err(_) => {}
            }
        }
        Ok(())
    }

    fn read_device(
        &mut self,
        client: &mut Client,
        clock: &dyn Clock,
        name: &DeviceId,
        device: &DeviceView,
        said: &mut Said,
    ) -> Result<(), Failure> {
        let path = [Hop::Port(device.ports[0])];
        let marks = self.marks.entry(name.clone()).or_default();
        for (log, mark) in LOGS.into_iter().zip(marks) {
            let bookmark = Bookmark { mark, own: None, kept: KEPT_AT_A_DEVICE, answers_max: ANSWERS_MAX };
            let mut lines = Lines { device: name, log, written: 0, rest: 0, said };
            let read = read_log(client, clock, &path, log, bookmark, &mut |seen| match seen {
                Seen::Record(record) => lines.record(record),
                Seen::Lost(count) => lines.lost(count),
                // The device's host may read and clear the same log.
                Seen::Cleared => {}
            });
            lines.end();
            read?;
        }
        Ok(())
    }
}

/// Turns records of one log into notices.
struct Lines<'a> {
    device: &'a DeviceId,
    log: EventLog,
    written: usize,
    rest: usize,
    said: &'a mut Said,
}

impl Lines<'_> {
    fn record(&mut self, record: &EventRecord) {
        if self.written == LINES_MAX {
            self.rest += 1;
            return;
        }
        self.written += 1;
        let (kind, what) = words(record);
        self.notice(kind, severity(self.log), &what);
    }

    fn lost(&mut self, count: u16) {
        let what = format!("its log of {} was full, and has lost {count} records", log_name(self.log));
        self.notice("EventsLost", Severity::Warning, &what);
    }

    fn end(&mut self) {
        if self.rest > 0 {
            let what = format!("{} more records in its log of {}, not listed here", self.rest, log_name(self.log));
            self.notice("DeviceEvent", severity(self.log), &what);
        }
    }

    fn notice(&mut self, kind: &'static str, severity: Severity, what: &str) {
        let message = format!("device {}: {what}", self.device);
        self.said.notices.push(Notice { kind, severity, message });
    }
}

fn severity(log: EventLog) -> Severity {
    match log {
        EventLog::Informational => Severity::Ok,
        EventLog::Failure | EventLog::Fatal => Severity::Critical,
        _ => Severity::Warning,
    }
}

fn log_name(log: EventLog) -> &'static str {
    match log {
        EventLog::Informational => "informational records",
        EventLog::Failure => "failures",
        EventLog::Fatal => "fatal errors",
        _ => "warnings",
    }
}

/// Returns the kind of notice that a record becomes, and what it says.
fn words(record: &EventRecord) -> (&'static str, String) {
    let (kind, mut what) = match record.meaning() {
        Some(EventData::Dram(event)) => {
            let what = memory_error(event.is_uncorrectable(), dram_error(event.kind));
            ("MediaError", found(what, event.memory_address(), event.transaction))
        }
        Some(EventData::Media(event)) => {
            let what = memory_error(event.is_uncorrectable(), media_error(event.kind));
            ("MediaError", found(what, event.memory_address(), event.transaction))
        }
        Some(EventData::Module(event)) => ("DeviceHealth", health(&event)),
        _ => ("DeviceEvent", "it has written a record of another kind".into()),
    };
    if let Some(ld_id) = record.about_ld() {
        what.push_str(&format!(", in LD {ld_id}"));
    }
    for (is_set, text) in [
        (record.is_permanent(), "; the condition is permanent"),
        (record.needs_maintenance(), "; it needs maintenance"),
        (record.needs_replacement(), "; it has to be replaced"),
    ] {
        if is_set {
            what.push_str(text);
        }
    }
    (kind, what)
}

fn memory_error(is_uncorrectable: bool, kind: &str) -> String {
    format!("{} {kind}", if is_uncorrectable { "an uncorrectable" } else { "a corrected" })
}

fn found(mut what: String, address: u64, transaction: Transaction) -> String {
    what.push_str(&format!(" at its address {address:#x}"));
    what.push_str(match transaction {
        Transaction::HostRead => ", in a read by its host",
        Transaction::HostWrite => ", in a write by its host",
        Transaction::HostScan => ", in a scan for its host",
        Transaction::HostPoison => ", which its host has ordered",
        Transaction::Scrub => ", in a scrub",
        Transaction::Management => ", in the management of its memory",
        Transaction::Unknown | Transaction::Reserved(_) => "",
    });
    what
}

fn media_error(kind: MediaErrorKind) -> &'static str {
    match kind {
        MediaErrorKind::Ecc | MediaErrorKind::ScrubEcc => "error of its memory",
        MediaErrorKind::InvalidAddress => "access to an invalid address",
        MediaErrorKind::DataPath => "error of its data path",
        MediaErrorKind::TrustedState | MediaErrorKind::ContextKey => "violation of its memory's protection",
        MediaErrorKind::CorrectedCounter => "error that its counter of corrected errors has reported",
        MediaErrorKind::Reserved(_) => "error of another kind",
    }
}

fn dram_error(kind: DramErrorKind) -> &'static str {
    media_error(match kind {
        DramErrorKind::Ecc => MediaErrorKind::Ecc,
        DramErrorKind::ScrubEcc => MediaErrorKind::ScrubEcc,
        DramErrorKind::InvalidAddress => MediaErrorKind::InvalidAddress,
        DramErrorKind::DataPath => MediaErrorKind::DataPath,
        DramErrorKind::TrustedState => MediaErrorKind::TrustedState,
        DramErrorKind::CorrectedCounter => MediaErrorKind::CorrectedCounter,
        DramErrorKind::ContextKey => MediaErrorKind::ContextKey,
        DramErrorKind::Reserved(bits) => MediaErrorKind::Reserved(bits),
    })
}

fn health(event: &ModuleEvent) -> String {
    let changed = match event.kind {
        ModuleEventKind::HealthStatus => "its health status has changed",
        ModuleEventKind::MediaStatus => "the status of its memory has changed",
        ModuleEventKind::LifeUsed => "more of its life is used",
        ModuleEventKind::Temperature => "its temperature has changed",
        ModuleEventKind::DataPath => "its data path has an error",
        ModuleEventKind::LabelStorage => "its label storage has an error",
        ModuleEventKind::Sideband => "its sideband bus has an error",
        ModuleEventKind::ReplaceablePart => "a part of it has an error",
        ModuleEventKind::Power => "its power management has failed",
        ModuleEventKind::Reserved(_) => "its health has changed",
    };
    let (health, media) = (event.health_status, event.media_status);
    let mut what = format!("{changed}: health {health:#04x}, memory {media:#04x}");
    if let Some(percent) = event.life_used() {
        what.push_str(&format!(", {percent} % of its life used"));
    }
    if let Some(celsius) = event.celsius() {
        what.push_str(&format!(", {celsius} degrees Celsius"));
    }
    what
}

#[cfg(test)]
mod tests {
    use super::*;
    use aquifer_fmapi::{DramEvent, MediaEvent};

    #[test]
    fn records_say_what_happened_and_where() {
        let (kind, transaction) = (MediaErrorKind::Ecc, Transaction::HostRead);
        let media = MediaEvent { address: 0x4003, descriptor: 1, kind, transaction, ..MediaEvent::default() };
        let mut lasting = EventData::Media(media).record(2);
        (lasting.flags, lasting.ld_id) = (0x84 | 0x20, 3);
        let dram = DramEvent { address: 0x1000, kind: DramErrorKind::DataPath, ..DramEvent::default() };
        let kind = ModuleEventKind::Temperature;
        let module = ModuleEvent { kind, life_used_percent: 0xff, temperature: 91, ..ModuleEvent::default() };
        let mut unknown = EventData::Module(module).record(0);
        unknown.uuid[0] ^= 1;
        let capacity = EventData::Capacity(Default::default()).record(0);
        for (record, kind, what) in [
            (
                lasting,
                "MediaError",
                "an uncorrectable error of its memory at its address 0x4000, in a read by its host, in LD 3; the \
                 condition is permanent; it has to be replaced",
            ),
            (EventData::Dram(dram).record(1), "MediaError", "a corrected error of its data path at its address 0x1000"),
            (
                EventData::Module(module).record(1),
                "DeviceHealth",
                "its temperature has changed: health 0x00, memory 0x00, 91 degrees Celsius",
            ),
            (unknown, "DeviceEvent", "it has written a record of another kind"),
            (capacity, "DeviceEvent", "it has written a record of another kind"),
        ] {
            assert_eq!(words(&record), (kind, what.to_owned()));
        }
    }

    #[test]
    fn many_records_of_one_log_become_few_lines() {
        let (device, mut said) = ("s0.4d4".parse().expect("a name"), Said::default());
        let mut lines = Lines { device: &device, log: EventLog::Failure, written: 0, rest: 0, said: &mut said };
        let record = EventData::Media(MediaEvent::default()).record(2);
        (0..100).for_each(|_| lines.record(&record));
        lines.lost(7);
        lines.end();
        let kinds: Vec<&str> = said.notices.iter().map(|notice| notice.kind).collect();
        assert_eq!(kinds, [&["MediaError"; LINES_MAX][..], &["EventsLost", "DeviceEvent"]].concat());
        let last = said.notices.last().expect("a line");
        assert_eq!(last.message, "device s0.4d4: 92 more records in its log of failures, not listed here");
        assert_eq!(last.severity, Severity::Critical);
    }
}
