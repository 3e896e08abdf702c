// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What Redfish has no resource for: a summary of the state, declarations, plans, adoption, and the audit log.

use std::time::Duration;

use aquifer_control::FaultFigures;
use aquifer_fabric::Declaration;
use serde::Deserialize;
use serde_json::{Value, json};

use super::answer::{Answer, Problem};
use super::collection::PAGE_MAX;
use super::service::Call;
use crate::amendment::Amendment;
use crate::audit_checks::Progress;
use crate::manager_store::ManagerStore;
use crate::order::Act;
use crate::snapshot::Answering;
use crate::writer::{Done, Posted};

const PATH: &str = "/redfish/v1/Oem/Aquifer";
/// Reading it has the whole audit log checked, so `$expand` does not.
pub(super) const VERIFICATION: &str = "/redfish/v1/Oem/Aquifer/Audit/Verification";
/// How long a request waits for a check of the audit log.
const VERIFICATION_WAIT_MAX: Duration = Duration::from_secs(5);
const UNAVAILABLE: &str = "Base.1.18.ServiceTemporarilyUnavailable";

/// Returns an order's outcome as a body.
pub(super) fn plan_body(done: &Done) -> Value {
    json!({
        "@odata.type": "#AquiferPlan.v1_0_0.AquiferPlan", "Id": "Plan", "Name": "Plan",
        "Changes": done.changes, "Steps": done.steps, "NamedSteps": done.named_steps, "Remarks": done.remarks,
        "Version": done.version,
        "Task": done.task.map(|task| format!("/redfish/v1/TaskService/Tasks/{task}")),
    })
}

/// Returns the faults of programs, as agents have counted them lately; `null` if no agent has figures. Without faults
/// there are no latencies.
fn faults(figures: &FaultFigures) -> Value {
    if figures.hosts == 0 {
        return Value::Null;
    }
    json!({
        "Hosts": figures.hosts, "PerSecond": figures.per_second, "MeanMicroseconds": figures.newest.mean_us(),
        "P99Microseconds": figures.newest.quantile_us(0.99),
    })
}

pub(super) fn status(call: &Call<'_>) -> Result<Answer, Problem> {
    let snapshot = &call.snapshot;
    let count = |of: Answering| json!({ "Answering": of.answering, "All": of.all });
    let desired = &snapshot.desired;
    let lent: aquifer_fabric::Bytes = snapshot.topology.parts().donors.keys().map(|donor| snapshot.lent(donor)).sum();
    let waiting = snapshot.round.waiting.iter();
    let waiting: Vec<String> =
        waiting.map(|one| format!("volume {}: {}", desired.called(one.volume), one.reason)).collect();
    let strays: Vec<String> = snapshot.round.strays.iter().map(ToString::to_string).collect();
    let unsettled = snapshot.unsettled();
    Ok(Answer::of(
        200,
        json!({
            "@odata.id": PATH, "@odata.type": "#AquiferFabric.v1_0_0.AquiferFabric", "Id": "Aquifer", "Name": "Pool",
            "Term": snapshot.term, "Rounds": snapshot.rounds, "Version": desired.version,
            "NewestEvent": snapshot.newest_event,
            "Donors": count(snapshot.donors()), "Hosts": count(snapshot.hosts()),
            "Devices": count(snapshot.devices()),
            "Volumes": { "All": desired.volumes.wanted_count(), "Bound": desired.volumes.bound_count(),
                         "Unsettled": unsettled },
            "Capacity": snapshot.capacity(), "Lent": lent,
            "Steps": { "Due": snapshot.round.steps.len(), "Sent": snapshot.steps.sent, "Failed": snapshot.steps.failed },
            "Faults": faults(&snapshot.faults),
            "Waiting": waiting, "Strays": strays, "Unrepaired": snapshot.unrepaired,
            "IsSettled": snapshot.rounds > 0 && unsettled == 0 && snapshot.round.is_settled(),
            "JoinTokens": { "@odata.id": format!("{PATH}/JoinTokens") },
            "Certificates": { "@odata.id": format!("{PATH}/Certificates") },
            "Declaration": { "@odata.id": format!("{PATH}/Declaration") },
            "ReleasedVolumes": { "@odata.id": format!("{PATH}/ReleasedVolumes") },
            "Audit": { "@odata.id": format!("{PATH}/Audit") },
        }),
    ))
}

