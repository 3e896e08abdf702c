// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

// @vitest-environment happy-dom
// Pages in a document without a browser: what each role sees, changes in two steps, texts of strangers.

import { cleanup, fireEvent, render, screen, waitFor, within } from "@testing-library/preact";
import { afterEach, beforeEach, describe, expect, test } from "vitest";

import { App } from "../src/app";
import { WatchContext } from "../src/context";
import { Store } from "../src/state";
import { Watch } from "../src/watch";
import { Manager } from "./answering";

let manager = new Manager();
let watch = new Watch(new Store(), manager.fetch, sessionStorage);
/** Waits are for a busy machine. */
const PATIENT = { timeout: 30_000 };

beforeEach(() => {
  sessionStorage.clear();
  localStorage.clear();
  location.hash = "";
  manager = new Manager();
  watch = new Watch(new Store(), manager.fetch, sessionStorage);
});

afterEach(async () => {
  await watch.logout();
  cleanup();
});

async function open(hash: string): Promise<void> {
  location.hash = hash;
  if (!watch.store.current.session) {
    await watch.login("oscar", "a long password");
  }
  render(
    <WatchContext.Provider value={watch}>
      <App />
    </WatchContext.Provider>,
  );
  await waitFor(() => expect(watch.store.current.isLoaded).toBe(true), PATIENT);
}

const press = (name: string | RegExp) => fireEvent.click(screen.getByRole("button", { name }));
const write = (label: string, value: string) =>
  fireEvent.input(within(screen.getByRole("dialog")).getByLabelText(label), { target: { value } });

describe("a change", () => {
  test("is planned first, shown with its command, and then carried out as it was planned", async () => {
    await open("#/volumes/db");
    press("Grow");
    write("New size", "16GiB");
    press("Show the plan");
    await screen.findByText("grant 8GiB of d0000", {}, PATIENT);
    screen.getByText("aquifer fabric grow db 16GiB --url http://localhost:3000");
    expect(manager.changes().map((one) => [one.method, one.headers["aquifer-dry-run"]])).toEqual([["PATCH", "true"]]);
    press("Carry it out");
    await waitFor(() => expect(screen.queryByRole("dialog")).toBeNull(), PATIENT);
    const [planned, done] = manager.changes();
    expect(done?.headers["aquifer-dry-run"]).toBeUndefined();
    expect([planned?.headers["if-match"], done?.headers["if-match"]]).toEqual(['"abc"', '"abc"']);
    expect(done?.body).toEqual(planned?.body);
    screen.getByText("Grow volume db: stored, and being carried out.");
  });

  test("of a volume that has changed since is not made, and is planned again", async () => {
    await open("#/volumes/db");
    press("Unbind");
    await screen.findByText("~ volume db", {}, PATIENT);
    manager.refusals = [[412, "the resource was changed since its ETag was read", "read it again"]];
    press("Carry it out");
    expect((await screen.findByRole("alert", {}, PATIENT)).textContent).toContain("was changed since");
    press("Plan it again");
    await screen.findByText("~ volume db", {}, PATIENT);
    expect(manager.changes().length).toBe(3);
  });

  test("that loses bytes needs a further word", async () => {
    await open("#/volumes/db");
    press("Release");
    await screen.findByText("~ volume db", {}, PATIENT);
    const button = screen.getByRole("button", { name: "Carry it out" }) as HTMLButtonElement;
    expect(button.disabled).toBe(true);
    fireEvent.click(screen.getByLabelText("It is taken from its host, and the bytes may be lost."));
    expect(button.disabled).toBe(false);
    press("Carry it out");
    await waitFor(() => expect(screen.queryByRole("dialog")).toBeNull(), PATIENT);
    const unbinds = manager.changes().map(({ headers }) => headers["aquifer-unbind"]);
    expect(unbinds, "the plan and the change say that the volume is unbound").toEqual(["true", "true"]);
  });

  test("that cannot be meant is not sent", async () => {
    await open("#/volumes/db");
    press("Shrink");
    for (const [size, why] of [
      ["", /Write a number and a unit/],
      ["8GiB", /has 8GiB; write less/],
      ["9GiB", /write less/],
    ] as const) {
      write("New size", size);
      press("Show the plan");
      await screen.findByText(why, {}, PATIENT);
    }
    expect(manager.changes()).toEqual([]);
  });

  test("that the manager refuses says why, and what to do", async () => {
    await open("#/volumes");
    press("Create a volume");
    write("Name", "scratch");
    write("Size", "900GiB");
    manager.refusals = [[507, "zone lab has 484GiB left of its quota", "release something first"]];
    press("Show the plan");
    const alert = await screen.findByRole("alert", {}, PATIENT);
    expect(alert.textContent).toBe("Zone lab has 484GiB left of its quota. Release something first.");
    expect(within(screen.getByRole("dialog")).getByLabelText("Name")).toHaveProperty("value", "scratch");
  });
});

