// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

// A change in two steps: what is wanted, then the plan of it, with the command that does the same. Nothing is changed
// before the plan was shown. The volume must still be as it was for the plan, or the manager refuses (If-Match).

import { useEffect, useState } from "preact/hooks";

import type { Problem } from "../api/client";
import { useWatch } from "../context";
import { commandOf, losesBytes, titleOf, type Act } from "../model/acts";
import type { Volume } from "../model/pool";
import { Dialog } from "../ui/dialog";
import { Command, Failure } from "../ui/parts";
import { explain, type Planned } from "../watch";
import { BindForm, CreateForm, MoveForm, ResizeForm } from "./forms";

/** What a person wants to do, before the form is filled in. */
export type Intent =
  | { readonly kind: "create" }
  | { readonly kind: "bind" | "unbind" | "grow" | "shrink" | "move" | "release"; readonly volume: Volume }
  | { readonly kind: "drain"; readonly donor: string; readonly undo: boolean }
  | { readonly kind: "declare-gone"; readonly of: "donor" | "host"; readonly name: string };

/** Steps that are shown at once. */
const STEPS_SHOWN = 12;

/** The act of an intent that needs no form. */
function actOf(intent: Intent): Act | null {
  switch (intent.kind) {
    case "drain":
    case "declare-gone":
      return intent;
    case "unbind":
      return { kind: "unbind", volume: intent.volume.name, pool: intent.volume.pool };
    case "release": {
      const { name, pool, host } = intent.volume;
      return { kind: "release", volume: name, pool, unbinds: host !== null };
    }
    default:
      return null;
  }
}

export function ChangeDialog({ intent, close }: { intent: Intent; close: () => void }) {
  const watch = useWatch();
  const direct = actOf(intent);
  const [planned, setPlanned] = useState<Planned | null>(null);
  const [problem, setProblem] = useState<Problem | null>(null);
  const [isBusy, setBusy] = useState(false);
  const attempt = async (what: () => Promise<void>) => {
    setBusy(true);
    setProblem(null);
    try {
      await what();
    } catch (error) {
      setProblem(explain(error));
    }
    setBusy(false);
  };
  const plan = (act: Act) =>
    attempt(async () => {
      setPlanned(await watch.plan(act));
    });
  const carryOut = (wanted: Planned) =>
    attempt(async () => {
      await watch.carryOut(wanted).catch((error: unknown) => {
        // A plan of what has changed since is worth nothing.
        setPlanned(null);
        watch.look(true);
        throw error;
      });
      watch.announce(`${titleOf(wanted.act)}: stored, and being carried out.`);
      close();
    });
  useEffect(() => {
    if (direct) {
      void plan(direct);
    }
  }, []);
  const title = planned?.act ?? direct;
  return (
    <Dialog title={title ? titleOf(title) : titleOf(draft(intent))} close={close}>
      <Failure problem={problem} />
      {planned === null && direct && problem && (
        <button type="button" disabled={isBusy} onClick={() => void plan(direct)}>
          Plan it again
        </button>
      )}
      {planned === null && direct && !problem && <p role="status">The manager plans it.</p>}
      {planned === null && !direct && <Form intent={intent} isBusy={isBusy} plan={(act) => void plan(act)} />}
      {planned && (
        <PlanView
          planned={planned}
          isBusy={isBusy}
          back={direct ? close : () => setPlanned(null)}
          carryOut={() => void carryOut(planned)}
        />
      )}
    </Dialog>
  );
}

/** An act for the title alone. */
function draft(intent: Intent): Act {
  const volume = "volume" in intent ? intent.volume.name : "";
  switch (intent.kind) {
    case "create":
      return { kind: "create", volume, size: "", pool: "", zone: "", class: "", redundancy: "", spread: "", width: 1 };
    case "bind":
      return { kind: "bind", volume, pool: "", host: "" };
    case "grow":
    case "shrink":
      return { kind: intent.kind, volume, pool: "", size: "" };
    case "move":
      return { kind: "move", volume, pool: "", off: null };
    case "unbind":
      return { kind: "unbind", volume, pool: "" };
    case "release":
      return { kind: "release", volume, pool: "", unbinds: false };
    default:
      return intent;
  }
}

interface FormProps {
  intent: Intent;
  isBusy: boolean;
  plan: (act: Act) => void;
}

function Form({ intent, isBusy, plan }: FormProps) {
  switch (intent.kind) {
    case "create":
      return <CreateForm isBusy={isBusy} plan={plan} />;
    case "bind":
      return <BindForm volume={intent.volume} isBusy={isBusy} plan={plan} />;
    case "grow":
    case "shrink":
      return <ResizeForm kind={intent.kind} volume={intent.volume} isBusy={isBusy} plan={plan} />;
    case "move":
      return <MoveForm volume={intent.volume} isBusy={isBusy} plan={plan} />;
    default:
      return null;
  }
}

/** What a person confirms before bytes are lost. */
function lossOf(act: Act): string {
  if (act.kind === "declare-gone") {
    return "It is really gone: its bytes are given up.";
  }
  const isTaken = act.kind === "release" && act.unbinds;
  return isTaken ? "It is taken from its host, and the bytes may be lost." : "The bytes may be lost.";
}

interface PlanProps {
  planned: Planned;
  isBusy: boolean;
  back: () => void;
  carryOut: () => void;
}

function PlanView({ planned: { act, plan }, isBusy, back, carryOut }: PlanProps) {
  const [isSure, setSure] = useState(!losesBytes(act.kind));
  return (
    <div class="plan">
      <h3>What would change</h3>
      {plan.changes.length > 0 ? <Lines lines={plan.changes} /> : <p>Nothing changes.</p>}
      <h3>Steps that would follow at first</h3>
      {plan.steps.length > 0 ? <Lines lines={plan.steps} /> : <p>None.</p>}
      {plan.remarks.length > 0 && (
        <>
          <h3>Remarks</h3>
          <Lines lines={plan.remarks} />
        </>
      )}
      <h3>The same as a command</h3>
      <Command text={commandOf(act, location.origin)} />
      {losesBytes(act.kind) && (
        <label class="check">
          <input type="checkbox" checked={isSure} onChange={(event) => setSure(event.currentTarget.checked)} />
          {lossOf(act)}
        </label>
      )}
      <div class="actions">
        <button type="button" class="quiet" onClick={back}>
          Back
        </button>
        <button
          type="button"
          class={losesBytes(act.kind) ? "danger" : ""}
          disabled={isBusy || !isSure || plan.changes.length === 0}
          onClick={carryOut}
        >
          {isBusy ? "Being stored…" : "Carry it out"}
        </button>
      </div>
    </div>
  );
}

function Lines({ lines }: { lines: readonly string[] }) {
  const [isWhole, setWhole] = useState(false);
  const shown = isWhole ? lines : lines.slice(0, STEPS_SHOWN);
  return (
    <>
      <ul class="lines">
        {shown.map((line, index) => (
          <li key={index}>{line}</li>
        ))}
      </ul>
      {shown.length < lines.length && (
        <button type="button" class="quiet" onClick={() => setWhole(true)}>
          Show {lines.length - shown.length} more
        </button>
      )}
    </>
  );
}
