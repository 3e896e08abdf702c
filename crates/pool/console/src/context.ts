// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

// The way from components to the state and to what watches the manager.

import { createContext } from "preact";
import { useContext, useEffect, useState } from "preact/hooks";

import { mayAct, type Role } from "./model/pool";
import type { State } from "./state";
import type { Watch } from "./watch";

export const WatchContext = createContext<Watch | null>(null);

export function useWatch(): Watch {
  const watch = useContext(WatchContext);
  if (!watch) {
    throw new Error("a component is outside the console");
  }
  return watch;
}

/** The state, as it is now and whenever it changes. */
export function useConsole(): State {
  const { store } = useWatch();
  const [state, setState] = useState(store.current);
  useEffect(() => {
    setState(store.current);
    return store.subscribe(() => setState(store.current));
  }, [store]);
  return state;
}

/** Whether the account may do what needs a role. */
export function useMay(needed: Role): boolean {
  const { role } = useConsole();
  return role !== null && mayAct(role, needed);
}

/** The page's address after the hash, in its parts: `#/volumes/db` is volumes, db. */
export function useRoute(): string[] {
  const read = () =>
    location.hash
      .replace(/^#\/?/, "")
      .split("/")
      .map((part) => {
        try {
          return decodeURIComponent(part);
        } catch {
          return part;
        }
      });
  const [route, setRoute] = useState(read);
  useEffect(() => {
    const changed = () => setRoute(read());
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  return route;
}
