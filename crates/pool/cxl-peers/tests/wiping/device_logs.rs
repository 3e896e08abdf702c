// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What devices write about their memory and their health into their own logs reaches people, once, and is cleared.

use std::time::Duration;

use aquifer_cxl_peers::{Notice, Severity};
use aquifer_cxl_switch::Injection;
use aquifer_fmapi::*;
use aquifer_fmapi_client::Hop;

use super::rig::{Fate, Rig, SLD, device, example};

/// More than the time between two looks at the logs.
const NEXT: Duration = Duration::from_secs(3);

fn media(address: u64) -> EventData {
    EventData::Media(MediaEvent { address, descriptor: 1, ..MediaEvent::default() })
}

fn write(rig: &mut Rig, log: EventLog, event: EventData) {
    rig.inject(Injection::DeviceEvent { device: SLD, log, event });
}

/// Reads the switch and its devices, and returns what they say about devices.
fn said(rig: &mut Rig) -> Vec<Notice> {
    rig.wait(NEXT);
    rig.peer.reports();
    let mut notices = rig.peer.take_notices();
    notices.retain(|notice| notice.message.starts_with("device ") && notice.kind != "DeviceInserted");
    notices
}

fn left(rig: &mut Rig, log: EventLog) -> usize {
    let get = GetEventRecords { log };
    rig.rival.call(&[Hop::Port(SLD as u8)], &get).unwrap().records.len()
}

#[test]
fn records_of_a_device_are_reported_once_and_cleared() {
    let mut rig = Rig::new(example());
    said(&mut rig);
    let module = ModuleEvent { kind: ModuleEventKind::Temperature, temperature: 91, ..ModuleEvent::default() };
    write(&mut rig, EventLog::Failure, media(0x1000));
    write(&mut rig, EventLog::Failure, media(0x2000));
    write(&mut rig, EventLog::Warning, EventData::Module(module));
    let (name, notices) = (device(SLD), said(&mut rig));
    let lines: Vec<(&str, Severity, &str)> =
        notices.iter().map(|it| (it.kind, it.severity, it.message.as_str())).collect();
    let error = |address: &str| format!("device {name}: an uncorrectable error of its memory at its address {address}");
    let health = format!("device {name}: its temperature has changed: health 0x00, memory 0x00, 0 % of its life used");
    assert_eq!(
        lines,
        [
            ("DeviceHealth", Severity::Warning, format!("{health}, 91 degrees Celsius").as_str()),
            ("MediaError", Severity::Critical, error("0x1000").as_str()),
            ("MediaError", Severity::Critical, error("0x2000").as_str()),
        ]
    );
    assert_eq!(left(&mut rig, EventLog::Failure), 1, "the newest record is the bookmark");
    assert_eq!(said(&mut rig), [], "each is reported once");
    write(&mut rig, EventLog::Failure, media(0x3000));
    assert_eq!(said(&mut rig).len(), 1);
    // The host may clear the log: that is no loss.
    let path = [Hop::Port(SLD as u8)];
    let read = rig.rival.call(&path, &GetEventRecords { log: EventLog::Failure }).unwrap();
    let handles = read.records.iter().map(|record| record.handle).collect();
    rig.rival.run(&path, &ClearEventRecords { log: EventLog::Failure, flags: 0, handles }).unwrap();
    write(&mut rig, EventLog::Failure, media(0x4000));
    assert_eq!(said(&mut rig).len(), 1);
}

#[test]
fn a_log_that_is_full_is_read_within_bounds() {
    let mut rig = Rig::new(example());
    said(&mut rig);
    (0..100).for_each(|number| write(&mut rig, EventLog::Failure, media(number << 12)));
    let notices = said(&mut rig);
    let of = |kind: &str| notices.iter().filter(|notice| notice.kind == kind).count();
    assert_eq!((of("MediaError"), of("DeviceEvent")), (8, 1), "{notices:#?}");
    assert!(of("EventsLost") >= 1, "{notices:#?}");
    let lost = notices.iter().find(|notice| notice.kind == "EventsLost").unwrap();
    assert!(lost.message.contains("its log of failures was full, and has lost 36 records"), "{}", lost.message);
    assert_eq!(left(&mut rig, EventLog::Failure), 0);
    assert_eq!(said(&mut rig), []);
}

/// Asking again and again would cost every round the time of an answer for each device.
#[test]
fn a_device_without_logs_is_asked_once_on_each_connection() {
    let mut rig = Rig::new(example());
    let asked = |rig: &mut Rig| {
        rig.sent();
        said(rig);
        rig.sent().iter().filter(|opcode| **opcode == Opcode::GET_EVENT_RECORDS).count()
    };
    rig.script(|opcode| match opcode {
        Opcode::GET_EVENT_RECORDS => Fate::Answer(ReturnCode::UNSUPPORTED, None),
        _ => Fate::Pass,
    });
    rig.restart("");
    // The dynamic capacity of one device is asked for in each round.
    let again = asked(&mut rig);
    assert_eq!([asked(&mut rig), again], [1, 1]);
    rig.cut(true);
    rig.peer.reports();
    rig.cut(false);
    assert!(asked(&mut rig) >= 3, "a new connection");
    assert_eq!(asked(&mut rig), 1);
}
