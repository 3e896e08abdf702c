// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

// Checks the audit log on this machine: the manager is not asked whether its own log is whole.
//
// A record's hash is the SHA-256 of its fields, as `crates/pool/fabric/src/audit.rs` says. The newest hash that was
// checked is kept by the page, so that records which vanish later are noticed, too.

export interface AuditRecord {
  readonly sequence: number;
  /** Milliseconds since 1970. */
  readonly at: number;
  readonly who: string;
  readonly what: string;
  readonly before: string;
  readonly hash: string;
}

/** The end of a log: how many records, and the hash of the last one. */
export interface Tail {
  readonly records: number;
  readonly hash: string;
}

export type Verdict =
  | { readonly kind: "whole"; readonly tail: Tail }
  | { readonly kind: "broken"; readonly at: number; readonly why: string };

const NO_HASH = "0".repeat(64);

/** The beginning of every log. */
export const START: Tail = { records: 0, hash: NO_HASH };

function number(value: number): Uint8Array {
  const bytes = new Uint8Array(8);
  new DataView(bytes.buffer).setBigUint64(0, BigInt(value), true);
  return bytes;
}

function unhex(text: string): Uint8Array {
  return Uint8Array.from(text.match(/[0-9a-f]{2}/g) ?? [], (pair) => parseInt(pair, 16));
}

/** The hash that a record should have. */
export async function digest(record: AuditRecord): Promise<string> {
  const encoder = new TextEncoder();
  const text = (value: string) => {
    const bytes = encoder.encode(value);
    return [number(bytes.length), bytes];
  };
  const parts = [
    number(record.sequence),
    number(record.at),
    ...text(record.who),
    ...text(record.what),
    unhex(record.before),
  ];
  const whole = new Uint8Array(parts.reduce((length, part) => length + part.length, 0));
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  const hash = new Uint8Array(await crypto.subtle.digest("SHA-256", whole));
  return Array.from(hash, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Checks the records that follow the known end of a log. Stops at the first wrong one. */
export async function verify(records: readonly AuditRecord[], known: Tail): Promise<Verdict> {
  let tail = known;
  for (const record of records) {
    const at = tail.records + 1;
    if (record.sequence !== at || record.before !== tail.hash) {
      return { kind: "broken", at, why: "it does not follow the one before it: a record was removed or replaced" };
    }
    if ((await digest(record)) !== record.hash) {
      return { kind: "broken", at, why: "it does not have its hash: it was changed" };
    }
    tail = { records: at, hash: record.hash };
  }
  return { kind: "whole", tail };
}

/** Compares an end that was checked earlier with the records that are there now. */
export function sinceEarlier(earlier: Tail | null, hashes: ReadonlyMap<number, string>): Verdict | null {
  if (!earlier || earlier.records === 0 || hashes.get(earlier.records) === earlier.hash) {
    return null;
  }
  return {
    kind: "broken",
    at: earlier.records,
    why: "this browser has seen another record here: the log was rewritten or cut",
  };
}
