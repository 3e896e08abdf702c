// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The mailbox transport and the suite against QEMU's own CXL switch, without a guest. QEMU 10 has most of what is
//! tried; without a QEMU that has the mailbox, the test is skipped.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use aquifer_fmapi::{ComponentType, DeviceType, GetTimestamp};
use aquifer_fmapi_cli::check::{DEPARTURES, Verdict, check};
use aquifer_fmapi_client::{Cause, Client, Hop, Limits, Mailbox, SystemClock};
use aquifer_qtest::{Bus, Machine, find};
use aquifer_test_support::skip;

#[test]
fn the_switch_of_qemu_is_read_through_its_mailbox_and_departs_as_it_is_known_to() {
    let program = match find() {
        Ok(program) => program,
        Err(why) => return skip(why),
    };
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("qemu-{}", std::process::id()));
    let machine = Machine { ports: 4, devices: vec![0, 1, 2], ..Machine::default() };
    let mut qemu = machine.start(&program, &directory);
    let registers = Bus::new(&qemu.line).switch_mailbox();
    let mailbox = Mailbox::new("mailbox:qemu".into(), Box::new(registers), SystemClock::shared()).unwrap();
    let mut client = Client::new(Box::new(mailbox), SystemClock::shared(), Limits::default());
    assert_eq!(client.recognise().unwrap().name, "QEMU");
    let switch = client.identify_switch().unwrap();
    assert_eq!((switch.physical_ports, switch.virtual_switches), (5, 1));
    let ports = client.port_states(&[0, 1, 2, 3, 4]).unwrap();
    let types: Vec<DeviceType> = ports.iter().map(|port| port.device_type).collect();
    assert_eq!(types[..3], [DeviceType::Type3Mld; 3]);
    let device = client.identify(&[Hop::Port(2)]).unwrap();
    assert_eq!((device.component_type, device.serial_number), (Some(ComponentType::Type3), 4098));
    client.identify(&[Hop::Port(2), Hop::Ld(0)]).unwrap();
    assert!(matches!(client.call(&[], &GetTimestamp {}).unwrap_err().cause, Cause::NeverSent { .. }));
    let report = check(&mut client, true, None, Duration::from_secs(300)).unwrap();
    let text = aquifer_fmapi_cli::text(&report);
    let departs = report.findings.iter().filter(|finding| matches!(finding.verdict, Verdict::Departs { .. }));
    let departs: BTreeSet<&str> = departs.map(|finding| finding.case.id).collect();
    let known: BTreeSet<&str> = DEPARTURES.iter().filter(|it| it.dialect == "QEMU").map(|it| it.case).collect();
    // Later versions may depart less.
    assert!(departs.is_subset(&known), "{text}");
    assert!(report.counts()[0] > 15, "{text}");
    assert!(qemu.is_running(), "QEMU has survived");
}
