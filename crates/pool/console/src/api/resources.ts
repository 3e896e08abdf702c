// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

// The manager's resources as they are read: one function for each kind.

import { Unexpected, type Reader } from "../model/reader";
import {
  ROLES,
  type Account,
  type End,
  type EndKind,
  type Faults,
  type Health,
  type Member,
  type MemoryPool,
  type Plan,
  type PoolEvent,
  type Port,
  type Role,
  type Status,
  type Switch,
  type Task,
  type Volume,
  type VolumeState,
  type Zone,
} from "../model/pool";
import type { AuditRecord, Tail } from "../model/audit";

const KINDS: Readonly<Record<string, EndKind>> = { Host: "host", Donor: "donor", Device: "device" };
const HEALTH: Readonly<Record<string, Health>> = {
  Absent: "unknown",
  Enabled: "answers",
  Quiesced: "draining",
  UnavailableOffline: "silent",
};
const STATES: Readonly<Record<string, VolumeState>> = {
  Enabled: "bound",
  StandbyOffline: "unbound",
  Updating: "changing",
};

/** One of some words. */
function among<T>(reader: Reader, words: Readonly<Record<string, T>>): T {
  const word = reader.text();
  const found = Object.hasOwn(words, word) ? words[word] : undefined;
  if (found === undefined) {
    throw new Unexpected(JSON.stringify(word), Object.keys(words).join(" or "));
  }
  return found;
}

export function readEnd(body: Reader): End {
  const ours = body.at("Oem", "Aquifer");
  const size = (name: string) => ours.at(name).maybe((reader) => reader.size()) ?? 0;
  const flag = (name: string) => ours.at(name).maybe((reader) => reader.boolean()) ?? false;
  return {
    id: body.at("Id").text(),
    kind: among(ours.at("Kind"), KINDS),
    name: body.at("Name").text(),
    health: among(body.at("Status", "State"), HEALTH),
    enclosure: body.at("Links", "Oem", "Aquifer", "Chassis").linked(),
    isDraining: flag("IsDraining"),
    isDeclaredGone: flag("IsDeclaredGone"),
    volumes: ours.at("Volumes").maybe((reader) => reader.number()) ?? 0,
    capacity: ours.at("Capacity").maybe((reader) => reader.size()),
    lent: size("Lent"),
    promised: size("Promised"),
  };
}

function readMember(body: Reader): Member {
  return { end: body.at("Source").linked(), size: body.at("Size").size(), span: body.at("Span").number() };
}

/** A redundancy as the command line writes it. */
function redundancy(body: Reader): string {
  const mirror = body.at("mirror", "copies");
  const parity = body.at("parity");
  if (!mirror.isMissing) {
    return `mirror=${mirror.number()}`;
  }
  return parity.isMissing ? body.text() : `parity=${parity.at("data").number()}+${parity.at("parity").number()}`;
}

export function readVolume(body: Reader): Volume {
  const ours = body.at("Oem", "Aquifer");
  const spec = ours.at("Spec");
  return {
    name: body.at("Id").text(),
    pool: spec.at("pool").text(),
    zone: spec.at("zone").text(),
    class: spec.at("class").text(),
    redundancy: redundancy(spec.at("redundancy")),
    size: spec.at("size").size(),
    host: ours.at("Host").maybe((reader) => reader.text()),
    state: among(body.at("Status", "State"), STATES),
    leaving: ours.at("Leaving").number(),
    members: ours.at("Members").list(readMember),
  };
}

export function readPool(body: Reader): MemoryPool {
  const ours = body.at("Oem", "Aquifer");
  return {
    name: body.at("Id").text(),
    capacity: body.at("MemorySizeMiB").number() * 2 ** 20,
    donors: ours.at("Donors").list((one) => one.text()),
    devices: ours.at("Devices").list((one) => one.text()),
  };
}

export function readZone(body: Reader): Zone {
  const ours = body.at("Oem", "Aquifer");
  return {
    name: body.at("Id").text(),
    quota: ours.at("Quota").size(),
    used: ours.at("Used").size(),
    hosts: body.at("Links", "Endpoints").list((one) => one.linked().replace(/^Host\./, "")),
  };
}

/** An enclosure and its rack; the chassis that stands for the pools has none. */
export function readEnclosure(body: Reader): [string, string] {
  const rack = body.at("Location", "Placement", "Rack").maybe((reader) => reader.text());
  return [body.at("Id").text(), rack ?? ""];
}

