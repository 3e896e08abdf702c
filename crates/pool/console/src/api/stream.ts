// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

// The stream of events. A browser's EventSource sends no headers, and a token in an address would be logged; so the
// stream is read with fetch, and reconnects with the last number that it has.

import { Reader } from "../model/reader";
import type { PoolEvent } from "../model/pool";
import { readEvents } from "./resources";

const STREAM = "/redfish/v1/EventService/SSE";
/** Longest line: an event's message is far shorter. */
const LINE_MAX = 256 * 1024;
/** The first and the longest wait before it connects again. */
export const WAIT_MIN_MS = 500;
export const WAIT_MAX_MS = 15_000;

/** Splits server-sent events: text in, the data of each complete event out. */
export class Splitter {
  private line = "";
  private data: string[] = [];

  push(text: string): string[] {
    const found: string[] = [];
    const lines = (this.line + text).split(/\r\n|\n|\r/);
    this.line = lines.pop() ?? "";
    if (this.line.length > LINE_MAX) {
      throw new Error("a line of the event stream is too long");
    }
    for (const line of lines) {
      if (line === "" && this.data.length > 0) {
        found.push(this.data.join("\n"));
        this.data = [];
      } else if (line.startsWith("data:")) {
        this.data.push(line.slice(5).replace(/^ /, ""));
      }
    }
    return found;
  }
}

export interface Follower {
  events(events: readonly PoolEvent[]): void;
  /** `true` while the stream is connected. */
  connected(is: boolean): void;
}

/** Follows the events until `signal` aborts. */
export async function follow(
  fetcher: typeof fetch,
  headers: () => Record<string, string>,
  follower: Follower,
  signal: AbortSignal,
): Promise<void> {
  let last = 0;
  let wait = WAIT_MIN_MS;
  while (!signal.aborted) {
    try {
      const asked = { ...headers(), ...(last > 0 ? { "last-event-id": String(last) } : {}) };
      const answer = await fetcher(STREAM, { headers: asked, credentials: "omit", cache: "no-store", signal });
      if (!answer.ok || !answer.body) {
        throw new Error(`status ${answer.status}`);
      }
      follower.connected(true);
      wait = WAIT_MIN_MS;
      const [splitter, decoder, body] = [new Splitter(), new TextDecoder(), answer.body.getReader()];
      for (;;) {
        const { done, value } = await body.read();
        if (done) {
          break;
        }
        for (const data of splitter.push(decoder.decode(value, { stream: true }))) {
          const events = readEvents(new Reader(JSON.parse(data), "an event"));
          // A smaller number is from a leader whose clock is behind.
          last = events.at(-1)?.id ?? last;
          follower.events(events);
        }
      }
    } catch {
      // Whatever cut the stream, it is connected again; requests report why the manager does not answer.
    }
    follower.connected(false);
    await pause(wait, signal);
    wait = Math.min(wait * 2, WAIT_MAX_MS);
  }
}

function pause(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resume) => {
    const timer = setTimeout(resume, ms);
    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      resume();
    });
  });
}
