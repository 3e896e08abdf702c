// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What goes wrong on purpose: answers, links, devices, background operations, event logs.

use std::fmt;

use aquifer_fmapi::{ErrorKind, EventData, EventLog, MldPortEvent, Opcode, ReturnCode};

use crate::context::Context;
use crate::events::LOGS;
use crate::outcome::{Effect, Outcome, Reply};
use crate::switch::Switch;

/// Maximum number of answer failures that may wait for their requests.
const ARMED_MAX: usize = 64;
/// How long a link may be down, and an answer late: an hour.
const WAIT_NS_MAX: u64 = 3_600_000_000_000;
/// Where the tag is in a message.
const TAG_OFFSET: usize = 1;

/// How an answer fails. Except with `Code`, the command was carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnswerFailure {
    /// The answer is this return code, and nothing was carried out.
    Code(ReturnCode),
    /// The answer comes late.
    Delay {
        /// By how much; at most an hour.
        by_ns: u64,
    },
    /// The answer never comes.
    Drop,
    /// The answer comes twice.
    Duplicate,
    /// The answer ends early.
    Truncate {
        /// What is left of it.
        bytes: usize,
    },
    /// The answer has another tag than the request.
    WrongTag,
}

impl AnswerFailure {
    /// Returns the return code that is sent instead of carrying the command out, if any.
    pub(crate) fn return_code(&self) -> Option<ReturnCode> {
        match self {
            Self::Code(code) => Some(*code),
            _ => None,
        }
    }

    /// Applies the failure to an answer; returns the messages to send.
    pub(crate) fn spoil(&self, mut reply: Reply) -> Vec<Reply> {
        match self {
            Self::Code(_) => {}
            Self::Delay { by_ns } => reply.due_ns = reply.due_ns.saturating_add(*by_ns),
            Self::Drop => return Vec::new(),
            Self::Duplicate => return vec![reply.clone(), reply],
            Self::Truncate { bytes } => reply.bytes.truncate(*bytes),
            Self::WrongTag => reply.bytes[TAG_OFFSET] = reply.bytes[TAG_OFFSET].wrapping_add(1),
        }
        vec![reply]
    }
}

/// A failure to inject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Injection {
    /// The next answers fail.
    Answer {
        /// How the answers fail.
        failure: AnswerFailure,
        /// Only answers to this command fail; None for answers to any command.
        opcode: Option<Opcode>,
        /// How many answers fail.
        times: u32,
    },
    /// A device's port is congested.
    BackPressure {
        /// The number of the device.
        device: usize,
        /// The congestion, in per cent.
        percent: u8,
    },
    /// The background operation that runs, or else the next one, fails.
    BackgroundFails {
        /// The return code with which it fails.
        return_code: ReturnCode,
    },
    /// The background operation that runs, or else the next one, never ends by itself.
    BackgroundStalls,
    /// A device writes a record about its memory or its health into one of its own logs.
    DeviceEvent {
        /// The number of the device.
        device: usize,
        /// The log: one of the four by severity.
        log: EventLog,
        /// What the record says.
        event: EventData,
    },
    /// A log of the switch is filled until a record is lost.
    EventOverflow {
        /// The log that is filled.
        log: EventLog,
    },
    /// A device that was pulled out is put back.
    InsertDevice {
        /// The number of the device that is put back.
        device: usize,
    },
    /// A port's link goes down and comes up again.
    LinkFlap {
        /// The port whose link goes down.
        port_id: u8,
        /// How long it is down; at most an hour.
        down_ns: u64,
    },
    /// A device sends an error message to its port.
    MldError {
        /// The port of the device.
        port_id: u8,
        /// The kind of the error.
        kind: ErrorKind,
    },
    /// A device is pulled out, whatever is bound to it. Its memory is lost.
    RemoveDevice {
        /// The number of the device that is pulled out.
        device: usize,
    },
}

/// Why a failure cannot be injected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InjectionRefusal {
    /// The maximum number of answer failures is waiting already.
    Full,
    /// There is no such device, or it is already plugged in, or already pulled out.
    NoDevice,
    /// There is no such port, or no device of that kind at it, or there is no such log.
    NoPlace,
    /// A number is out of its range.
    Number,
}

impl fmt::Display for InjectionRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => "64 failures of answers wait already; send the requests that they are for first",
            Self::NoDevice => "no such device, or it is not where it was to be moved from; number devices from 0",
            Self::NoPlace => {
                "no such port, no device with several logical devices at it, or no such log; look at 5101h"
            }
            Self::Number => {
                "a number is out of range; give at most an hour, 100 per cent, and a return code that fails"
            }
        })
    }
}

impl std::error::Error for InjectionRefusal {}

#[derive(Clone, Debug)]
struct Armed {
    failure: AnswerFailure,
    opcode: Option<Opcode>,
    times: u32,
}

/// Failures that wait for their requests.
#[derive(Clone, Debug, Default)]
pub(crate) struct Injections {
    armed: Vec<Armed>,
}

impl Injections {
    fn is_full(&self) -> bool {
        self.armed.len() >= ARMED_MAX
    }

    fn arm(&mut self, failure: AnswerFailure, opcode: Option<Opcode>, times: u32) {
        if times > 0 {
            self.armed.push(Armed { failure, opcode, times });
        }
    }

