// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

// The state of the pool in short, as `aquifer fabric status` says it, and charts of the last minutes.

import { useConsole } from "../context";
import { commandLine } from "../model/acts";
import { showBytes } from "../model/bytes";
import type { Count, Status } from "../model/pool";
import { Chart } from "../ui/chart";
import { Badge, Command, Meter } from "../ui/parts";
import { EventList } from "./events";
import { TaskList } from "./tasks";

/** Of tasks and events, the newest ones are here. */
const NEWEST = 5;

export function OverviewPage() {
  const { status, tasks, events } = useConsole();
  const newest = [...tasks].sort((a, b) => b.id - a.id).slice(0, NEWEST);
  return (
    <>
      <h1>Overview</h1>
      {status ? <Figures status={status} /> : <p class="empty">The manager is being asked.</p>}
      {status && <Troubles status={status} />}
      <Charts />
      <div class="columns">
        <section aria-labelledby="newest-tasks">
          <h2 id="newest-tasks">Newest tasks</h2>
          <TaskList tasks={newest} />
          <p>
            <a href="#/tasks">All tasks</a>
          </p>
        </section>
        <section aria-labelledby="newest-events">
          <h2 id="newest-events">Newest events</h2>
          <EventList events={events.slice(0, NEWEST)} />
          <p>
            <a href="#/events">All events</a>
          </p>
        </section>
      </div>
      <Command text={commandLine(["status", "--watch"], location.origin)} />
    </>
  );
}

function Figures({ status }: { status: Status }) {
  const { volumes } = status;
  return (
    <dl class="figures">
      <div>
        <dt>State</dt>
        <dd>
          {status.isSettled ? <Badge tone="good">settled</Badge> : <Badge tone="notice">changing</Badge>}
          <small>
            version {status.version}, term {status.term}
          </small>
        </dd>
      </div>
      <Answering title="Donors" count={status.donors} />
      <Answering title="Hosts" count={status.hosts} />
      <Answering title="Devices" count={status.devices} />
      <div>
        <dt>Volumes</dt>
        <dd>
          <b>{volumes.all}</b>
          <small>
            {volumes.bound} bound, {volumes.unsettled} not settled
          </small>
        </dd>
      </div>
      <div>
        <dt>Lent</dt>
        <dd>
          <b>{showBytes(status.lent)}</b>
          <small>of {showBytes(status.capacity)}</small>
          <Meter label="Lent" part={status.lent} whole={status.capacity} />
        </dd>
      </div>
    </dl>
  );
}

function Answering({ title, count }: { title: string; count: Count }) {
  const missing = count.all - count.answering;
  return (
    <div>
      <dt>{title}</dt>
      <dd>
        <b>{count.all}</b>
        {count.all === 0 ? (
          <small>none</small>
        ) : missing === 0 ? (
          <Badge tone="good">all answer</Badge>
        ) : (
          <Badge tone="bad">{missing} do not answer</Badge>
        )}
      </dd>
    </div>
  );
}

function Troubles({ status }: { status: Status }) {
  const lists: [string, readonly string[]][] = [
    ["Waited for", status.waiting],
    ["In use, and not desired", status.strays],
    ["Cannot be repaired", status.unrepaired],
  ];
  return (
    <>
      {lists
        .filter(([, lines]) => lines.length > 0)
        .map(([title, lines]) => (
          <section key={title} class="trouble" aria-label={title}>
            <h2>{title}</h2>
            <ul>
              {lines.slice(0, 20).map((line) => (
                <li key={line}>{line}</li>
              ))}
            </ul>
            {lines.length > 20 && <p>and {lines.length - 20} more</p>}
          </section>
        ))}
    </>
  );
}

const count = (value: number) =>
  value >= 10 || Number.isInteger(value) ? String(Math.round(value)) : value.toFixed(1);

const latency = (us: number) => (us < 1000 ? `${count(us)} us` : `${count(us / 1000)} ms`);

const NO_FAULTS = "No figures: no agent of a host counts faults. Set metrics in the configuration of agents.";

function Charts() {
  const { samples } = useConsole();
  return (
    <section class="charts" aria-label="The last minutes">
      <Chart
        title="Capacity"
        samples={samples}
        show={showBytes}
        atLeast={2 ** 30}
        isBytes
        series={[
          { title: "lent", value: (sample) => sample.lent },
          { title: "capacity", value: (sample) => sample.capacity },
        ]}
      />
      <Chart
        title="Memory that changes hands"
        samples={samples}
        show={(value) => `${showBytes(value)}/s`}
        atLeast={2 ** 20}
        isBytes
        series={[{ title: "lent or returned", value: (sample) => sample.bytesPerSecond }]}
      />
      <Chart
        title="Steps"
        samples={samples}
        show={(value) => `${count(value)}/s`}
        atLeast={1}
        series={[
          { title: "sent", value: (sample) => sample.stepsPerSecond },
          { title: "failed", value: (sample) => sample.failuresPerSecond },
        ]}
      />
      <Chart
        title="Under way"
        samples={samples}
        show={count}
        atLeast={4}
        series={[
          { title: "volumes not settled", value: (sample) => sample.unsettled },
          { title: "steps due", value: (sample) => sample.stepsDue },
        ]}
      />
      <Chart
        title="Faults of programs"
        samples={samples}
        show={(value) => `${count(value)}/s`}
        atLeast={10}
        empty={NO_FAULTS}
        series={[{ title: "resolved", value: (sample) => sample.faultsPerSecond }]}
      />
      <Chart
        title="Latency of faults"
        samples={samples}
        show={latency}
        atLeast={10}
        empty={NO_FAULTS}
        series={[
          { title: "mean", value: (sample) => sample.faultMeanUs },
          { title: "99 % within", value: (sample) => sample.faultP99Us },
        ]}
      />
      <Chart
        title="Latency of the manager"
        samples={samples}
        show={(value) => `${count(value)} ms`}
        atLeast={10}
        series={[{ title: "until it answered", value: (sample) => sample.answerMs }]}
      />
    </section>
  );
}
