// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

// What is offered as a command is what the console asks for. `crates/fronts/cli/src/documented_commands.rs` parses each
// line of the golden file with the real command line. Accept a change with AQUIFER_BLESS=1 npm test.

import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { expect, test } from "vitest";

import { commandLine, commandOf, requestOf, type Act } from "../src/model/acts";

const GOLDEN = new URL("golden/commands.txt", import.meta.url);
const LOCAL = "http://127.0.0.1:7443";
const plain = { size: "8GiB", pool: "main", zone: "lab", class: "tcp", redundancy: "none", spread: "host", width: 1 };
const db = { volume: "db", pool: "main" };

const ACTS: readonly Act[] = [
  { kind: "create", volume: "db", ...plain },
  {
    kind: "create",
    volume: "db",
    ...plain,
    pool: "far",
    class: "cxl",
    redundancy: "mirror=2",
    spread: "rack",
    width: 4,
  },
  { kind: "create", volume: "db", ...plain, class: "rdma", redundancy: "parity=4+2", spread: "enclosure" },
  { kind: "bind", ...db, host: "h000" },
  { kind: "unbind", ...db },
  { kind: "grow", ...db, size: "16GiB" },
  { kind: "shrink", ...db, size: " 4GiB " },
  { kind: "move", ...db, off: null },
  { kind: "move", ...db, off: "d0001" },
  { kind: "release", ...db, unbinds: false },
  { kind: "release", ...db, unbinds: true },
  { kind: "drain", donor: "d0002", undo: false },
  { kind: "drain", donor: "d0002", undo: true },
  { kind: "declare-gone", of: "host", name: "h001" },
  { kind: "declare-gone", of: "donor", name: "d0002" },
];
const LISTS = [["status", "--watch"], ["volumes"], ["tasks"], ["events"], ["audit", "--json"], ["accounts"]];

test("every change and every page has its command", () => {
  const lines = [
    ...ACTS.map((act) => commandOf(act, LOCAL)),
    ...LISTS.map((words) => commandLine(words, LOCAL)),
    commandOf({ kind: "bind", ...db, host: "h000" }, "https://fabric.example:7443"),
  ];
  const text = `${lines.join("\n")}\n`;
  if (process.env["AQUIFER_BLESS"] || !existsSync(GOLDEN)) {
    writeFileSync(GOLDEN, text);
  }
  expect(text).toBe(readFileSync(GOLDEN, "utf8"));
});

test("words that a shell would read otherwise are quoted", () => {
  expect(commandLine(["bind", "a b", "$(reboot)", "it's"], LOCAL)).toBe(
    "aquifer fabric bind 'a b' '$(reboot)' 'it'\\''s'",
  );
});

test("requests are those of the interface", () => {
  const of = (index: number) => requestOf(ACTS[index] as Act);
  expect(of(1)).toEqual({
    method: "POST",
    path: "/redfish/v1/Chassis/Pools/MemoryDomains/far/MemoryChunks",
    body: {
      Name: "db",
      MemoryChunkSizeMiB: 8192,
      Oem: { Aquifer: { zone: "lab", class: "cxl", redundancy: { mirror: { copies: 2 } }, spread: "rack", width: 4 } },
    },
  });
  expect(of(2).body).toMatchObject({ Oem: { Aquifer: { redundancy: { parity: { data: 4, parity: 2 } } } } });
  expect(of(6)).toMatchObject({ method: "PATCH", body: { MemoryChunkSizeMiB: 4096 } });
  expect([of(7).body, of(8).body]).toEqual([{}, { Donor: "d0001" }]);
  expect([of(9).unbinds, of(10).unbinds]).toEqual([undefined, true]);
  expect(of(12).body).toEqual({ Draining: false });
});

test("a name cannot leave its place in a path", () => {
  const act: Act = { kind: "release", unbinds: false, pool: "../x", volume: "a/../../Accounts/admin?b#c" };
  expect(requestOf(act).path).toBe(
    "/redfish/v1/Chassis/Pools/MemoryDomains/..%2Fx/MemoryChunks/a%2F..%2F..%2FAccounts%2Fadmin%3Fb%23c",
  );
});
