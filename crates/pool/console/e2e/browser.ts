// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

// A real browser on a real manager. Whatever a test does, nothing may be loaded from elsewhere, no policy be violated
// and no error be logged: `closed` checks it.

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

import type { AxeResults } from "axe-core";
import { chromium, type Browser, type BrowserContextOptions, type Page } from "playwright-core";
import { expect } from "vitest";

/** Waits are for a busy machine. */
export const WAIT_MS = 120_000;

function needed(name: string): string {
  const value = process.env[name];
  if (!value) {
    throw new Error(`${name} is not set; crates/pool/manager/tests/console.rs sets it`);
  }
  return value;
}

export const ORIGIN = needed("AQUIFER_CONSOLE_URL");
export const PASSWORD = needed("AQUIFER_CONSOLE_PASSWORD");
/** Where pictures of pages go, if anybody wants them. */
const SHOTS = process.env["AQUIFER_CONSOLE_SHOTS"];
const PROGRAM = needed("AQUIFER_CONSOLE_BROWSER");
const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

export function launch(): Promise<Browser> {
  // In a container there may be no sandbox, no /dev/shm and no graphics; the pages are our own.
  const args = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--disable-breakpad"];
  return chromium.launch({ executablePath: PROGRAM, args, timeout: WAIT_MS });
}

/** A page in a context of its own, with what went wrong in it. */
export interface Tab {
  readonly page: Page;
  readonly troubles: string[];
}

export async function open(browser: Browser, options: BrowserContextOptions = {}): Promise<Tab> {
  const size = { width: 1280, height: 900 };
  const context = await browser.newContext({ viewport: size, reducedMotion: "reduce", ...options });
  context.setDefaultTimeout(WAIT_MS);
  const page = await context.newPage();
  const troubles: string[] = [];
  page.on("pageerror", (error) => troubles.push(`error: ${error.message}`));
  page.on("request", (request) => {
    if (new URL(request.url()).origin !== ORIGIN) {
      troubles.push(`elsewhere: ${request.url()}`);
    }
  });
  page.on("console", (message) => {
    // A refused request is logged by the browser itself; the tests cause some.
    if (message.type() === "error" && !message.text().startsWith("Failed to load resource")) {
      troubles.push(`logged: ${message.text()}`);
    }
  });
  return { page, troubles };
}

export async function closed({ page, troubles }: Tab): Promise<void> {
  expect(troubles).toEqual([]);
  await page.context().close();
}

export async function login(page: Page, account: string, password: string): Promise<void> {
  await page.goto(`${ORIGIN}/console/`);
  await page.getByLabel("Account").fill(account);
  await page.getByLabel("Password").fill(password);
  await page.getByRole("button", { name: "Log in" }).click();
  await page.getByRole("heading", { level: 1, name: "Overview" }).waitFor();
}

export async function visit(page: Page, path: string, heading: string): Promise<void> {
  await page.evaluate((hash) => (location.hash = hash), `#/${path}`);
  await page.getByRole("heading", { level: 1, name: heading }).waitFor();
}

/** A picture for people to look at. */
export async function shoot(page: Page, name: string): Promise<void> {
  if (SHOTS) {
    await page.screenshot({ path: `${SHOTS}/${name}.png`, fullPage: true });
  }
}

/** Judges the page by axe: what it finds, in lines. */
export async function judged(page: Page): Promise<string[]> {
  await page.evaluate(AXE);
  const results = await page.evaluate(async () => {
    const { axe } = window as unknown as { axe: { run: (where: Document, how: object) => Promise<AxeResults> } };
    return axe.run(document, { resultTypes: ["violations"] });
  });
  const nodes = (one: AxeResults["violations"][number]) => one.nodes.map((node) => node.target.join(" ")).slice(0, 3);
  return results.violations.map((one) => `${one.id}: ${one.help}: ${nodes(one).join(", ")}`);
}

/** What the page is wider than its window by. */
export function overhang(page: Page): Promise<number> {
  return page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
}

let token: string | null = null;

/** Asks the manager without the console, as another client would. */
export async function ask(method: string, path: string, body?: unknown): Promise<{ status: number; body: unknown }> {
  if (token === null) {
    const credentials = JSON.stringify({ UserName: "admin", Password: PASSWORD });
    const answer = await fetch(`${ORIGIN}/redfish/v1/SessionService/Sessions`, { method: "POST", body: credentials });
    token = answer.headers.get("x-auth-token");
  }
  const answer = await fetch(`${ORIGIN}${path}`, {
    method,
    headers: { "x-auth-token": token ?? "" },
    ...(body === undefined ? {} : { body: JSON.stringify(body) }),
  });
  const text = await answer.text();
  return { status: answer.status, body: text === "" ? null : JSON.parse(text) };
}

/** Waits until everything is as it is desired to be. */
export async function settled(): Promise<void> {
  let first: number | null = null;
  const isSettled = async () => {
    const { Rounds, IsSettled } = (await ask("GET", "/redfish/v1/Oem/Aquifer")).body as Record<string, unknown>;
    first ??= Number(Rounds);
    // Two rounds later at the earliest: the first may have begun before the last change.
    return IsSettled === true && Number(Rounds) >= first + 2;
  };
  await expect.poll(isSettled, { timeout: WAIT_MS, interval: 100 }).toBe(true);
}
