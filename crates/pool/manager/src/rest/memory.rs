// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Volumes as memory chunks of memory domains, which are pools, and their bindings as connections.
//!
//! Reads come from a snapshot. A change becomes an order for the writer (`order.rs`), the next on its path.

use std::collections::BTreeMap;

use aquifer_fabric::{
    Bytes, DonorId, HostId, PoolId, Source, Volume, VolumeId, VolumeName, VolumeSpec, is_at_host, leaving_hosts,
};
use serde_json::{Value, json};

use super::answer::{Answer, Problem};
use super::body::{linked, mebibytes, parsed};
use super::collection::collection;
use super::oem::plan_body;
use super::service::Call;
use crate::order::{Act, etag};
use crate::writer::Done;

const POOLS: &str = "/redfish/v1/Chassis/Pools/MemoryDomains";
const CONNECTIONS: &str = "/redfish/v1/Fabrics/Aquifer/Connections";
const RELEASED: &str = "/redfish/v1/Oem/Aquifer/ReleasedVolumes";
const ENDPOINTS: &str = "/redfish/v1/Fabrics/Aquifer/Endpoints";

fn link(path: String) -> Value {
    json!({ "@odata.id": path })
}

fn pool_body(call: &Call<'_>, name: &str) -> Option<Value> {
    let id: PoolId = name.parse().ok()?;
    let pool = call.snapshot.desired.pools.get(&id)?;
    let reports = pool.donors.iter().filter_map(|donor| call.snapshot.observed.donors.get(donor));
    let capacity: Bytes = reports.map(|report| report.capacity).sum();
    Some(json!({
        "@odata.id": format!("{POOLS}/{name}"), "@odata.type": "#MemoryDomain.v1_5_1.MemoryDomain", "Id": name,
        "Name": "Pool", "AllowsMemoryChunkCreation": true, "MemoryChunkIncrementMiB": 2, "MinMemoryChunkSizeMiB": 2,
        "MemorySizeMiB": capacity.0 >> 20, "MemoryChunks": link(format!("{POOLS}/{name}/MemoryChunks")),
        "Oem": { "Aquifer": { "Donors": pool.donors, "Devices": pool.devices, "OvercommitPercent": pool.overcommit_percent } },
    }))
}

pub(super) fn pools(call: &Call<'_>) -> Result<Answer, Problem> {
    let ids: Vec<String> = call.snapshot.desired.pools.keys().map(ToString::to_string).collect();
    Ok(Answer::of(
        200,
        collection(POOLS, "MemoryDomainCollection", "Pools", &call.query, &ids, |id| pool_body(call, id)),
    ))
}

pub(super) fn pool(call: &Call<'_>) -> Result<Answer, Problem> {
    pool_body(call, call.name()).map(|body| Answer::of(200, body)).ok_or_else(|| Problem::not_found(call.path))
}

fn found<'a>(call: &'a Call<'_>, name: &str) -> Option<(VolumeId, &'a Volume)> {
    call.snapshot.desired.volume_named(&name.parse::<VolumeName>().ok()?)
}

/// Maps names to volumes, for collections: a search for each name would pass over all volumes.
fn by_name<'a>(call: &'a Call<'_>, is_wanted: impl Fn(&Volume) -> bool) -> BTreeMap<&'a str, (VolumeId, &'a Volume)> {
    let wanted = call.snapshot.desired.volumes.iter().filter(|(_, volume)| !volume.released && is_wanted(volume));
    wanted.map(|(id, volume)| (volume.name.as_str(), (*id, volume))).collect()
}

fn volume_body(call: &Call<'_>, (id, volume): (VolumeId, &Volume)) -> Value {
    let name = &volume.name;
    let path = format!("{POOLS}/{}/MemoryChunks/{name}", volume.spec.pool);
    let state = match (&volume.host, call.snapshot.is_settled(id)) {
        (None, true) => "StandbyOffline",
        (Some(_), true) => "Enabled",
        (_, false) => "Updating",
    };
    let members: Vec<Value> = volume
        .places()
        .map(|(place, member)| {
            let source = match &member.source {
                Source::Slabs { donor } => format!("{ENDPOINTS}/Donor.{donor}"),
                Source::DynamicCapacity { device } | Source::LogicalDevice { device, .. } => {
                    format!("{ENDPOINTS}/Device.{device}")
                }
            };
            json!({ "Member": member.id, "Span": place.span, "Shard": place.shard, "Size": member.bytes,
                    "Source": link(source) })
        })
        .collect();
    let endpoints: Vec<Value> = volume.host.iter().map(|host| link(format!("{ENDPOINTS}/Host.{host}"))).collect();
    let connection = volume.host.as_ref().map(|_| link(format!("{CONNECTIONS}/{name}")));
    let (desired, observed) = (&call.snapshot.desired, &call.snapshot.observed);
    json!({
        "@odata.id": path, "@odata.type": "#MemoryChunks.v1_6_2.MemoryChunks", "@odata.etag": etag(volume),
        "Id": name, "Name": name, "AddressRangeType": "Volatile", "MemoryChunkSizeMiB": volume.spec.size.0 >> 20,
        "MediaLocation": "Remote", "Status": { "State": state, "Health": "OK" },
        "Links": { "Endpoints": endpoints },
        "Actions": { "Oem": { "#AquiferMemoryChunk.Move":
            { "target": format!("{path}/Actions/Oem/AquiferMemoryChunk.Move") } } },
        "Oem": { "Aquifer": { "VolumeId": id, "Host": volume.host, "Spec": volume.spec, "Members": members,
                              "IsAtHost": is_at_host(desired, observed, id, volume),
                              "LeavingHosts": leaving_hosts(desired, observed, id, volume),
                              "Leaving": volume.leaving.len(), "Connection": connection } },
    })
}

