// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

// How hot donors are: what of their memory was lent or came back lately, as this page has seen it. Pure.
//
// Donors do not report yet how often hosts read and write; what changes hands is what the manager knows.

import type { Bytes } from "./bytes";
import type { End } from "./pool";

/** A change counts half after so long. */
const HALF_LIFE_MS = 60_000;

export interface Heat {
  /** Bytes that changed hands, older ones counting less. */
  readonly moved: Bytes;
  readonly lent: Bytes;
  readonly at: number;
}

/** Learns from the newest lists. An end that is new has no past. */
export function warm(before: ReadonlyMap<string, Heat>, ends: readonly End[], at: number): Map<string, Heat> {
  const after = new Map<string, Heat>();
  for (const end of ends) {
    if (end.kind === "host") {
      continue;
    }
    const last = before.get(end.id);
    const kept = last ? last.moved * 0.5 ** ((at - last.at) / HALF_LIFE_MS) : 0;
    after.set(end.id, { moved: kept + (last ? Math.abs(end.lent - last.lent) : 0), lent: end.lent, at });
  }
  return after;
}

/** From 0, cold, to 3, hot: by the share of its capacity that changed hands. */
export function heatLevel(heat: Heat | undefined, capacity: Bytes | null): 0 | 1 | 2 | 3 {
  const moved = heat && capacity ? heat.moved / capacity : 0;
  if (moved < 0.001) {
    return 0;
  }
  return moved < 0.01 ? 1 : moved < 0.1 ? 2 : 3;
}

export const HEAT_WORDS = ["cold", "warm", "hot", "very hot"] as const;
