// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Asks for changes: of volumes, donors, hosts, and of the whole declaration.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use aquifer_fabric::{Bytes, PlainJson, Presentation, Redundancy, VolumeName};
use aquifer_fabric_args::{
    Apply, Bind, Class, Compare, Create, DeclareGone, Drain, DryRun, Kind, Move, OfVolume, Ranges, Release, Resize,
    Spread,
};
use aquifer_manager_client::{Answer, Failure, Request, collection, failed, plain, usage};
use serde_json::{Value, json};

use crate::lists::POOLS;
use crate::show::{Session, cell};

const CONNECTIONS: &str = "/redfish/v1/Fabrics/Aquifer/Connections";
const ENDPOINTS: &str = "/redfish/v1/Fabrics/Aquifer/Endpoints";
const ACTIONS: &str = "/redfish/v1/Oem/Aquifer/Actions";
const PLANS: &str = "/redfish/v1/Oem/Aquifer/Plans";
/// Largest declaration: what the manager takes.
const DECLARATION_BYTES_MAX: u64 = 4 << 20;

/// Returns a plan in lines: the changes, and what they lead to.
pub(crate) fn plan_text(plan: &Value) -> String {
    let lines = |name: &str| plan[name].as_array().into_iter().flatten().map(|line| plain(&cell(line)));
    let mut text: String = lines("Changes").map(|line| format!("{line}\n")).collect();
    if text.is_empty() {
        text.push_str("nothing changes\n");
    }
    // Managers of an older version have only the steps with the ids of volumes.
    let steps = if plan["NamedSteps"].is_array() { "NamedSteps" } else { "Steps" };
    text.extend(lines(steps).map(|line| format!("step    {line}\n")));
    text + &remarks_text(plan)
}

/// Returns the remarks of a plan, in lines.
fn remarks_text(plan: &Value) -> String {
    let remarks = plan["Remarks"].as_array().into_iter().flatten();
    remarks.map(|line| format!("remark  {}\n", plain(&cell(line)))).collect()
}

/// Returns what an order has changed, in lines, and what there is to say about that. Steps are carried out by the
/// manager afterwards; a person asks for them with a dry run.
fn done_text(done: &Value) -> String {
    changes_text(done) + &remarks_text(done)
}

/// Returns only the changes of a plan, in lines.
fn changes_text(plan: &Value) -> String {
    let changes = plan["Changes"].as_array().into_iter().flatten();
    changes.map(|line| format!("{}\n", plain(&cell(line)))).collect()
}

/// Asks for a change, and returns the answer. A dry run shows the plan, and returns nothing.
pub(crate) fn ask_or_plan(
    session: &mut Session<'_>,
    request: Request<'_>,
    dry_run: DryRun,
) -> Result<Option<Value>, Failure> {
    let request = Request { is_dry_run: dry_run.dry_run, ..request };
    let answer = session.client.ask(&request)?.body;
    if dry_run.dry_run {
        return session.show(&answer, plan_text).map(|()| None);
    }
    Ok(Some(answer))
}

/// Asks for a change of the pool. Steps are carried out by the manager afterwards; a person asks for them with a dry
/// run.
fn order(session: &mut Session<'_>, request: Request<'_>, dry_run: DryRun) -> Result<(), Failure> {
    let Some(answer) = ask_or_plan(session, request, dry_run)? else { return Ok(()) };
    session.show(&answer, done_text)
}

/// Returns the time now, in milliseconds since 1970.
fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Finds a volume in whichever pool it is, and returns its path and what it is.
fn find(session: &Session<'_>, volume: &VolumeName) -> Result<(String, Answer), Failure> {
    let pools = collection(&session.client, POOLS, "")?;
    for pool in pools["Members"].as_array().into_iter().flatten() {
        let path = format!("{POOLS}/{}/MemoryChunks/{volume}", cell(&pool["Id"]));
        if let Some(answer) = session.client.find(&path)? {
            return Ok((path, answer));
        }
    }
    Err(failed(format!("there is no volume {volume}; see 'aquifer fabric volumes'")))
}

