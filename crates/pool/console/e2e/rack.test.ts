// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

// A rack of 22 donors, 4 devices and 3 hosts, steered by hand in a browser.

import type { Browser, Page } from "playwright-core";
import { afterAll, beforeAll, expect, test } from "vitest";

import { ask, closed, judged, launch, login, open, ORIGIN, overhang, PASSWORD, settled, shoot, visit } from "./browser";

let browser: Browser;

beforeAll(async () => {
  browser = await launch();
});

afterAll(() => browser?.close());

const CHUNKS = "/redfish/v1/Chassis/Pools/MemoryDomains/main/MemoryChunks";
const OPERATOR = { name: "oscar", password: "only for this test" };

/** Checks the plan of the open dialog and its command, carries it out, and waits until it is. */
async function confirm(page: Page, command: string, isSure = false): Promise<void> {
  const dialog = page.getByRole("dialog");
  await dialog.getByRole("heading", { name: "What would change" }).waitFor();
  expect(await dialog.locator(".command code").innerText()).toBe(`aquifer fabric ${command} --url ${ORIGIN}`);
  if (isSure) {
    await dialog.getByRole("checkbox").check();
  }
  await dialog.getByRole("button", { name: "Carry it out" }).click();
  await dialog.waitFor({ state: "detached" });
  // What is under way changes volumes, too: a plan that is made meanwhile may be out of date at once.
  await settled();
}

const press = (page: Page, name: string) => page.getByRole("button", { name, exact: true }).click();
const state = (page: Page, word: string) =>
  page.locator(".facts .badge", { hasText: new RegExp(`\\s${word}$`) }).waitFor();
const alert = (page: Page, text: string) => page.getByRole("alert").filter({ hasText: text }).waitFor();

test("strangers see the login and nothing else, and a wrong password says what to do", async () => {
  const tab = await open(browser);
  const { page } = tab;
  await page.goto(`${ORIGIN}/`);
  expect(page.url()).toBe(`${ORIGIN}/console/`);
  await page.getByLabel("Account").fill("admin");
  await page.getByLabel("Password").fill("wrong");
  await page.keyboard.press("Enter");
  await alert(page, "Name or password is wrong.");
  expect(await page.getByLabel("Password").inputValue()).toBe("");
  expect(await judged(page)).toEqual([]);
  await shoot(page, "login");
  await closed(tab);
});

test("an operator creates, binds, grows, moves, shrinks, unbinds and releases a volume by hand", async () => {
  const account = { UserName: OPERATOR.name, Password: OPERATOR.password, RoleId: "Operator" };
  expect((await ask("POST", "/redfish/v1/AccountService/Accounts", account)).status).toBe(201);
  const tab = await open(browser);
  const { page } = tab;
  await login(page, OPERATOR.name, OPERATOR.password);
  await page.getByRole("link", { name: "Volumes", exact: true }).click();
  await press(page, "Create a volume");
  await page.getByLabel("Name").fill("scratch");
  await page.getByLabel("Size").fill("6GiB");
  await page.getByLabel("Redundancy").fill("mirror=2");
  await press(page, "Show the plan");
  await page.getByText("+ create volume scratch").first().waitFor();
  expect((await ask("GET", `${CHUNKS}/scratch`)).status, "a plan changes nothing").toBe(404);
  await shoot(page, "plan");
  expect(await judged(page)).toEqual([]);
  await confirm(page, "create scratch --size 6GiB --zone lab --class tcp --redundancy mirror=2");
  await page.getByRole("link", { name: "scratch" }).click();
  await state(page, "unbound");
  await press(page, "Bind");
  await page.getByLabel("Host").fill("h001");
  await press(page, "Show the plan");
  await confirm(page, "bind scratch h001");
  await state(page, "bound");
  await page.locator(".facts", { hasText: "host h001" }).waitFor();
  await press(page, "Grow");
  await page.getByLabel("New size").fill("10GiB");
  await page.keyboard.press("Enter");
  await confirm(page, "grow scratch 10GiB");
  await page.locator(".facts", { hasText: "10GiB" }).waitFor();
  await press(page, "Move");
  await press(page, "Show the plan");
  await confirm(page, "move scratch");
  await settled();
  await state(page, "bound");
  await press(page, "Shrink");
  await page.getByLabel("New size").fill("4GiB");
  await press(page, "Show the plan");
  await confirm(page, "shrink scratch 4GiB", true);
  await press(page, "Unbind");
  await confirm(page, "unbind scratch");
  await state(page, "unbound");
  await press(page, "Bind");
  await page.getByLabel("Host").fill("h001");
  await press(page, "Show the plan");
  await confirm(page, "bind scratch h001");
  await state(page, "bound");
  await press(page, "Release");
  await page.getByText("- unbind volume scratch from host h001").first().waitFor();
  await confirm(page, "release scratch --unbind", true);
  await page.getByText("There is no such volume.").waitFor();
  await settled();
  await visit(page, "tasks", "Tasks");
  await page.getByRole("cell", { name: "release volume scratch, bound or not" }).waitFor();
  await page
    .getByRole("row", { name: /release volume scratch/ })
    .getByText("done")
    .waitFor();
  await closed(tab);
});