describe("roles", () => {
  const changes = [
    "Bind",
    "Unbind",
    "Grow",
    "Shrink",
    "Move",
    "Release",
    "Create a volume",
    "Drain it",
    "Declare it gone",
  ];
  const seen = () => changes.filter((name) => screen.queryByRole("button", { name }) !== null);

  test("who only reads sees no change", async () => {
    manager.role = "ReadOnly";
    await open("#/volumes/db");
    expect(seen()).toEqual([]);
    expect(screen.queryByRole("link", { name: "Audit" })).toBeNull();
    cleanup();
    await open("#/volumes");
    expect(seen()).toEqual([]);
  });

  test("an operator changes volumes and drains donors, and does not declare them gone", async () => {
    manager.role = "Operator";
    await open("#/volumes/db");
    expect(seen()).toEqual(["Unbind", "Grow", "Shrink", "Move", "Release"]);
    cleanup();
    await open("#/topology");
    fireEvent.click(await screen.findByRole("button", { name: /^donor d0000/ }, PATIENT));
    expect(seen()).toEqual(["Drain it"]);
    expect(screen.queryByRole("link", { name: "Accounts" })).toBeNull();
  });

  test("an address of a page that is not permitted shows the overview", async () => {
    manager.role = "Operator";
    await open("#/accounts");
    await screen.findByRole("heading", { name: "Overview" }, PATIENT);
    expect(manager.asked.some((one) => one.path.includes("Accounts?"))).toBe(false);
  });
});

describe("the session", () => {
  test("is kept for the tab, without the password, and ends with the manager's", async () => {
    await open("#/overview");
    const kept = JSON.stringify({ ...sessionStorage });
    expect(kept).toContain("s.secret");
    expect(kept + JSON.stringify({ ...localStorage })).not.toContain("a long password");
    const second = new Watch(new Store(), manager.fetch, sessionStorage);
    await second.resume();
    expect(second.store.current.session?.account).toBe("oscar");
    delete manager.known["/redfish/v1/Oem/Aquifer"];
    second.client.use({ token: "old", path: "/", account: "oscar" });
    await second.client.read("/redfish/v1/Oem/Aquifer").catch(() => undefined);
    expect(second.store.current.session).toBeNull();
    expect(sessionStorage.getItem("aquifer-session")).toBeNull();
    expect(second.store.current.notice).toContain("Log in again");
  });

  test("that cannot be read is none", async () => {
    for (const kept of [
      "",
      "null",
      "5",
      "{",
      '{"token":5}',
      '{"token":"a"}',
      '{"token":"x","path":"/","account":"o"}',
    ]) {
      sessionStorage.setItem("aquifer-session", kept);
      const again = new Watch(new Store(), manager.fetch, sessionStorage);
      await again.resume();
      expect(again.store.current.session, kept).toBeNull();
    }
  });

  test("a wrong password says so, and is gone from the page", async () => {
    render(
      <WatchContext.Provider value={watch}>
        <App />
      </WatchContext.Provider>,
    );
    manager.known["x"] = 1;
    const field = screen.getByLabelText<HTMLInputElement>("Password");
    fireEvent.input(screen.getByLabelText("Account"), { target: { value: "oscar" } });
    fireEvent.input(field, { target: { value: "wrong" } });
    const login = watch.login.bind(watch);
    watch.login = () => Promise.reject(new TypeError("no network"));
    press("Log in");
    expect((await screen.findByRole("alert", {}, PATIENT)).textContent).toContain("cannot be reached");
    expect(field.value).toBe("");
    watch.login = login;
  });
});

