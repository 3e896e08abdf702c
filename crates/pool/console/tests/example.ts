// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

// A pool for tests: resources as the manager answers them, and what is read from them.

import type { End, Pool, Volume } from "../src/model/pool";

const FABRIC = "/redfish/v1/Fabrics/Aquifer";
const POOLS = "/redfish/v1/Chassis/Pools/MemoryDomains";

export function donor(number: number, more: Partial<End> = {}): End {
  const name = `d${String(number).padStart(4, "0")}`;
  return {
    id: `Donor.${name}`,
    kind: "donor",
    name,
    health: "answers",
    enclosure: `shelf${Math.floor(number / 8)}`,
    isDraining: false,
    isDeclaredGone: false,
    volumes: 0,
    capacity: 2 ** 38,
    lent: 0,
    promised: 0,
    ...more,
  };
}

export function host(number: number, more: Partial<End> = {}): End {
  const name = `h${String(number).padStart(3, "0")}`;
  return { ...donor(number), id: `Host.${name}`, kind: "host", name, enclosure: "chassis0", capacity: null, ...more };
}

export function volume(name: string, more: Partial<Volume> = {}): Volume {
  return {
    name,
    pool: "main",
    zone: "lab",
    class: "tcp",
    redundancy: "none",
    size: 2 ** 33,
    host: null,
    state: "unbound",
    leaving: 0,
    members: [{ end: "Donor.d0000", size: 2 ** 33, span: 1 }],
    ...more,
  };
}

export function pool(donors: number, hosts: number, more: Partial<Pool> = {}): Pool {
  const ends = [
    ...Array.from({ length: donors }, (_, number) => donor(number)),
    ...Array.from({ length: hosts }, (_, number) => host(number)),
  ];
  const racks = new Map(ends.map((end, index) => [end.enclosure, `rack${Math.floor(index / 64)}`]));
  const names = ends.filter((end) => end.kind === "donor").map((end) => end.name);
  return {
    ends,
    switches: [],
    pools: [{ name: "main", capacity: donors * 2 ** 38, donors: names, devices: [] }],
    zones: [{ name: "lab", quota: 2 ** 40, used: 0, hosts: ["h000", "h001"] }],
    volumes: [],
    racks,
    ...more,
  };
}

/** What the manager answers, by path: enough for every page. */
export function answers(): Record<string, unknown> {
  const members = (list: unknown[]) => ({ Members: list, "Members@odata.count": list.length });
  const link = (path: string) => ({ "@odata.id": path });
  const place = { Oem: { Aquifer: { Chassis: link("/redfish/v1/Chassis/shelf0") } } };
  const chunk = {
    "@odata.etag": '"abc"',
    Id: "db",
    Status: { State: "Enabled", Health: "OK" },
    Oem: {
      Aquifer: {
        VolumeId: 7,
        Host: "h000",
        Spec: { size: "8GiB", pool: "main", zone: "lab", class: "tcp", redundancy: { mirror: { copies: 2 } } },
        Members: [{ Member: 1, Span: 1, Shard: 0, Size: "8GiB", Source: link(`${FABRIC}/Endpoints/Donor.d0000`) }],
        Leaving: 0,
      },
    },
  };
  return {
    "/redfish/v1/Oem/Aquifer": {
      ...{ Term: 1, Rounds: 9, Version: 3, Capacity: "256GiB", Lent: "16GiB", IsSettled: true },
      ...{ Donors: { Answering: 1, All: 1 }, Hosts: { Answering: 1, All: 1 }, Devices: { Answering: 0, All: 0 } },
      ...{ Volumes: { All: 1, Bound: 1, Unsettled: 0 }, Steps: { Due: 0, Sent: 12, Failed: 0 } },
      ...{ Waiting: [], Strays: [], Unrepaired: [] },
    },
    [`${FABRIC}/Endpoints?$expand=.`]: members([
      {
        ...{ Id: "Donor.d0000", Name: "d0000", Status: { State: "Enabled" }, Links: place },
        Oem: { Aquifer: { Kind: "Donor", Capacity: "256GiB", Lent: "16GiB", Promised: "16GiB", IsDraining: false } },
      },
      {
        ...{ Id: "Host.h000", Name: "h000", Status: { State: "Enabled" }, Links: place },
        Oem: { Aquifer: { Kind: "Host", Volumes: 1, IsDeclaredGone: false } },
      },
    ]),
    [`${FABRIC}/Zones?$expand=.`]: members([
      {
        ...{ Id: "lab", Links: { Endpoints: [link(`${FABRIC}/Endpoints/Host.h000`)] } },
        Oem: { Aquifer: { Quota: "500GiB", Used: "16GiB" } },
      },
    ]),
    [`${FABRIC}/Switches?$expand=.`]: members([]),
    "/redfish/v1/Chassis?$expand=.": members([
      { Id: "Pools" },
      { Id: "shelf0", Location: { Placement: { Rack: "rack0" } } },
    ]),
    [`${POOLS}?$expand=.`]: members([
      { Id: "main", MemorySizeMiB: 262_144, Oem: { Aquifer: { Donors: ["d0000"], Devices: [] } } },
    ]),
    [`${POOLS}/main/MemoryChunks?$expand=.`]: members([chunk]),
    [`${POOLS}/main/MemoryChunks/db`]: chunk,
    "/redfish/v1/TaskService/Tasks?$expand=.": members([
      {
        ...{ Id: "1", Name: "bind volume db to host h000", TaskState: "Running", PercentComplete: 40 },
        ...{ StartTime: "2026-01-01T00:00:00Z", EndTime: null, Oem: { Aquifer: { Who: "admin", VolumeId: 7 } } },
      },
    ]),
  };
}
