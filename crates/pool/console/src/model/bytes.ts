// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

// Amounts of memory, read by the rule for sizes that the manager and the command line have: a number and a unit, with
// powers of two for `GiB`, `Gi`, `G` and `g`, and powers of ten for `GB`.

/** Amounts are numbers: exact up to 8 PiB, which is beyond what a page compares. */
export type Bytes = number;

const UNITS: readonly (readonly [string, number])[] = [
  ["PiB", 2 ** 50],
  ["TiB", 2 ** 40],
  ["GiB", 2 ** 30],
  ["MiB", 2 ** 20],
  ["KiB", 2 ** 10],
  ["B", 1],
];

const MIB = 2 ** 20;

/** Letters of units, the smallest first. Only `k` and `K` are both followed by `B`. */
const LETTERS = "kmgtpe";
/** What 64 bits cannot count. */
const LIMIT = 2 ** 64;

/** The factor of a unit; `null` if there is no such unit. */
function factorOf(unit: string): number | null {
  if (unit === "" || unit === "B") {
    return 1;
  }
  const power = LETTERS.indexOf(unit.charAt(0).toLowerCase()) + 1;
  if (power === 0 || !/^([KMGTPE](iB|i|B)?|k(B)?|[mgtpe])$/.test(unit)) {
    return null;
  }
  return unit.length === 2 && unit.endsWith("B") ? 1000 ** power : 1024 ** power;
}

/** Parses an amount such as `8GiB`, `8G` or `1.5TiB`; `null` if it is none. */
export function parseBytes(text: string): Bytes | null {
  const found = /^([0-9]+\.?[0-9]*|\.[0-9]+) *([A-Za-z]*)$/.exec(text);
  const factor = factorOf(found?.[2] ?? "");
  if (!found || factor === null) {
    return null;
  }
  const bytes = Math.floor(Number(found[1]) * factor);
  return bytes < LIMIT ? bytes : null;
}

/** An amount for people: at most one digit after the point. */
export function showBytes(bytes: Bytes): string {
  const [name, unit] = UNITS.find(([, unit]) => bytes >= unit) ?? ["B", 1];
  const value = bytes / unit;
  const rounded = value >= 100 ? Math.round(value) : Math.round(value * 10) / 10;
  return `${rounded}${name}`;
}

/** Why a text is not a size of a volume; `null` if it is one. */
export function sizeProblem(text: string): string | null {
  const bytes = parseBytes(text.trim());
  if (bytes === null) {
    return "Write a number and a unit, such as 8GiB.";
  }
  return bytes >= MIB ? null : "Write 1MiB or more, such as 16GiB.";
}

/** A size in MiB, as the interface wants it: rounded up to a whole number of them, as `aquifer fabric` does. */
export function mebibytes(text: string): number {
  return Math.ceil((parseBytes(text.trim()) ?? 0) / MIB);
}

/** A part of a whole, from 0 to 1. */
export function share(part: Bytes, whole: Bytes): number {
  return whole > 0 ? Math.min(1, Math.max(0, part / whole)) : 0;
}

/** A share in percent. What is not quite full is not shown as full. */
export function percent(value: number): string {
  return `${value < 1 ? Math.min(99, Math.round(value * 100)) : 100} %`;
}
