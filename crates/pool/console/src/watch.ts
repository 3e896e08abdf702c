// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

// Keeps the state like the manager's: logs in and out, asks for the status at intervals, reads the lists when it has
// changed, and follows the events.

import { Client, Problem, problemOf, type Session } from "./api/client";
import {
  readAccount,
  readEnclosure,
  readEnd,
  readPlan,
  readPool,
  readPort,
  readStatus,
  readSwitch,
  readTask,
  readVolume,
  readZone,
} from "./api/resources";
import { follow } from "./api/stream";
import { requestOf, volumeOf, type Act } from "./model/acts";
import { warm } from "./model/activity";
import { add } from "./model/history";
import type { Plan, Pool, PoolEvent, Status, Switch } from "./model/pool";
import { INITIAL, type Store } from "./state";

const ROOT = "/redfish/v1";
const FABRIC = `${ROOT}/Fabrics/Aquifer`;
const POOLS = `${ROOT}/Chassis/Pools/MemoryDomains`;
export const STATUS = `${ROOT}/Oem/Aquifer`;
export const ACCOUNTS = `${ROOT}/AccountService/Accounts`;

/** The pause between two requests for the status, while the page is visible and while it is not. */
const LOOK_MS = 2000;
const LOOK_HIDDEN_MS = 15_000;
/** After an event: several arrive together. */
const LOOK_SOON_MS = 250;
/** The lists are read at least this often, and never for more than a third of the time. */
const LISTS_MS = 15_000;
const LISTS_REST = 2;
/** Events that a page keeps: as many as the manager. */
const EVENTS_MAX = 1024;
const SESSION_KEY = "aquifer-session";
/** The statuses that say that a session is none, or that its account is not there. */
const REFUSED: readonly number[] = [401, 403, 404];

/** A change with its plan, and the ETag that its volume had then. */
export interface Planned {
  readonly act: Act;
  readonly etag: string | undefined;
  readonly plan: Plan;
}

/** What a page keeps until its tab is closed. */
export interface Keeper {
  getItem(key: string): string | null;
  setItem(key: string, value: string): void;
  removeItem(key: string): void;
}

export class Watch {
  readonly client: Client;
  private stopping = new AbortController();
  private wake: () => void = () => undefined;
  private listsDue = true;
  private listsAt = 0;
  private listsMs = 0;

  constructor(
    readonly store: Store,
    private readonly fetcher: typeof fetch,
    private readonly keeper: Keeper,
  ) {
    this.client = new Client(fetcher, () => this.ended());
  }

  /** Goes on with the session of this tab, if it has one. */
  async resume(): Promise<void> {
    const kept = this.keeper.getItem(SESSION_KEY);
    try {
      const { token, path, account } = JSON.parse(kept ?? "null") as Partial<Session>;
      if (typeof token === "string" && typeof path === "string" && typeof account === "string") {
        await this.begin({ token, path, account });
      }
    } catch (error) {
      // A manager that cannot be reached, or that does not lead now, may know the session all the same.
      if (!(error instanceof Problem) || REFUSED.includes(error.status)) {
        this.keeper.removeItem(SESSION_KEY);
      }
    }
  }

  async login(account: string, password: string): Promise<void> {
    this.client.use(null);
    const session = await this.client.login(account, password);
    this.keeper.setItem(SESSION_KEY, JSON.stringify(session));
    await this.begin(session);
  }

  async logout(): Promise<void> {
    await this.client.logout();
    this.forget("You are logged out.");
  }

  /** Asks what a change would do to its volume as it is now. */
  async plan(act: Act): Promise<Planned> {
    const volume = volumeOf(act);
    const etag = volume === null ? undefined : (await this.client.read(volume)).at("@odata.etag").text();
    const plan = readPlan(await this.client.order({ ...requestOf(act), ifMatch: etag, isDryRun: true }));
    return { act, etag, plan };
  }

  /** Makes a change as it was planned. It is stored when this ends, and carried out afterwards. */
  async carryOut({ act, etag }: Planned): Promise<void> {
    await this.client.order({ ...requestOf(act), ifMatch: etag });
    this.look(true);
  }

  /** Looks at the manager now. */
  look(lists: boolean): void {
    this.listsDue ||= lists;
    this.wake();
  }

  announce(notice: string): void {
    this.store.set({ notice });
  }

  private async begin(session: Session): Promise<void> {
    this.client.use(session);
    const account = readAccount(await this.client.read(`${ACCOUNTS}/${encodeURIComponent(session.account)}`));
    this.stopping = new AbortController();
    this.listsDue = true;
    this.store.set({ ...INITIAL, session, role: account.role });
    const { signal } = this.stopping;
    void this.run(signal);
    const follower = {
      events: (events: readonly PoolEvent[]) => this.learn(events),
      connected: (isLive: boolean) => !signal.aborted && this.store.set({ isLive }),
    };
    void follow(this.fetcher, () => this.client.headers(), follower, signal);
  }

