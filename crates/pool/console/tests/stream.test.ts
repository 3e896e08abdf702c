// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

// The event stream: however it is cut, each event comes once, and after a break it goes on where it was.

import { expect, test } from "vitest";

import { follow, Splitter } from "../src/api/stream";
import type { PoolEvent } from "../src/model/pool";
import { Random } from "./random";

function message(id: number): string {
  const event = {
    ...{ EventId: String(id), EventTimestamp: "2026-01-01T00:00:00Z", MessageId: "AquiferFabric.1.0.Changed" },
    ...{ MessageSeverity: "OK", Message: `change ${id} of ü` },
  };
  return `id: ${id}\ndata: ${JSON.stringify({ Events: [event] })}\n\n`;
}

test("events are the same, wherever the text is cut", () => {
  const text = `: alive\n\n${message(1)}: alive\n\n${message(2)}data: a\ndata: b\n\n`;
  const whole = new Splitter().push(text);
  expect(whole.length).toBe(3);
  expect(whole[2]).toBe("a\nb");
  for (let seed = 0; seed < 500; seed += 1) {
    const [random, splitter, found] = [new Random(seed), new Splitter(), [] as string[]];
    for (let at = 0; at < text.length;) {
      const next = at + 1 + random.below(40);
      found.push(...splitter.push(text.slice(at, next)));
      at = next;
    }
    expect(found, `seed ${seed}`).toEqual(whole);
  }
});

test("a line without an end is refused, before it takes all memory", () => {
  const splitter = new Splitter();
  expect(() => {
    for (let round = 0; round < 100; round += 1) {
      splitter.push("x".repeat(10_000));
    }
  }).toThrow(/too long/);
});

test("after a break the stream goes on after the last event, with the token of then", async () => {
  const [asked, found, states] = [[] as Headers[], [] as PoolEvent[], [] as boolean[]];
  const stop = new AbortController();
  const bodies = [message(1) + message(2), "data: nonsense\n\n", message(3)];
  const fetcher: typeof fetch = (_, init) => {
    asked.push(new Headers(init?.headers));
    const body = bodies.shift();
    if (body === undefined) {
      stop.abort();
      return Promise.reject(new TypeError("cut"));
    }
    return Promise.resolve(new Response(body));
  };
  const follower = {
    events: (events: readonly PoolEvent[]) => found.push(...events),
    connected: (is: boolean) => states.push(is),
  };
  await follow(fetcher, () => ({ "x-auth-token": `t${asked.length}` }), follower, stop.signal);
  expect(found.map((event) => [event.id, event.kind])).toEqual([
    [1, "Changed"],
    [2, "Changed"],
    [3, "Changed"],
  ]);
  expect(asked.map((headers) => headers.get("last-event-id"))).toEqual([null, "2", "2", "3"]);
  expect(asked.map((headers) => headers.get("x-auth-token"))).toEqual(["t0", "t1", "t2", "t3"]);
  expect(states).toEqual([true, false, true, false, true, false, false]);
});
