// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The task service: tasks, and the monitor of each, which answers 202 until its task has ended.

use serde_json::{Value, json};

use super::answer::{Answer, Problem};
use super::collection::collection;
use super::date;
use super::service::Call;
use crate::tasks::Task;

const TASKS: &str = "/redfish/v1/TaskService/Tasks";
const MONITORS: &str = "/redfish/v1/TaskService/TaskMonitors";
/// The time, in seconds, after which a client should poll a monitor again. Most tasks take a few rounds.
const LOOK_AGAIN: &str = "1";

pub(super) fn service(_: &Call<'_>) -> Result<Answer, Problem> {
    Ok(Answer::of(
        200,
        json!({
            "@odata.id": "/redfish/v1/TaskService", "@odata.type": "#TaskService.v1_2_1.TaskService", "Id": "TaskService",
            "Name": "Task service", "ServiceEnabled": true, "CompletedTaskOverWritePolicy": "Oldest",
            "LifeCycleEventOnTaskStateChange": false, "Tasks": { "@odata.id": TASKS },
        }),
    ))
}

fn task_body(task: &Task) -> Value {
    let state = if task.ended.is_some() { "Completed" } else { "Running" };
    let mut volumes = task.volumes.iter().flatten();
    let only = volumes.next().filter(|_| volumes.next().is_none());
    json!({
        "@odata.id": format!("{TASKS}/{}", task.id), "@odata.type": "#Task.v1_7_4.Task", "Id": task.id.to_string(),
        "Name": task.what, "TaskState": state, "TaskStatus": "OK", "PercentComplete": task.percent,
        "StartTime": date(task.started), "EndTime": task.ended.map(date),
        "TaskMonitor": format!("{MONITORS}/{}", task.id),
        "Oem": { "Aquifer": { "Who": task.who, "VolumeId": only, "VolumeIds": task.volumes } },
    })
}

fn found<'a>(call: &'a Call<'_>) -> Result<&'a Task, Problem> {
    let task = call.snapshot.tasks.list.iter().find(|task| task.id.to_string() == call.name());
    task.ok_or_else(|| Problem::not_found(call.path))
}

pub(super) fn tasks(call: &Call<'_>) -> Result<Answer, Problem> {
    let list = &call.snapshot.tasks.list;
    let ids: Vec<String> = list.iter().map(|task| task.id.to_string()).collect();
    let body = |id: &str| list.iter().find(|task| task.id.to_string() == id).map(task_body);
    Ok(Answer::of(200, collection(TASKS, "TaskCollection", "Tasks", &call.query, &ids, body)))
}

pub(super) fn task(call: &Call<'_>) -> Result<Answer, Problem> {
    Ok(Answer::of(200, task_body(found(call)?)))
}

pub(super) fn monitor(call: &Call<'_>) -> Result<Answer, Problem> {
    let task = found(call)?;
    if task.ended.is_some() {
        return Ok(Answer::of(200, task_body(task)));
    }
    let answer = Answer::of(202, task_body(task)).with("retry-after", LOOK_AGAIN);
    Ok(answer.with("location", format!("{MONITORS}/{}", task.id)))
}