/// Returns the body of a volume that was released. Its id names it, since another volume may have its name by now.
fn released_body(call: &Call<'_>, id: VolumeId) -> Option<Value> {
    let (desired, observed) = (&call.snapshot.desired, &call.snapshot.observed);
    let volume = desired.volumes.get(&id).filter(|volume| volume.released)?;
    Some(json!({
        "@odata.id": format!("{RELEASED}/{id}"), "Id": id, "Name": volume.name,
        "@odata.type": "#AquiferReleasedVolume.v1_0_0.AquiferReleasedVolume",
        "Status": { "State": "Updating", "Health": "OK" },
        "Oem": { "Aquifer": { "VolumeId": id, "Spec": volume.spec, "Leaving": volume.leaving.len(),
                              "LeavingHosts": leaving_hosts(desired, observed, id, volume) } },
    }))
}

pub(super) fn released_volumes(call: &Call<'_>) -> Result<Answer, Problem> {
    let volumes = &call.snapshot.desired.volumes;
    let released = volumes.ending().filter(|id| volumes.get(id).is_some_and(|volume| volume.released));
    let ids: Vec<String> = released.map(|id| id.to_string()).collect();
    let body = |id: &str| released_body(call, VolumeId::try_from(id.to_owned()).ok()?);
    let kind = "AquiferReleasedVolumeCollection";
    Ok(Answer::of(200, collection(RELEASED, kind, "Released volumes", &call.query, &ids, body)))
}

pub(super) fn released_volume(call: &Call<'_>) -> Result<Answer, Problem> {
    let id = VolumeId::try_from(call.name().to_owned()).ok();
    let body = id.and_then(|id| released_body(call, id)).ok_or_else(|| Problem::not_found(call.path))?;
    Ok(Answer::of(200, body))
}

/// Refuses a volume that is not in the pool of the path.
fn check_pool(call: &Call<'_>) -> Result<VolumeName, Problem> {
    let volume = found(call, call.name()).filter(|(_, volume)| volume.spec.pool.as_str() == call.names[0]);
    volume.map(|(_, volume)| volume.name.clone()).ok_or_else(|| Problem::not_found(call.path))
}

pub(super) fn volumes(call: &Call<'_>) -> Result<Answer, Problem> {
    let pool: PoolId = call.named()?;
    if !call.snapshot.desired.pools.contains_key(&pool) {
        return Err(Problem::not_found(call.path));
    }
    let wanted = by_name(call, |volume| volume.spec.pool == pool);
    let ids: Vec<String> = wanted.keys().map(|name| (*name).to_owned()).collect();
    let body = |id: &str| wanted.get(id).map(|found| volume_body(call, *found));
    let path = format!("{POOLS}/{pool}/MemoryChunks");
    Ok(Answer::of(200, collection(&path, "MemoryChunksCollection", "Volumes", &call.query, &ids, body)))
}

pub(super) fn volume(call: &Call<'_>) -> Result<Answer, Problem> {
    let name = check_pool(call)?;
    let found = found(call, name.as_str()).ok_or_else(|| Problem::not_found(call.path))?;
    let body = volume_body(call, found);
    let tag = body["@odata.etag"].as_str().unwrap_or_default().to_owned();
    Ok(Answer::of(200, body).with("etag", tag))
}

/// Returns the answer to an order: what was done, or for a dry run what would be.
fn answered(call: &Call<'_>, status: u16, done: &Done, location: Option<String>) -> Answer {
    if call.is_dry_run() {
        return Answer::of(200, plan_body(done));
    }
    let answer = Answer::of(status, plan_body(done));
    location.into_iter().fold(answer, |answer, location| answer.with("location", location))
}

pub(super) fn create(call: &Call<'_>) -> Result<Answer, Problem> {
    let pool: PoolId = call.named()?;
    let name: VolumeName =
        parsed(&call.body, "Name")?.ok_or_else(|| Problem::value("Name", "it is empty; send one"))?;
    let size = mebibytes(&call.body, "MemoryChunkSizeMiB")?;
    let mut spec = call.body.get("Oem").and_then(|oem| oem.get("Aquifer")).cloned().unwrap_or_default();
    let Some(map) = spec.as_object_mut() else {
        return Err(Problem::value("Oem.Aquifer", "it is missing; send at least zone and class"));
    };
    map.insert("size".into(), size.to_string().into());
    map.insert("pool".into(), pool.to_string().into());
    let spec: VolumeSpec = serde_json::from_value(spec)
        .map_err(|error| Problem::value("Oem.Aquifer", format!("{error}; see docs/fabric.md")))?;
    if !call.snapshot.desired.zones.contains_key(&spec.zone) {
        return Err(Problem::value("Oem.Aquifer.zone", format!("there is no zone {}; apply one first", spec.zone)));
    }
    let done = call.order(Act::Create(name.clone(), Box::new(spec)), call.is_dry_run())?;
    Ok(answered(call, 201, &done, Some(format!("{POOLS}/{pool}/MemoryChunks/{name}"))))
}