/// Returns what the host of a new volume sees.
fn presentation(args: &Create) -> Result<Presentation, Failure> {
    let weights = args.weights.clone();
    match args.presentation {
        Some(Ranges::OneRange) if !weights.is_empty() => {
            Err(usage("weights are for the ranges of several spans; leave them out, or ask for range-per-span"))
        }
        None if weights.is_empty() => Ok(Presentation::OneRange),
        Some(Ranges::OneRange) => Ok(Presentation::OneRange),
        None | Some(Ranges::RangePerSpan) => Ok(Presentation::RangePerSpan { weights }),
    }
}

pub(crate) fn create(session: &mut Session<'_>, args: &Create) -> Result<(), Failure> {
    let class = match args.class {
        Class::Cxl => "cxl",
        Class::Rdma => "rdma",
        Class::Tcp => "tcp",
    };
    let spread = match args.spread {
        Spread::Enclosure => "enclosure",
        Spread::Host => "host",
        Spread::Rack => "rack",
    };
    if args.donor.is_some() && args.redundancy != Redundancy::None {
        let (redundancy, members) = (args.redundancy, args.redundancy.members());
        return Err(usage(format!(
            "{redundancy} needs {members} donors, and --donor names one; leave one of them out"
        )));
    }
    let presentation = presentation(args)?;
    let mut labels = BTreeMap::new();
    for (key, value) in &args.labels {
        if labels.insert(key, value).is_some() {
            return Err(usage(format!("label {key} is given twice; give each key once")));
        }
    }
    let mut spec = json!({ "zone": args.zone, "class": class, "redundancy": args.redundancy, "spread": spread,
                           "width": args.width });
    // A manager of an older version refuses properties that it does not know.
    if let Some(donor) = &args.donor {
        spec["donor"] = json!(donor);
    }
    if presentation != Presentation::default() {
        spec["presentation"] = json!(presentation);
    }
    if !labels.is_empty() {
        spec["labels"] = json!(labels);
    }
    if let Some(seconds) = args.expires {
        spec["expires_at"] = json!(now_ms() + seconds * 1000);
    }
    let body = json!({ "Name": args.volume, "MemoryChunkSizeMiB": args.size.0 >> 20, "Oem": { "Aquifer": spec } });
    let path = format!("{POOLS}/{}/MemoryChunks", args.pool);
    order(session, Request::post(&path, body), args.dry_run)
}

pub(crate) fn bind(session: &mut Session<'_>, args: &Bind) -> Result<(), Failure> {
    let (path, _) = find(session, &args.volume)?;
    let body = json!({
        "MemoryChunkInfo": [{ "MemoryChunk": { "@odata.id": path } }],
        "Links": { "InitiatorEndpoints": [{ "@odata.id": format!("{ENDPOINTS}/Host.{}", args.host) }] },
    });
    order(session, Request::post(CONNECTIONS, body), args.dry_run)
}

pub(crate) fn unbind(session: &mut Session<'_>, args: &OfVolume) -> Result<(), Failure> {
    let path = format!("{CONNECTIONS}/{}", args.volume);
    if session.client.find(&path)?.is_none() {
        find(session, &args.volume)?;
        return Err(failed(format!("volume {} is not bound; there is nothing to unbind", args.volume)));
    }
    order(session, Request { method: "DELETE", path: &path, ..Request::default() }, args.dry_run)
}

/// Makes a volume larger or smaller. With the ETag, the manager refuses the change if the volume has changed since its
/// size was read.
pub(crate) fn resize(session: &mut Session<'_>, args: &Resize, grows: bool) -> Result<(), Failure> {
    let (path, found) = find(session, &args.volume)?;
    let size = Bytes(found.body["MemoryChunkSizeMiB"].as_u64().unwrap_or_default() << 20);
    let (is_right, other) = if grows { (args.size > size, "shrink") } else { (args.size < size, "grow") };
    if !is_right {
        let remedy = if args.size == size { "name another size".to_owned() } else { format!("use '{other}'") };
        return Err(failed(format!("volume {} has {size}; {remedy}", args.volume)));
    }
    let body = json!({ "MemoryChunkSizeMiB": args.size.0 >> 20 });
    let request = Request { method: "PATCH", if_match: found.etag.as_deref(), ..Request::post(&path, body) };
    order(session, request, args.dry_run)
}

