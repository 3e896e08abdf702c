// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

// Asks the manager. Each request has the session's token in a header, which no other site can send; there are no
// cookies. A problem is an error with the manager's reason and remedy.

import { Reader, Unexpected } from "../model/reader";

const SESSIONS = "/redfish/v1/SessionService/Sessions";
/** How long a request may take: longer than the manager lets an order wait for its writer. */
const REQUEST_WAIT_MS = 90_000;
/** Maximum number of pages of a collection, of a thousand members each. */
const PAGES_MAX = 200;
/** Answers that are kept for the next request of the same path. */
const KEPT_MAX = 512;

/** The status with which a manager that stands by answers a reader. */
const STANDBY = 307;

/** Why a request failed: what happened, and what to do. */
export class Problem extends Error {
  constructor(
    readonly status: number,
    message: string,
    readonly remedy: string,
  ) {
    super(message);
    this.name = "Problem";
  }
}

export interface Request {
  readonly method: "GET" | "POST" | "PATCH" | "DELETE";
  readonly path: string;
  readonly body?: unknown;
  readonly ifMatch?: string | undefined;
  readonly isDryRun?: boolean;
  /** Whether a volume that is released is unbound first. */
  readonly unbinds?: boolean;
}

/** A session: its token, and where it is ended. */
export interface Session {
  readonly token: string;
  readonly path: string;
  readonly account: string;
}

interface Kept {
  readonly etag: string;
  readonly reader: Reader;
}

/** A collection as it was read last, with the pages that it was read from. */
interface List {
  readonly pages: readonly Reader[];
  readonly members: readonly unknown[];
}

/** Any failure as one with a remedy. */
export function problemOf(error: unknown): Problem {
  if (error instanceof Problem) {
    return error;
  }
  if (error instanceof Unexpected) {
    return new Problem(0, error.message, "reload the page, or update the manager");
  }
  const isLate = error instanceof DOMException && error.name === "TimeoutError";
  const what = isLate ? "the manager did not answer in time" : "the manager cannot be reached";
  return new Problem(0, what, "check that it runs and that this machine reaches it");
}

export class Client {
  private readonly kept = new Map<string, Kept>();
  private readonly lists = new Map<string, List>();
  private session: Session | null = null;

  /** `ended` is called when the manager does not know the session any more. */
  constructor(
    private readonly fetcher: typeof fetch,
    private readonly ended: () => void,
  ) {}

  use(session: Session | null): void {
    this.session = session;
    this.kept.clear();
    this.lists.clear();
  }

  headers(): Record<string, string> {
    return this.session ? { "x-auth-token": this.session.token } : {};
  }

  /** Reads a resource. One that has not changed since is not sent again. */
  async read(path: string): Promise<Reader> {
    const kept = this.kept.get(path);
    const answer = await this.send({ method: "GET", path }, kept ? { "if-none-match": kept.etag } : {});
    if (answer.status === 304 && kept) {
      return kept.reader;
    }
    const [reader, etag] = [new Reader(await json(answer), path), answer.headers.get("etag")];
    if (etag) {
      if (this.kept.size >= KEPT_MAX) {
        this.kept.clear();
      }
      this.kept.set(path, { etag, reader });
    }
    return reader;
  }

  /** Reads all members of a collection. The list is the same object as before if nothing has changed. */
  async collection<T>(path: string, read: (member: Reader) => T): Promise<readonly T[]> {
    const pages: Reader[] = [];
    let next: string | null = `${path}?$expand=.`;
    for (let page = 0; next !== null; page += 1) {
      if (page === PAGES_MAX || !next.startsWith("/redfish/v1/")) {
        throw new Problem(0, `${path} has too many pages`, "use the command line for a pool of this size");
      }
      const body: Reader = await this.read(next);
      pages.push(body);
      next = body.at("Members@odata.nextLink").maybe((link) => link.text());
    }
    const last = this.lists.get(path);
    if (last && last.pages.length === pages.length && last.pages.every((page, index) => page === pages[index])) {
      return last.members as readonly T[];
    }
    const members = pages.flatMap((page) => page.at("Members").list(read));
    this.lists.set(path, { pages, members });
    return members;
  }

  /** Asks for a change, or with a dry run for its plan. */
  async order(request: Request): Promise<Reader> {
    const headers: Record<string, string> = {};
    if (request.ifMatch) {
      headers["if-match"] = request.ifMatch;
    }
    if (request.isDryRun) {
      headers["aquifer-dry-run"] = "true";
    }
    if (request.unbinds) {
      headers["aquifer-unbind"] = "true";
    }
    const answer = await this.send(request, headers);
    return new Reader(answer.status === 204 ? null : await json(answer), request.path);
  }

  async login(account: string, password: string): Promise<Session> {
    const body = { UserName: account, Password: password };
    const answer = await this.send({ method: "POST", path: SESSIONS, body }, {});
    const [token, path] = [answer.headers.get("x-auth-token"), answer.headers.get("location")];
    if (!token || !path) {
      throw new Problem(0, "the manager gave no token", "check that a proxy between passes X-Auth-Token and Location");
    }
    return { token, path, account };
  }

  /** Ends the session. One that has ended already is no problem. */
  async logout(): Promise<void> {
    const session = this.session;
    if (session) {
      await this.send({ method: "DELETE", path: session.path }, {}).catch(() => undefined);
    }
  }

  private async send(request: Request, more: Record<string, string>): Promise<Response> {
    const headers: Record<string, string> = { ...this.headers(), ...more };
    const init: RequestInit = {
      method: request.method,
      headers,
      credentials: "omit",
      cache: "no-store",
      // A manager that stands by sends readers to the one that leads, at an address where this page may not ask.
      redirect: "manual",
      signal: AbortSignal.timeout(REQUEST_WAIT_MS),
    };
    if (request.body !== undefined) {
      headers["content-type"] = "application/json";
      init.body = JSON.stringify(request.body);
    }
    const had = this.session;
    const answer = await this.fetcher(request.path, init).catch((error: unknown) => {
      throw problemOf(error);
    });
    if (answer.ok || answer.status === 304) {
      return answer;
    }
    if (answer.type === "opaqueredirect") {
      throw new Problem(
        STANDBY,
        "this manager stands by",
        "open the console of the manager that leads; a login here names it",
      );
    }
    if (answer.status === 401 && had && had === this.session) {
      this.ended();
    }
    throw await refusal(answer);
  }
}

async function json(answer: Response): Promise<unknown> {
  try {
    return await answer.json();
  } catch {
    throw new Problem(answer.status, "the manager's answer is not JSON", "check what is between it and this machine");
  }
}

/** The manager's reason and remedy, or its status if it gave none. */
async function refusal(answer: Response): Promise<Problem> {
  const plain = new Problem(answer.status, `the manager answered with status ${answer.status}`, "see its log");
  try {
    const info = new Reader(await answer.json(), "the error").at("error", "@Message.ExtendedInfo");
    const [first] = info.list((one) => one);
    const remedy = first?.at("Resolution").text() ?? plain.remedy;
    return new Problem(answer.status, first?.at("Message").text() ?? plain.message, remedy);
  } catch {
    return plain;
  }
}