  /** The manager does not know the session any more. */
  private ended(): void {
    this.forget("The session has ended. Log in again.");
  }

  private forget(notice: string): void {
    this.stopping.abort();
    this.wake();
    this.client.use(null);
    this.keeper.removeItem(SESSION_KEY);
    this.store.set({ ...INITIAL, notice });
  }

  private learn(events: readonly PoolEvent[]): void {
    const known = this.store.current.events;
    // Numbers begin again when the manager was started again.
    const older = (events[0]?.id ?? 1) <= (known[0]?.id ?? 0) ? [] : known;
    this.store.set({ events: [...[...events].reverse(), ...older].slice(0, EVENTS_MAX) });
    setTimeout(() => this.wake(), LOOK_SOON_MS);
  }

  private async run(signal: AbortSignal): Promise<void> {
    while (!signal.aborted) {
      try {
        await this.lookOnce(signal);
      } catch (error) {
        if (!signal.aborted) {
          this.store.set({ problem: problemOf(error) });
        }
      }
      const wait = document.visibilityState === "hidden" ? LOOK_HIDDEN_MS : LOOK_MS;
      await new Promise<void>((resume) => {
        const timer = setTimeout(resume, wait);
        this.wake = () => {
          clearTimeout(timer);
          resume();
        };
      });
    }
  }

  private async lookOnce(signal: AbortSignal): Promise<void> {
    const begun = performance.now();
    const status = readStatus(await this.client.read(STATUS));
    if (signal.aborted) {
      return;
    }
    const last = this.store.current.status;
    const samples = add(this.store.current.samples, status, Date.now(), performance.now() - begun);
    this.store.set({ status, samples, problem: null });
    if (this.isListsTime(last, status)) {
      const started = performance.now();
      this.listsDue = false;
      const [pool, tasks] = [await this.lists(), await this.client.collection(`${ROOT}/TaskService/Tasks`, readTask)];
      this.listsAt = performance.now();
      this.listsMs = this.listsAt - started;
      if (!signal.aborted) {
        const heat = warm(this.store.current.heat, pool.ends, Date.now());
        this.store.set({ pool, tasks, heat, isLoaded: true });
      }
    }
  }

  private isListsTime(last: Status | null, status: Status): boolean {
    const rested = performance.now() - this.listsAt;
    const isOld = rested > LISTS_MS;
    const isMoving = !status.isSettled || last?.isSettled === false || last?.version !== status.version;
    this.listsDue ||= isOld || isMoving;
    return !this.store.current.isLoaded || (this.listsDue && rested > this.listsMs * LISTS_REST);
  }

  private async switches(): Promise<Switch[]> {
    const found = await this.client.collection(`${FABRIC}/Switches`, readSwitch);
    const ports = (name: string) => this.client.collection(`${FABRIC}/Switches/${name}/Ports`, readPort);
    return Promise.all(found.map(async (one) => ({ ...one, ports: await ports(one.name) })));
  }

  /** Reads the lists. The pool is the same object as before if none of them has changed. */
  private async lists(): Promise<Pool> {
    const [client, before] = [this.client, this.store.current.pool];
    const pools = await client.collection(POOLS, readPool);
    const chunks = (name: string) => client.collection(`${POOLS}/${encodeURIComponent(name)}/MemoryChunks`, readVolume);
    const [ends, zones, enclosures, switches, volumes] = await Promise.all([
      client.collection(`${FABRIC}/Endpoints`, readEnd),
      client.collection(`${FABRIC}/Zones`, readZone),
      client.collection(`${ROOT}/Chassis`, readEnclosure),
      this.switches(),
      Promise.all(pools.map((pool) => chunks(pool.name))),
    ]);
    const flat = volumes.length === 1 ? (volumes[0] ?? []) : volumes.flat();
    const next: Pool = { ends, zones, pools, switches, volumes: flat, racks: new Map(enclosures) };
    const isSame =
      next.ends === before.ends && next.zones === before.zones && next.pools === before.pools && same(next, before);
    return isSame ? before : next;
  }
}

/** Whether volumes, switches with their ports, and racks are those of before, one by one. */
function same(next: Pool, before: Pool): boolean {
  const each = <T>(now: readonly T[], then: readonly T[], is: (a: T, b: T) => boolean) =>
    now === then || (now.length === then.length && now.every((one, index) => is(one, then[index] as T)));
  const isSwitch = (a: Switch, b: Switch) => (Object.keys(a) as (keyof Switch)[]).every((name) => a[name] === b[name]);
  const isRack = ([enclosure, rack]: [string, string], then: [string, string]) =>
    enclosure === then[0] && rack === then[1];
  return (
    each(next.volumes, before.volumes, (a, b) => a === b) &&
    each(next.switches, before.switches, isSwitch) &&
    each([...next.racks], [...before.racks], isRack)
  );
}

/** What a person reads about a failure. */
export function explain(error: unknown): Problem {
  return problemOf(error);
}
