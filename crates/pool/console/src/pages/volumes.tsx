// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

// The volumes of all pools, and the zones with their quotas.

import { useMemo, useState } from "preact/hooks";

import { useConsole, useMay } from "../context";
import { commandLine, roleFor } from "../model/acts";
import { showBytes } from "../model/bytes";
import { matches } from "../model/groups";
import type { Volume, Zone } from "../model/pool";
import { Badge, Command, Meter, TextField, type Tone } from "../ui/parts";
import { Table, type Column } from "../ui/table";
import { ChangeDialog } from "./change";

const TONES: Readonly<Record<Volume["state"], Tone>> = { bound: "good", unbound: "plain", changing: "notice" };

export function VolumeState({ volume }: { volume: Volume }) {
  return <Badge tone={TONES[volume.state]}>{volume.state}</Badge>;
}

const COLUMNS: readonly Column<Volume>[] = [
  {
    title: "Volume",
    by: (volume) => volume.name,
    cell: (volume) => <a href={`#/volumes/${encodeURIComponent(volume.name)}`}>{volume.name}</a>,
  },
  { title: "State", by: (volume) => volume.state, cell: (volume) => <VolumeState volume={volume} /> },
  { title: "Size", isNumber: true, by: (volume) => volume.size, cell: (volume) => showBytes(volume.size) },
  { title: "Host", by: (volume) => volume.host ?? "", cell: (volume) => volume.host ?? "none" },
  { title: "Pool", by: (volume) => volume.pool, cell: (volume) => volume.pool },
  { title: "Zone", by: (volume) => volume.zone, cell: (volume) => volume.zone },
  { title: "Class", by: (volume) => volume.class, cell: (volume) => volume.class },
  { title: "Redundancy", by: (volume) => volume.redundancy, cell: (volume) => volume.redundancy },
];

const ZONES: readonly Column<Zone>[] = [
  { title: "Zone", by: (zone) => zone.name, cell: (zone) => zone.name },
  { title: "Quota", isNumber: true, by: (zone) => zone.quota, cell: (zone) => showBytes(zone.quota) },
  {
    title: "Used",
    by: (zone) => zone.used,
    cell: (zone) => <Meter label={`Used of zone ${zone.name}`} part={zone.used} whole={zone.quota} />,
  },
  { title: "Hosts", isNumber: true, by: (zone) => zone.hosts.length, cell: (zone) => zone.hosts.length },
];

export function VolumesPage() {
  const { pool } = useConsole();
  const mayCreate = useMay(roleFor("create"));
  const [search, setSearch] = useState("");
  const [isCreating, setCreating] = useState(false);
  const found = useMemo(() => {
    const isFound = (one: Volume) =>
      matches(search, one.name, one.state, one.host ?? "", one.pool, one.zone, one.class, one.redundancy);
    return pool.volumes.filter(isFound);
  }, [pool, search]);
  return (
    <>
      <h1>Volumes</h1>
      <div class="tools">
        <TextField
          label="Search"
          type="search"
          value={search}
          hint="Name, state, host, pool, zone, class or redundancy"
          enter={setSearch}
        />
        {mayCreate && (
          <button type="button" onClick={() => setCreating(true)}>
            Create a volume
          </button>
        )}
      </div>
      <Table
        caption="Volumes"
        rows={found}
        columns={COLUMNS}
        keyOf={(one) => `${one.pool}/${one.name}`}
        empty="There are no volumes, or none matches."
      />
      <Table caption="Zones" rows={pool.zones} columns={ZONES} keyOf={(zone) => zone.name} empty="There is no zone." />
      <Command text={commandLine(["volumes"], location.origin)} />
      {isCreating && <ChangeDialog intent={{ kind: "create" }} close={() => setCreating(false)} />}
    </>
  );
}
