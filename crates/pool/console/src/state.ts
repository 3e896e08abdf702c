// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

// What all pages show, in one place: set by `watch.ts`, read by the pages.

import type { Problem, Session } from "./api/client";
import type { Heat } from "./model/activity";
import type { Sample } from "./model/history";
import { EMPTY, type Pool, type PoolEvent, type Role, type Status, type Task } from "./model/pool";

export interface State {
  readonly session: Session | null;
  readonly role: Role | null;
  readonly status: Status | null;
  readonly pool: Pool;
  /** Whether the lists were read once. */
  readonly isLoaded: boolean;
  readonly tasks: readonly Task[];
  /** The newest first. */
  readonly events: readonly PoolEvent[];
  readonly samples: readonly Sample[];
  readonly heat: ReadonlyMap<string, Heat>;
  /** Whether the stream of events is connected. */
  readonly isLive: boolean;
  /** Why the manager could not be read the last time. */
  readonly problem: Problem | null;
  /** What was just done, for everybody to hear. */
  readonly notice: string;
}

export const INITIAL: State = {
  session: null,
  role: null,
  status: null,
  pool: EMPTY,
  isLoaded: false,
  tasks: [],
  events: [],
  samples: [],
  heat: new Map(),
  isLive: false,
  problem: null,
  notice: "",
};

/** Holds the state, and calls its subscribers when it changes. */
export class Store {
  private readonly listeners = new Set<() => void>();
  private state: State = INITIAL;

  get current(): State {
    return this.state;
  }

  set(change: Partial<State>): void {
    this.state = { ...this.state, ...change };
    this.listeners.forEach((listener) => listener());
  }

  subscribe(listener: () => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }
}
