// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

// What a person can do to a pool: as a request of the interface, and as the command that does the same. Pure.

import type { Request } from "../api/client";
import { mebibytes } from "./bytes";
import type { Role } from "./pool";

const POOLS = "/redfish/v1/Chassis/Pools/MemoryDomains";
const FABRIC = "/redfish/v1/Fabrics/Aquifer";
/** Where the command line looks for a manager if nobody says otherwise. */
const USUAL_ORIGIN = "http://127.0.0.1:7443";
/** The authority of the pool, in the directory from which the command is run. */
const USUAL_AUTHORITY = "ca.pem";

export interface Creation {
  readonly volume: string;
  readonly size: string;
  readonly pool: string;
  readonly zone: string;
  readonly class: string;
  readonly redundancy: string;
  readonly spread: string;
  readonly width: number;
}

interface OfVolume {
  readonly volume: string;
  readonly pool: string;
}

export type Act =
  | ({ readonly kind: "create" } & Creation)
  | ({ readonly kind: "bind"; readonly host: string } & OfVolume)
  | ({ readonly kind: "unbind" } & OfVolume)
  | ({ readonly kind: "grow" | "shrink"; readonly size: string } & OfVolume)
  | ({ readonly kind: "move"; readonly off: string | null } & OfVolume)
  | ({ readonly kind: "release"; readonly unbinds: boolean } & OfVolume)
  | { readonly kind: "drain"; readonly donor: string; readonly undo: boolean }
  | { readonly kind: "declare-gone"; readonly of: "donor" | "host"; readonly name: string };

export type ActKind = Act["kind"];

/** Who may do it. The manager checks it again. */
export function roleFor(kind: ActKind): Role {
  return kind === "declare-gone" ? "Administrator" : "Operator";
}

/** Whether bytes are lost by it. */
export function losesBytes(kind: ActKind): boolean {
  return kind === "release" || kind === "shrink" || kind === "declare-gone";
}

/** What it is, in a few words. */
export function titleOf(act: Act): string {
  switch (act.kind) {
    case "create":
      return act.volume ? `Create volume ${act.volume}` : "Create a volume";
    case "bind":
      return `Bind volume ${act.volume}`;
    case "unbind":
      return `Unbind volume ${act.volume}`;
    case "grow":
      return `Grow volume ${act.volume}`;
    case "shrink":
      return `Shrink volume ${act.volume}`;
    case "move":
      return `Move volume ${act.volume}`;
    case "release":
      return `Release volume ${act.volume}`;
    case "drain":
      return act.undo ? `Use donor ${act.donor} again` : `Drain donor ${act.donor}`;
    case "declare-gone":
      return `Declare ${act.of} ${act.name} gone`;
  }
}

function chunk(of: OfVolume): string {
  return `${POOLS}/${encodeURIComponent(of.pool)}/MemoryChunks/${encodeURIComponent(of.volume)}`;
}

/** The volume that an act changes, as a path; `null` if it changes none that exists. */
export function volumeOf(act: Act): string | null {
  return act.kind === "create" || act.kind === "drain" || act.kind === "declare-gone" ? null : chunk(act);
}

/** A redundancy as the interface writes it. */
function redundancyBody(text: string): unknown {
  const [kind, counts = ""] = text.split("=");
  const numbers = counts.split("+").map(Number);
  switch (kind) {
    case "mirror":
      return { mirror: { copies: numbers[0] } };
    case "parity":
      return { parity: { data: numbers[0], parity: numbers[1] } };
    default:
      return "none";
  }
}

function creation(act: Creation): Request {
  const ours = {
    zone: act.zone,
    class: act.class,
    redundancy: redundancyBody(act.redundancy),
    spread: act.spread,
    width: act.width,
  };
  const body = { Name: act.volume, MemoryChunkSizeMiB: mebibytes(act.size), Oem: { Aquifer: ours } };
  return { method: "POST", path: `${POOLS}/${encodeURIComponent(act.pool)}/MemoryChunks`, body };
}

/** The request that does it. */
export function requestOf(act: Act): Request {
  switch (act.kind) {
    case "create":
      return creation(act);
    case "bind": {
      const body = {
        MemoryChunkInfo: [{ MemoryChunk: { "@odata.id": chunk(act) } }],
        Links: { InitiatorEndpoints: [{ "@odata.id": `${FABRIC}/Endpoints/Host.${act.host}` }] },
      };
      return { method: "POST", path: `${FABRIC}/Connections`, body };
    }
    case "unbind":
      return { method: "DELETE", path: `${FABRIC}/Connections/${encodeURIComponent(act.volume)}` };
    case "grow":
    case "shrink":
      return { method: "PATCH", path: chunk(act), body: { MemoryChunkSizeMiB: mebibytes(act.size) } };
    case "move": {
      const path = `${chunk(act)}/Actions/Oem/AquiferMemoryChunk.Move`;
      return { method: "POST", path, body: act.off === null ? {} : { Donor: act.off } };
    }
    case "release":
      return { method: "DELETE", path: chunk(act), ...(act.unbinds ? { unbinds: true } : {}) };
    case "drain": {
      const path = `${FABRIC}/Endpoints/Donor.${encodeURIComponent(act.donor)}/Actions/Oem/AquiferEndpoint.Drain`;
      return { method: "POST", path, body: { Draining: !act.undo } };
    }
    case "declare-gone": {
      const end = `${act.of === "host" ? "Host" : "Donor"}.${encodeURIComponent(act.name)}`;
      return { method: "POST", path: `${FABRIC}/Endpoints/${end}/Actions/Oem/AquiferEndpoint.DeclareGone`, body: {} };
    }
  }
}

/** A word as a shell reads it. */
function quoted(word: string): string {
  return /^[A-Za-z0-9_.:=+/-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;
}

/** The words after `aquifer fabric`. */
function words(act: Act): string[] {
  switch (act.kind) {
    case "create":
      return [
        ...["create", act.volume, "--size", act.size.trim(), "--zone", act.zone, "--class", act.class],
        ...(act.pool === "main" ? [] : ["--pool", act.pool]),
        ...(act.redundancy === "none" ? [] : ["--redundancy", act.redundancy]),
        ...(act.spread === "host" ? [] : ["--spread", act.spread]),
        ...(act.width === 1 ? [] : ["--width", String(act.width)]),
      ];
    case "bind":
      return ["bind", act.volume, act.host];
    case "grow":
    case "shrink":
      return [act.kind, act.volume, act.size.trim()];
    case "move":
      return ["move", act.volume, ...(act.off === null ? [] : ["--off", act.off])];
    case "unbind":
      return ["unbind", act.volume];
    case "release":
      return ["release", act.volume, ...(act.unbinds ? ["--unbind"] : [])];
    case "drain":
      return ["drain", act.donor, ...(act.undo ? ["--undo"] : [])];
    case "declare-gone":
      return ["declare-gone", act.of, act.name];
  }
}

/** A command line of `aquifer fabric` for the manager at an origin. */
export function commandLine(words: readonly string[], origin: string): string {
  const authority = origin.startsWith("https:") ? ["--ca", USUAL_AUTHORITY] : [];
  const where = origin === USUAL_ORIGIN ? [] : ["--url", origin, ...authority];
  return ["aquifer", "fabric", ...words, ...where].map(quoted).join(" ");
}

/** The command that does the same. */
export function commandOf(act: Act, origin: string): string {
  return commandLine(words(act), origin);
}
