// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What every component that answers commands has: an identity, a clock, event logs, a limit on the length of messages.

use aquifer_fmapi::{EventData, EventInterruptPolicy, EventLog, Identity};

use crate::commands::Commands;
use crate::context::{Connection, Context};
use crate::events::{EventLogs, Kept, LOGS};
use crate::outcome::{Effect, Event};

/// The longest message, as a power of two: 8 KiB, room for the 4 KiB of an LD memory request in two tunnels.
pub(crate) const MESSAGE_LIMIT_LOG2: u8 = 13;
/// The shortest limit of answers that can be set, as a power of two.
pub(crate) const MESSAGE_LIMIT_LOG2_MIN: u8 = 8;
/// Two bits of a log's interrupt setting: message-signalled.
const INTERRUPT_BY_MESSAGE: u8 = 1;
/// The bit of the MCTP event policy for the end of a background operation.
const BACKGROUND_ENDED: u16 = 1 << 15;

/// What every component that answers commands has: an identity, a clock, event logs, a limit on the length of messages.
#[derive(Clone, Debug)]
pub(crate) struct Component {
    /// What it answers to Identify (0001h).
    pub identity: Identity,
    /// Which commands it answers.
    pub commands: Commands,
    /// The longest answer, as a power of two.
    pub limit_log2: u8,
    /// The event logs of the component.
    pub events: EventLogs,
    /// How it interrupts its host when a log has records.
    pub interrupts: EventInterruptPolicy,
    /// The logs that it notifies of by MCTP, and the recipient: the connection that set this last.
    pub notifications: (u16, Option<Connection>),
    /// Its place in the configuration; None for the switch.
    pub device: Option<usize>,
    /// The time that was set, and when.
    clock: Option<(u64, u64)>,
    /// Bits of notifications that are still to be sent.
    notices: u16,
}

impl Component {
    /// Creates a component without records, and whose time is not set.
    pub fn new(identity: Identity, commands: Commands, events_per_log: u16, device: Option<usize>) -> Self {
        let identity = Identity { message_limit_log2: MESSAGE_LIMIT_LOG2, ..identity };
        Self {
            identity,
            commands,
            limit_log2: MESSAGE_LIMIT_LOG2,
            events: EventLogs::new(events_per_log),
            interrupts: EventInterruptPolicy { settings: [0; 4], dynamic_capacity: Some(0) },
            notifications: (0, None),
            device,
            clock: None,
            notices: 0,
        }
    }

    /// Sets the time.
    pub fn set_time(&mut self, now_ns: u64, unix_ns: u64) {
        self.clock = Some((unix_ns, now_ns));
    }

    /// Returns the time; 0 where it was never set.
    pub fn unix_ns(&self, now_ns: u64) -> u64 {
        self.clock.map_or(0, |(unix_ns, set_ns)| unix_ns.saturating_add(now_ns.saturating_sub(set_ns)))
    }

    /// Writes a record to a log, and prepares the notification and the interrupt that follow from it.
    pub fn record(&mut self, context: &mut Context, log: EventLog, data: &EventData, ld_id: u16) {
        // A record about capacity is informational, whatever its log is.
        let severity = if log == EventLog::DynamicCapacity { EventLog::Informational } else { log };
        let mut record = data.record(severity.bits());
        record.unix_ns = self.unix_ns(context.now_ns);
        record.ld_id = ld_id;
        let kept = self.events.push(log, &mut record);
        context.event(Event { device: self.device, log, record, is_lost: kept == Kept::Lost });
        if kept == Kept::First {
            self.notices |= self.notifications.0 & 1 << log.bits();
            if self.interrupt_setting(log) & 3 == INTERRUPT_BY_MESSAGE {
                context.effect(Effect::Interrupted { log });
            }
        }
    }

    fn interrupt_setting(&self, log: EventLog) -> u8 {
        debug_assert_eq!(self.interrupts.settings.len() + 1, LOGS);
        let setting = self.interrupts.settings.get(usize::from(log.bits())).copied();
        setting.or(self.interrupts.dynamic_capacity).unwrap_or_default()
    }

    /// Notes that a background operation has ended.
    pub fn background_ended(&mut self) {
        self.notices |= self.notifications.0 & BACKGROUND_ENDED;
    }

    /// Returns the notification to send, and its recipient.
    pub fn take_notice(&mut self) -> Option<(Connection, u16)> {
        let notices = std::mem::take(&mut self.notices);
        self.notifications.1.filter(|_| notices != 0).map(|connection| (connection, notices))
    }
}