describe("texts of strangers", () => {
  const EVIL = `<img src=x onerror="steal()">"'\u202e</script>`;

  test("are text, wherever they are shown", async () => {
    const chunks = "/redfish/v1/Chassis/Pools/MemoryDomains/main/MemoryChunks?$expand=.";
    const list = structuredClone(manager.known[chunks]) as { Members: { Id: string }[] };
    (list.Members[0] as { Id: string }).Id = EVIL;
    manager.known[chunks] = list;
    const tasks = structuredClone(manager.known["/redfish/v1/TaskService/Tasks?$expand=."]) as {
      Members: { Name: string }[];
    };
    (tasks.Members[0] as { Name: string }).Name = `bind volume ${EVIL}`;
    manager.known["/redfish/v1/TaskService/Tasks?$expand=."] = tasks;
    for (const page of ["#/overview", "#/volumes", "#/tasks", `#/volumes/${encodeURIComponent(EVIL)}`]) {
      await open(page);
      await waitFor(() => expect(document.body.textContent).toContain(EVIL), PATIENT);
      expect(document.querySelector("img, script"), page).toBeNull();
      cleanup();
    }
  });
});

test("the faults of programs are charted with their figures in a table, and that there are none is said", async () => {
  await open("#/overview");
  expect((await screen.findAllByText(/^No figures: no agent of a host/, {}, PATIENT)).length).toBe(2);
  const faults = { Hosts: 1, PerSecond: 123.4, MeanMicroseconds: 9.25, P99Microseconds: 1500 };
  Object.assign(manager.known["/redfish/v1/Oem/Aquifer"] as object, { Faults: faults });
  watch.look(false);
  await waitFor(() => expect(screen.queryByText(/^No figures:/)).toBeNull(), PATIENT);
  const chart = (name: RegExp) => within(screen.getByRole("figure", { name }));
  const newest = (name: RegExp) => {
    const row = chart(name).getAllByRole("row", { hidden: true })[1] as HTMLElement;
    return within(row)
      .getAllByRole("cell", { hidden: true })
      .map((cell) => cell.textContent);
  };
  expect(newest(/^Faults of programs/)).toEqual(["123/s"]);
  expect(newest(/^Latency of faults/)).toEqual(["9.3 us", "1.5 ms"]);
  expect(chart(/^Faults of programs/).getAllByText("no figures").length, "the sample of before").toBeGreaterThan(0);
  // The agent has ended: what was before stays.
  Object.assign(manager.known["/redfish/v1/Oem/Aquifer"] as object, { Faults: null });
  watch.look(false);
  await waitFor(() => expect(newest(/^Faults of programs/)).toEqual(["no figures"]), PATIENT);
});

test("a log that is not the one of before is broken, until the reader says that it is another pool", async () => {
  const path = "/redfish/v1/Oem/Aquifer/Audit?$skip=0&$top=1000";
  manager.known[path] = { Records: [], Tail: { records: 0, hash: "0".repeat(64) } };
  localStorage.setItem("aquifer-audit-tail", JSON.stringify({ records: 7, hash: "a".repeat(64) }));
  await open("#/audit");
  expect((await screen.findByRole("alert", {}, PATIENT)).textContent).toContain("the log was rewritten or cut");
  press("Check again");
  press("Forget what this browser has seen");
  await screen.findByText(/0 records/, {}, PATIENT);
  expect(screen.queryByRole("alert")).toBeNull();
});

test("tables are sorted by their heads, and turned in pages", async () => {
  const path = "/redfish/v1/Fabrics/Aquifer/Endpoints?$expand=.";
  const list = structuredClone(manager.known[path]) as { Members: Record<string, unknown>[] };
  const first = list.Members[0] as Record<string, unknown>;
  const more = Array.from({ length: 59 }, (_, index) => ({ ...first, Id: `Donor.e${index}`, Name: `e${index}` }));
  manager.known[path] = { Members: [...list.Members, ...more] };
  await open("#/topology");
  const table = within((await screen.findByRole("region", { name: "Donors" }, PATIENT)) as HTMLElement);
  const names = () => table.getAllByRole("rowheader").map((cell) => cell.textContent);
  await waitFor(() => expect(names().length).toBe(25), PATIENT);
  const pages = within(screen.getByRole("navigation", { name: "Pages of Donors" }));
  fireEvent.click(pages.getByRole("button", { name: "Next" }));
  fireEvent.click(pages.getByRole("button", { name: "Next" }));
  await waitFor(() => expect(names().length).toBe(10), PATIENT);
  fireEvent.click(table.getByRole("button", { name: /^Name/ }));
  fireEvent.click(table.getByRole("button", { name: /^Name/ }));
  await waitFor(() => expect(names()[0]).toBe("e58"), PATIENT);
  expect(table.getAllByRole("columnheader")[0]?.getAttribute("aria-sort")).toBe("descending");
});
