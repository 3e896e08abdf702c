// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Injected failures: each injection does what it says, and nothing else.

use aquifer_cxl_switch::*;
use aquifer_fmapi::*;

mod client;

use client::{Client, at_device, at_switch, config};

const NO_LD: u16 = BindVppb::NO_LD;

fn answer(failure: AnswerFailure, opcode: Option<Opcode>, times: u32) -> Injection {
    Injection::Answer { failure, opcode, times }
}

fn records(client: &mut Client, log: EventLog) -> EventRecords {
    match client.ask(&at_switch(), &Request::GetEventRecords(GetEventRecords { log })) {
        Ok(Response::GetEventRecords(records)) => records,
        other => panic!("{other:?}"),
    }
}

#[test]
fn as_many_answers_are_busy_as_were_ordered_and_nothing_is_done() {
    let mut client = Client::new(config());
    client.inject(answer(AnswerFailure::Code(ReturnCode::BUSY), Some(Opcode::BIND_VPPB), 2));
    assert_eq!(client.code(&at_switch(), &Request::Identify(Identify {})), ReturnCode::SUCCESS);
    for _ in 0..2 {
        assert_eq!(client.bind(0, 0, 0, NO_LD), ReturnCode::BUSY);
        assert!(!client.background().is_running);
    }
    assert_eq!(client.bind(0, 0, 0, NO_LD), ReturnCode::SUCCESS);
}

#[test]
fn answers_are_lost_late_doubled_cut_and_mislabelled_and_the_command_is_carried_out() {
    let mut client = Client::new(config());
    let request = Message::request(7, &Request::SetTimestamp(SetTimestamp { unix_ns: 5 }), &Dialect::STANDARD);
    let bytes = request.encode(&Dialect::STANDARD);
    let mut replies = |failure| {
        client.inject(answer(failure, None, 1));
        client.switch.receive(100, &client.connection, &bytes).replies
    };
    assert_eq!(replies(AnswerFailure::Drop), []);
    let late = replies(AnswerFailure::Delay { by_ns: 50 });
    assert_eq!((late.len(), late[0].due_ns), (1, 150));
    let doubled = replies(AnswerFailure::Duplicate);
    assert_eq!((doubled.len(), &doubled[0]), (2, &doubled[1]));
    assert_eq!(replies(AnswerFailure::Truncate { bytes: 11 })[0].bytes.len(), 11);
    let other = Message::decode(&replies(AnswerFailure::WrongTag)[0].bytes, &Dialect::STANDARD).unwrap();
    let mismatch = other.check_answers(&request.header, &Dialect::STANDARD);
    assert_eq!(mismatch, Err(ResponseFailure::Tag { sent: 7, found: 8 }));
    client.now_ns = 100;
    let reported = client.ask(&at_switch(), &Request::GetTimestamp(GetTimestamp {}));
    assert_eq!(reported, Ok(Response::GetTimestamp(Timestamp { unix_ns: 5 })));
}

#[test]
fn a_background_operation_stalls_until_it_is_aborted_or_fails() {
    let mut client = Client::new(config());
    client.inject(Injection::BackgroundStalls);
    let bind = Request::BindVppb(BindVppb { vcs_id: 0, vppb_id: 0, port_id: 0, ld_id: NO_LD });
    assert_eq!(client.code(&at_switch(), &bind), ReturnCode::BACKGROUND_STARTED);
    assert_eq!(client.switch.deadline_ns(), None);
    client.now_ns = 3_600_000_000_000;
    let status = client.background();
    assert!(status.is_running && status.percent == 99);
    assert_eq!(client.code(&at_switch(), &bind), ReturnCode::BUSY);
    let abort = Request::AbortBackground(AbortBackground {});
    assert_eq!(client.code(&at_switch(), &abort), ReturnCode::SUCCESS);
    assert_eq!(client.vppbs(0)[0].status, BindingStatus::Unbound);
    // The next operation succeeds again, and the one after it is made to fail while it runs.
    assert_eq!(client.bind(0, 0, 0, NO_LD), ReturnCode::SUCCESS);
    let unbind = Request::UnbindVppb(UnbindVppb { vcs_id: 0, vppb_id: 0, option: UnbindOption::ManagedRemoval });
    client.host(0, 0, HostAction::Write { address: 0, bytes: vec![6] }).unwrap();
    assert_eq!(client.code(&at_switch(), &unbind), ReturnCode::BACKGROUND_STARTED);
    client.inject(Injection::BackgroundFails { return_code: ReturnCode::INTERNAL_ERROR });
    assert_eq!(client.wait(), ReturnCode::INTERNAL_ERROR);
    assert_eq!(client.vppbs(0)[0].status, BindingStatus::Port);
    assert_eq!(client.host(0, 0, HostAction::Read { address: 0, bytes: 1 }).unwrap(), [6]);
    assert_eq!(client.seen.events.last().unwrap().log, EventLog::Warning);
}

