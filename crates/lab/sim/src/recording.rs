// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Replays a recording of `aquifer run --record`: gives an engine of this release the inputs of the recorded one, and
//! compares each answer.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use aquifer_core::engine::{Engine, Plan};
use aquifer_core::frames::BUDGET_PAGES_MAX;
use aquifer_core::policy::{self, PolicyName};
use aquifer_core::record::{Answer, Call, Damage, End, Event, Header, Recording, Summary};
use aquifer_core::units::PAGE_BYTES;

use crate::recorded_slabs::{NextSlab, RecordedSlabs};

/// Maximum number of pages that a replay describes. Each costs about ten bytes here.
const PAGES_MAX: u64 = 1 << 31;

/// Reads the file, or returns one line that says why it cannot.
pub fn load(path: &Path) -> Result<Vec<u8>, String> {
    use std::io::Read;

    use aquifer_sys::safe_open::{OpenFailure, Purpose, open};

    let unreadable = |error| format!("{} cannot be read: {error}; give a recording", path.display());
    let mut file = open(path, Purpose::Input, 0, 0).map_err(|failure| match failure {
        OpenFailure::Io(error) => unreadable(error),
        OpenFailure::Objected(objected) => objected.to_string(),
    })?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).map(|_| bytes).map_err(unreadable)
}

/// The outcome of a replay.
#[derive(Debug)]
pub enum Outcome {
    /// Every answer equalled the recorded one.
    Same,
    /// The answer to this event differed.
    Differs(Difference),
}

/// The first event with a different answer.
#[derive(Debug)]
pub struct Difference {
    /// Its number, from 0 on.
    pub number: u64,
    /// The input.
    pub call: String,
    /// The recorded engine's answer, as far as it was kept.
    pub recorded: String,
    /// This engine's answer.
    pub now: String,
}

/// A finished replay.
pub struct Replayed {
    /// The recording's header.
    pub header: Header,
    /// How the recording ended.
    pub end: End,
    /// The outcome of the replay.
    pub outcome: Outcome,
    /// The engine in its final state.
    pub engine: Engine,
}

/// The message when there is no replay.
fn refusal(path: &Path, damage: &Damage) -> String {
    format!("{}: {damage}", path.display())
}

/// Replays `bytes`, the contents of the file `path`. `each` receives every event with its answer, and the engine after
/// it.
pub fn replay(
    path: &Path,
    bytes: &[u8],
    mut each: impl FnMut(u64, &Call<'_>, &Answer, &Plan, &Engine),
) -> Result<Replayed, String> {
    let (header, mut recording) = Recording::open(bytes).map_err(|damage| refusal(path, &damage))?;
    let name = header.policy.parse::<PolicyName>().map_err(|error| {
        format!("{}: recorded with a policy that this release does not have: {error}", path.display())
    })?;
    if header.settings.budget_pages > BUDGET_PAGES_MAX {
        return Err(format!("{}: {} pages are not a budget", path.display(), header.settings.budget_pages));
    }
    let next_slab = NextSlab::default();
    let slabs = Box::new(RecordedSlabs::new(next_slab.clone()));
    let mut engine = Engine::with_slabs(header.settings, policy::build(name), slabs);
    let (mut plan, mut outcome, mut pages) = (Plan::new(), Outcome::Same, 0);
    let mut too_large = false;
    let end = recording.read(|number, event| {
        if let Call::Add { start, end, .. } = event.call {
            pages += end - start;
            too_large = pages > PAGES_MAX;
            if too_large {
                return false;
            }
        }
        if let Call::SlotFor { .. } = event.call {
            next_slab.set(event.summary.slab());
        }
        match apply(&mut engine, number, &event, &mut plan) {
            Ok(answer) => {
                each(number, &event.call, &answer, &plan, &engine);
                true
            }
            Err(difference) => {
                outcome = Outcome::Differs(difference);
                false
            }
        }
    });
    let end = end.map_err(|damage| refusal(path, &damage))?;
    if too_large {
        let max = (PAGES_MAX * PAGE_BYTES) >> 40;
        return Err(format!("{}: mappings of more than {max} TiB; replay it on a larger machine", path.display()));
    }
    Ok(Replayed { header, end, outcome, engine })
}

/// Gives the engine one event. A panic of the engine is reported as a difference, too: the recorded engine accepted the
/// same event.
fn apply(engine: &mut Engine, number: u64, event: &Event<'_>, plan: &mut Plan) -> Result<Answer, Difference> {
    let differs = |recorded: String, now: String| Difference { number, call: describe(&event.call), recorded, now };
    let answered = catch_unwind(AssertUnwindSafe(|| event.call.apply(engine, number, plan)));
    let answer = answered.map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no reason");
        differs("an answer".into(), format!("the engine refuses it: {}", text.lines().next().unwrap_or(text)))
    })?;
    if answer.summary() == event.summary {
        return Ok(answer);
    }
    Err(differs(recorded(&event.call, event.summary), now(&answer, plan)))
}

fn describe(call: &Call<'_>) -> String {
    match call {
        Call::Fault { page, thread, write, first } => {
            let access = if *write { "write" } else { "read" };
            let again = if *first { "" } else { ", asked again" };
            format!("{access} at {:#x}, thread {}{again}", page.address(), thread.0)
        }
        Call::FaultWithoutCredit { page, thread, write } => {
            let access = if *write { "write" } else { "read" };
            format!("{access} at {:#x}, thread {}, asked again without credit", page.address(), thread.0)
        }
        // The lists in these calls mean nothing to a reader.
        Call::Add { start, end, .. } => format!("Add {{ start: {start}, end: {end} }}"),
        Call::Cleaned { block, verdict, .. } => format!("Cleaned {{ block: {block:?}, verdict: {verdict:?} }}"),
        Call::SetFile { start, end, first, .. } => {
            format!("SetFile {{ start: {start}, end: {end}, first: {first:?} }}")
        }
        other => format!("{other:?}"),
    }
}

fn recorded(call: &Call<'_>, summary: Summary) -> String {
    match call {
        Call::Fault { .. } | Call::FaultWithoutCredit { .. } => {
            format!("{} (digest {:08x})", summary.step_name(), summary.digest)
        }
        Call::Discard { .. } => format!("{} (digest {:08x})", summary.discard_name(), summary.digest),
        Call::Plan { .. } => format!("a plan of {} tasks (digest {:08x})", summary.kind, summary.digest),
        Call::HasArrived { .. } => summary.arrived_name().into(),
        Call::SlotFor { .. } => summary.slab().map_or("no slot".into(), |slab| format!("a slot in slab {}", slab.0)),
        _ => format!("{}", summary.kind != 0),
    }
}

fn now(answer: &Answer, plan: &Plan) -> String {
    let digest = answer.summary().digest;
    match answer {
        Answer::Step(step) => format!("{} (digest {digest:08x}): {step:?}", answer.summary().step_name()),
        Answer::Plan(_) => format!("a plan of {} tasks (digest {digest:08x})", plan.tasks.len()),
        Answer::Discard(step, _) => format!("{step:?} (digest {digest:08x})"),
        Answer::Slot(slot) => format!("{:?}", slot.map(|slot| slot.0)),
        Answer::Arrived(_) => answer.summary().arrived_name().into(),
        Answer::Wanted(wanted) => format!("{wanted}"),
        Answer::Nothing => "nothing".into(),
    }
}
