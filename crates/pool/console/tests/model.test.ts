// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

// What pages decide without a browser: amounts, readings, groups, histories, activity.

import { describe, expect, test } from "vitest";

import { readEnd, readStatus, readVolume } from "../src/api/resources";
import { heatLevel, warm } from "../src/model/activity";
import { mebibytes, parseBytes, percent, showBytes, sizeProblem } from "../src/model/bytes";
import { fullness, groupEnds, matches, searchEnds, stateOf } from "../src/model/groups";
import { add, SAMPLES_MAX, type Sample } from "../src/model/history";
import { mayAct, type Status } from "../src/model/pool";
import { Reader, Unexpected } from "../src/model/reader";
import { line } from "../src/ui/chart";
import { answers, donor, pool, volume } from "./example";
import { Random } from "./random";

describe("amounts", () => {
  test("are read as the command line reads them", () => {
    expect(parseBytes("8GiB")).toBe(2 ** 33);
    expect(parseBytes("5632GiB")).toBe(5632 * 2 ** 30);
    for (const text of ["8GiB", "8Gi", "8G", "8g", "8 GiB", "8192M", "8192m"]) {
      expect(parseBytes(text), text).toBe(2 ** 33);
    }
    expect(["8GB", "1kB", "1KB", "1k", "1.5KiB", "8", "8B"].map(parseBytes)).toEqual([8e9, 1e3, 1e3, 1024, 1536, 8, 8]);
    const wrong = ["", "GiB", "-1GiB", "8gib", "8gb", "4GI", "1kiB", "1ki", "1e3", "1.2.3MiB", ".", "١GiB", "16EiB"];
    for (const text of [...wrong, "9".repeat(30) + "B"]) {
      expect(parseBytes(text), text).toBeNull();
    }
  });

  test("are shown with one digit after the point at most", () => {
    expect([0, 1023, 2 ** 33, 5632 * 2 ** 30, 1.25 * 2 ** 40].map(showBytes)).toEqual([
      "0B",
      "1023B",
      "8GiB",
      "5.5TiB",
      "1.3TiB",
    ]);
  });

  test("of volumes are rounded up to whole MiB", () => {
    expect([" 8GiB ", "16GB", "1.5MiB"].map(sizeProblem)).toEqual([null, null, null]);
    expect([" 8GiB ", "16GB", "1.5MiB"].map(mebibytes)).toEqual([8192, 15259, 2]);
    for (const text of ["0MiB", "3KiB", "8", "lots"]) {
      expect(sizeProblem(text), text).toMatch(/^Write /);
    }
  });

  test("that are not quite full are not shown as full", () => {
    expect([0, 0.994, 0.999, 1].map(percent)).toEqual(["0 %", "99 %", "99 %", "100 %"]);
  });
});

describe("answers of the manager", () => {
  const list = (path: string) => (answers()[path] as { Members: unknown[] }).Members;
  const chunk = list("/redfish/v1/Chassis/Pools/MemoryDomains/main/MemoryChunks?$expand=.")[0];
  const end = list("/redfish/v1/Fabrics/Aquifer/Endpoints?$expand=.")[0];

  test("are read as what pages show", () => {
    const found = readVolume(new Reader(chunk, "it"));
    expect(found).toMatchObject({ name: "db", size: 2 ** 33, redundancy: "mirror=2", state: "bound", host: "h000" });
    expect(found.members).toEqual([{ end: "Donor.d0000", size: 2 ** 33, span: 1 }]);
    expect(readEnd(new Reader(end, "it"))).toMatchObject({ kind: "donor", health: "answers", promised: 2 ** 34 });
  });

  /** Replaces one value somewhere inside. */
  function spoiled(value: unknown, random: Random): unknown {
    const strange = [null, -1, "", [], {}, "8GB", true, 1e400, "constructor", { "@odata.id": 5 }];
    if (typeof value !== "object" || value === null || random.below(4) === 0) {
      return strange[random.below(strange.length)];
    }
    const names = Object.keys(value);
    const name = names[random.below(names.length)] ?? "";
    const copy = (Array.isArray(value) ? [...value] : { ...value }) as Record<string, unknown>;
    copy[name] = spoiled(copy[name], random);
    return copy;
  }

  test("that are not what the interface says are one error with its place, and never a wrong page", () => {
    for (let seed = 0; seed < 2000; seed += 1) {
      const random = new Random(seed);
      for (const [read, good] of [
        [readVolume, chunk],
        [readEnd, end],
      ] as const) {
        try {
          const found = read(new Reader(spoiled(good, random), "it"));
          expect(typeof found.name, `seed ${seed}`).toBe("string");
          for (const number of Object.values(found).filter((one) => typeof one === "number")) {
            expect(Number.isFinite(number), `seed ${seed}`).toBe(true);
          }
        } catch (error) {
          expect(error, `seed ${seed}`).toBeInstanceOf(Unexpected);
        }
      }
    }
  });

  test("have the faults of programs if an agent counts them", () => {
    const status = answers()["/redfish/v1/Oem/Aquifer"] as Record<string, unknown>;
    const faults = (value: unknown) => readStatus(new Reader({ ...status, Faults: value }, "it")).faults;
    expect(readStatus(new Reader(status, "it")).faults, "a manager of an older version").toBeNull();
    expect(faults(null)).toBeNull();
    const [times, none] = [
      { MeanMicroseconds: 9.5, P99Microseconds: 40 },
      { MeanMicroseconds: null, P99Microseconds: null },
    ];
    expect(faults({ Hosts: 2, PerSecond: 120.5, ...times })).toEqual({
      ...{ hosts: 2, perSecond: 120.5 },
      ...{ meanUs: 9.5, p99Us: 40 },
    });
    expect(faults({ Hosts: 1, PerSecond: 0, ...none })?.p99Us).toBeNull();
    expect(() => faults({ Hosts: 1, PerSecond: "many", ...none })).toThrow(Unexpected);
  });

  test("have no properties that nobody has sent", () => {
    expect(new Reader({}, "it").at("constructor").isMissing).toBe(true);
    expect(new Reader([1], "it").at("length").isMissing).toBe(true);
  });
});

