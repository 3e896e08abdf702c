// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

// A hall of 1,000 donors and 200 hosts: searched, grouped and read in a browser.

import type { Browser } from "playwright-core";
import { afterAll, beforeAll, expect, test } from "vitest";

import { closed, judged, launch, login, open, overhang, PASSWORD, shoot, visit } from "./browser";

let browser: Browser;

beforeAll(async () => {
  browser = await launch();
});

afterAll(() => browser?.close());

test("a thousand donors are drawn, found, grouped and listed", async () => {
  const tab = await open(browser);
  const { page } = tab;
  await login(page, "admin", PASSWORD);
  await visit(page, "topology", "Topology");
  await page.getByText("1200 of 1200 found").waitFor();
  expect(await page.locator(".picture .donor").count()).toBe(1000);
  expect(await page.locator(".picture .host").count()).toBe(200);
  expect(await page.locator(".picture [tabindex='0']").count(), "one stop of the tabulator key").toBe(1);
  await page.getByText("there are too many bindings to draw all").waitFor();
  expect(await page.locator(".picture .binding").count()).toBe(0);
  expect(await page.locator(".picture .head").count(), "grouped by rack").toBe(16);
  await shoot(page, "hall");
  await page.getByLabel("Group").selectOption("enclosure");
  await page.locator(".picture .head", { hasText: "shelf124" }).waitFor();
  expect(await page.locator(".picture .head").count()).toBe(125);
  await page.getByLabel("Group").selectOption("zone");
  await page.locator(".picture .head", { hasText: "used by no zone" }).waitFor();
  await page.getByLabel("Search").fill("donor d00 shelf1");
  await page.getByText("28 of 1200 found").waitFor();
  expect(await page.locator(".picture .donor").count()).toBe(28);
  await shoot(page, "hall-search");
  await page.getByLabel("Search").fill("");
  await page.getByText("1200 of 1200 found").waitFor();
  await page.getByRole("region", { name: "Donors" }).getByRole("button", { name: "Lent" }).click();
  await page.getByRole("navigation", { name: "Pages of Donors" }).getByText("1 to 25 of 1000").waitFor();
  await page.getByRole("region", { name: "Hosts" }).getByRole("button", { name: "h000" }).click();
  await page.locator(".picture .links .chosen").first().waitFor({ state: "attached" });
  await shoot(page, "hall-host");
  await closed(tab);
});

test.each(["light", "dark"] as const)("axe finds nothing in it in %s, and it fits a phone", async (scheme) => {
  const tab = await open(browser, { colorScheme: scheme });
  const { page } = tab;
  await login(page, "admin", PASSWORD);
  await visit(page, "topology", "Topology");
  await page.getByText("1200 of 1200 found").waitFor();
  // The thousand cells are one kind: axe looks at a few, found by a search, and at all around them.
  await page.getByLabel("Search").fill("shelf1 rack0");
  await page.getByText(/^8 of 1200 found/).waitFor();
  expect(await judged(page)).toEqual([]);
  await page.getByLabel("Search").fill("");
  await page.setViewportSize({ width: 360, height: 740 });
  await page.getByText("1200 of 1200 found").waitFor();
  expect(await overhang(page)).toBeLessThanOrEqual(0);
  await shoot(page, `hall-360-${scheme}`);
  await closed(tab);
});