#[test]
fn a_link_that_flaps_is_down_for_its_time_and_keeps_its_bindings() {
    let mut client = Client::new(config());
    assert_eq!(client.bind(0, 0, 1, 1), ReturnCode::SUCCESS);
    client.seen = Outcome::default();
    let start = client.now_ns;
    client.inject(Injection::LinkFlap { port_id: 1, down_ns: 1000 });
    assert_eq!(client.ask(&at_device(1), &Request::Identify(Identify {})), Err(ReturnCode::RETRY_REQUIRED));
    assert_eq!(client.host(0, 0, HostAction::Read { address: 0, bytes: 1 }), Err(HostFailure::LinkDown));
    assert_eq!(client.switch.deadline_ns(), Some(start + 1000));
    client.now_ns = start + 1000;
    assert!(client.ask(&at_device(1), &Request::Identify(Identify {})).is_ok());
    assert_eq!(client.vppbs(0)[0].status, BindingStatus::Ld);
    let logs: Vec<EventLog> = client.seen.events.iter().map(|event| event.log).collect();
    assert_eq!(logs, [EventLog::Warning, EventLog::Informational]);
}

#[test]
fn a_device_that_is_pulled_out_takes_its_memory_and_its_logical_devices_with_it() {
    let mut client = Client::new(config());
    assert_eq!(client.bind(0, 0, 1, 1), ReturnCode::SUCCESS);
    assert_eq!(client.bind(0, 1, 0, NO_LD), ReturnCode::SUCCESS);
    for vppb_id in 0..2 {
        client.host(0, vppb_id, HostAction::Write { address: 0, bytes: vec![6] }).unwrap();
    }
    client.inject(Injection::RemoveDevice { device: 1 });
    client.inject(Injection::RemoveDevice { device: 0 });
    assert_eq!(client.port(1).device_type, DeviceType::None);
    assert_eq!(client.ask(&at_device(1), &Request::Identify(Identify {})), Err(ReturnCode::INVALID_INPUT));
    // A port stays bound, for the next device at it; a logical device is unbound.
    let reported: Vec<BindingStatus> = client.vppbs(0).iter().take(2).map(|vppb| vppb.status).collect();
    assert_eq!(reported, [BindingStatus::Unbound, BindingStatus::Port]);
    assert_eq!(client.host(0, 1, HostAction::Read { address: 0, bytes: 1 }), Err(HostFailure::LinkDown));
    client.inject(Injection::InsertDevice { device: 0 });
    client.inject(Injection::InsertDevice { device: 1 });
    assert_eq!(client.host(0, 1, HostAction::Read { address: 0, bytes: 1 }).unwrap(), [0]);
    assert_eq!(client.bind(1, 0, 1, 1), ReturnCode::SUCCESS);
    assert_eq!(client.host(1, 0, HostAction::Read { address: 0, bytes: 1 }).unwrap(), [0]);
}

