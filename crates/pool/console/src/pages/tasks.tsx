// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

// Tasks: what was asked for, and how far it is carried out.

import { useMemo } from "preact/hooks";

import { useConsole } from "../context";
import { commandLine } from "../model/acts";
import type { Task } from "../model/pool";
import { instant } from "../model/time";
import { Badge, Command } from "../ui/parts";
import { Table, type Column } from "../ui/table";

function Progress({ task }: { task: Task }) {
  return task.isDone ? (
    <Badge tone="good">done</Badge>
  ) : (
    <span class="progress">
      <progress max={100} value={task.percent} aria-label={`Progress of task ${task.id}`} /> {task.percent} %
    </span>
  );
}

const COLUMNS: readonly Column<Task>[] = [
  { title: "Task", by: (task) => task.id, cell: (task) => task.id },
  { title: "What", by: (task) => task.what, cell: (task) => task.what },
  { title: "Progress", by: (task) => task.percent, cell: (task) => <Progress task={task} /> },
  { title: "Who", by: (task) => task.who, cell: (task) => task.who },
  { title: "Begun", by: (task) => task.id, cell: (task) => instant(task.started) },
  { title: "Ended", by: (task) => task.ended ?? "", cell: (task) => instant(task.ended) },
];

export function TasksPage() {
  const { tasks } = useConsole();
  const newest = useMemo(() => [...tasks].sort((a, b) => b.id - a.id), [tasks]);
  return (
    <>
      <h1>Tasks</h1>
      <Table
        caption="Tasks since the manager was started"
        rows={newest}
        columns={COLUMNS}
        keyOf={(task) => task.id}
        empty="Nothing was asked for yet."
      />
      <Command text={commandLine(["tasks"], location.origin)} />
    </>
  );
}

/** Some tasks in short. */
export function TaskList({ tasks }: { tasks: readonly Task[] }) {
  if (tasks.length === 0) {
    return <p class="empty">none</p>;
  }
  return (
    <ul class="log">
      {tasks.map((task) => (
        <li key={task.id}>
          <span>{task.what}</span> <Progress task={task} />
          <small>
            {task.who}, {instant(task.started)}
          </small>
        </li>
      ))}
    </ul>
  );
}
