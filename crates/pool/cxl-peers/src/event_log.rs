// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Reads one event log on from where it was left, and clears the records that were read, except the newest.
//!
//! Another manager may read and clear the same log. The last record that this manager has read stays as its bookmark:
//! if it has gone, records may have gone unread. A log that was empty has no bookmark. Records may have gone from it,
//! too, before the first that is found there, unless that is the record of this manager's own bind: before each bind,
//! the log is read.

use aquifer_fmapi::{
    BindVppb, BindingStatus, ClearEventRecords, EventData, EventLog, EventRecord, GetEventRecords, ReturnCode,
    VppbEvent,
};
use aquifer_fmapi_client::{Client, Clock, Failure, Hop};

use crate::discover::patiently;
use crate::step_failure::is_busy;

/// Maximum number of records that one command clears: a byte counts them.
const HANDLES_MAX: usize = 255;

/// Up to where a log was read.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum Mark {
    /// It was not read.
    #[default]
    Unread,
    /// It was empty.
    Empty,
    /// This was its last record.
    At(EventRecord),
}

/// A bind of this manager.
#[derive(Clone, Debug)]
pub(crate) struct OwnBind {
    pub(crate) vcs_id: u8,
    pub(crate) vppb_id: u8,
    /// The ports at which the device is.
    pub(crate) ports: Vec<u8>,
    /// As in the command: `BindVppb::NO_LD` for a device without LDs.
    pub(crate) ld_id: u16,
}

impl OwnBind {
    /// Whether this record says that the bind was done.
    fn is_in(&self, record: &EventRecord) -> bool {
        let Some(EventData::Vppb(event)) = record.meaning() else { return false };
        let VppbEvent { vcs_id, vppb_id, vppb, .. } = event;
        let is_ld = match vppb.status {
            BindingStatus::Ld => u16::from(vppb.ld_id) == self.ld_id,
            BindingStatus::Port => self.ld_id == BindVppb::NO_LD,
            _ => false,
        };
        is_ld && (vcs_id, vppb_id) == (self.vcs_id, self.vppb_id) && self.ports.contains(&vppb.port_id)
    }
}

/// Returns whether a device has logs, and not this one.
pub(crate) fn has_no_such_log(failure: &Failure) -> bool {
    matches!(failure.return_code(), Some(ReturnCode::INVALID_INPUT | ReturnCode::INVALID_LOG))
}

/// How a log is read on from where it was left.
pub(crate) struct Bookmark<'a> {
    /// Up to where it was read.
    pub(crate) mark: &'a mut Mark,
    /// The latest bind of this manager, if the log has records of binds.
    pub(crate) own: Option<&'a OwnBind>,
    /// How many of the newest records stay.
    pub(crate) kept: usize,
    /// Maximum number of answers that are read; the rest of the log is read in the next round.
    pub(crate) answers_max: usize,
}

/// What a log says.
pub(crate) enum Seen<'a> {
    /// Others have cleared records that were not read, as far as can be told.
    Cleared,
    /// The log was full, and this many records were lost.
    Lost(u16),
    /// The log's next record.
    Record(&'a EventRecord),
}

/// Reads a log, and clears the records that were read, except the newest. Each record is noted before it is cleared:
/// the answer to that may be lost.
pub(crate) fn read_log(
    client: &mut Client,
    clock: &dyn Clock,
    path: &[Hop],
    log: EventLog,
    bookmark: Bookmark<'_>,
    see: &mut dyn FnMut(Seen<'_>),
) -> Result<(), Failure> {
    let Bookmark { mark, own, kept, answers_max } = bookmark;
    let mut has_lost = false;
    for _ in 0..answers_max {
        let mut answer = patiently(client, clock, is_busy, |client| client.call(path, &GetEventRecords { log }))?;
        has_lost |= answer.has_overflowed();
        let has_more = answer.has_more();
        answer.records.truncate(HANDLES_MAX);
        let (known, is_gone) = match *mark {
            Mark::Unread => (None, false),
            Mark::Empty => (None, answer.records.first().is_some_and(|first| !own.is_some_and(|own| own.is_in(first)))),
            Mark::At(mark) => {
                let known = answer.records.iter().position(|record| *record == mark);
                (known, known.is_none())
            }
        };
        match answer.has_overflowed() {
            true => see(Seen::Lost(answer.overflow_count)),
            false if is_gone => see(Seen::Cleared),
            false => {}
        }
        answer.records.iter().skip(known.map_or(0, |at| at + 1)).for_each(|record| see(Seen::Record(record)));
        *mark = answer.records.last().map_or(Mark::Empty, |last| Mark::At(*last));
        // Clears the oldest records. If the log was read in part, only the last record read stays, so that the rest can
        // be read.
        let count = answer.records.len();
        let stay = match (has_lost, has_more) {
            (true, _) => 0,
            (false, true) => usize::from(count > 1),
            (false, false) => kept,
        };
        let handles: Vec<u16> = answer.records[..count.saturating_sub(stay)].iter().map(|it| it.handle).collect();
        if handles.len() == count {
            *mark = Mark::Empty;
        }
        if handles.is_empty() {
            break;
        }
        // Another manager may have cleared them first. That is no failure.
        let clear = ClearEventRecords { log, flags: 0, handles };
        match patiently(client, clock, is_busy, |client| client.run(path, &clear)) {
            Err(failure) if failure.return_code().is_none() => return Err(failure),
            _ if !has_more => break,
            _ => {}
        }
    }
    if has_lost {
        // Some peers report the loss until the whole log is cleared; the others refuse this command.
        let clear = ClearEventRecords { log, flags: 1, handles: Vec::new() };
        match client.run(path, &clear) {
            Err(failure) if failure.return_code().is_none() => return Err(failure),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use aquifer_fmapi::{Vppb, VppbEventKind};

    /// The first record of a log that was empty tells of no loss only if it is of our own bind.
    #[test]
    fn only_the_record_of_the_very_bind_is_our_own() {
        let own = OwnBind { vcs_id: 1, vppb_id: 4, ports: vec![2, 3], ld_id: 2 };
        let vppb = Vppb { status: BindingStatus::Ld, port_id: 3, ld_id: 2 };
        let event = VppbEvent { vcs_id: 1, vppb_id: 4, kind: VppbEventKind::BindingChange, vppb };
        assert!(own.is_in(&EventData::Vppb(event).record(0)));
        for other in [
            VppbEvent { vcs_id: 2, ..event },
            VppbEvent { vppb_id: 5, ..event },
            VppbEvent { vppb: Vppb { port_id: 4, ..vppb }, ..event },
            VppbEvent { vppb: Vppb { ld_id: 1, ..vppb }, ..event },
            VppbEvent { vppb: Vppb { status: BindingStatus::Port, ..vppb }, ..event },
            VppbEvent { vppb: Vppb::default(), ..event },
        ] {
            assert!(!own.is_in(&EventData::Vppb(other).record(0)), "{other:?}");
        }
        let sld = OwnBind { ld_id: BindVppb::NO_LD, ..own };
        let bound = VppbEvent { vppb: Vppb { status: BindingStatus::Port, ld_id: Vppb::NO_LD, ..vppb }, ..event };
        assert!(sld.is_in(&EventData::Vppb(bound).record(0)));
    }
}