test("what somebody else has changed since the plan is not changed", async () => {
  const tab = await open(browser);
  const { page } = tab;
  await login(page, OPERATOR.name, OPERATOR.password);
  await visit(page, "volumes/db", "Volume db");
  await press(page, "Grow");
  await page.getByLabel("New size").fill("12GiB");
  await press(page, "Show the plan");
  await page.getByRole("heading", { name: "What would change" }).waitFor();
  expect((await ask("PATCH", `${CHUNKS}/db`, { MemoryChunkSizeMiB: 10_240 })).status).toBe(200);
  await press(page, "Carry it out");
  await alert(page, "The resource was changed since its ETag was read.");
  expect((await ask("GET", `${CHUNKS}/db`)).body).toMatchObject({ MemoryChunkSizeMiB: 10_240 });
  await page.keyboard.press("Escape");
  await page.getByRole("dialog").waitFor({ state: "detached" });
  await settled();
  await closed(tab);
});

test("a donor is drained from the picture by keyboard alone", async () => {
  const tab = await open(browser);
  const { page } = tab;
  await login(page, OPERATOR.name, OPERATOR.password);
  await visit(page, "topology", "Topology");
  const chosen = page.locator(".picture [tabindex='0']");
  await chosen.focus();
  expect(await chosen.getAttribute("data-id")).toBe("Host.h000");
  for (const [key, id] of [
    ["ArrowRight", "Host.h001"],
    ["ArrowDown", "Switch.s0"],
    ["End", "Donor.d0021"],
  ] as const) {
    await page.keyboard.press(key);
    await page.locator(`.picture [data-id='${id}'][tabindex='0']:focus`).waitFor();
  }
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { name: "Donor d0021" }).waitFor();
  await page.getByRole("button", { name: "Drain it" }).focus();
  await page.keyboard.press("Enter");
  await confirm(page, "drain d0021");
  await page.locator(".details").getByText("draining").waitFor();
  await page.locator(".picture .draining[data-id='Donor.d0021']").waitFor();
  await press(page, "Use it again");
  await confirm(page, "drain d0021 --undo");
  await page.locator(".details").getByText("answers").waitFor();
  await closed(tab);
});

test("who only reads is offered no change, and the manager refuses it anyway", async () => {
  const account = { UserName: "rita", Password: OPERATOR.password, RoleId: "ReadOnly" };
  expect((await ask("POST", "/redfish/v1/AccountService/Accounts", account)).status).toBe(201);
  const tab = await open(browser);
  const { page } = tab;
  await login(page, "rita", OPERATOR.password);
  await visit(page, "volumes/db", "Volume db");
  await page.locator(".facts").waitFor();
  expect(await page.getByRole("button", { name: /^(Bind|Unbind|Grow|Release)$/ }).count()).toBe(0);
  expect(await page.getByRole("link", { name: "Audit" }).count()).toBe(0);
  const status = await page.evaluate(async (path) => {
    const { token } = JSON.parse(sessionStorage.getItem("aquifer-session") ?? "{}") as { token: string };
    return (await fetch(path, { method: "DELETE", headers: { "x-auth-token": token } })).status;
  }, `${CHUNKS}/db`);
  expect(status).toBe(403);
  await closed(tab);
});

test("the audit log is checked, and one that was tampered with is broken", async () => {
  const tab = await open(browser);
  const { page } = tab;
  await login(page, "admin", PASSWORD);
  await visit(page, "audit", "Audit");
  await page.getByText(/[0-9]+ records, each with the hash of the one before/).waitFor();
  await shoot(page, "audit");
  await page.route(/\/Audit\?/, async (route) => {
    const headers = { ...route.request().headers() };
    delete headers["if-none-match"];
    const answer = await route.fetch({ headers });
    const text = (await answer.text()).replace("create volume scratch", "create volume somebody");
    await route.fulfill({ response: answer, body: text, headers: { ...answer.headers(), etag: '"other"' } });
  });
  await press(page, "Check again");
  await alert(page, "it does not have its hash: it was changed");
  await closed(tab);
});