    /// Takes the oldest failure that applies to an answer to this command.
    pub fn take(&mut self, opcode: Opcode) -> Option<AnswerFailure> {
        let is_meant = |armed: &Armed| armed.opcode.is_none_or(|meant| meant == opcode);
        let at = self.armed.iter().position(is_meant)?;
        let armed = &mut self.armed[at];
        armed.times -= 1;
        let failure = armed.failure.clone();
        if armed.times == 0 {
            self.armed.remove(at);
        }
        Some(failure)
    }
}

impl Switch {
    /// Injects a failure.
    pub fn inject(&mut self, now_ns: u64, injection: Injection) -> Result<Outcome, InjectionRefusal> {
        self.check_injection(&injection)?;
        let mut context = self.begin(now_ns);
        match injection {
            Injection::Answer { failure, opcode, times } => self.injections.arm(failure, opcode, times),
            Injection::BackPressure { device, percent } => self.devices[device].qos.back_pressure_percent = percent,
            Injection::BackgroundFails { return_code } => self.background.fail(return_code),
            Injection::BackgroundStalls => self.background.stall(),
            Injection::DeviceEvent { device, log, event } => {
                self.devices[device].component.record(&mut context, log, &event, 0);
            }
            Injection::EventOverflow { log } => {
                // One more than a log holds, so that one is lost.
                for _ in 0..=self.config.events_per_log {
                    let event = EventData::MldPort(MldPortEvent::default());
                    self.component.record(&mut context, log, &event, 0);
                    if context.outcome.events.last().is_some_and(|event| event.is_lost) {
                        break;
                    }
                }
            }
            Injection::InsertDevice { device } => self.with_links(&mut context, device, |switch, context| {
                switch.devices[device].is_present = true;
                context.effect(Effect::DevicePresence { device, is_present: true });
            }),
            Injection::LinkFlap { port_id, down_ns } => {
                let was_up = self.link_is_up(port_id);
                self.ports[usize::from(port_id)].down_until_ns = Some(context.now_ns.saturating_add(down_ns));
                self.note_link(&mut context, port_id, was_up);
            }
            Injection::MldError { port_id, kind } => {
                let event = MldPortEvent { kind, port_id, message: [0; 8] };
                let log = if kind == ErrorKind::Correctable { EventLog::Warning } else { EventLog::Failure };
                self.component.record(&mut context, log, &EventData::MldPort(event), 0);
            }
            Injection::RemoveDevice { device } => self.with_links(&mut context, device, |switch, context| {
                switch.devices[device].lose_power(context);
                context.effect(Effect::DevicePresence { device, is_present: false });
                let ports = switch.devices[device].config.ports.clone();
                switch.unbind_lds(context, &ports);
            }),
        }
        Ok(self.end(context))
    }

    /// Changes a device, and records which of its links went up or down.
    pub(crate) fn with_links(
        &mut self,
        context: &mut Context,
        device: usize,
        step: impl FnOnce(&mut Self, &mut Context),
    ) {
        let ports = self.devices[device].config.ports.clone();
        let were_up: Vec<bool> = ports.iter().map(|port_id| self.link_is_up(*port_id)).collect();
        step(self, context);
        for (port_id, was_up) in ports.iter().zip(were_up) {
            self.note_link(context, *port_id, was_up);
        }
    }

    fn check_injection(&self, injection: &Injection) -> Result<(), InjectionRefusal> {
        let is_there = |device: &usize| self.devices.get(*device).map(|device| device.is_present);
        let refuse = |refusal, is_refused| if is_refused { Err(refusal) } else { Ok(()) };
        match injection {
            Injection::Answer { failure: AnswerFailure::Delay { by_ns }, .. } => {
                refuse(InjectionRefusal::Full, self.injections.is_full())?;
                refuse(InjectionRefusal::Number, *by_ns > WAIT_NS_MAX)
            }
            Injection::Answer { .. } => refuse(InjectionRefusal::Full, self.injections.is_full()),
            Injection::BackgroundStalls => Ok(()),
            Injection::BackPressure { device, percent } => {
                refuse(InjectionRefusal::NoDevice, is_there(device).is_none())?;
                refuse(InjectionRefusal::Number, *percent > 100)
            }
            Injection::BackgroundFails { return_code } => {
                let is_no_end = [ReturnCode::SUCCESS, ReturnCode::BACKGROUND_STARTED].contains(return_code);
                refuse(InjectionRefusal::Number, is_no_end)
            }
            Injection::DeviceEvent { device, log, event } => {
                let is_of_memory = matches!(event, EventData::Dram(_) | EventData::Media(_) | EventData::Module(_));
                refuse(InjectionRefusal::NoDevice, is_there(device) != Some(true))?;
                refuse(InjectionRefusal::NoPlace, !is_of_memory || log.bits() >= EventLog::DynamicCapacity.bits())
            }
            Injection::EventOverflow { log } => refuse(InjectionRefusal::NoPlace, usize::from(log.bits()) >= LOGS),
            Injection::InsertDevice { device } => refuse(InjectionRefusal::NoDevice, is_there(device) != Some(false)),
            Injection::RemoveDevice { device } => refuse(InjectionRefusal::NoDevice, is_there(device) != Some(true)),
            Injection::LinkFlap { port_id, down_ns } => {
                refuse(InjectionRefusal::NoPlace, usize::from(*port_id) >= self.ports.len())?;
                refuse(InjectionRefusal::Number, *down_ns > WAIT_NS_MAX)
            }
            Injection::MldError { port_id, kind } => {
                let mld = self.device_at(*port_id).filter(|device| self.devices[*device].is_mld());
                refuse(InjectionRefusal::NoPlace, mld.is_none() || matches!(kind, ErrorKind::Reserved(_)))
            }
        }
    }
}
