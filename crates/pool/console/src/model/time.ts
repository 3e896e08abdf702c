// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

// Instants as people read them, in the time zone of the reader.

const CLOCK = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const WHOLE = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "medium" });

/** The time of day. */
export function clock(at: number): string {
  return CLOCK.format(at);
}

/** Day and time; a value that is not an instant is returned unchanged. */
export function instant(at: number | string | null): string {
  const when = typeof at === "string" ? Date.parse(at) : at;
  return when === null ? "" : Number.isNaN(when) ? String(at) : WHOLE.format(when);
}
