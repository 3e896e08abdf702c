// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

// Finds and groups hosts, donors and devices: by what a person types, and by where they are or whom they serve. Pure.

import type { Bytes } from "./bytes";
import { share } from "./bytes";
import type { End, Pool, Volume } from "./pool";

export const GROUPINGS = ["enclosure", "rack", "pool", "zone"] as const;
export type Grouping = (typeof GROUPINGS)[number];

export interface Group {
  readonly key: string;
  readonly title: string;
  readonly ends: readonly End[];
  readonly capacity: Bytes;
  readonly promised: Bytes;
  readonly unhealthy: number;
}

/** The state of an end in a word, as tables and pictures say it. */
export function stateOf(end: End): string {
  if (end.isDeclaredGone) {
    return "declared gone";
  }
  if (end.isDraining || end.health === "draining") {
    return "draining";
  }
  return { answers: "answers", silent: "silent", unknown: "not seen yet" }[end.health];
}

export function isUnhealthy(end: End): boolean {
  return end.isDeclaredGone || end.health === "silent" || end.health === "unknown";
}

/** How full it is, from 0 to 1. */
export function fullness(end: End): number {
  return share(Math.max(end.promised, end.lent), end.capacity ?? 0);
}

/** Compares names so that numbers in them count: d2 is before d10. */
const collator = new Intl.Collator("en", { numeric: true });
export function byName(a: string, b: string): number {
  return collator.compare(a, b);
}

/** The words of a search, each of which must be found. */
function terms(search: string): string[] {
  return search.toLowerCase().split(/\s+/).filter(Boolean);
}

export function matches(search: string, ...texts: string[]): boolean {
  const text = texts.join(" ").toLowerCase();
  return terms(search).every((term) => text.includes(term));
}

/** The ends that a search finds, by name, kind, place or state. */
export function searchEnds(pool: Pool, search: string): End[] {
  const isFound = (end: End) => {
    const rack = pool.racks.get(end.enclosure) ?? "";
    return matches(search, end.name, end.kind, end.enclosure, rack, stateOf(end), isUnhealthy(end) ? "unhealthy" : "");
  };
  return pool.ends.filter(isFound);
}

/** Volumes by the ends that hold their members. */
export function volumesByEnd(volumes: readonly Volume[]): Map<string, Volume[]> {
  const found = new Map<string, Volume[]>();
  for (const volume of volumes) {
    for (const end of new Set(volume.members.map((member) => member.end))) {
      const list = found.get(end);
      if (list) {
        list.push(volume);
      } else {
        found.set(end, [volume]);
      }
    }
  }
  return found;
}

/** What an end belongs to, under a grouping. */
function keyer(pool: Pool, grouping: Grouping): (end: End) => string {
  switch (grouping) {
    case "enclosure":
      return (end) => end.enclosure;
    case "rack":
      return (end) => pool.racks.get(end.enclosure) ?? "no rack";
    case "pool": {
      const pools = new Map<string, string>();
      for (const one of pool.pools) {
        one.donors.forEach((name) => pools.set(`Donor.${name}`, one.name));
        one.devices.forEach((name) => pools.set(`Device.${name}`, one.name));
      }
      return (end) => pools.get(end.id) ?? "in no pool";
    }
    case "zone": {
      const volumes = volumesByEnd(pool.volumes);
      return (end) => {
        const zones = new Set((volumes.get(end.id) ?? []).map((volume) => volume.zone));
        return zones.size === 0 ? "used by no zone" : [...zones].sort(byName).join(" and ");
      };
    }
  }
}

/** Groups ends, in the order of their names. */
export function groupEnds(pool: Pool, ends: readonly End[], grouping: Grouping): Group[] {
  const key = keyer(pool, grouping);
  const groups = new Map<string, End[]>();
  for (const end of ends) {
    const name = key(end);
    const list = groups.get(name);
    if (list) {
      list.push(end);
    } else {
      groups.set(name, [end]);
    }
  }
  const title = (name: string) => {
    const rack = grouping === "enclosure" ? pool.racks.get(name) : undefined;
    return rack ? `${name}, ${rack}` : name;
  };
  return [...groups]
    .sort(([a], [b]) => byName(a, b))
    .map(([name, members]) => ({
      key: name,
      title: title(name),
      ends: members.sort((a, b) => byName(a.name, b.name)),
      capacity: members.reduce((sum, end) => sum + (end.capacity ?? 0), 0),
      promised: members.reduce((sum, end) => sum + Math.max(end.promised, end.lent), 0),
      unhealthy: members.filter(isUnhealthy).length,
    }));
}
