// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

// The audit log is checked by the page itself: what the manager has changed, removed or cut is noticed.

import { expect, test } from "vitest";

import { digest, sinceEarlier, START, verify, type AuditRecord } from "../src/model/audit";

async function log(count: number): Promise<AuditRecord[]> {
  const records: AuditRecord[] = [];
  let before = START.hash;
  for (let sequence = 1; sequence <= count; sequence += 1) {
    const record = {
      sequence,
      at: 1_700_000_000_000 + sequence,
      who: "oscar",
      what: `bind v${sequence} to ü`,
      before,
      hash: "",
    };
    records.push({ ...record, hash: await digest(record) });
    before = records[sequence - 1]?.hash ?? "";
  }
  return records;
}

test("a log that nobody touched is whole, in one part or several", async () => {
  const records = await log(5);
  const whole = await verify(records, START);
  expect(whole).toEqual({ kind: "whole", tail: { records: 5, hash: records[4]?.hash } });
  const first = await verify(records.slice(0, 2), START);
  expect(first.kind === "whole" && (await verify(records.slice(2), first.tail))).toEqual(whole);
  expect(await verify([], START)).toEqual({ kind: "whole", tail: START });
});

test("any changed field of any record breaks it there", async () => {
  const records = await log(4);
  for (const [index, record] of records.entries()) {
    for (const change of [
      { at: record.at + 1 },
      { who: "olga" },
      { what: "nothing" },
      { who: "oscarb", what: record.what.slice(1) },
    ]) {
      const changed = records.map((one, at) => (at === index ? { ...one, ...change } : one));
      expect(await verify(changed, START)).toMatchObject({ kind: "broken", at: index + 1 });
    }
  }
});

test("a record that was removed, doubled or made again breaks the link", async () => {
  const records = await log(4);
  for (const changed of [
    records.slice(1),
    records.toSpliced(1, 1),
    records.toSpliced(1, 0, records[0] as AuditRecord),
  ]) {
    expect((await verify(changed, START)).kind).toBe("broken");
  }
  const forged = { ...(records[1] as AuditRecord), what: "nothing" };
  const rehashed = records.with(1, { ...forged, hash: await digest(forged) });
  expect(await verify(rehashed, START)).toMatchObject({ kind: "broken", at: 3 });
});

test("a log that was cut or rewritten since this browser saw it is noticed", async () => {
  const records = await log(4);
  const hashes = new Map(records.map((record) => [record.sequence, record.hash]));
  const tail = { records: 4, hash: records[3]?.hash ?? "" };
  expect(sinceEarlier(tail, hashes)).toBeNull();
  expect(sinceEarlier(null, hashes)).toBeNull();
  expect(sinceEarlier(START, new Map())).toBeNull();
  expect(sinceEarlier({ ...tail, records: 5 }, hashes)).toMatchObject({ kind: "broken", at: 5 });
  expect(sinceEarlier({ ...tail, hash: START.hash }, hashes)).toMatchObject({ kind: "broken", at: 4 });
});

test("the hash of a record is the manager's", async () => {
  // PINNED of crates/pool/fabric/src/audit.rs.
  const record = { sequence: 1, at: 1, who: "operator", what: "apply", before: START.hash, hash: "" };
  expect(await digest(record)).toBe("b043fd6c80d7d6c2f90098b79a6f10588a7f7025f302d7c51d7f36b1e0dff727");
});
