// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

// Small parts of pages: states, meters, problems, commands, fields.

import type { ComponentChildren, JSX } from "preact";
import { useId, useState } from "preact/hooks";

import type { Problem } from "../api/client";
import { useWatch } from "../context";
import { percent, share, showBytes, type Bytes } from "../model/bytes";

export type Tone = "good" | "notice" | "bad" | "plain";

const SIGNS: Readonly<Record<Tone, string>> = { good: "●", notice: "◆", bad: "▲", plain: "○" };

/** A state in a word, with a sign and a colour that say the same. */
export function Badge({ tone, children }: { tone: Tone; children: ComponentChildren }) {
  return (
    <span class={`badge ${tone}`}>
      <span aria-hidden="true">{SIGNS[tone]}</span> {children}
    </span>
  );
}

/** How much of something is used. */
export function Meter({ label, part, whole }: { label: string; part: Bytes; whole: Bytes }) {
  const value = share(part, whole);
  const tone = value > 0.95 ? "bad" : value > 0.8 ? "notice" : "good";
  return (
    <span class={`meter ${tone}`} role="img" aria-label={`${label}: ${showBytes(part)} of ${showBytes(whole)}`}>
      <span class="track">
        <span class="used" style={{ width: `${value * 100}%` }} />
      </span>
      <span class="figure" aria-hidden="true">
        {percent(value)}
      </span>
    </span>
  );
}

/** A failure with its remedy. */
export function Failure({ problem }: { problem: Problem | null }) {
  return problem === null ? null : (
    <div class="failure" role="alert">
      <strong>{sentence(problem.message)}</strong> <span>{sentence(problem.remedy)}</span>
    </div>
  );
}

function sentence(text: string): string {
  return `${text.charAt(0).toUpperCase()}${text.slice(1)}${/[.!?]$/.test(text) ? "" : "."}`;
}

/** A command to copy. */
export function Command({ text }: { text: string }) {
  const watch = useWatch();
  const [isCopied, setCopied] = useState(false);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      setCopied(true);
      watch.announce("The command is copied.");
    } catch {
      watch.announce("The browser does not let this page copy. Select the command instead.");
    }
  };
  return (
    <div class="command">
      <code tabIndex={0}>{text}</code>
      <button type="button" class="quiet" onClick={() => void copy()}>
        {isCopied ? "Copied" : "Copy"}
      </button>
    </div>
  );
}

interface FieldProps {
  label: string;
  hint?: string;
  error?: string | null;
  children: (attributes: { id: string; "aria-describedby"?: string; "aria-invalid"?: boolean }) => JSX.Element;
}

/** A labelled input with its hint and what is wrong with it. */
export function Field({ label, hint, error, children }: FieldProps) {
  const id = useId();
  const notes = [hint ? `${id}-hint` : "", error ? `${id}-error` : ""].filter(Boolean).join(" ");
  const attributes = {
    id,
    ...(notes ? { "aria-describedby": notes } : {}),
    ...(error ? { "aria-invalid": true } : {}),
  };
  return (
    <div class="field">
      <label for={id}>{label}</label>
      {children(attributes)}
      {hint && (
        <small id={`${id}-hint`} class="hint">
          {hint}
        </small>
      )}
      {error && (
        <small id={`${id}-error`} class="error">
          {error}
        </small>
      )}
    </div>
  );
}

interface ChoiceProps<T extends string> {
  label: string;
  value: T;
  options: readonly T[];
  /** How an option is written, if not as it is. */
  show?: (option: T) => string;
  hint?: string;
  error?: string | null;
  choose: (value: T) => void;
}

/** One of some words. */
export function Choice<T extends string>({ label, value, options, show, hint, error, choose }: ChoiceProps<T>) {
  const words = show ?? ((option: T) => option);
  const rest = { ...(hint ? { hint } : {}), ...(error ? { error } : {}) };
  return (
    <Field label={label} {...rest}>
      {(attributes) => (
        <select {...attributes} value={value} onChange={(event) => choose(event.currentTarget.value as T)}>
          {options.map((option) => (
            <option key={option} value={option} selected={option === value}>
              {words(option)}
            </option>
          ))}
        </select>
      )}
    </Field>
  );
}

interface TextProps {
  label: string;
  value: string;
  hint?: string;
  error?: string | null;
  type?: "text" | "password" | "search" | "number";
  /** What the browser may fill in. */
  complete?: string;
  required?: boolean;
  options?: readonly string[];
  enter: (value: string) => void;
}

/** A line of text, with known words to choose from if there are some. */
export function TextField({ label, value, hint, error, type, complete, required, options, enter }: TextProps) {
  const list = useId();
  const rest = { ...(hint ? { hint } : {}), ...(error ? { error } : {}) };
  return (
    <Field label={label} {...rest}>
      {(attributes) => (
        <>
          <input
            {...attributes}
            type={type ?? "text"}
            value={value}
            required={required ?? false}
            autocomplete={complete ?? "off"}
            spellcheck={false}
            {...(options ? { list } : {})}
            onInput={(event) => enter(event.currentTarget.value)}
          />
          {options && (
            <datalist id={list}>
              {options.map((option) => (
                <option key={option} value={option} />
              ))}
            </datalist>
          )}
        </>
      )}
    </Field>
  );
}
