// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Replays a recording of `aquifer run --record`: gives an engine of this release the inputs of the recorded one, and
//! compares each answer.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use aquifer_core::engine::{Engine, Plan};
use aquifer_core::policy::{self, PolicyName};
use aquifer_core::record::{Answer, Damage, End, Event, Header, Recording, Summary, Told};
use aquifer_core::units::PAGE_BYTES;

use crate::recorded_slabs::{NextSlab, RecordedSlabs};

/// A budget larger than in any valid recording: a frame's number has no room for more.
pub const BUDGET_PAGES_MOST: u64 = 1 << 28;
/// Maximum number of pages that a replay describes. Each costs about ten bytes here.
const PAGES_MOST: u64 = 1 << 31;

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
    pub told: String,
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
    mut each: impl FnMut(u64, &Told<'_>, &Answer, &Plan, &Engine),
) -> Result<Replayed, String> {
    let (header, mut recording) = Recording::open(bytes).map_err(|damage| refusal(path, &damage))?;
    let name = header.policy.parse::<PolicyName>().map_err(|error| {
        format!("{}: recorded with a policy that this release does not have: {error}", path.display())
    })?;
    if header.settings.budget_pages > BUDGET_PAGES_MOST {
        return Err(format!("{}: a budget of {} pages is none", path.display(), header.settings.budget_pages));
    }
    let next_slab = NextSlab::default();
    let slabs = Box::new(RecordedSlabs::new(next_slab.clone()));
    let mut engine = Engine::with_slabs(header.settings, policy::build(name), slabs);
    let (mut plan, mut outcome, mut pages) = (Plan::new(), Outcome::Same, 0);
    let mut too_large = false;
    let end = recording.read(|number, event| {
        if let Told::Add { start, end, .. } = event.told {
            pages += end - start;
            too_large = pages > PAGES_MOST;
            if too_large {
                return false;
            }
        }
        if let Told::SlotFor { .. } = event.told {
            next_slab.set(event.summary.slab());
        }
        match tell(&mut engine, number, &event, &mut plan) {
            Ok(answer) => {
                each(number, &event.told, &answer, &plan, &engine);
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
        let most = (PAGES_MOST * PAGE_BYTES) >> 40;
        return Err(format!("{}: mappings of more than {most} TiB; replay it on a larger machine", path.display()));
    }
    Ok(Replayed { header, end, outcome, engine })
}

/// Gives the engine one event. A panic of the engine is reported as a difference, too: the recorded engine accepted the
/// same event.
fn tell(engine: &mut Engine, number: u64, event: &Event<'_>, plan: &mut Plan) -> Result<Answer, Difference> {
    let differs = |recorded: String, now: String| Difference { number, told: told(&event.told), recorded, now };
    let answered = catch_unwind(AssertUnwindSafe(|| event.told.tell(engine, number, plan)));
    let answer = answered.map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no reason");
        differs("an answer".into(), format!("the engine refuses it: {}", text.lines().next().unwrap_or(text)))
    })?;
    if answer.summary() == event.summary {
        return Ok(answer);
    }
    Err(differs(recorded(&event.told, event.summary), now(&answer, plan)))
}

fn told(told: &Told<'_>) -> String {
    match told {
        Told::Fault { page, thread, write, first } => {
            let access = if *write { "write" } else { "read" };
            let again = if *first { "" } else { ", asked again" };
            format!("{access} at {:#x}, thread {}{again}", page * PAGE_BYTES, thread.0)
        }
        // Their lists mean nothing to a reader.
        Told::Add { start, end, .. } => format!("Add {{ start: {start}, end: {end} }}"),
        Told::Cleaned { block, verdict, .. } => format!("Cleaned {{ block: {block:?}, verdict: {verdict:?} }}"),
        other => format!("{other:?}"),
    }
}

/// How a block may be installed, by the answer's kind.
const EXCHANGES: [&str; 4] = ["move", "copy", "copy and seal", "another way"];

fn recorded(told: &Told<'_>, summary: Summary) -> String {
    match told {
        Told::Fault { .. } => format!("{} (digest {:08x})", summary.step_name(), summary.digest),
        Told::Discard { .. } => format!("{} (digest {:08x})", summary.discard_name(), summary.digest),
        Told::Fetched { .. } => EXCHANGES[usize::from(summary.kind).min(EXCHANGES.len() - 1)].into(),
        Told::Plan { .. } => format!("a plan of {} tasks (digest {:08x})", summary.kind, summary.digest),
        Told::SlotFor { .. } => summary.slab().map_or("no slot".into(), |slab| format!("a slot in slab {slab}")),
        _ => format!("{}", summary.kind != 0),
    }
}

fn now(answer: &Answer, plan: &Plan) -> String {
    let digest = answer.summary().digest;
    match answer {
        Answer::Step(step) => format!("{} (digest {digest:08x}): {step:?}", answer.summary().step_name()),
        Answer::Exchange(_) => EXCHANGES[usize::from(answer.summary().kind).min(EXCHANGES.len() - 1)].into(),
        Answer::Plan(_) => format!("a plan of {} tasks (digest {digest:08x})", plan.tasks.len()),
        Answer::Discard(step, _) => format!("{step:?} (digest {digest:08x})"),
        Answer::Slot(slot) => format!("{slot:?}"),
        Answer::Wanted(wanted) => format!("{wanted}"),
        Answer::Nothing => "nothing".into(),
    }
}
