// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

// The forms of changes. Each checks what it can on this side; the manager checks everything again.

import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";

import { useConsole } from "../context";
import type { Act } from "../model/acts";
import { mebibytes, showBytes, sizeProblem } from "../model/bytes";
import { byName } from "../model/groups";
import type { Volume } from "../model/pool";
import { Choice, TextField } from "../ui/parts";

const CLASSES = ["cxl", "rdma", "tcp"] as const;
const SPREADS = ["host", "enclosure", "rack"] as const;

interface FormFrameProps {
  isBusy: boolean;
  submit: () => void;
  children: ComponentChildren;
}

function FormFrame({ isBusy, submit, children }: FormFrameProps) {
  return (
    <form
      noValidate
      onSubmit={(event) => {
        event.preventDefault();
        submit();
      }}
    >
      {children}
      <div class="actions">
        <button type="submit" disabled={isBusy}>
          {isBusy ? "Planning…" : "Show the plan"}
        </button>
      </div>
    </form>
  );
}

interface FormProps {
  isBusy: boolean;
  plan: (act: Act) => void;
}

/** Why a redundancy cannot be; `null` if it can. */
export function redundancyProblem(text: string): string | null {
  const mirror = /^mirror=([2-4])$/.test(text);
  return text === "none" || mirror || /^parity=[0-9]{1,2}\+[0-9]{1,2}$/.test(text)
    ? null
    : "Write none, mirror=2 to mirror=4, or parity=DATA+PARITY such as parity=4+2.";
}

const NAME = /^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$/;

export function CreateForm({ isBusy, plan }: FormProps) {
  const { pool } = useConsole();
  const pools = pool.pools.map((one) => one.name);
  const zones = pool.zones.map((one) => one.name);
  const [volume, setVolume] = useState("");
  const [size, setSize] = useState("");
  const [from, setFrom] = useState(pools[0] ?? "main");
  const [zone, setZone] = useState(zones[0] ?? "");
  const [wanted, setWanted] = useState<(typeof CLASSES)[number]>("tcp");
  const [redundancy, setRedundancy] = useState("none");
  const [spread, setSpread] = useState<(typeof SPREADS)[number]>("host");
  const [width, setWidth] = useState("1");
  const [isTried, setTried] = useState(false);
  const errors = {
    volume: NAME.test(volume) ? null : "Write small letters, digits, dots and hyphens.",
    size: sizeProblem(size),
    redundancy: redundancyProblem(redundancy),
    width: /^[1-9][0-9]{0,4}$/.test(width) && Number(width) <= 65_535 ? null : "Write a number from 1 on.",
  };
  const shown = (name: keyof typeof errors) => (isTried ? errors[name] : null);
  const submit = () => {
    setTried(true);
    if (Object.values(errors).every((error) => error === null)) {
      const rest = { redundancy, spread, width: Number(width) };
      plan({ kind: "create", volume, size, pool: from, zone, class: wanted, ...rest });
    }
  };
  if (zones.length === 0 || pools.length === 0) {
    return <p>There is no pool or no zone yet. Declare them first: aquifer fabric apply pool.json</p>;
  }
  return (
    <FormFrame isBusy={isBusy} submit={submit}>
      <TextField label="Name" value={volume} error={shown("volume")} enter={setVolume} />
      <TextField
        label="Size"
        value={size}
        hint="such as 8GiB; rounded up to whole MiB"
        error={shown("size")}
        enter={setSize}
      />
      <div class="pair">
        <Choice label="Pool" value={from} options={pools} choose={setFrom} />
        <Choice label="Zone" value={zone} options={zones} choose={setZone} />
      </div>
      <div class="pair">
        <Choice label="Class" value={wanted} options={CLASSES} hint="the slowest that will do" choose={setWanted} />
        <TextField
          label="Redundancy"
          value={redundancy}
          options={["none", "mirror=2", "mirror=3", "parity=4+2"]}
          hint="none, mirror=2, parity=4+2"
          error={shown("redundancy")}
          enter={setRedundancy}
        />
      </div>
      <div class="pair">
        <Choice
          label="Spread"
          value={spread}
          options={SPREADS}
          hint="what two members of a span never share"
          choose={setSpread}
        />
        <TextField label="Width" value={width} hint="spans at least" error={shown("width")} enter={setWidth} />
      </div>
    </FormFrame>
  );
}

export function BindForm({ volume, isBusy, plan }: FormProps & { volume: Volume }) {
  const { pool } = useConsole();
  const zone = pool.zones.find((one) => one.name === volume.zone);
  const hosts = [...(zone?.hosts ?? [])].sort(byName);
  const [host, setHost] = useState(hosts[0] ?? "");
  const error = hosts.includes(host) ? null : `Choose a host of zone ${volume.zone}.`;
  const [isTried, setTried] = useState(false);
  const submit = () => {
    setTried(true);
    if (error === null) {
      plan({ kind: "bind", volume: volume.name, pool: volume.pool, host });
    }
  };
  return (
    <FormFrame isBusy={isBusy} submit={submit}>
      <TextField
        label="Host"
        value={host}
        options={hosts}
        hint={`a host of zone ${volume.zone}`}
        error={isTried ? error : null}
        enter={setHost}
      />
    </FormFrame>
  );
}

interface ResizeProps extends FormProps {
  kind: "grow" | "shrink";
  volume: Volume;
}

export function ResizeForm({ kind, volume, isBusy, plan }: ResizeProps) {
  const [size, setSize] = useState("");
  const [isTried, setTried] = useState(false);
  const bytes = mebibytes(size) * 2 ** 20;
  const isRight = kind === "grow" ? bytes > volume.size : bytes < volume.size;
  const other = kind === "grow" ? "more" : "less";
  const error = sizeProblem(size) ?? (isRight ? null : `The volume has ${showBytes(volume.size)}; write ${other}.`);
  const submit = () => {
    setTried(true);
    if (error === null) {
      plan({ kind, volume: volume.name, pool: volume.pool, size });
    }
  };
  return (
    <FormFrame isBusy={isBusy} submit={submit}>
      <TextField
        label="New size"
        value={size}
        hint={`now ${showBytes(volume.size)}; such as 16GiB`}
        error={isTried ? error : null}
        enter={setSize}
      />
    </FormFrame>
  );
}

export function MoveForm({ volume, isBusy, plan }: FormProps & { volume: Volume }) {
  const everything = "all donors";
  const names = volume.members.filter((one) => one.end.startsWith("Donor.")).map((one) => one.end.slice(6));
  const donors = [...new Set(names)].sort(byName);
  const [off, setOff] = useState(everything);
  const submit = () =>
    plan({ kind: "move", volume: volume.name, pool: volume.pool, off: off === everything ? null : off });
  return (
    <FormFrame isBusy={isBusy} submit={submit}>
      <Choice
        label="Move what is on"
        value={off}
        options={[everything, ...donors]}
        hint="to other donors, while it is in use"
        choose={setOff}
      />
    </FormFrame>
  );
}
