// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

// A table with a caption, sorted by any column, in pages: the same for a screen reader as for eyes.

import type { ComponentChildren } from "preact";
import { useMemo, useState } from "preact/hooks";

import { byName } from "../model/groups";

/** Rows of one page. */
export const PAGE_ROWS = 25;

export interface Column<T> {
  readonly title: string;
  readonly cell: (row: T) => ComponentChildren;
  /** What the column is sorted by. */
  readonly by?: (row: T) => string | number;
  readonly isNumber?: boolean;
}

interface TableProps<T> {
  caption: string;
  rows: readonly T[];
  columns: readonly Column<T>[];
  keyOf: (row: T) => string | number;
  /** What is said if there are no rows. */
  empty: string;
}

interface Order {
  readonly column: number;
  readonly isDown: boolean;
}

function compare(a: string | number, b: string | number): number {
  return typeof a === "number" && typeof b === "number" ? a - b : byName(String(a), String(b));
}

function sorted<T>(rows: readonly T[], by: ((row: T) => string | number) | undefined, isDown: boolean): readonly T[] {
  return by ? [...rows].sort((a, b) => compare(by(a), by(b)) * (isDown ? -1 : 1)) : rows;
}

export function Table<T>({ caption, rows, columns, keyOf, empty }: TableProps<T>) {
  const [order, setOrder] = useState<Order | null>(null);
  const [page, setPage] = useState(0);
  const by = order ? columns[order.column]?.by : undefined;
  const all = useMemo(() => sorted(rows, by, order?.isDown ?? false), [rows, order]);
  const last = Math.max(0, Math.ceil(all.length / PAGE_ROWS) - 1);
  const at = Math.min(page, last);
  const turn = (column: number) => {
    setOrder({ column, isDown: order?.column === column && !order.isDown });
    setPage(0);
  };
  return (
    <div class="table">
      <div class="scroll" role="region" aria-label={caption} tabIndex={0}>
        <table>
          <caption>
            {caption} <span class="count">{all.length}</span>
          </caption>
          <thead>
            <tr>
              {columns.map((column, index) => (
                <Head key={column.title} column={column} index={index} order={order} turn={turn} />
              ))}
            </tr>
          </thead>
          <tbody>
            {all.slice(at * PAGE_ROWS, (at + 1) * PAGE_ROWS).map((row) => (
              <tr key={keyOf(row)}>
                {columns.map((column, index) => (
                  <Cell key={column.title} column={column} row={row} isFirst={index === 0} />
                ))}
              </tr>
            ))}
          </tbody>
        </table>
        {all.length === 0 && <p class="empty">{empty}</p>}
      </div>
      {last > 0 && (
        <nav class="pages" aria-label={`Pages of ${caption}`}>
          <button type="button" class="quiet" disabled={at === 0} onClick={() => setPage(at - 1)}>
            Previous
          </button>
          <span aria-live="polite">
            {at * PAGE_ROWS + 1} to {Math.min(all.length, (at + 1) * PAGE_ROWS)} of {all.length}
          </span>
          <button type="button" class="quiet" disabled={at === last} onClick={() => setPage(at + 1)}>
            Next
          </button>
        </nav>
      )}
    </div>
  );
}

interface HeadProps<T> {
  column: Column<T>;
  index: number;
  order: Order | null;
  turn: (column: number) => void;
}

function Head<T>({ column, index, order, turn }: HeadProps<T>) {
  const isOrder = order?.column === index;
  const sort = isOrder ? (order.isDown ? "descending" : "ascending") : "none";
  const sign = isOrder ? (order.isDown ? "▼" : "▲") : "";
  return (
    <th scope="col" class={column.isNumber ? "number" : ""} {...(column.by ? { "aria-sort": sort } : {})}>
      {column.by ? (
        <button type="button" class="sort" onClick={() => turn(index)}>
          {column.title} <span aria-hidden="true">{sign}</span>
        </button>
      ) : (
        column.title
      )}
    </th>
  );
}

function Cell<T>({ column, row, isFirst }: { column: Column<T>; row: T; isFirst: boolean }) {
  const kind = column.isNumber ? "number" : "";
  return isFirst ? (
    <th scope="row" class={kind}>
      {column.cell(row)}
    </th>
  ) : (
    <td class={kind}>{column.cell(row)}</td>
  );
}