pub(super) fn export(call: &Call<'_>) -> Result<Answer, Problem> {
    let declaration = Declaration::of(&call.snapshot.desired);
    Ok(Answer::of(
        200,
        json!({
            "@odata.id": format!("{PATH}/Declaration"), "@odata.type": "#AquiferDeclaration.v1_0_0.AquiferDeclaration",
            "Id": "Declaration", "Name": "Declaration", "Declaration": declaration,
        }),
    ))
}

fn declaration(call: &Call<'_>) -> Result<Box<Declaration>, Problem> {
    let value = call.body.get("Declaration").unwrap_or(&Value::Null);
    // Not from a copy, which would take as much memory again.
    Declaration::deserialize(value).map(Box::new).map_err(|error| {
        Problem::value(
            "Declaration",
            format!("{error}; begin with an export: aquifer fabric export, or GET {PATH}/Declaration"),
        )
    })
}

pub(super) fn plan(call: &Call<'_>) -> Result<Answer, Problem> {
    let done = call.order(Act::Apply(declaration(call)?), true)?;
    Ok(Answer::of(200, plan_body(&done)))
}

pub(super) fn apply(call: &Call<'_>) -> Result<Answer, Problem> {
    let done = call.order(Act::Apply(declaration(call)?), call.is_dry_run())?;
    Ok(Answer::of(200, plan_body(&done)))
}

/// Changes several volumes, all of them or none.
pub(super) fn change_volumes(call: &Call<'_>) -> Result<Answer, Problem> {
    let amendment = Amendment::deserialize(Value::Object(call.body.clone()));
    let mut amendment = amendment.map_err(|error| Problem::value("Volumes", format!("{error}; see docs/fabric.md")))?;
    amendment.check().map_err(|line| Problem::value("Volumes", line))?;
    if call.request.header("if-match").is_some() {
        let what = "If-Match has one ETag, and this request may change several volumes";
        return Err(Problem::new(400, "Base.1.18.HeaderInvalid", what, "name the ETag of each volume in Match"));
    }
    amendment.unbinds = call.unbinds();
    let done = call.order(Act::Amend(Box::new(amendment)), call.is_dry_run())?;
    Ok(Answer::of(200, plan_body(&done)))
}

pub(super) fn adopt(call: &Call<'_>) -> Result<Answer, Problem> {
    let done = call.order(Act::Adopt, call.is_dry_run())?;
    Ok(Answer::of(200, plan_body(&done)))
}

pub(super) fn audit(call: &Call<'_>) -> Result<Answer, Problem> {
    let (after, count) = call.query.window();
    let read = move |store: &mut ManagerStore| match store.records(after as u64, count.min(PAGE_MAX)) {
        Ok(records) => Ok(Ok((records, store.tail()))),
        Err(failure) => Ok(Err(failure.to_string())),
    };
    let (records, tail) = call.service.errand(read)?.map_err(unreadable)?;
    Ok(Answer::of(
        200,
        json!({
            "@odata.id": format!("{PATH}/Audit"), "@odata.type": "#AquiferAudit.v1_0_0.AquiferAudit", "Id": "Audit",
            "Name": "Audit log", "Records": records, "Tail": tail,
            "Verification": { "@odata.id": VERIFICATION },
        }),
    ))
}

fn unreadable(line: String) -> Problem {
    Problem::new(503, UNAVAILABLE, line, "look at the daemon's log")
}

/// Checks the log, or waits for the check that is under way. Damage is an answer and an event, and the log stays as it
/// is.
pub(super) fn verification(call: &Call<'_>) -> Result<Answer, Problem> {
    // What wakes the writer does nothing else.
    let wake = || call.service.post(Posted::Errand(Box::new(|_| Ok(()))));
    let verified =
        call.service.shared.audit.ask(VERIFICATION_WAIT_MAX, wake)?.map_err(|Progress { checked, all }| {
            let what = format!("the audit log is being checked; {checked} of {all} records are done");
            let mut problem = Problem::new(503, UNAVAILABLE, what, "ask again in some seconds");
            problem.headers.push(("retry-after", "5".to_owned()));
            problem
        })?;
    let (tail, damage) = match verified {
        Ok(tail) => (Some(tail), None),
        Err(damage) => (None, Some(damage.0)),
    };
    Ok(Answer::of(
        200,
        json!({
            "@odata.id": VERIFICATION, "Id": "Verification", "Name": "Audit log, verified",
            "@odata.type": "#AquiferAuditVerification.v1_0_0.AquiferAuditVerification",
            "IsIntact": damage.is_none(), "Damage": damage, "Tail": tail,
        }),
    ))
}
