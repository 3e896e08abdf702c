// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

// One volume: what it is, where its members are, and what can be done to it.

import { useState } from "preact/hooks";

import { useConsole, useMay } from "../context";
import { roleFor, type ActKind } from "../model/acts";
import { showBytes } from "../model/bytes";
import type { Member, Volume } from "../model/pool";
import { Table, type Column } from "../ui/table";
import { ChangeDialog, type Intent } from "./change";
import { TaskList } from "./tasks";
import { VolumeState } from "./volumes";

const MEMBERS: readonly Column<Member & { readonly index: number }>[] = [
  { title: "Span", by: (one) => one.span, cell: (one) => one.span },
  { title: "Held by", by: (one) => one.end, cell: (one) => one.end.replace(".", " ").toLowerCase() },
  { title: "Size", isNumber: true, by: (one) => one.size, cell: (one) => showBytes(one.size) },
];

export function VolumePage({ name }: { name: string }) {
  const { pool, isLoaded, tasks } = useConsole();
  const volume = pool.volumes.find((one) => one.name === name);
  const its = tasks.filter((task) => new RegExp(`\\bvolume ${escaped(name)}(?![\\w.-])`).test(task.what));
  return (
    <>
      <p>
        <a href="#/volumes">All volumes</a>
      </p>
      <h1>Volume {name}</h1>
      {volume ? (
        <Known volume={volume} />
      ) : (
        <p class="empty">{isLoaded ? "There is no such volume." : "Being read."}</p>
      )}
      {its.length > 0 && (
        <section aria-labelledby="its-tasks">
          <h2 id="its-tasks">Its tasks</h2>
          <TaskList tasks={[...its].sort((a, b) => b.id - a.id).slice(0, 10)} />
        </section>
      )}
    </>
  );
}

function escaped(text: string): string {
  return text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
}

function Known({ volume }: { volume: Volume }) {
  const members = volume.members.map((member, index) => ({ ...member, index }));
  return (
    <>
      <dl class="facts">
        <dt>State</dt>
        <dd>
          <VolumeState volume={volume} />
          {volume.leaving > 0 && ` ${volume.leaving} members are leaving`}
        </dd>
        <dt>Size</dt>
        <dd>{showBytes(volume.size)}</dd>
        <dt>Bound to</dt>
        <dd>{volume.host ? `host ${volume.host}` : "no host"}</dd>
        <dt>Pool and zone</dt>
        <dd>
          {volume.pool}, {volume.zone}
        </dd>
        <dt>Class and redundancy</dt>
        <dd>
          {volume.class}, {volume.redundancy}
        </dd>
      </dl>
      <Actions volume={volume} />
      <Table caption="Members" rows={members} columns={MEMBERS} keyOf={(one) => one.index} empty="It has no member." />
    </>
  );
}

function Actions({ volume }: { volume: Volume }) {
  const [intent, setIntent] = useState<Intent | null>(null);
  const mayChange = useMay(roleFor("bind"));
  if (!mayChange) {
    return null;
  }
  const kinds: readonly [Exclude<ActKind, "create" | "drain" | "declare-gone">, string][] = [
    volume.host ? ["unbind", "Unbind"] : ["bind", "Bind"],
    ["grow", "Grow"],
    ["shrink", "Shrink"],
    ["move", "Move"],
    ["release", "Release"],
  ];
  return (
    <div class="actions" role="group" aria-label={`Changes of volume ${volume.name}`}>
      {kinds.map(([kind, label]) => (
        <button
          key={kind}
          type="button"
          class={kind === "release" ? "danger" : kind === "bind" || kind === "unbind" ? "" : "quiet"}
          onClick={() => setIntent({ kind, volume })}
        >
          {label}
        </button>
      ))}
      {intent && <ChangeDialog intent={intent} close={() => setIntent(null)} />}
    </div>
  );
}
