// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

// Events, as they happen.

import { useMemo, useState } from "preact/hooks";

import { useConsole } from "../context";
import { commandLine } from "../model/acts";
import { matches } from "../model/groups";
import type { PoolEvent } from "../model/pool";
import { instant } from "../model/time";
import { Badge, Command, TextField } from "../ui/parts";
import { Table, type Column } from "../ui/table";

function Severity({ event }: { event: PoolEvent }) {
  const tone = event.severity === "OK" ? "good" : event.severity === "Warning" ? "notice" : "bad";
  return <Badge tone={tone}>{event.severity}</Badge>;
}

const COLUMNS: readonly Column<PoolEvent>[] = [
  { title: "Number", by: (event) => event.id, cell: (event) => event.id },
  { title: "Time", by: (event) => event.id, cell: (event) => instant(event.at) },
  { title: "Severity", by: (event) => event.severity, cell: (event) => <Severity event={event} /> },
  { title: "Kind", by: (event) => event.kind, cell: (event) => event.kind },
  { title: "Message", by: (event) => event.message, cell: (event) => event.message },
];

export function EventsPage() {
  const { events, isLive } = useConsole();
  const [search, setSearch] = useState("");
  const found = useMemo(
    () => events.filter((event) => matches(search, event.message, event.kind, event.severity)),
    [events, search],
  );
  return (
    <>
      <h1>Events</h1>
      <div class="tools">
        <TextField label="Search" type="search" value={search} hint="Messages, kinds, severities" enter={setSearch} />
        <p class="result">
          {isLive ? (
            <Badge tone="good">new ones are added as they happen</Badge>
          ) : (
            <Badge tone="notice">connecting</Badge>
          )}
        </p>
      </div>
      <Table
        caption="The newest events"
        rows={found}
        columns={COLUMNS}
        keyOf={(event) => event.id}
        empty="No event is found."
      />
      <Command text={commandLine(["events"], location.origin)} />
    </>
  );
}

/** Some events in short. */
export function EventList({ events }: { events: readonly PoolEvent[] }) {
  if (events.length === 0) {
    return <p class="empty">none</p>;
  }
  return (
    <ul class="log">
      {events.map((event) => (
        <li key={event.id}>
          <span>{event.message}</span> <Severity event={event} />
          <small>
            {event.kind}, {instant(event.at)}
          </small>
        </li>
      ))}
    </ul>
  );
}
