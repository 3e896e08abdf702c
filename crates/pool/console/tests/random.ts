// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

// Numbers that are the same in every run: a failure names its seed.

export class Random {
  constructor(private state: number) {}

  /** A number from 0 up to, and without, a limit. */
  below(limit: number): number {
    // Mulberry32.
    this.state = (this.state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(this.state ^ (this.state >>> 15), 1 | this.state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) % Math.max(1, limit);
  }
}
