// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

// What the console knows of a pool: the manager's resources, reduced to what pages show.

import type { Bytes } from "./bytes";

/** How a host, a donor or a device is. */
export type Health = "answers" | "draining" | "silent" | "unknown";

export type EndKind = "host" | "donor" | "device";

/** A host, a donor or a device. */
export interface End {
  /** The name of its endpoint, such as `Donor.d0001`. */
  readonly id: string;
  readonly kind: EndKind;
  readonly name: string;
  readonly health: Health;
  readonly enclosure: string;
  readonly isDraining: boolean;
  readonly isDeclaredGone: boolean;
  /** Volumes that are bound to it, of a host. */
  readonly volumes: number;
  /** Its memory; `null` for a host, and for an end that has not reported yet. */
  readonly capacity: Bytes | null;
  readonly lent: Bytes;
  /** What is reserved, lent, or on its way back. */
  readonly promised: Bytes;
}

export interface Port {
  readonly id: string;
  readonly isUpstream: boolean;
  /** The endpoint at its other end. */
  readonly end: string | null;
}

export interface Switch {
  readonly name: string;
  readonly enclosure: string;
  readonly vppbs: number;
  readonly vppbsBound: number;
  readonly ports: readonly Port[];
}

export interface Member {
  /** The endpoint that holds it. */
  readonly end: string;
  readonly size: Bytes;
  readonly span: number;
}

export type VolumeState = "bound" | "unbound" | "changing";

export interface Volume {
  readonly name: string;
  readonly pool: string;
  readonly zone: string;
  readonly class: string;
  readonly redundancy: string;
  readonly size: Bytes;
  readonly host: string | null;
  readonly state: VolumeState;
  readonly leaving: number;
  readonly members: readonly Member[];
}

export interface MemoryPool {
  readonly name: string;
  readonly capacity: Bytes;
  readonly donors: readonly string[];
  readonly devices: readonly string[];
}

export interface Zone {
  readonly name: string;
  readonly quota: Bytes;
  readonly used: Bytes;
  readonly hosts: readonly string[];
}

export interface Count {
  readonly answering: number;
  readonly all: number;
}

/** The faults of programs on the hosts, in the last seconds. */
export interface Faults {
  /** Hosts whose agents count them. */
  readonly hosts: number;
  readonly perSecond: number;
  /** How long they took, in microseconds; `null` if there were none. */
  readonly meanUs: number | null;
  /** The time within which 99 of 100 were resolved. */
  readonly p99Us: number | null;
}

export interface Status {
  readonly isSettled: boolean;
  readonly version: number;
  readonly term: number;
  readonly rounds: number;
  readonly donors: Count;
  readonly hosts: Count;
  readonly devices: Count;
  readonly volumes: { readonly all: number; readonly bound: number; readonly unsettled: number };
  readonly capacity: Bytes;
  readonly lent: Bytes;
  readonly steps: { readonly due: number; readonly sent: number; readonly failed: number };
  /** `null` if no host's agent counts faults. */
  readonly faults: Faults | null;
  readonly waiting: readonly string[];
  readonly strays: readonly string[];
  readonly unrepaired: readonly string[];
}

export interface Task {
  readonly id: number;
  readonly what: string;
  readonly who: string;
  readonly isDone: boolean;
  readonly percent: number;
  readonly started: string;
  readonly ended: string | null;
}

export interface PoolEvent {
  readonly id: number;
  readonly at: string;
  readonly kind: string;
  readonly severity: string;
  readonly message: string;
}

export interface Account {
  readonly name: string;
  readonly role: Role;
  readonly isEnabled: boolean;
}

/** Roles, each of which may do what those before it may. */
export const ROLES = ["ReadOnly", "Operator", "Administrator"] as const;
export type Role = (typeof ROLES)[number];

export function mayAct(role: Role, needed: Role): boolean {
  return ROLES.indexOf(role) >= ROLES.indexOf(needed);
}

/** Everything that the lists of the manager say. */
export interface Pool {
  readonly ends: readonly End[];
  readonly switches: readonly Switch[];
  readonly pools: readonly MemoryPool[];
  readonly zones: readonly Zone[];
  readonly volumes: readonly Volume[];
  /** The rack of each enclosure. */
  readonly racks: ReadonlyMap<string, string>;
}

export const EMPTY: Pool = { ends: [], switches: [], pools: [], zones: [], volumes: [], racks: new Map() };

/** The plan of a change: what would change, what would follow, what cannot be done. */
export interface Plan {
  readonly changes: readonly string[];
  readonly steps: readonly string[];
  readonly remarks: readonly string[];
  readonly task: string | null;
}
