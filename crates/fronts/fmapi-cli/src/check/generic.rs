// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Headers, and the commands of the sets 00h to 04h.

use aquifer_fmapi::*;

use super::{Step, Suite, length};

/// Bytes of an event record, and of what precedes the first.
const RECORD_BYTES: usize = 128;
const RECORDS_FIXED_BYTES: usize = 32;
/// The number of logs that have numbers.
const LOGS: u8 = 5;

impl Suite<'_> {
    /// Judges what the answer to the first command showed.
    pub(super) fn judge_header(&mut self, found: &Dialect) {
        let category = (found.category != CategoryBits::Low).then(|| "the category is in bits 7:4".into());
        self.judge("header.category", category);
        let length = (found.length != LengthBits::Standard).then(|| "the flag is in bit 0 of byte 7".into());
        self.judge("header.length", length);
        let opcode = found.answers_with_opcode_zero.then(|| "an answer has opcode 0".into());
        self.judge("header.opcode", opcode);
    }

    pub(super) fn generic(&mut self) -> Step {
        if let Some(payload) = self.ask("identify", &[], Opcode::IDENTIFY, &[])? {
            self.judge("identify", length(&payload, 18));
            let component = match payload.get(17) {
                None => Some("there is no component type".into()),
                Some(0) => None,
                Some(other) => Some(format!("the component type is {other}, not 0")),
            };
            self.judge("identify.switch", component);
        } else {
            self.skip("identify.switch", "Identify is not answered");
        }
        if let Some(payload) = self.ask("background-status", &[], Opcode::BACKGROUND_STATUS, &[])? {
            let percent = payload.first().map_or(0, |status| status >> 1);
            let percent = (percent > 100).then(|| format!("a progress of {percent} %"));
            let is_running = payload.first().is_some_and(|status| status & 1 == 1);
            let of_nothing = is_running && payload.get(2..4) == Some(&[0, 0][..]);
            let of_nothing = of_nothing.then(|| "an operation of no command runs".into());
            self.judge("background-status", length(&payload, 8).or(percent).or(of_nothing));
        }
        if let Some(payload) = self.ask("message-limit", &[], Opcode::GET_MESSAGE_LIMIT, &[])? {
            let limit = payload.first().filter(|limit| !(8..=20).contains(*limit));
            let limit = limit.map(|limit| format!("2 to the power of {limit} bytes"));
            self.judge("message-limit", length(&payload, 1).or(limit));
        }
        self.events()?;
        for (id, opcode, bytes) in [
            ("interrupt-policy", Opcode::GET_EVENT_INTERRUPT_POLICY, 5),
            ("mctp-policy", Opcode::GET_MCTP_EVENT_POLICY, 2),
        ] {
            if let Some(payload) = self.ask(id, &[], opcode, &[])? {
                self.judge(id, length(&payload, bytes));
            }
        }
        self.timestamp()?;
        self.logs()
    }

    fn timestamp(&mut self) -> Step {
        if self.dialect.never_sent.contains(&Opcode::GET_TIMESTAMP) {
            self.departs("timestamp", format!("it ends {}, so it is not sent", self.dialect.name));
        } else if let Some(payload) = self.ask("timestamp", &[], Opcode::GET_TIMESTAMP, &[])? {
            self.judge("timestamp", length(&payload, 8));
        }
        Ok(())
    }

    fn events(&mut self) -> Step {
        for log in 0..LOGS {
            let Some(payload) = self.ask("events", &[], Opcode::GET_EVENT_RECORDS, &[log])? else { return Ok(()) };
            let count = payload.get(20..22).map_or(0, |count| u16::from_le_bytes([count[0], count[1]]));
            let wrong = length(&payload, RECORDS_FIXED_BYTES + RECORD_BYTES * usize::from(count));
            if let Some(wrong) = wrong {
                self.departs("events", format!("log {log} with {count} records: {wrong}"));
                return Ok(());
            }
        }
        self.conforms("events");
        Ok(())
    }

    fn logs(&mut self) -> Step {
        let Some(payload) = self.ask("logs", &[], Opcode::GET_SUPPORTED_LOGS, &[])? else {
            self.skip("effects", "Get Supported Logs is not answered");
            return Ok(());
        };
        let request = Request::GetSupportedLogs(GetSupportedLogs {});
        let log = match Response::decode(&request, &payload, self.dialect) {
            Ok(Response::GetSupportedLogs(logs)) => {
                let log = logs.logs.into_iter().find(|log| log.uuid == GetLog::COMMAND_EFFECTS);
                self.judge("logs", log.is_none().then(|| "it lists no command effects log".into()));
                log
            }
            Ok(_) => None,
            Err(failure) => {
                self.departs("logs", failure.to_string());
                None
            }
        };
        let Some(log) = log else {
            self.skip("effects", "there is no command effects log");
            return Ok(());
        };
        let get = GetLog { uuid: GetLog::COMMAND_EFFECTS, offset: 0, length: log.log_bytes };
        let payload = self.client.encode(&get);
        let Some(bytes) = self.ask("effects", &[], Opcode::GET_LOG, &payload)? else { return Ok(()) };
        let effects: Vec<Opcode> =
            LogBytes { bytes: bytes.clone() }.command_effects().iter().map(|it| it.opcode).collect();
        let twice = effects.iter().enumerate().find(|(at, opcode)| effects[..*at].contains(opcode));
        let twice = twice.map(|(_, opcode)| format!("{opcode} is listed twice"));
        let odd = (!bytes.len().is_multiple_of(4)).then(|| format!("{} bytes are not whole entries", bytes.len()));
        self.judge("effects", length(&bytes, log.log_bytes as usize).or(odd).or(twice));
        self.listed = Some(effects);
        Ok(())
    }

    /// Compares the command effects log with the commands that were answered.
    pub(super) fn effects_agree(&mut self) {
        let Some(listed) = self.listed.clone() else {
            return self.skip_all(&["effects.complete", "effects.true"], "there is no command effects log");
        };
        let names = |opcodes: &mut dyn Iterator<Item = Opcode>| {
            let names: Vec<String> = opcodes.map(|opcode| opcode.to_string()).collect();
            (!names.is_empty()).then(|| names.join(", "))
        };
        let missing = names(&mut self.answered.iter().copied().filter(|opcode| !listed.contains(opcode)));
        self.judge("effects.complete", missing.map(|names| format!("not listed: {names}")));
        let never = self.dialect.never_sent;
        let is_false = |opcode: &Opcode| self.unanswered.contains(opcode) || never.contains(opcode);
        let untrue = names(&mut listed.iter().copied().filter(is_false));
        self.judge("effects.true", untrue.map(|names| format!("listed, and not answered: {names}")));
    }
}