export function readSwitch(body: Reader): Omit<Switch, "ports"> {
  return {
    name: body.at("Id").text(),
    enclosure: body.at("Links", "Chassis").linked(),
    vppbs: body.at("CXL", "TotalNumbervPPBs").number(),
    vppbsBound: body.at("CXL", "NumberOfBoundvPPBs").number(),
  };
}

export function readPort(body: Reader): Port {
  return {
    id: body.at("PortId").text(),
    isUpstream: body.at("PortType").text() === "UpstreamPort",
    end: body.at("Links", "AssociatedEndpoints").list((one) => one.linked())[0] ?? null,
  };
}

function readFaults(body: Reader): Faults {
  const time = (name: string) => body.at(name).maybe((reader) => reader.number());
  return {
    hosts: body.at("Hosts").number(),
    perSecond: body.at("PerSecond").number(),
    meanUs: time("MeanMicroseconds"),
    p99Us: time("P99Microseconds"),
  };
}

export function readStatus(body: Reader): Status {
  const count = (name: string) => ({
    answering: body.at(name, "Answering").number(),
    all: body.at(name, "All").number(),
  });
  const lines = (name: string) => body.at(name).list((one) => one.text());
  const [volumes, steps] = [body.at("Volumes"), body.at("Steps")];
  return {
    isSettled: body.at("IsSettled").boolean(),
    version: body.at("Version").number(),
    term: body.at("Term").number(),
    rounds: body.at("Rounds").number(),
    donors: count("Donors"),
    hosts: count("Hosts"),
    devices: count("Devices"),
    volumes: {
      all: volumes.at("All").number(),
      bound: volumes.at("Bound").number(),
      unsettled: volumes.at("Unsettled").number(),
    },
    capacity: body.at("Capacity").size(),
    lent: body.at("Lent").size(),
    steps: { due: steps.at("Due").number(), sent: steps.at("Sent").number(), failed: steps.at("Failed").number() },
    // Managers of an older version have none.
    faults: body.at("Faults").maybe(readFaults),
    waiting: lines("Waiting"),
    strays: lines("Strays"),
    unrepaired: lines("Unrepaired"),
  };
}

export function readTask(body: Reader): Task {
  return {
    id: Number(body.at("Id").text()),
    what: body.at("Name").text(),
    who: body.at("Oem", "Aquifer", "Who").text(),
    isDone: body.at("TaskState").text() === "Completed",
    percent: body.at("PercentComplete").number(),
    started: body.at("StartTime").text(),
    ended: body.at("EndTime").maybe((reader) => reader.text()),
  };
}

export function readPlan(body: Reader): Plan {
  const lines = (name: string) => body.at(name).list((one) => one.text());
  return {
    changes: lines("Changes"),
    // Managers of an older version have only the steps with the ids of volumes.
    steps: body.at("NamedSteps").maybe(() => lines("NamedSteps")) ?? lines("Steps"),
    remarks: lines("Remarks"),
    task: body.at("Task").maybe((reader) => reader.text()),
  };
}

/** The events of one message of the stream. */
export function readEvents(body: Reader): PoolEvent[] {
  return body.at("Events").list((one) => ({
    id: Number(one.at("EventId").text()),
    at: one.at("EventTimestamp").text(),
    kind: one.at("MessageId").text().split(".").at(-1) ?? "",
    severity: one.at("MessageSeverity").text(),
    message: one.at("Message").text(),
  }));
}

export function readAccount(body: Reader): Account {
  const words = Object.fromEntries(ROLES.map((role): [string, Role] => [role, role]));
  return {
    name: body.at("UserName").text(),
    role: among(body.at("RoleId"), words),
    isEnabled: body.at("Enabled").boolean(),
  };
}

export function readAudit(body: Reader): { records: AuditRecord[]; tail: Tail } {
  const records = body.at("Records").list((one) => ({
    sequence: one.at("sequence").number(),
    at: one.at("at").number(),
    who: one.at("who").text(),
    what: one.at("what").text(),
    before: one.at("before").text(),
    hash: one.at("hash").text(),
  }));
  const tail = body.at("Tail");
  return { records, tail: { records: tail.at("records").number(), hash: tail.at("hash").text() } };
}
