// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

// A manager for tests of parts: answers by path, counts requests, and plans or refuses as the test says.

import { answers } from "./example";

export interface Asked {
  readonly method: string;
  readonly path: string;
  readonly headers: Record<string, string>;
  readonly body: unknown;
}

export class Manager {
  readonly asked: Asked[] = [];
  readonly known: Record<string, unknown> = answers();
  role = "Administrator";
  /** What the next changes are answered with, instead of being done: status, message, remedy. */
  refusals: [number, string, string][] = [];
  plan = { Changes: ["~ volume db"], Steps: ["grant 8GiB of d0000"], Remarks: [] as string[], Version: 4, Task: null };

  readonly fetch: typeof fetch = (input, init) => Promise.resolve(this.answer(String(input), init ?? {}));

  changes(): Asked[] {
    return this.asked.filter((one) => one.method !== "GET" && !one.path.endsWith("/Sessions"));
  }

  private answer(path: string, init: RequestInit): Response {
    const headers = Object.fromEntries(new Headers(init.headers).entries());
    const body: unknown = typeof init.body === "string" ? JSON.parse(init.body) : null;
    const asked = { method: init.method ?? "GET", path, headers, body };
    this.asked.push(asked);
    if (path.endsWith("/SSE")) {
      return new Response(new ReadableStream());
    }
    if (path.endsWith("/Sessions") && asked.method === "POST") {
      const token = { "x-auth-token": "s.secret", location: "/redfish/v1/SessionService/Sessions/s" };
      return Response.json({}, { status: 201, headers: token });
    }
    if (headers["x-auth-token"] !== "s.secret") {
      return refused(401, "the session is not known or has ended", "log in");
    }
    if (path.includes("/Accounts/")) {
      const account = { UserName: path.split("/").at(-1), RoleId: this.role, Enabled: true };
      return asked.method === "GET" ? Response.json(account) : Response.json({});
    }
    if (asked.method !== "GET") {
      const refusal = this.refusals.shift();
      return refusal ? refused(...refusal) : Response.json(this.plan);
    }
    const found = this.known[path];
    return found === undefined
      ? refused(404, `there is nothing at ${path}`, "follow the links")
      : tagged(found, headers);
  }
}

function tagged(body: unknown, headers: Record<string, string>): Response {
  const etag = `"${JSON.stringify(body).length}"`;
  return headers["if-none-match"] === etag
    ? new Response(null, { status: 304 })
    : Response.json(body, { headers: { etag } });
}

function refused(status: number, message: string, remedy: string): Response {
  const info = [{ Message: message, Resolution: remedy }];
  return Response.json({ error: { "@Message.ExtendedInfo": info } }, { status });
}