pub(crate) fn move_volume(session: &mut Session<'_>, args: &Move) -> Result<(), Failure> {
    let (path, _) = find(session, &args.volume)?;
    let path = format!("{path}/Actions/Oem/AquiferMemoryChunk.Move");
    let body = args.off.as_ref().map_or(json!({}), |donor| json!({ "Donor": donor }));
    order(session, Request::post(&path, body), args.dry_run)
}

pub(crate) fn release(session: &mut Session<'_>, args: &Release) -> Result<(), Failure> {
    let (path, _) = find(session, &args.volume)?;
    let request = Request { method: "DELETE", path: &path, unbinds: args.unbind, ..Request::default() };
    order(session, request, args.dry_run)
}

pub(crate) fn drain(session: &mut Session<'_>, args: &Drain) -> Result<(), Failure> {
    let path = format!("{ENDPOINTS}/Donor.{}/Actions/Oem/AquiferEndpoint.Drain", args.donor);
    order(session, Request::post(&path, json!({ "Draining": !args.undo })), args.dry_run)
}

pub(crate) fn declare_gone(session: &mut Session<'_>, args: &DeclareGone) -> Result<(), Failure> {
    let kind = match args.kind {
        Kind::Donor => "Donor",
        Kind::Host => "Host",
    };
    let path = format!("{ENDPOINTS}/{kind}.{}/Actions/Oem/AquiferEndpoint.DeclareGone", args.name);
    order(session, Request::post(&path, json!({})), args.dry_run)
}

pub(crate) fn adopt(session: &mut Session<'_>, args: DryRun) -> Result<(), Failure> {
    order(session, Request::post(&format!("{ACTIONS}/Aquifer.Adopt"), json!({})), args)
}

/// Reads a declaration from a file or standard input.
fn declaration(path: &Path) -> Result<Value, Failure> {
    let shown = path.display();
    let unread = |error: io::Error| failed(format!("{shown}: {error}; name a file that can be read"));
    let input: Box<dyn Read> = match path.as_os_str() == "-" {
        true => Box::new(io::stdin()),
        false => Box::new(File::open(path).map_err(unread)?),
    };
    let mut text = Vec::new();
    input.take(DECLARATION_BYTES_MAX + 1).read_to_end(&mut text).map_err(unread)?;
    if text.len() as u64 > DECLARATION_BYTES_MAX {
        return Err(failed(format!("{shown} has more than {DECLARATION_BYTES_MAX} bytes; divide it")));
    }
    let PlainJson(value) = serde_json::from_slice(&text)
        .map_err(|error| usage(format!("{shown} is not JSON: {error}; begin with what 'export' prints")))?;
    match value.is_object() {
        true => Ok(json!({ "Declaration": value })),
        false => Err(usage(format!("{shown} is not one JSON object; begin with what 'export' prints"))),
    }
}

pub(crate) fn apply(session: &mut Session<'_>, args: &Apply) -> Result<(), Failure> {
    let body = declaration(&args.file)?;
    order(session, Request::post(&format!("{ACTIONS}/Aquifer.Apply"), body), args.dry_run)
}

pub(crate) fn plan(session: &mut Session<'_>, args: &Compare) -> Result<(), Failure> {
    let answer = session.client.ask(&Request::post(PLANS, declaration(&args.file)?))?.body;
    session.show(&answer, plan_text)
}

/// Shows only the changes. Returns whether there are any.
pub(crate) fn diff(session: &mut Session<'_>, args: &Compare) -> Result<bool, Failure> {
    let answer = session.client.ask(&Request::post(PLANS, declaration(&args.file)?))?.body;
    session.show(&answer, changes_text)?;
    Ok(answer["Changes"].as_array().is_some_and(|changes| !changes.is_empty()))
}
