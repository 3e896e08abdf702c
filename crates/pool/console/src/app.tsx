// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

// The frame of all pages: who is logged in, where one can go, and the page that the address names.

import type { JSX } from "preact";
import { useLayoutEffect, useRef, useState } from "preact/hooks";

import { useConsole, useMay, useRoute, useWatch } from "./context";
import type { Role } from "./model/pool";
import { AccountPage } from "./pages/account";
import { AccountsPage } from "./pages/accounts";
import { AuditPage } from "./pages/audit";
import { EventsPage } from "./pages/events";
import { LoginPage } from "./pages/login";
import { OverviewPage } from "./pages/overview";
import { TasksPage } from "./pages/tasks";
import { TopologyPage } from "./pages/topology";
import { VolumePage } from "./pages/volume";
import { VolumesPage } from "./pages/volumes";
import { applyTheme, keptTheme, THEMES, type Theme } from "./theme";
import { Badge, Failure } from "./ui/parts";

interface PageEntry {
  readonly path: string;
  readonly title: string;
  readonly needs: Role;
  readonly show: (rest: string[]) => JSX.Element;
}

const PAGES: readonly PageEntry[] = [
  { path: "overview", title: "Overview", needs: "ReadOnly", show: () => <OverviewPage /> },
  { path: "topology", title: "Topology", needs: "ReadOnly", show: () => <TopologyPage /> },
  {
    path: "volumes",
    title: "Volumes",
    needs: "ReadOnly",
    show: ([name]) => (name ? <VolumePage key={name} name={name} /> : <VolumesPage />),
  },
  { path: "tasks", title: "Tasks", needs: "ReadOnly", show: () => <TasksPage /> },
  { path: "events", title: "Events", needs: "ReadOnly", show: () => <EventsPage /> },
  { path: "audit", title: "Audit", needs: "Administrator", show: () => <AuditPage /> },
  { path: "accounts", title: "Accounts", needs: "Administrator", show: () => <AccountsPage /> },
];

export function App() {
  const { session, notice } = useConsole();
  return (
    <>
      <a class="skip" href="#main" onClick={toMain}>
        To the content
      </a>
      {session ? <Frame /> : <LoginPage />}
      <p class="notice" role="status" aria-live="polite">
        {notice}
      </p>
    </>
  );
}

/** The address names the page, so that the link itself must not change it. */
function toMain(event: Event) {
  event.preventDefault();
  document.getElementById("main")?.focus();
}

function Frame() {
  const [path, ...rest] = useRoute();
  const isAdministrator = useMay("Administrator");
  const { problem } = useConsole();
  const pages = PAGES.filter((page) => page.needs !== "Administrator" || isAdministrator);
  const page = pages.find((one) => one.path === path) ?? pages[0];
  const isOwn = path === "account";
  const main = useRef<HTMLElement>(null);
  const title = isOwn ? "Your account" : (page?.title ?? "");
  const place = `${path}/${rest.join("/")}`;
  const seen = useRef(place);
  // Before the page can be used: a later move would take the focus away from what was pressed meanwhile.
  useLayoutEffect(() => {
    document.title = `${rest[0] ?? title} · Aquifer`;
    // A new page is read from its beginning; the first one keeps the focus of the browser.
    if (seen.current !== place) {
      seen.current = place;
      main.current?.focus();
      window.scrollTo(0, 0);
    }
  }, [place]);
  return (
    <div class="frame">
      <TopBar pages={pages} current={isOwn ? "" : (page?.path ?? "")} />
      <main id="main" tabIndex={-1} ref={main}>
        <Failure problem={problem} />
        {isOwn ? <AccountPage /> : page?.show(rest)}
      </main>
    </div>
  );
}

function TopBar({ pages, current }: { pages: readonly PageEntry[]; current: string }) {
  const watch = useWatch();
  const { session, role, isLive, status } = useConsole();
  return (
    <header class="bar">
      <span class="brand">Aquifer</span>
      <nav aria-label="Pages">
        <ul>
          {pages.map((page) => (
            <li key={page.path}>
              <a href={`#/${page.path}`} {...(page.path === current ? { "aria-current": "page" as const } : {})}>
                {page.title}
              </a>
            </li>
          ))}
        </ul>
      </nav>
      <div class="who">
        {status && <Badge tone={isLive ? "good" : "notice"}>{isLive ? "live" : "connecting"}</Badge>}
        <a href="#/account" {...(current === "" ? { "aria-current": "page" as const } : {})}>
          {session?.account} <span class="role">{role}</span>
        </a>
        <ThemeChoice />
        <button type="button" class="quiet" onClick={() => void watch.logout()}>
          Log out
        </button>
      </div>
    </header>
  );
}

export function ThemeChoice() {
  const [theme, setTheme] = useState<Theme>(keptTheme);
  const choose = (value: Theme) => {
    applyTheme(value);
    setTheme(value);
  };
  return (
    <select aria-label="Colours" value={theme} onChange={(event) => choose(event.currentTarget.value as Theme)}>
      {THEMES.map((one) => (
        <option key={one} value={one} selected={one === theme}>
          {one}
        </option>
      ))}
    </select>
  );
}
