// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The commands that every component answers in the same way: identity (00h), events (01h), time (03h), logs (04h).
//! CXL 3.1, section 8.2.9. The background commands are in `background.rs`.

use aquifer_fmapi::{
    ClearEventRecords, Empty, EventInterruptPolicy, GetLog, LogBytes, LogCapabilities, MctpEventPolicy, MessageLimit,
    NewMctpEventPolicy, Request, Response, ReturnCode, SupportedLog, SupportedLogs, Timestamp,
};

use crate::component::{Component, MESSAGE_LIMIT_LOG2, MESSAGE_LIMIT_LOG2_MIN};
use crate::context::{Answer, Context};

/// Flag of Clear Event Records: all of them.
const CLEAR_ALL: u8 = 1;
/// The largest value of the two mode bits in a log's interrupt setting; 3 is reserved.
const INTERRUPT_MODE_MAX: u8 = 2;
/// What a component can notify of, as bits: its logs, and the end of background operations.
const NOTIFIED: u16 = 0x801f;

impl Component {
    /// Returns the answer; None for a command of another set.
    pub(crate) fn answer(&mut self, context: &Context, request: &Request) -> Option<Answer> {
        Some(match request {
            Request::Identify(_) => Ok(Response::Identify(self.identity)),
            Request::GetMessageLimit(_) => Ok(Response::GetMessageLimit(MessageLimit { limit_log2: self.limit_log2 })),
            Request::SetMessageLimit(set) => self.set_limit(set.limit_log2),
            Request::GetEventRecords(get) => self.events.read(get.log, context.room).map(Response::GetEventRecords),
            Request::ClearEventRecords(clear) => self.clear(clear),
            Request::GetEventInterruptPolicy(_) => Ok(Response::GetEventInterruptPolicy(self.interrupts)),
            Request::SetEventInterruptPolicy(set) => self.set_interrupts(&set.policy),
            Request::GetMctpEventPolicy(_) => Ok(Response::GetMctpEventPolicy(self.mctp_policy())),
            Request::SetMctpEventPolicy(set) => self.set_notifications(context, set.events),
            Request::GetTimestamp(_) => Ok(Response::GetTimestamp(Timestamp { unix_ns: self.unix_ns(context.now_ns) })),
            Request::SetTimestamp(set) => {
                self.set_time(context.now_ns, set.unix_ns);
                Ok(Response::SetTimestamp(Empty {}))
            }
            Request::GetSupportedLogs(_) => Ok(Response::GetSupportedLogs(self.supported_logs())),
            Request::GetLog(get) => self.log(get).map(Response::GetLog),
            Request::GetLogCapabilities(get) if get.uuid == GetLog::COMMAND_EFFECTS => {
                Ok(Response::GetLogCapabilities(LogCapabilities { flags: 0 }))
            }
            Request::GetLogCapabilities(_) => Err(ReturnCode::INVALID_LOG),
            _ => return None,
        })
    }

    fn set_limit(&mut self, limit_log2: u8) -> Answer {
        if !(MESSAGE_LIMIT_LOG2_MIN..=MESSAGE_LIMIT_LOG2).contains(&limit_log2) {
            return Err(ReturnCode::INVALID_INPUT);
        }
        self.limit_log2 = limit_log2;
        Ok(Response::SetMessageLimit(MessageLimit { limit_log2 }))
    }

    fn clear(&mut self, clear: &ClearEventRecords) -> Answer {
        let is_all = clear.flags & CLEAR_ALL != 0;
        if is_all != clear.handles.is_empty() {
            return Err(ReturnCode::INVALID_INPUT);
        }
        if is_all { self.events.clear_all(clear.log) } else { self.events.clear(clear.log, &clear.handles) }?;
        Ok(Response::ClearEventRecords(Empty {}))
    }

    fn set_interrupts(&mut self, policy: &EventInterruptPolicy) -> Answer {
        let mut settings = policy.settings.iter().copied().chain(policy.dynamic_capacity);
        if settings.any(|setting| setting & 3 > INTERRUPT_MODE_MAX) {
            return Err(ReturnCode::INVALID_INPUT);
        }
        // A policy of CXL 2.0 leaves the log of dynamic capacity as it is.
        let dynamic_capacity = policy.dynamic_capacity.or(self.interrupts.dynamic_capacity);
        self.interrupts = EventInterruptPolicy { settings: policy.settings, dynamic_capacity };
        Ok(Response::SetEventInterruptPolicy(Empty {}))
    }

    fn mctp_policy(&self) -> MctpEventPolicy {
        MctpEventPolicy { events: self.notifications.0 }
    }

    fn set_notifications(&mut self, context: &Context, events: u16) -> Answer {
        if events & !NOTIFIED != 0 {
            return Err(ReturnCode::INVALID_INPUT);
        }
        self.notifications = (events, Some(context.connection));
        Ok(Response::SetMctpEventPolicy(NewMctpEventPolicy { events: Some(self.notifications.0) }))
    }

    fn supported_logs(&self) -> SupportedLogs {
        let log_bytes = self.commands.log().len() as u32;
        SupportedLogs { logs: vec![SupportedLog { uuid: GetLog::COMMAND_EFFECTS, log_bytes }] }
    }

    fn log(&self, get: &GetLog) -> Result<LogBytes, ReturnCode> {
        if get.uuid != GetLog::COMMAND_EFFECTS {
            return Err(ReturnCode::INVALID_LOG);
        }
        let log = self.commands.log();
        let end = get.offset.checked_add(get.length).ok_or(ReturnCode::INVALID_INPUT)?;
        let bytes = log.get(get.offset as usize..end as usize).ok_or(ReturnCode::INVALID_INPUT)?;
        Ok(LogBytes { bytes: bytes.to_vec() })
    }
}