pub(super) fn resize(call: &Call<'_>) -> Result<Answer, Problem> {
    let size = mebibytes(&call.body, "MemoryChunkSizeMiB")?;
    let done = call.order(Act::Resize(check_pool(call)?, size), call.is_dry_run())?;
    Ok(answered(call, 200, &done, None))
}

pub(super) fn release(call: &Call<'_>) -> Result<Answer, Problem> {
    let done = call.order(Act::Release(check_pool(call)?, call.unbinds()), call.is_dry_run())?;
    Ok(answered(call, 200, &done, None))
}

pub(super) fn move_volume(call: &Call<'_>) -> Result<Answer, Problem> {
    let donor: Option<DonorId> = parsed(&call.body, "Donor")?;
    let done = call.order(Act::Move(check_pool(call)?, donor), call.is_dry_run())?;
    Ok(answered(call, 200, &done, None))
}

fn connection_body(call: &Call<'_>, (id, volume): (VolumeId, &Volume)) -> Option<Value> {
    let name = &volume.name;
    let host = volume.host.as_ref()?;
    let chunk = link(format!("{POOLS}/{}/MemoryChunks/{name}", volume.spec.pool));
    let state = if call.snapshot.is_settled(id) { "Enabled" } else { "Updating" };
    Some(json!({
        "@odata.id": format!("{CONNECTIONS}/{name}"), "@odata.type": "#Connection.v1_3_2.Connection",
        "@odata.etag": etag(volume), "Id": name, "Name": name, "ConnectionType": "Memory",
        "Status": { "State": state, "Health": "OK" },
        "MemoryChunkInfo": [{ "AccessCapabilities": ["Read", "Write"], "AccessState": "Optimized", "MemoryChunk": chunk }],
        "Links": { "InitiatorEndpoints": [link(format!("{ENDPOINTS}/Host.{host}"))] },
    }))
}

pub(super) fn connections(call: &Call<'_>) -> Result<Answer, Problem> {
    let bound = by_name(call, |volume| volume.host.is_some());
    let ids: Vec<String> = bound.keys().map(|name| (*name).to_owned()).collect();
    let body = |id: &str| bound.get(id).and_then(|found| connection_body(call, *found));
    Ok(Answer::of(200, collection(CONNECTIONS, "ConnectionCollection", "Bindings", &call.query, &ids, body)))
}

pub(super) fn connection(call: &Call<'_>) -> Result<Answer, Problem> {
    let body = found(call, call.name()).and_then(|found| connection_body(call, found));
    let body = body.ok_or_else(|| Problem::not_found(call.path))?;
    let tag = body["@odata.etag"].as_str().unwrap_or_default().to_owned();
    Ok(Answer::of(200, body).with("etag", tag))
}

pub(super) fn bind(call: &Call<'_>) -> Result<Answer, Problem> {
    let one = |value: Option<&Value>, what: &str| match value.and_then(Value::as_array).map(Vec::as_slice) {
        Some([one]) => Ok(one.clone()),
        _ => Err(Problem::value(what, "it does not have exactly one entry; send one")),
    };
    let chunk = one(call.body.get("MemoryChunkInfo"), "MemoryChunkInfo")?;
    let chunk = chunk.get("MemoryChunk").cloned().unwrap_or_default();
    let rest = linked(&chunk, &format!("{POOLS}/"))?;
    let name = rest.split_once("/MemoryChunks/").map_or(rest, |(_, name)| name);
    let volume: VolumeName = name.parse().map_err(|error| Problem::value("MemoryChunk", error))?;
    let endpoints = call.body.get("Links").and_then(|links| links.get("InitiatorEndpoints"));
    let endpoint = one(endpoints, "Links.InitiatorEndpoints")?;
    let host = linked(&endpoint, &format!("{ENDPOINTS}/Host."))?;
    let host: HostId = host.parse().map_err(|error| Problem::value("InitiatorEndpoints", error))?;
    let done = call.order(Act::Bind(volume.clone(), host), call.is_dry_run())?;
    Ok(answered(call, 201, &done, Some(format!("{CONNECTIONS}/{volume}"))))
}

pub(super) fn unbind(call: &Call<'_>) -> Result<Answer, Problem> {
    let bound = found(call, call.name()).filter(|(_, volume)| volume.host.is_some());
    bound.ok_or_else(|| Problem::not_found(call.path))?;
    let done = call.order(Act::Unbind(call.named()?), call.is_dry_run())?;
    Ok(answered(call, 200, &done, None))
}

#[cfg(test)]
mod tests;
