// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Which request each step is sent for, and the spans of orders and steps.
//!
//! An order names the request that brought it. Once the order is stored, the volumes that it has changed have this
//! request as the cause of their steps, until they are as desired or another order changes them. What a repair does
//! later has no cause: no request has ordered it.

use std::collections::{BTreeMap, BTreeSet};

use aquifer_fabric::{Cause, Command, Desired, Round, VolumeId};
use aquifer_telemetry::{Operation, Side, Telemetry};

use super::Done;
use crate::order::{NotDone, Order};
use crate::peers::SendFailure;
use crate::tasks::{ending, volume_of};

/// The causes of the steps of volumes that are not as desired yet. It is bounded by the number of these volumes.
#[derive(Debug, Default)]
pub(super) struct Causes(BTreeMap<VolumeId, Cause>);

impl Causes {
    /// Notes that an order is stored, which has changed these volumes.
    pub(super) fn note(&mut self, order: &Order, operation: &Operation, done: &Done) {
        let traceparent = operation.traceparent().and_then(|header| header.parse().ok());
        let traceparent = traceparent.or_else(|| order.cause.traceparent.clone());
        let cause = Cause { request: order.cause.request.clone(), traceparent };
        done.volumes.iter().for_each(|volume| _ = self.0.insert(*volume, cause.clone()));
    }

    /// Returns the cause of the steps of a volume.
    pub(super) fn of(&self, volume: Option<VolumeId>) -> Option<Cause> {
        self.0.get(&volume?).cloned()
    }

    /// Forgets volumes for which a round has left nothing to do.
    pub(super) fn keep_unsettled(&mut self, desired: &Desired, round: &Round) {
        if self.0.is_empty() {
            return;
        }
        let stepping = round.steps.iter().filter_map(volume_of);
        let waiting = round.waiting.iter().map(|waiting| waiting.volume);
        let leaving = ending(desired).map(|(id, _)| id);
        let moving: BTreeSet<VolumeId> = stepping.chain(waiting).chain(leaving).collect();
        self.0.retain(|volume, _| moving.contains(volume));
    }
}

/// Begins the span of an order, which is a part of its request's.
pub(super) fn begin_order(telemetry: &Telemetry, order: &Order, round: u64) -> Operation {
    let traceparent = order.cause.traceparent.as_ref().map(|header| header.as_str());
    let mut operation = telemetry.begin("carry out order", Side::Internal, traceparent);
    operation.note("aquifer.order", || order.act.to_string());
    operation.note("aquifer.request.id", || order.cause.request.to_string());
    operation.count("aquifer.round", round);
    operation
}

/// Notes what became of an order.
pub(super) fn end_order(operation: &mut Operation, outcome: &Result<Done, NotDone>) {
    if let Err(not) = outcome {
        operation.fail(|| not.to_string());
    }
}

/// Begins the spans of steps that are about to be sent, and has the commands carry them to their receivers. Nothing is
/// done while telemetry is off.
pub(super) fn begin_steps(telemetry: &Telemetry, commands: &mut [Command]) -> Vec<Operation> {
    if !telemetry.is_on() {
        return Vec::new();
    }
    let begin = |command: &mut Command| {
        let traceparent = command.cause.as_ref().and_then(|cause| cause.traceparent.as_ref());
        let mut operation = telemetry.begin("send step", Side::Client, traceparent.map(|header| header.as_str()));
        let id = format!("{}.{}", command.term, command.sequence);
        operation.note("aquifer.step", || command.step.to_string());
        operation.note("aquifer.step.id", || id.clone());
        if let Some(cause) = &command.cause {
            operation.note("aquifer.request.id", || cause.request.to_string());
        }
        let request = command.cause.take().map(|cause| cause.request).or_else(|| id.parse().ok());
        let traceparent = operation.traceparent().and_then(|header| header.parse().ok());
        command.cause = request.map(|request| Cause { request, traceparent });
        operation
    };
    commands.iter_mut().map(begin).collect()
}

/// Ends the spans of steps that were sent.
pub(super) fn end_steps(operations: Vec<Operation>, outcomes: &[Result<(), SendFailure>]) {
    for (mut operation, outcome) in operations.into_iter().zip(outcomes) {
        if let Err(failure) = outcome {
            operation.fail(|| failure.to_string());
        }
    }
}

#[cfg(test)]
mod tests {
    use aquifer_fabric::{Incarnation, MemberId, Step, Term};

    use super::*;
    use crate::order::Act;

    fn order(request: &str) -> Order {
        let cause = Cause { request: request.parse().expect("an id"), traceparent: None };
        Order { act: Act::Adopt, who: "amy".into(), if_match: None, is_dry_run: false, cause }
    }

    fn release(volume: u64) -> Step {
        Step::Release { donor: "d1".parse().expect("a name"), volume: VolumeId(volume), member: MemberId(1) }
    }

    #[test]
    fn a_volume_has_its_last_order_as_cause_until_nothing_is_left_to_do() {
        let (mut causes, off) = (Causes::default(), Telemetry::default());
        let note = |causes: &mut Causes, request, volumes| {
            let order = order(request);
            causes.note(&order, &begin_order(&off, &order, 1), &Done { volumes, ..Done::default() });
        };
        note(&mut causes, "first", vec![VolumeId(1), VolumeId(2)]);
        note(&mut causes, "second", vec![VolumeId(2)]);
        let of = |causes: &Causes, volume| causes.of(Some(VolumeId(volume))).map(|cause| cause.request.to_string());
        assert_eq!((of(&causes, 1).as_deref(), of(&causes, 2).as_deref()), (Some("first"), Some("second")));
        assert_eq!(causes.of(None), None);
        let round = Round { steps: vec![release(2)], ..Round::default() };
        causes.keep_unsettled(&Desired::default(), &round);
        assert_eq!((of(&causes, 1), of(&causes, 2).as_deref()), (None, Some("second")));
        causes.keep_unsettled(&Desired::default(), &Round::default());
        assert_eq!(of(&causes, 2), None);
    }

    #[test]
    fn commands_are_as_they_were_while_telemetry_is_off() {
        let cause = Some(order("first").cause);
        let mut commands = [None, cause].map(|cause| Command {
            term: Term(1),
            sequence: 1,
            incarnation: Incarnation(1),
            step: release(1),
            cause,
        });
        let before = commands.clone();
        assert!(begin_steps(&Telemetry::default(), &mut commands).is_empty());
        assert_eq!(commands, before);
    }
}
