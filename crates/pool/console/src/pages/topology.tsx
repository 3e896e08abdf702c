// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

// The pool as a picture, with tables of the same below, and what can be done to what is selected.

import { useMemo, useState } from "preact/hooks";

import { useConsole } from "../context";
import { GROUPINGS, groupEnds, matches, searchEnds, type Grouping } from "../model/groups";
import { layout } from "../model/layout";
import { Choice, TextField } from "../ui/parts";
import { PictureView } from "../ui/picture";
import { useWidth } from "../ui/width";
import { EndDetails } from "./end";
import { DeviceTable, DonorTable, HostTable, PortTable } from "./ends";

const GROUPING_WORDS: Readonly<Record<Grouping, string>> = {
  enclosure: "by enclosure",
  rack: "by rack",
  pool: "by pool",
  zone: "by zone that uses them",
};

/** Number of hosts, donors and devices at which they are grouped by rack, unless the reader chooses otherwise. */
const RACKS_FROM = 400;

export function TopologyPage() {
  const { pool, isLoaded } = useConsole();
  const [search, setSearch] = useState("");
  const [wanted, setWanted] = useState<Grouping | null>(null);
  const grouping = wanted ?? (pool.ends.length > RACKS_FROM ? "rack" : "enclosure");
  const [selected, setSelected] = useState<string | null>(null);
  const [element, width] = useWidth<HTMLDivElement>();
  const found = useMemo(() => searchEnds(pool, search), [pool, search]);
  const picture = useMemo(() => {
    const hosts = found.filter((end) => end.kind === "host");
    const memory = found.filter((end) => end.kind !== "host");
    const switches = pool.switches.filter((one) => matches(search, one.name, "switch", one.enclosure));
    const groups = groupEnds(pool, memory, grouping);
    const shown = search === "" ? pool.switches : switches;
    return layout({ hosts, switches: shown, groups, volumes: pool.volumes, selected }, width);
  }, [pool, found, search, grouping, selected, width]);
  return (
    <>
      <h1>Topology</h1>
      <div class="tools">
        <TextField
          label="Search"
          type="search"
          value={search}
          hint="Names, kinds, places, states: d00 rack1, unhealthy, draining"
          enter={setSearch}
        />
        <Choice
          label="Group"
          value={grouping}
          options={GROUPINGS}
          show={(one) => GROUPING_WORDS[one]}
          choose={setWanted}
        />
        <p class="result" role="status">
          {found.length} of {pool.ends.length} found
          {picture.linksHidden > 0 && "; there are too many bindings to draw all, select something to see its own"}
        </p>
      </div>
      <div class="map">
        <div class="canvas" ref={element}>
          {isLoaded ? (
            <PictureView picture={picture} selected={selected} select={setSelected} />
          ) : (
            <p class="empty">The manager is being asked.</p>
          )}
          <Legend />
        </div>
        <EndDetails id={selected} select={setSelected} />
      </div>
      <div class="columns uneven">
        <div>
          <HostTable ends={found} select={setSelected} />
          {pool.ends.some((end) => end.kind === "device") && <DeviceTable ends={found} select={setSelected} />}
          {pool.switches.length > 0 && <PortTable />}
        </div>
        <DonorTable ends={found} select={setSelected} />
      </div>
    </>
  );
}

function Legend() {
  return (
    <p class="key" aria-hidden="true">
      <span>
        <i class="sample fill" /> promised
      </span>
      <span>
        <i class="sample bad" /> unhealthy
      </span>
      <span>
        <i class="sample draining" /> draining
      </span>
      <span>
        <i class="sample link" /> binding
      </span>
      <span>
        <i class="sample cable" /> cable
      </span>
      <span>
        <i class="sample hot" /> hot: much of it changed hands lately
      </span>
    </p>
  );
}
