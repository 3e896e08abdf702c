// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

// Requests: the token goes in a header and nowhere else, what has not changed is not read again, and failures have a
// remedy.

import { beforeEach, describe, expect, test } from "vitest";

import { Client, Problem, problemOf } from "../src/api/client";
import { Unexpected } from "../src/model/reader";
import { Manager } from "./answering";

const ENDS = "/redfish/v1/Fabrics/Aquifer/Endpoints";
let [manager, ended] = [new Manager(), 0];
let client = new Client(manager.fetch, () => undefined);

beforeEach(() => {
  [manager, ended] = [new Manager(), 0];
  client = new Client(manager.fetch, () => (ended += 1));
});

async function loggedIn(): Promise<void> {
  client.use(await client.login("admin", "a long password"));
}

test("the token is in a header of every request, and in no address or body", async () => {
  await loggedIn();
  await client.read("/redfish/v1/Oem/Aquifer");
  await client.order({ method: "POST", path: "/redfish/v1/x", body: { a: 1 }, isDryRun: true, ifMatch: '"t"' });
  const [login, ...rest] = manager.asked;
  expect(login?.headers["x-auth-token"]).toBeUndefined();
  expect(rest.map((one) => one.headers["x-auth-token"])).toEqual(["s.secret", "s.secret"]);
  expect(rest[1]?.headers).toMatchObject({ "aquifer-dry-run": "true", "if-match": '"t"' });
  for (const one of manager.asked) {
    expect(`${one.path} ${JSON.stringify(one.body)}`).not.toContain("secret");
  }
});

describe("a list", () => {
  const member = (number: number) => ({ Id: `m${number}` });
  const id = (one: { at(name: string): { text(): string } }) => one.at("Id").text();

  test("is all pages, and the same object while nothing changes", async () => {
    await loggedIn();
    const next = `${ENDS}?$skip=2&$expand=.`;
    manager.known[`${ENDS}?$expand=.`] = { Members: [member(1), member(2)], "Members@odata.nextLink": next };
    manager.known[next] = { Members: [member(3)] };
    const first = await client.collection(ENDS, id);
    expect(first).toEqual(["m1", "m2", "m3"]);
    expect(await client.collection(ENDS, id)).toBe(first);
    manager.known[next] = { Members: [member(3), member(4)] };
    expect(await client.collection(ENDS, id)).toEqual(["m1", "m2", "m3", "m4"]);
  });

  test("that leads elsewhere or has no end is refused", async () => {
    await loggedIn();
    const path = `${ENDS}?$expand=.`;
    manager.known[path] = { Members: [], "Members@odata.nextLink": "https://elsewhere.example/" };
    await expect(client.collection(ENDS, id)).rejects.toThrow(/too many pages/);
    manager.known[path] = { Members: [], "Members@odata.nextLink": path };
    await expect(client.collection(ENDS, id)).rejects.toThrow(/too many pages/);
    expect(manager.asked.some((one) => one.path.includes("elsewhere"))).toBe(false);
  });
});

describe("a failure", () => {
  test("is what the manager says, with its remedy", async () => {
    await loggedIn();
    manager.refusals = [[409, "volume db is bound to h000", "unbind it first"]];
    const failed = client.order({ method: "POST", path: "/redfish/v1/x", body: {} });
    await expect(failed).rejects.toMatchObject({
      status: 409,
      message: "volume db is bound to h000",
      remedy: "unbind it first",
    });
    expect(ended).toBe(0);
  });

  test("of the session ends it once, and a wrong password ends nothing", async () => {
    await loggedIn();
    client.use({ token: "old", path: "/redfish/v1/SessionService/Sessions/s", account: "admin" });
    await expect(client.read("/redfish/v1/Oem/Aquifer")).rejects.toBeInstanceOf(Problem);
    expect(ended).toBe(1);
    client.use(null);
    await expect(client.read("/redfish/v1/Oem/Aquifer")).rejects.toBeInstanceOf(Problem);
    expect(ended).toBe(1);
  });

  test("of any kind has a remedy", async () => {
    const answers = [
      () => new Response("<html>", { status: 502 }),
      () => new Response("<html>", { status: 200 }),
      () => Response.json({ error: { "@Message.ExtendedInfo": [{ Message: 5 }] } }, { status: 500 }),
      () => Response.json(null, { status: 500 }),
      () => {
        throw new TypeError("Failed to fetch");
      },
      () => {
        throw new DOMException("late", "TimeoutError");
      },
    ];
    for (const answer of answers) {
      const strange = new Client(
        async () => answer(),
        () => undefined,
      );
      const failure = await strange.read("/redfish/v1").then(
        () => null,
        (error: unknown) => problemOf(error),
      );
      expect(failure?.message.length, String(answer)).toBeGreaterThan(5);
      expect(failure?.remedy.length, String(answer)).toBeGreaterThan(5);
    }
    expect(problemOf(new Unexpected("it", "a size")).remedy).toContain("reload");
    const late = new Client(
      () => Promise.reject(new DOMException("late", "TimeoutError")),
      () => undefined,
    );
    await expect(late.read("/redfish/v1")).rejects.toThrow("the manager did not answer in time");
  });
});

test("a manager without tokens is not a manager", async () => {
  const plain = new Client(
    async () => Response.json({}, { status: 201 }),
    () => undefined,
  );
  await expect(plain.login("admin", "x")).rejects.toThrow("the manager gave no token");
});
