// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

// What is selected in the picture: a host, a donor, a device, a switch or a group, and what can be done to it.

import { useMemo, useState } from "preact/hooks";

import { useConsole, useMay } from "../context";
import { roleFor } from "../model/acts";
import { showBytes } from "../model/bytes";
import { volumesByEnd } from "../model/groups";
import type { End, Volume } from "../model/pool";
import { ChangeDialog, type Intent } from "./change";
import { StateBadge } from "./ends";

/** Volumes that are listed of a donor. */
const VOLUMES_MAX = 30;

interface DetailsProps {
  id: string | null;
  select: (id: string | null) => void;
}

export function EndDetails({ id, select }: DetailsProps) {
  const { pool } = useConsole();
  const end = pool.ends.find((one) => one.id === id);
  const found = pool.switches.find((one) => `Switch.${one.name}` === id);
  return (
    <aside class="details" aria-label="Selection">
      {end && <OneEnd key={end.id} end={end} />}
      {found && (
        <>
          <h2>Switch {found.name}</h2>
          <p>
            {found.vppbsBound} of {found.vppbs} vPPBs bound, {found.ports.length} ports, in {found.enclosure}.
          </p>
        </>
      )}
      {id?.startsWith("Group.") && <p>The group {id.slice(6)} is too large to be drawn; search for a part of it.</p>}
      {id === null ? (
        <p class="hint">Select a host, a donor, a device or a switch to see its bindings and what can be done.</p>
      ) : (
        <button type="button" class="quiet" onClick={() => select(null)}>
          Clear the selection
        </button>
      )}
    </aside>
  );
}

function OneEnd({ end }: { end: End }) {
  const { pool } = useConsole();
  const volumes = useMemo(
    () =>
      end.kind === "host"
        ? pool.volumes.filter((volume) => volume.host === end.name)
        : (volumesByEnd(pool.volumes).get(end.id) ?? []),
    [pool, end],
  );
  return (
    <>
      <h2>
        {end.kind.charAt(0).toUpperCase() + end.kind.slice(1)} {end.name}
      </h2>
      <p>
        <StateBadge end={end} />
      </p>
      <dl class="facts">
        <dt>Place</dt>
        <dd>
          {end.enclosure}, {pool.racks.get(end.enclosure) || "no rack"}
        </dd>
        {end.kind !== "host" && (
          <>
            <dt>Capacity</dt>
            <dd>{end.capacity === null ? "not reported" : showBytes(end.capacity)}</dd>
          </>
        )}
        {end.kind === "donor" && (
          <>
            <dt>Promised</dt>
            <dd>{showBytes(end.promised)}</dd>
            <dt>Lent</dt>
            <dd>{showBytes(end.lent)}</dd>
          </>
        )}
      </dl>
      <h3>{end.kind === "host" ? "Volumes bound to it" : "Volumes with members on it"}</h3>
      <VolumeLinks volumes={volumes} />
      <EndActions end={end} />
    </>
  );
}

function VolumeLinks({ volumes }: { volumes: readonly Volume[] }) {
  if (volumes.length === 0) {
    return <p class="empty">none</p>;
  }
  return (
    <ul class="links-list">
      {volumes.slice(0, VOLUMES_MAX).map((volume) => (
        <li key={volume.name}>
          <a href={`#/volumes/${encodeURIComponent(volume.name)}`}>{volume.name}</a> {showBytes(volume.size)}
        </li>
      ))}
      {volumes.length > VOLUMES_MAX && <li>and {volumes.length - VOLUMES_MAX} more</li>}
    </ul>
  );
}

function EndActions({ end }: { end: End }) {
  const [intent, setIntent] = useState<Intent | null>(null);
  const mayDrain = useMay(roleFor("drain"));
  const mayDeclare = useMay(roleFor("declare-gone"));
  return (
    <div class="actions">
      {end.kind === "donor" && mayDrain && !end.isDeclaredGone && (
        <button type="button" onClick={() => setIntent({ kind: "drain", donor: end.name, undo: end.isDraining })}>
          {end.isDraining ? "Use it again" : "Drain it"}
        </button>
      )}
      {end.kind !== "device" && mayDeclare && !end.isDeclaredGone && (
        <button
          type="button"
          class="danger"
          onClick={() => setIntent({ kind: "declare-gone", of: end.kind as "donor" | "host", name: end.name })}
        >
          Declare it gone
        </button>
      )}
      {intent && <ChangeDialog intent={intent} close={() => setIntent(null)} />}
    </div>
  );
}
