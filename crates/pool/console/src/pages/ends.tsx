// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

// Hosts, donors, devices and ports as tables: what the picture shows, for screen readers and for sorting.

import { useMemo } from "preact/hooks";

import { useConsole } from "../context";
import { HEAT_WORDS, heatLevel } from "../model/activity";
import { showBytes } from "../model/bytes";
import { fullness, isUnhealthy, stateOf } from "../model/groups";
import type { End } from "../model/pool";
import { Badge, Meter } from "../ui/parts";
import { Table, type Column } from "../ui/table";

interface EndsProps {
  ends: readonly End[];
  select: (id: string) => void;
}

export function StateBadge({ end }: { end: End }) {
  const tone = isUnhealthy(end) ? "bad" : end.isDraining || end.health === "draining" ? "notice" : "good";
  return <Badge tone={tone}>{stateOf(end)}</Badge>;
}

function named(select: (id: string) => void): Column<End> {
  return {
    title: "Name",
    by: (end) => end.name,
    cell: (end) => (
      <button type="button" class="link" onClick={() => select(end.id)}>
        {end.name}
      </button>
    ),
  };
}

const STATE: Column<End> = { title: "State", by: stateOf, cell: (end) => <StateBadge end={end} /> };
const PLACE: Column<End> = { title: "Enclosure", by: (end) => end.enclosure, cell: (end) => end.enclosure };

export function HostTable({ ends, select }: EndsProps) {
  const rows = useMemo(() => ends.filter((end) => end.kind === "host"), [ends]);
  const volumes: Column<End> = {
    title: "Volumes",
    isNumber: true,
    by: (end) => end.volumes,
    cell: (end) => end.volumes,
  };
  const columns = [named(select), STATE, PLACE, volumes];
  return <Table caption="Hosts" rows={rows} columns={columns} keyOf={(end) => end.id} empty="No host is found." />;
}

export function DonorTable({ ends, select }: EndsProps) {
  const { heat } = useConsole();
  const rows = useMemo(() => ends.filter((end) => end.kind === "donor"), [ends]);
  const level = (end: End) => heatLevel(heat.get(end.id), end.capacity);
  const columns: Column<End>[] = [
    named(select),
    STATE,
    PLACE,
    { title: "Capacity", isNumber: true, by: (end) => end.capacity ?? 0, cell: (end) => capacity(end) },
    { title: "Lent", isNumber: true, by: (end) => end.lent, cell: (end) => showBytes(end.lent) },
    {
      title: "Promised",
      by: fullness,
      cell: (end) => <Meter label={`Promised of ${end.name}`} part={end.promised} whole={end.capacity ?? 0} />,
    },
    { title: "Activity", by: level, cell: (end) => HEAT_WORDS[level(end)] },
  ];
  return <Table caption="Donors" rows={rows} columns={columns} keyOf={(end) => end.id} empty="No donor is found." />;
}

export function DeviceTable({ ends, select }: EndsProps) {
  const rows = useMemo(() => ends.filter((end) => end.kind === "device"), [ends]);
  const size: Column<End> = {
    title: "Capacity",
    isNumber: true,
    by: (end) => end.capacity ?? 0,
    cell: (end) => capacity(end),
  };
  const columns = [named(select), STATE, PLACE, size];
  return <Table caption="Devices" rows={rows} columns={columns} keyOf={(end) => end.id} empty="No device is found." />;
}

function capacity(end: End): string {
  return end.capacity === null ? "not reported" : showBytes(end.capacity);
}

interface PortRow {
  readonly of: string;
  readonly id: string;
  readonly kind: string;
  readonly end: string;
}

export function PortTable() {
  const { pool } = useConsole();
  const rows = useMemo(
    () =>
      pool.switches.flatMap((one) =>
        one.ports.map((port): PortRow => ({
          of: one.name,
          id: port.id,
          kind: port.isUpstream ? "upstream" : "downstream",
          end: port.end?.replace(".", " ").toLowerCase() ?? "nothing",
        })),
      ),
    [pool],
  );
  const columns: Column<PortRow>[] = [
    { title: "Switch", by: (row) => row.of, cell: (row) => row.of },
    { title: "Port", by: (row) => Number(row.id), cell: (row) => row.id },
    { title: "Kind", by: (row) => row.kind, cell: (row) => row.kind },
    { title: "Connected to", by: (row) => row.end, cell: (row) => row.end },
  ];
  const key = (row: PortRow) => `${row.of}/${row.id}`;
  return <Table caption="Ports" rows={rows} columns={columns} keyOf={key} empty="There is no switch." />;
}