#[test]
fn a_bind_fails_when_its_device_is_pulled_out_meanwhile() {
    let mut client = Client::new(config());
    let bind = Request::BindVppb(BindVppb { vcs_id: 0, vppb_id: 0, port_id: 1, ld_id: 0 });
    assert_eq!(client.code(&at_switch(), &bind), ReturnCode::BACKGROUND_STARTED);
    client.inject(Injection::RemoveDevice { device: 1 });
    assert_eq!(client.wait(), ReturnCode::INTERNAL_ERROR);
    assert_eq!(client.vppbs(0)[0].status, BindingStatus::Unbound);
}

/// The vPPB stayed bound to a logical device that was gone.
#[test]
fn an_unbind_is_done_when_its_device_is_pulled_out_meanwhile() {
    let mut client = Client::new(config());
    assert_eq!(client.bind(0, 0, 1, 0), ReturnCode::SUCCESS);
    client.inject(Injection::BackgroundStalls);
    let unbind = Request::UnbindVppb(UnbindVppb { vcs_id: 0, vppb_id: 0, option: UnbindOption::ManagedRemoval });
    assert_eq!(client.code(&at_switch(), &unbind), ReturnCode::BACKGROUND_STARTED);
    client.inject(Injection::RemoveDevice { device: 1 });
    client.code(&at_switch(), &Request::AbortBackground(AbortBackground {}));
    assert_eq!(client.vppbs(0)[0].status, BindingStatus::Unbound);
    let status = client.background();
    assert_eq!((status.is_running, ReturnCode(status.return_code)), (false, ReturnCode::SUCCESS));
}

#[test]
fn a_log_that_overflows_says_so_and_notifies_once() {
    let mut client = Client::new(config());
    let notify = Request::SetMctpEventPolicy(SetMctpEventPolicy { events: 0b10 });
    client.ask(&at_switch(), &notify).unwrap();
    let settings = [0, 1, 0, 0];
    let policy = EventInterruptPolicy { settings, dynamic_capacity: None };
    client.ask(&at_switch(), &Request::SetEventInterruptPolicy(SetEventInterruptPolicy { policy })).unwrap();
    let outcome = client.switch.inject(0, Injection::EventOverflow { log: EventLog::Warning }).unwrap();
    assert_eq!((outcome.events.len(), outcome.events.iter().filter(|event| event.is_lost).count()), (65, 1));
    assert_eq!(outcome.effects, [Effect::Interrupted { log: EventLog::Warning }]);
    let notification = Message::decode(&outcome.replies[0].bytes, &Dialect::STANDARD).unwrap();
    let reported = Request::decode(notification.header.opcode, &notification.payload, &Dialect::STANDARD);
    assert_eq!(reported, Ok(Request::EventNotification(EventNotification { events: 0b10 })));
    let reported = records(&mut client, EventLog::Warning);
    assert!(reported.has_overflowed() && reported.overflow_count == 1);
    // 8 KiB hold 63 records and the fields before them.
    assert!(reported.has_more() && reported.records.len() == 63);
    let clear = Request::ClearEventRecords(ClearEventRecords { log: EventLog::Warning, flags: 1, handles: vec![] });
    assert_eq!(client.code(&at_switch(), &clear), ReturnCode::SUCCESS);
    assert_eq!(records(&mut client, EventLog::Warning), EventRecords::default());
}

#[test]
fn the_end_of_a_background_operation_is_notified() {
    let mut client = Client::new(config());
    client.ask(&at_switch(), &Request::SetMctpEventPolicy(SetMctpEventPolicy { events: 1 << 15 })).unwrap();
    let bind = Request::BindVppb(BindVppb { vcs_id: 0, vppb_id: 0, port_id: 0, ld_id: NO_LD });
    assert_eq!(client.code(&at_switch(), &bind), ReturnCode::BACKGROUND_STARTED);
    let outcome = client.switch.advance(client.switch.deadline_ns().unwrap());
    assert_eq!((outcome.replies.len(), outcome.replies[0].connection), (1, client.connection.id));
}

