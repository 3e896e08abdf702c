// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The control socket: one JSON object per line, each a failure to inject, each answered by one line.
//!
//! ```json
//! {"answer": {"how": "busy", "opcode": 20993, "times": 3}}
//! {"background_stalls": null}
//! {"link_flap": {"port_id": 1, "down_ms": 500}}
//! {"device_event": {"device": 1, "log": 2, "event": {"media": {"address": 4096, "is_uncorrectable": true}}}}
//! {"device_event": {"device": 1, "log": 1, "event": {"module": {"kind": 3, "celsius": 91}}}}
//! ```

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use aquifer_cxl_switch::{AnswerFailure, Injection};
use aquifer_fmapi::{
    DramErrorKind, DramEvent, ErrorKind, EventData, EventLog, MediaErrorKind, MediaEvent, ModuleEvent, ModuleEventKind,
    Opcode, ReturnCode, Transaction,
};
use serde::Deserialize;

use crate::args::Failure;
use crate::server::Server;

/// Maximum length of a line, in bytes.
const LINE_BYTES_MAX: u64 = 4096;
/// How long a line may take to arrive. Testers are served one at a time, so an idle one must not stay for ever.
const READ_TIMEOUT: Duration = Duration::from_secs(30);
const NS_PER_MS: u64 = 1_000_000;

/// How an answer fails.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum How {
    /// The answer is Busy (0006h), and nothing is carried out.
    Busy,
    /// The answer comes this much later.
    DelayMs(u64),
    /// The answer never comes.
    Drop,
    /// The answer comes twice.
    Duplicate,
    /// The answer is this return code, and nothing is carried out.
    ReturnCode(u16),
    /// The answer is cut to this many bytes.
    Truncate(usize),
    /// The answer has another tag.
    WrongTag,
}

impl How {
    fn failure(self) -> AnswerFailure {
        match self {
            Self::Busy => AnswerFailure::Code(ReturnCode::BUSY),
            Self::DelayMs(ms) => AnswerFailure::Delay { by_ns: ms.saturating_mul(NS_PER_MS) },
            Self::Drop => AnswerFailure::Drop,
            Self::Duplicate => AnswerFailure::Duplicate,
            Self::ReturnCode(code) => AnswerFailure::Code(ReturnCode(code)),
            Self::Truncate(bytes) => AnswerFailure::Truncate { bytes },
            Self::WrongTag => AnswerFailure::WrongTag,
        }
    }
}

/// An error of memory, in a record.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct MemoryError {
    address: u64,
    #[serde(default)]
    is_uncorrectable: bool,
    #[serde(default)]
    kind: u8,
    #[serde(default)]
    transaction: u8,
}

/// What a device writes into one of its logs. Numbers are those of the specification.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Recorded {
    Dram(MemoryError),
    Media(MemoryError),
    Module {
        kind: u8,
        #[serde(default)]
        health_status: u8,
        #[serde(default)]
        life_used_percent: u8,
        #[serde(default)]
        celsius: i16,
    },
}

impl Recorded {
    fn event(self) -> EventData {
        match self {
            Self::Dram(error) => EventData::Dram(DramEvent {
                address: error.address,
                descriptor: error.is_uncorrectable.into(),
                kind: DramErrorKind::of_bits(error.kind),
                transaction: Transaction::of_bits(error.transaction),
                ..DramEvent::default()
            }),
            Self::Media(error) => EventData::Media(MediaEvent {
                address: error.address,
                descriptor: error.is_uncorrectable.into(),
                kind: MediaErrorKind::of_bits(error.kind),
                transaction: Transaction::of_bits(error.transaction),
                ..MediaEvent::default()
            }),
            Self::Module { kind, health_status, life_used_percent, celsius } => EventData::Module(ModuleEvent {
                kind: ModuleEventKind::of_bits(kind),
                health_status,
                life_used_percent,
                temperature: celsius.cast_unsigned(),
                ..ModuleEvent::default()
            }),
        }
    }
}

fn once() -> u32 {
    1
}

/// What a line orders.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Command {
    Answer {
        how: How,
        #[serde(default)]
        opcode: Option<u16>,
        #[serde(default = "once")]
        times: u32,
    },
    BackPressure {
        device: usize,
        percent: u8,
    },
    BackgroundFails {
        return_code: u16,
    },
    BackgroundStalls,
    DeviceEvent {
        device: usize,
        log: u8,
        event: Recorded,
    },
    EventOverflow {
        log: u8,
    },
    InsertDevice {
        device: usize,
    },
    LinkFlap {
        port_id: u8,
        down_ms: u64,
    },
    MldError {
        port_id: u8,
        kind: u8,
    },
    RemoveDevice {
        device: usize,
    },
}

impl Command {
    fn injection(self) -> Injection {
        match self {
            Self::Answer { how, opcode, times } => {
                Injection::Answer { failure: how.failure(), opcode: opcode.map(Opcode), times }
            }
            Self::BackPressure { device, percent } => Injection::BackPressure { device, percent },
            Self::BackgroundFails { return_code } => {
                Injection::BackgroundFails { return_code: ReturnCode(return_code) }
            }
            Self::BackgroundStalls => Injection::BackgroundStalls,
            Self::DeviceEvent { device, log, event } => {
                Injection::DeviceEvent { device, log: EventLog::of_bits(log), event: event.event() }
            }
            Self::EventOverflow { log } => Injection::EventOverflow { log: EventLog::of_bits(log) },
            Self::InsertDevice { device } => Injection::InsertDevice { device },
            Self::LinkFlap { port_id, down_ms } => {
                Injection::LinkFlap { port_id, down_ns: down_ms.saturating_mul(NS_PER_MS) }
            }
            Self::MldError { port_id, kind } => Injection::MldError { port_id, kind: ErrorKind::of_bits(kind) },
            Self::RemoveDevice { device } => Injection::RemoveDevice { device },
        }
    }
}

/// Carries out the lines of one tester.
pub fn serve(server: &Arc<Server>, stream: UnixStream) {
    let _ = stream.set_read_timeout(Some(READ_TIMEOUT));
    let _ = stream.set_write_timeout(Some(READ_TIMEOUT));
    let Ok(mut writer) = stream.try_clone() else { return };
    let mut reader = BufReader::new(stream);
    loop {
        let mut line = String::new();
        match reader.by_ref().take(LINE_BYTES_MAX).read_line(&mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let done = carry_out(server, &line);
        let answer = match &done {
            Ok(()) => serde_json::json!({ "ok": true }),
            Err(failure) => serde_json::json!({ "ok": false, "cause": failure.cause, "remedy": failure.remedy }),
        };
        if writeln!(writer, "{answer}").is_err() || !line.ends_with('\n') {
            return;
        }
    }
}

fn carry_out(server: &Server, line: &str) -> Result<(), Failure> {
    let command: Command = serde_json::from_str(line).map_err(|error| {
        let remedy = "send one JSON object per line, such as {\"link_flap\": {\"port_id\": 1, \"down_ms\": 500}}";
        Failure::new(format!("no command: {error}"), remedy)
    })?;
    server.inject(command.injection())
}
