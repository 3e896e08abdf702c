// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

// The figures of the last minutes, for charts: what the manager's status said, and how fast its counters grew. Pure.
// The manager itself has the rate of faults, since agents are asked at other times than it.
//
// The manager keeps no history; a chart begins when its page was opened.

import type { Status } from "./pool";

/** Samples that are kept: ten minutes of one every two seconds. */
export const SAMPLES_MAX = 300;

export interface Sample {
  /** Milliseconds since 1970. */
  readonly at: number;
  readonly lent: number;
  readonly capacity: number;
  readonly stepsDue: number;
  readonly unsettled: number;
  /** Steps that were sent, a second. */
  readonly stepsPerSecond: number;
  /** Steps that failed, a second. */
  readonly failuresPerSecond: number;
  /** Bytes that were lent or came back, a second. */
  readonly bytesPerSecond: number;
  /** Faults of programs, a second; `null` if no host's agent counts them. */
  readonly faultsPerSecond: number | null;
  /** How long they took, in microseconds; `null` without faults. */
  readonly faultMeanUs: number | null;
  readonly faultP99Us: number | null;
  /** How long the manager took to answer, in milliseconds. */
  readonly answerMs: number;
  /** The counters of the manager, from which the next rates are. */
  readonly sent: number;
  readonly failed: number;
}

/** A rate between two samples. A counter that fell is of a manager that was started again. */
function rate(before: number, after: number, seconds: number): number {
  return seconds > 0 && after >= before ? (after - before) / seconds : 0;
}

/** Adds a sample, and forgets the oldest beyond the limit. */
export function add(samples: readonly Sample[], status: Status, at: number, answerMs: number): Sample[] {
  const last = samples.at(-1);
  const seconds = last ? (at - last.at) / 1000 : 0;
  const sample: Sample = {
    at,
    lent: status.lent,
    capacity: status.capacity,
    stepsDue: status.steps.due,
    unsettled: status.volumes.unsettled,
    stepsPerSecond: last ? rate(last.sent, status.steps.sent, seconds) : 0,
    failuresPerSecond: last ? rate(last.failed, status.steps.failed, seconds) : 0,
    bytesPerSecond: last ? rate(0, Math.abs(status.lent - last.lent), seconds) : 0,
    faultsPerSecond: status.faults?.perSecond ?? null,
    faultMeanUs: status.faults?.meanUs ?? null,
    faultP99Us: status.faults?.p99Us ?? null,
    answerMs,
    sent: status.steps.sent,
    failed: status.steps.failed,
  };
  return [...samples, sample].slice(-SAMPLES_MAX);
}