#[test]
fn an_error_of_a_device_is_recorded_by_its_severity() {
    let mut client = Client::new(config());
    for (kind, log) in [(ErrorKind::Correctable, EventLog::Warning), (ErrorKind::Fatal, EventLog::Failure)] {
        client.inject(Injection::MldError { port_id: 1, kind });
        let record = records(&mut client, log).records[0];
        let event = MldPortEvent { kind, port_id: 1, message: [0; 8] };
        assert_eq!(record.meaning(), Some(EventData::MldPort(event)));
    }
    client.inject(Injection::BackPressure { device: 1, percent: 40 });
    let status = client.ask(&at_device(1), &Request::GetQosStatus(GetQosStatus {}));
    assert_eq!(status, Ok(Response::GetQosStatus(QosStatus { back_pressure_percent: 40 })));
}

/// A device's own logs are behind the tunnel: those of an SLD, and of the FM-owned LD of an MLD.
#[test]
fn a_device_writes_about_its_memory_into_its_own_log() {
    let mut client = Client::new(config());
    let media = MediaEvent { address: 0x1000, descriptor: 1, ..MediaEvent::default() };
    let module = ModuleEvent { kind: ModuleEventKind::Temperature, temperature: 90, ..ModuleEvent::default() };
    for (device, log, event) in
        [(0, EventLog::Failure, EventData::Media(media)), (1, EventLog::Warning, EventData::Module(module))]
    {
        client.inject(Injection::DeviceEvent { device, log, event });
        let get = Request::GetEventRecords(GetEventRecords { log });
        let Ok(Response::GetEventRecords(read)) = client.ask(&at_device(device as u8), &get) else { panic!("refused") };
        assert_eq!(read.records.iter().map(EventRecord::meaning).collect::<Vec<_>>(), [Some(event)]);
        assert_eq!(read.records[0].flags & 3, u32::from(log.bits()), "the log is the severity");
        assert_eq!(records(&mut client, log), EventRecords::default(), "the switch's log has none");
    }
}

#[test]
fn impossible_injections_are_refused() {
    let mut client = Client::new(config());
    let event = EventData::Media(MediaEvent::default());
    for (device, log, event, refusal) in [
        (9, EventLog::Warning, event, InjectionRefusal::NoDevice),
        (0, EventLog::DynamicCapacity, event, InjectionRefusal::NoPlace),
        (0, EventLog::Warning, EventData::Port(PortEvent::default()), InjectionRefusal::NoPlace),
    ] {
        let refused = client.switch.inject(0, Injection::DeviceEvent { device, log, event });
        assert_eq!(refused, Err(refusal));
    }
    let mut refused = |injection| client.switch.inject(0, injection).expect_err("refused");
    assert_eq!(refused(Injection::InsertDevice { device: 0 }), InjectionRefusal::NoDevice);
    assert_eq!(refused(Injection::RemoveDevice { device: 9 }), InjectionRefusal::NoDevice);
    assert_eq!(refused(Injection::LinkFlap { port_id: 99, down_ns: 1 }), InjectionRefusal::NoPlace);
    assert_eq!(refused(Injection::LinkFlap { port_id: 0, down_ns: u64::MAX }), InjectionRefusal::Number);
    assert_eq!(refused(Injection::MldError { port_id: 0, kind: ErrorKind::Fatal }), InjectionRefusal::NoPlace);
    let success = Injection::BackgroundFails { return_code: ReturnCode::SUCCESS };
    assert_eq!(refused(success), InjectionRefusal::Number);
    assert_eq!(refused(answer(AnswerFailure::Delay { by_ns: u64::MAX }, None, 1)), InjectionRefusal::Number);
    for _ in 0..64 {
        client.inject(answer(AnswerFailure::Drop, Some(Opcode(0xc000)), 1));
    }
    let full = client.switch.inject(0, answer(AnswerFailure::Drop, None, 1));
    assert_eq!(full, Err(InjectionRefusal::Full));
}
