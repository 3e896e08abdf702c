// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Event logs (01h). A log keeps records until they are cleared, and counts what is lost when it is full. CXL 3.1,
//! section 8.2.9.2.
//!
//! A full log keeps its records and drops new ones, and says so by an overflow flag, a count and two times, until it is
//! cleared. Records are cleared oldest first; all at once only after an overflow, as the specification has it.

use std::collections::VecDeque;

use aquifer_fmapi::{EventLog, EventRecord, EventRecords, ReturnCode};

/// Logs by severity, and the one of dynamic capacity.
pub(crate) const LOGS: usize = 5;
/// Bytes of a record, and of what goes before the records in an answer.
const RECORD_BYTES: usize = 128;
const ANSWER_BYTES: usize = 32;
/// Flags of an answer.
const HAS_OVERFLOWED: u8 = 1;
const HAS_MORE: u8 = 2;

#[derive(Clone, Debug, Default)]
struct Log {
    records: VecDeque<EventRecord>,
    overflow_count: u16,
    overflow_first_ns: u64,
    overflow_last_ns: u64,
}

/// What happened to a new record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kept {
    /// The record is the only one of its log: an interrupt or a notification may follow.
    First,
    /// The record was lost.
    Lost,
    /// The record is one of several.
    Queued,
}

/// The event logs of a component. Each keeps its records until they are cleared.
#[derive(Clone, Debug)]
pub(crate) struct EventLogs {
    logs: [Log; LOGS],
    records_max: usize,
    last_handle: u16,
}

impl EventLogs {
    /// Creates empty logs that each hold up to `records_max` records.
    pub fn new(records_max: u16) -> Self {
        Self { logs: Default::default(), records_max: records_max.into(), last_handle: 0 }
    }

    /// Gives a record its handle and keeps it.
    pub fn push(&mut self, log: EventLog, record: &mut EventRecord) -> Kept {
        let log = &mut self.logs[usize::from(log.bits())];
        if log.records.len() >= self.records_max {
            if log.overflow_count == 0 {
                log.overflow_first_ns = record.unix_ns;
            }
            log.overflow_last_ns = record.unix_ns;
            log.overflow_count = log.overflow_count.saturating_add(1);
            return Kept::Lost;
        }
        // 0 is not a handle.
        self.last_handle = self.last_handle.checked_add(1).unwrap_or(1);
        record.handle = self.last_handle;
        log.records.push_back(*record);
        if log.records.len() == 1 { Kept::First } else { Kept::Queued }
    }

    fn log(&mut self, log: EventLog) -> Result<&mut Log, ReturnCode> {
        self.logs.get_mut(usize::from(log.bits())).ok_or(ReturnCode::INVALID_INPUT)
    }

    /// Returns the oldest records, as many as fit.
    pub fn read(&mut self, log: EventLog, room: usize) -> Result<EventRecords, ReturnCode> {
        let log = self.log(log)?;
        let fit = room.saturating_sub(ANSWER_BYTES) / RECORD_BYTES;
        let records: Vec<EventRecord> = log.records.iter().take(fit).copied().collect();
        let mut flags = 0;
        if log.overflow_count > 0 {
            flags |= HAS_OVERFLOWED;
        }
        if records.len() < log.records.len() {
            flags |= HAS_MORE;
        }
        Ok(EventRecords {
            flags,
            overflow_count: log.overflow_count,
            overflow_first_ns: log.overflow_first_ns,
            overflow_last_ns: log.overflow_last_ns,
            records,
        })
    }

    /// Clears a log that has overflowed.
    pub fn clear_all(&mut self, log: EventLog) -> Result<(), ReturnCode> {
        let log = self.log(log)?;
        if log.overflow_count == 0 {
            return Err(ReturnCode::INVALID_INPUT);
        }
        *log = Log::default();
        Ok(())
    }

    /// Clears the records with these handles, which must be the oldest ones, in their order. Clears all of them, or
    /// none.
    pub fn clear(&mut self, log: EventLog, handles: &[u16]) -> Result<(), ReturnCode> {
        let log = self.log(log)?;
        let oldest = log.records.iter().map(|record| record.handle);
        if handles.len() > log.records.len() || !oldest.zip(handles).all(|(kept, asked)| kept == *asked) {
            return Err(ReturnCode::INVALID_HANDLE);
        }
        log.records.drain(..handles.len());
        // A manager that has read all kept records has read the overflow flag, too.
        if log.records.is_empty() {
            *log = Log::default();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use aquifer_fmapi::{EventData, MldPortEvent};

    fn logs(records: u16, pushed: usize) -> (EventLogs, Vec<Kept>) {
        let mut logs = EventLogs::new(records);
        let mut kept = Vec::new();
        for number in 0..pushed {
            let mut record = EventData::MldPort(MldPortEvent::default()).record(1);
            record.unix_ns = number as u64 + 1;
            kept.push(logs.push(EventLog::Warning, &mut record));
        }
        (logs, kept)
    }

    #[test]
    fn a_full_log_loses_what_comes_and_says_so() {
        let (mut logs, kept) = logs(2, 5);
        assert_eq!(kept, [Kept::First, Kept::Queued, Kept::Lost, Kept::Lost, Kept::Lost]);
        let reported = logs.read(EventLog::Warning, 1000).unwrap();
        assert!(reported.has_overflowed() && !reported.has_more());
        assert_eq!((reported.overflow_count, reported.overflow_first_ns, reported.overflow_last_ns), (3, 3, 5));
        assert_eq!(reported.records.len(), 2);
        assert_eq!(logs.clear_all(EventLog::Warning), Ok(()));
        assert_eq!(logs.read(EventLog::Warning, 1000).unwrap(), EventRecords::default());
    }

    #[test]
    fn records_are_cleared_oldest_first_and_read_as_they_fit() {
        let (mut logs, _) = logs(8, 3);
        let reported = logs.read(EventLog::Warning, ANSWER_BYTES + 2 * RECORD_BYTES + 127).unwrap();
        assert!(reported.has_more() && reported.records.len() == 2);
        assert_eq!(logs.clear_all(EventLog::Warning), Err(ReturnCode::INVALID_INPUT));
        assert_eq!(logs.clear(EventLog::Warning, &[2]), Err(ReturnCode::INVALID_HANDLE));
        assert_eq!(logs.clear(EventLog::Warning, &[1, 2, 3, 4]), Err(ReturnCode::INVALID_HANDLE));
        assert_eq!(logs.clear(EventLog::Warning, &[1, 2]), Ok(()));
        assert_eq!(logs.read(EventLog::Warning, 1000).unwrap().records[0].handle, 3);
        assert_eq!(logs.read(EventLog::Reserved(9), 1000), Err(ReturnCode::INVALID_INPUT));
    }

    #[test]
    fn handles_are_never_zero() {
        let (mut logs, _) = logs(1, 1);
        logs.last_handle = u16::MAX;
        logs.clear(EventLog::Warning, &[1]).unwrap();
        let mut record = EventData::MldPort(MldPortEvent::default()).record(1);
        logs.push(EventLog::Warning, &mut record);
        assert_eq!(record.handle, 1);
    }
}
