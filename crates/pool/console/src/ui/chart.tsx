// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

// A chart of the last minutes: lines over time, with the newest figures beside them and all of them in a table.

import { useId } from "preact/hooks";

import type { Sample } from "../model/history";
import { clock } from "../model/time";
import { useWidth } from "./width";

export interface Series {
  readonly title: string;
  /** `null` where a sample has no figure. */
  readonly value: (sample: Sample) => number | null;
}

interface ChartProps {
  title: string;
  samples: readonly Sample[];
  series: readonly Series[];
  show: (value: number) => string;
  /** The axis reaches at least this value. */
  atLeast: number;
  isBytes?: boolean;
  /** What is said if no sample has a figure. */
  empty?: string;
}

const HEIGHT = 150;
const [LEFT, RIGHT, TOP, BOTTOM] = [64, 10, 10, 22];
/** Rows of the table: the newest. */
const ROWS_MAX = 20;

/** A round number that is not below a value: 1, 2 or 5 times a power of ten, or a power of two for bytes. */
export function ceiling(value: number, isBytes: boolean): number {
  if (value <= 0) {
    return 1;
  }
  if (isBytes) {
    return 2 ** Math.ceil(Math.log2(value));
  }
  const power = 10 ** Math.floor(Math.log10(value));
  return ([1, 2, 5, 10].find((factor) => factor * power >= value) ?? 10) * power;
}

/** The points of a line, with a gap where there is no value. */
export function line(
  values: readonly [number, number | null][],
  scale: (x: number, y: number) => [number, number],
): string {
  return values
    .map(([x, y], index) => {
      if (y === null) {
        return "";
      }
      const [px, py] = scale(x, y);
      const isFirst = (values[index - 1]?.[1] ?? null) === null;
      return `${isFirst ? "M" : "L"}${px.toFixed(1)},${py.toFixed(1)}`;
    })
    .join("");
}

export function Chart(props: ChartProps) {
  const { title, samples, series, empty } = props;
  const id = useId();
  const isEmpty = samples.length > 0 && samples.every((sample) => series.every((one) => one.value(sample) === null));
  if (empty === undefined || !isEmpty) {
    return <Lines {...props} />;
  }
  return (
    <figure class="chart" aria-labelledby={id}>
      <figcaption id={id}>
        <strong>{title}</strong>
      </figcaption>
      <p class="empty">{empty}</p>
    </figure>
  );
}

function Lines({ title, samples, series, show, atLeast, isBytes }: ChartProps) {
  const [element, width] = useWidth<HTMLDivElement>();
  const id = useId();
  const newest = samples.at(-1);
  const [first, last] = [samples[0]?.at ?? 0, newest?.at ?? 0];
  const figure = (value: number | null) => (value === null ? "no figures" : show(value));
  const highest = Math.max(atLeast, ...samples.flatMap((sample) => series.map((one) => one.value(sample) ?? 0)));
  const top = ceiling(highest, isBytes ?? false);
  // A minute at least, so that the first samples do not fill the whole chart.
  const span = Math.max(60_000, last - first);
  const scale = (at: number, value: number): [number, number] => [
    LEFT + ((at - (last - span)) / span) * (width - LEFT - RIGHT),
    TOP + (1 - Math.min(1, value / top)) * (HEIGHT - TOP - BOTTOM),
  ];
  return (
    <figure class="chart" aria-labelledby={id}>
      <figcaption id={id}>
        <strong>{title}</strong>
        <span class="legend">
          {series.map((one, index) => (
            <span key={one.title} class={`series-${index}`}>
              <span class="swatch" aria-hidden="true" /> {one.title} <b>{newest ? figure(one.value(newest)) : "…"}</b>
            </span>
          ))}
        </span>
      </figcaption>
      <div ref={element}>
        <svg width={width} height={HEIGHT} aria-hidden="true">
          {[0, 0.5, 1].map((part) => {
            const y = TOP + (1 - part) * (HEIGHT - TOP - BOTTOM);
            return (
              <g key={part}>
                <line class="grid" x1={LEFT} x2={width - RIGHT} y1={y} y2={y} />
                <text class="axis" x={LEFT - 6} y={y + 4} text-anchor="end">
                  {show(top * part)}
                </text>
              </g>
            );
          })}
          {samples.length > 0 && (
            <>
              <text class="axis" x={LEFT} y={HEIGHT - 5}>
                {clock(last - span)}
              </text>
              <text class="axis" x={width - RIGHT} y={HEIGHT - 5} text-anchor="end">
                {clock(last)}
              </text>
            </>
          )}
          {series.map((one, index) => (
            <path
              key={one.title}
              class={`line series-${index}`}
              d={line(
                samples.map((sample) => [sample.at, one.value(sample)]),
                scale,
              )}
            />
          ))}
          {newest &&
            series.map((one, index) => {
              const value = one.value(newest);
              if (value === null) {
                return null;
              }
              const [x, y] = scale(newest.at, value);
              return <circle key={one.title} class={`newest series-${index}`} cx={x} cy={y} r={3.5} />;
            })}
        </svg>
      </div>
      <details>
        <summary>Figures of {title}</summary>
        <table>
          <thead>
            <tr>
              <th scope="col">Time</th>
              {series.map((one) => (
                <th scope="col" key={one.title}>
                  {one.title}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {samples
              .slice(-ROWS_MAX)
              .reverse()
              .map((sample) => (
                <tr key={sample.at}>
                  <th scope="row">{clock(sample.at)}</th>
                  {series.map((one) => (
                    <td key={one.title}>{figure(one.value(sample))}</td>
                  ))}
                </tr>
              ))}
          </tbody>
        </table>
      </details>
    </figure>
  );
}
