// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

// The audit log, and whether it is whole: checked by this page, record by record.

import { useEffect, useState } from "preact/hooks";

import type { Problem } from "../api/client";
import { readAudit } from "../api/resources";
import { useConsole, useWatch } from "../context";
import { commandLine } from "../model/acts";
import { sinceEarlier, START, verify, type AuditRecord, type Tail, type Verdict } from "../model/audit";
import { instant } from "../model/time";
import { Badge, Command, Failure } from "../ui/parts";
import { Table, type Column } from "../ui/table";
import { explain, STATUS } from "../watch";

/** Records that a page checks; beyond, the command line is the better tool. */
const RECORDS_MAX = 200_000;
/** Records that are shown: the newest. */
const SHOWN_MAX = 5000;
const PAGE = 1000;
const TAIL_KEY = "aquifer-audit-tail";

const COLUMNS: readonly Column<AuditRecord>[] = [
  { title: "Number", by: (record) => record.sequence, cell: (record) => record.sequence },
  { title: "Time", by: (record) => record.at, cell: (record) => instant(record.at) },
  { title: "Who", by: (record) => record.who, cell: (record) => record.who },
  { title: "What", by: (record) => record.what, cell: (record) => record.what },
  { title: "Hash", cell: (record) => <code title={record.hash}>{record.hash.slice(0, 12)}</code> },
];

interface Log {
  readonly records: readonly AuditRecord[];
  readonly verdict: Verdict;
}

/** The end of the log that this browser has checked last, kept where the manager cannot change it. */
function earlierTail(): Tail | null {
  try {
    const kept = JSON.parse(localStorage.getItem(TAIL_KEY) ?? "null") as Partial<Tail> | null;
    const isTail = typeof kept?.records === "number" && typeof kept.hash === "string";
    return isTail ? { records: kept.records as number, hash: kept.hash as string } : null;
  } catch {
    return null;
  }
}

export function AuditPage() {
  const watch = useWatch();
  const { status } = useConsole();
  const [log, setLog] = useState<Log | null>(null);
  const [problem, setProblem] = useState<Problem | null>(null);
  const [round, setRound] = useState(0);
  useEffect(() => {
    let isLeft = false;
    const read = async () => {
      try {
        const found = await checked((path) => watch.client.read(path));
        if (!isLeft) {
          setLog(found);
          setProblem(null);
        }
      } catch (error) {
        if (!isLeft) {
          setProblem(explain(error));
        }
      }
    };
    void read();
    return () => {
      isLeft = true;
    };
  }, [round, status?.version]);
  return (
    <>
      <h1>Audit</h1>
      <Failure problem={problem} />
      {log ? <VerdictView verdict={log.verdict} /> : <p role="status">The log is read and checked.</p>}
      <div class="actions">
        <button type="button" class="quiet" onClick={() => setRound(round + 1)}>
          Check again
        </button>
        {log?.verdict.kind === "broken" && (
          <button
            type="button"
            class="danger"
            onClick={() => {
              localStorage.removeItem(TAIL_KEY);
              setRound(round + 1);
            }}
          >
            Forget what this browser has seen
          </button>
        )}
      </div>
      <Table
        caption="Who changed what"
        rows={log?.records ?? []}
        columns={COLUMNS}
        keyOf={(record) => record.sequence}
        empty="Nothing was changed yet."
      />
      <Command text={commandLine(["audit", "--json"], location.origin)} />
    </>
  );
}

/** Reads all pages, and checks each after the one before. */
async function checked(read: (path: string) => Promise<Parameters<typeof readAudit>[0]>): Promise<Log> {
  const earlier = earlierTail();
  const hashes = new Map<number, string>();
  let records: AuditRecord[] = [];
  let verdict: Verdict = { kind: "whole", tail: START };
  while (verdict.kind === "whole" && verdict.tail.records < RECORDS_MAX) {
    const page = readAudit(await read(`${STATUS}/Audit?$skip=${verdict.tail.records}&$top=${PAGE}`));
    if (page.records.length === 0) {
      break;
    }
    verdict = await verify(page.records, verdict.tail);
    page.records.forEach((record) => hashes.set(record.sequence, record.hash));
    records = [...records, ...page.records].slice(-SHOWN_MAX);
    if (page.records.length < PAGE) {
      break;
    }
  }
  const broken = sinceEarlier(earlier, hashes);
  if (verdict.kind === "whole" && broken === null) {
    localStorage.setItem(TAIL_KEY, JSON.stringify(verdict.tail));
  }
  return { records: records.reverse(), verdict: verdict.kind === "whole" && broken ? broken : verdict };
}

function VerdictView({ verdict }: { verdict: Verdict }) {
  return verdict.kind === "whole" ? (
    <p class="verdict" role="status">
      <Badge tone="good">whole</Badge> {verdict.tail.records} records, each with the hash of the one before. The newest
      hash is <code class="hash">{verdict.tail.hash}</code>
    </p>
  ) : (
    <p class="verdict failure" role="alert">
      <Badge tone="bad">broken</Badge> Record {verdict.at}: {verdict.why}. Compare it with a copy of the log.
    </p>
  );
}