test("accounts are added, changed and removed, and a session that ended leads to the login", async () => {
  const tab = await open(browser);
  const { page } = tab;
  await login(page, "admin", PASSWORD);
  await visit(page, "accounts", "Accounts");
  await press(page, "Add an account");
  await page.getByLabel("Name").fill("olga");
  await page.getByLabel("Role").selectOption("Operator");
  await page.getByLabel("Password").fill("only for this test");
  await press(page, "Add it");
  const row = page.getByRole("row", { name: /^olga/ });
  await row.getByText("Operator").waitFor();
  const other = await open(browser);
  await login(other.page, "olga", "only for this test");
  await press(page, "Change account olga");
  await page.getByRole("checkbox", { name: "It may log in." }).uncheck();
  await press(page, "Change it");
  await row.getByText("disabled").waitFor();
  await other.page.getByText("The session has ended. Log in again.").waitFor();
  await press(page, "Remove account olga");
  await press(page, "Remove it");
  await row.waitFor({ state: "detached" });
  await closed(other);
  await closed(tab);
});

test("events and figures arrive by themselves", async () => {
  const tab = await open(browser);
  const { page } = tab;
  await login(page, "admin", PASSWORD);
  await page.locator(".who .badge", { hasText: /\slive$/ }).waitFor();
  await visit(page, "events", "Events");
  expect((await ask("PATCH", `${CHUNKS}/cache`, { MemoryChunkSizeMiB: 6144 })).status).toBe(200);
  await page.getByText("admin: resize volume cache to 6GiB").waitFor();
  await visit(page, "overview", "Overview");
  await page.locator(".chart path.line").first().waitFor({ state: "attached" });
  await page.getByText("No figures: no agent of a host counts faults.").first().waitFor();
  await closed(tab);
});

test("faults and their latency are charted, and read by keyboard", async () => {
  const tab = await open(browser);
  const { page } = tab;
  await login(page, "admin", PASSWORD);
  // Simulated agents have no programs.
  const faults = { Hosts: 3, PerSecond: 4321, MeanMicroseconds: 12.5, P99Microseconds: 2500 };
  await page.route(/\/redfish\/v1\/Oem\/Aquifer$/, async (route) => {
    const headers = { ...route.request().headers() };
    delete headers["if-none-match"];
    const answer = await route.fetch({ headers });
    const body = JSON.stringify({ ...((await answer.json()) as object), Faults: faults });
    await route.fulfill({ response: answer, body, headers: { ...answer.headers(), etag: '"other"' } });
  });
  await visit(page, "overview", "Overview");
  const chart = (title: string) => page.locator("figure", { hasText: title });
  await chart("Latency of faults").locator("path.line").first().waitFor({ state: "attached" });
  await chart("Latency of faults").getByText("2.5 ms").first().waitFor();
  await chart("Faults of programs").locator("summary").focus();
  await page.keyboard.press("Enter");
  await chart("Faults of programs").getByRole("cell", { name: "4321/s" }).first().waitFor();
  expect(await judged(page)).toEqual([]);
  await shoot(page, "faults");
  await closed(tab);
});

const PAGES: readonly [string, string][] = [
  ["overview", "Overview"],
  ["topology", "Topology"],
  ["volumes", "Volumes"],
  ["volumes/db", "Volume db"],
  ["tasks", "Tasks"],
  ["events", "Events"],
  ["audit", "Audit"],
  ["accounts", "Accounts"],
  ["account", "Your account"],
];

test.each(["light", "dark"] as const)(
  "axe finds nothing on any page in %s, and each fits a phone and a wall",
  async (scheme) => {
    const tab = await open(browser, { colorScheme: scheme });
    const { page } = tab;
    await login(page, "admin", PASSWORD);
    for (const [path, heading] of PAGES) {
      await page.setViewportSize({ width: 1280, height: 900 });
      await visit(page, path, heading);
      await page.locator("main .empty", { hasText: "being asked" }).waitFor({ state: "detached" });
      expect(await judged(page), `${path} in ${scheme}`).toEqual([]);
      await shoot(page, `${path.replace("/", "-")}-${scheme}`);
      for (const width of [360, 2560]) {
        await page.setViewportSize({ width, height: width === 360 ? 740 : 1440 });
        expect(await overhang(page), `${path} at ${width} px`).toBeLessThanOrEqual(0);
        if (scheme === "light") {
          await shoot(page, `${path.replace("/", "-")}-${width}`);
        }
      }
    }
    await closed(tab);
  },
);