describe("groups", () => {
  const zoned = pool(20, 2, {
    volumes: [
      volume("a", { members: [{ end: "Donor.d0001", size: 1, span: 1 }] }),
      volume("b", { zone: "web", members: [{ end: "Donor.d0001", size: 1, span: 1 }] }),
    ],
  });
  const donors = zoned.ends.filter((one) => one.kind === "donor");

  test("hold every end once, in the order of their names", () => {
    for (const grouping of ["enclosure", "rack", "pool", "zone"] as const) {
      const names = groupEnds(zoned, donors, grouping).flatMap((group) => group.ends.map((one) => one.name));
      expect([...names].sort(), grouping).toEqual(donors.map((one) => one.name).sort());
    }
    const shelves = groupEnds(pool(100, 0), pool(100, 0).ends, "enclosure").map((group) => group.key);
    expect(shelves.slice(0, 3).concat(shelves.slice(-1))).toEqual(["shelf0", "shelf1", "shelf2", "shelf12"]);
  });

  test("by zone name those whose volumes are there", () => {
    expect(groupEnds(zoned, donors, "zone").map((group) => [group.key, group.ends.length])).toEqual([
      ["lab and web", 1],
      ["used by no zone", 19],
    ]);
  });

  test("count what does not answer", () => {
    const ends = [
      donor(0),
      donor(1, { health: "silent" }),
      donor(2, { health: "unknown" }),
      donor(3, { isDraining: true }),
    ];
    const group = groupEnds(pool(4, 0, { ends }), ends, "enclosure")[0];
    expect(group?.unhealthy).toBe(2);
    expect(ends.map(stateOf)).toEqual(["answers", "silent", "not seen yet", "draining"]);
  });

  test("a search finds what has all its words", () => {
    expect(searchEnds(zoned, "d000 shelf0").length).toBe(8);
    expect(searchEnds(zoned, "host").map((one) => one.name)).toEqual(["h000", "h001"]);
    expect(searchEnds(zoned, "unhealthy")).toEqual([]);
    expect(matches("", "anything")).toBe(true);
    expect(matches(".*", "anything")).toBe(false);
  });

  test("fullness is of what is promised", () => {
    expect(fullness(donor(0, { capacity: 100, lent: 10, promised: 50 }))).toBe(0.5);
    expect(fullness(donor(0, { capacity: null, promised: 50 }))).toBe(0);
  });
});

describe("the last minutes", () => {
  const status = (lent: number, sent: number) =>
    ({
      lent,
      capacity: 100,
      steps: { due: 0, sent, failed: 0 },
      volumes: { all: 0, bound: 0, unsettled: 0 },
    }) as Status;

  test("have rates of counters, none of a manager that was started again, and a limit", () => {
    let samples: Sample[] = [];
    for (const [at, lent, sent] of [
      [0, 0, 0],
      [2000, 50, 8],
      [4000, 40, 2],
    ] as const) {
      samples = add(samples, status(lent, sent), at, 1);
    }
    expect(samples.map((one) => one.stepsPerSecond)).toEqual([0, 4, 0]);
    expect(samples.map((one) => one.bytesPerSecond)).toEqual([0, 25, 5]);
    for (let at = 0; at < 2 * SAMPLES_MAX; at += 1) {
      samples = add(samples, status(0, 0), at, 1);
    }
    expect(samples.length).toBe(SAMPLES_MAX);
  });

  test("have the faults that the manager names, and none while no agent counts them", () => {
    const faults = { hosts: 1, perSecond: 7, meanUs: 9, p99Us: null };
    const samples = add(add([], { ...status(0, 0), faults: null }, 0, 1), { ...status(0, 0), faults }, 2000, 1);
    const figures = samples.map((one) => [one.faultsPerSecond, one.faultMeanUs, one.faultP99Us]);
    expect(figures).toEqual([
      [null, null, null],
      [7, 9, null],
    ]);
  });

  test("a line has a gap where there is no figure", () => {
    const values: [number, number | null][] = [
      [0, null],
      [1, 5],
      [2, 6],
      [3, null],
      [4, 7],
    ];
    expect(line(values, (x, y) => [x, y])).toBe("M1.0,5.0L2.0,6.0M4.0,7.0");
  });

  test("a donor is hot while its memory changes hands, and cools down", () => {
    const first = warm(new Map(), [donor(0, { lent: 2 ** 37 })], 0);
    expect(heatLevel(first.get("Donor.d0000"), 2 ** 38)).toBe(0);
    const second = warm(first, [donor(0, { lent: 0 })], 1000);
    expect(heatLevel(second.get("Donor.d0000"), 2 ** 38)).toBe(3);
    const later = warm(second, [donor(0, { lent: 0 })], 3_600_000);
    expect(heatLevel(later.get("Donor.d0000"), 2 ** 38)).toBe(0);
  });
});

test("each role may do what those before it may", () => {
  expect(mayAct("ReadOnly", "Operator")).toBe(false);
  expect(mayAct("Operator", "Operator")).toBe(true);
  expect(mayAct("Administrator", "Operator")).toBe(true);
});
