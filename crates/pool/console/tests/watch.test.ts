// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

// @vitest-environment happy-dom
// What is shown is what the manager says now: also when only a detail changes, and when another manager leads.

import { afterEach, beforeEach, expect, test, vi } from "vitest";

import { Store } from "../src/state";
import { Watch } from "../src/watch";
import { Manager } from "./answering";

const FABRIC = "/redfish/v1/Fabrics/Aquifer";
const KEY = "aquifer-session";
/** Waits are for a busy machine. */
const PATIENT = { timeout: 30_000, interval: 20 };

let manager = new Manager();
let watch = new Watch(new Store(), manager.fetch, sessionStorage);

beforeEach(() => {
  sessionStorage.clear();
  manager = new Manager();
  watch = new Watch(new Store(), (input, init) => manager.fetch(input, init), sessionStorage);
});

afterEach(() => watch.logout());

const link = (path: string) => ({ "@odata.id": path });

/** A switch with one port, which is connected to these endpoints. */
function wire(...ends: string[]): void {
  const found = {
    Id: "s1",
    Links: { Chassis: link("/redfish/v1/Chassis/shelf0") },
    CXL: { TotalNumbervPPBs: 8, NumberOfBoundvPPBs: 1 },
  };
  const links = { AssociatedEndpoints: ends.map((end) => link(`${FABRIC}/Endpoints/${end}`)) };
  manager.known[`${FABRIC}/Switches?$expand=.`] = { Members: [found] };
  manager.known[`${FABRIC}/Switches/s1/Ports?$expand=.`] = {
    Members: [{ PortId: "1", PortType: "DownstreamPort", Links: links }],
  };
}

test("a port that is connected elsewhere is shown so, though nothing else has changed", async () => {
  wire("Device.m1");
  await watch.login("oscar", "a long password");
  const ends = () => watch.store.current.pool.switches.flatMap((one) => one.ports.map((port) => port.end));
  await vi.waitFor(() => expect(ends()).toEqual(["Device.m1"]), PATIENT);
  wire();
  watch.look(true);
  await vi.waitFor(() => expect(ends()).toEqual([null]), PATIENT);
});

test("an enclosure that stands in another rack is shown there, though nothing else has changed", async () => {
  await watch.login("oscar", "a long password");
  const rack = () => watch.store.current.pool.racks.get("shelf0");
  await vi.waitFor(() => expect(rack()).toBe("rack0"), PATIENT);
  manager.known["/redfish/v1/Chassis?$expand=."] = {
    Members: [{ Id: "Pools" }, { Id: "shelf0", Location: { Placement: { Rack: "rack10" } } }],
  };
  watch.look(true);
  await vi.waitFor(() => expect(rack()).toBe("rack10"), PATIENT);
});

test("lists that have not changed are the same pool", async () => {
  wire("Device.m1");
  await watch.login("oscar", "a long password");
  await vi.waitFor(() => expect(watch.store.current.isLoaded).toBe(true), PATIENT);
  const [pool, count] = [watch.store.current.pool, manager.asked.length];
  watch.look(true);
  const isRead = () => manager.asked.slice(count).some((one) => one.path.includes("/Tasks"));
  await vi.waitFor(() => expect(isRead()).toBe(true), PATIENT);
  expect(watch.store.current.pool).toBe(pool);
});

/** A manager that stands by sends readers to the leader, at another address, where the page may not ask. */
const standby: typeof fetch = (_, init) =>
  init?.redirect === "manual"
    ? Promise.resolve({ type: "opaqueredirect", status: 0, ok: false, headers: new Headers() } as Response)
    : Promise.reject(new TypeError("NetworkError when attempting to fetch resource."));

test("a manager that stands by is not one that cannot be reached", async () => {
  await watch.login("oscar", "a long password");
  await vi.waitFor(() => expect(watch.store.current.isLoaded).toBe(true), PATIENT);
  manager = Object.assign(new Manager(), { fetch: standby });
  watch.look(true);
  await vi.waitFor(() => expect(watch.store.current.problem?.message).toMatch(/stands by/), PATIENT);
  expect(watch.store.current.problem?.remedy).toContain("leads");
  expect(watch.store.current.session?.account, "a session is valid at every manager").toBe("oscar");
});

test("a page that is loaded again while another manager takes over keeps its session", async () => {
  await watch.login("oscar", "a long password");
  const nobody: typeof fetch = () => Promise.resolve(Response.json({}, { status: 503 }));
  for (const fetcher of [standby, nobody]) {
    const again = new Watch(new Store(), fetcher, sessionStorage);
    await again.resume();
    expect(again.store.current.session).toBeNull();
    expect(sessionStorage.getItem(KEY) ?? "").toContain("s.secret");
  }
});
