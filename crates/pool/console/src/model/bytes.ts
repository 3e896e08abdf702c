// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

// Amounts of memory, as the manager and the command line write them: a whole number and a unit.

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

/** Parses an amount such as `8GiB`; `null` if it is none. */
export function parseBytes(text: string): Bytes | null {
  const found = /^([0-9]{1,20})(B|KiB|MiB|GiB|TiB|PiB)$/.exec(text);
  const unit = UNITS.find(([name]) => name === found?.[2]);
  return found && unit ? Number(found[1]) * unit[1] : null;
}

/** An amount for people: at most one digit after the point. */
export function showBytes(bytes: Bytes): string {
  const [name, unit] = UNITS.find(([, unit]) => bytes >= unit) ?? ["B", 1];
  const value = bytes / unit;
  const rounded = value >= 100 ? Math.round(value) : Math.round(value * 10) / 10;
  return `${rounded}${name}`;
}

/** Why a text is not a size of a volume; `null` if it is one. The manager takes whole MiB. */
export function sizeProblem(text: string): string | null {
  const bytes = parseBytes(text.trim());
  if (bytes === null) {
    return "Write a whole number and a unit, such as 8GiB.";
  }
  return bytes > 0 && bytes % MIB === 0 ? null : "Write a whole number of MiB, such as 2MiB.";
}

/** A size as the interface wants it. */
export function mebibytes(text: string): number {
  return (parseBytes(text.trim()) ?? 0) / MIB;
}

/** A part of a whole, from 0 to 1. */
export function share(part: Bytes, whole: Bytes): number {
  return whole > 0 ? Math.min(1, Math.max(0, part / whole)) : 0;
}

/** A share in percent. What is not quite full is not shown as full. */
export function percent(value: number): string {
  return `${value < 1 ? Math.min(99, Math.round(value * 100)) : 100} %`;
}
