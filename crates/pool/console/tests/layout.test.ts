// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

// The picture: for any pool and width everything is inside and nothing overlaps, and its size has a limit.

import { describe, expect, test } from "vitest";

import { groupEnds } from "../src/model/groups";
import { CELLS_MAX, layout, LINKS_MAX, neighbour, type Box, type Layout } from "../src/model/layout";
import type { End, Switch, Volume } from "../src/model/pool";
import { donor, pool, volume } from "./example";
import { Random } from "./random";

function draw(
  donors: number,
  hosts: number,
  width: number,
  volumes: readonly Volume[] = [],
  selected: string | null = null,
) {
  const all = pool(donors, hosts, { volumes });
  const is = (kind: End["kind"]) => all.ends.filter((end) => end.kind === kind);
  const groups = groupEnds(all, is("donor"), "enclosure");
  const switches: Switch[] = [
    {
      ...{ name: "s0", enclosure: "box", vppbs: 16, vppbsBound: 0 },
      ports: Array.from({ length: 130 }, (_, id) => ({
        id: String(id),
        isUpstream: id === 0,
        end: id === 0 ? "Host.h000" : null,
      })),
    },
  ];
  return layout({ hosts: is("host"), switches, groups, volumes, selected }, width);
}

function overlap(a: Box, b: Box): boolean {
  return a.x < b.x + b.width && b.x < a.x + a.width && a.y < b.y + b.height && b.y < a.y + a.height;
}

function faultsOf(picture: Layout): string[] {
  const faults: string[] = [];
  for (const rect of [...picture.boxes, ...picture.panels]) {
    const isAcross = rect.x >= 0 && rect.x + rect.width <= picture.width;
    if (!isAcross || rect.y < 0 || rect.y + rect.height > picture.height) {
      faults.push(`${"id" in rect ? rect.id : rect.key} is outside`);
    }
  }
  faults.push(...picture.ports.filter((port) => port.x + 11 > picture.width).map((port) => `${port.id} is outside`));
  const boxes = picture.boxes.filter((box) => box.kind !== "group").slice(0, 300);
  for (const [index, a] of boxes.entries()) {
    const over = boxes.slice(index + 1).find((b) => overlap(a, b));
    if (over) {
      faults.push(`${a.id} is over ${over.id}`);
    }
  }
  return faults;
}

describe("places", () => {
  test("are inside and apart, for pools and widths of all sizes", () => {
    for (let seed = 0; seed < 60; seed += 1) {
      const random = new Random(seed);
      const [donors, hosts] = [random.below(seed % 3 === 0 ? 3000 : 80), random.below(90)];
      const width = 200 + random.below(2600);
      const faults = faultsOf(draw(donors, hosts, width));
      expect(faults, `seed ${seed}: ${donors} donors, ${hosts} hosts, ${width} px`).toEqual([]);
    }
  });

  test("are the same for the same pool", () => {
    expect(draw(100, 3, 800)).toEqual(draw(100, 3, 800));
  });

  test("few donors have boxes with names, many have cells, and very many one bar for each group", () => {
    expect(draw(22, 3, 1000).boxes.filter((box) => box.kind === "donor" && box.hasLabel).length).toBe(22);
    expect(draw(1000, 3, 1000).boxes.filter((box) => box.kind === "donor" && !box.hasLabel).length).toBe(1000);
    const most = draw(10_000, 200, 1000);
    expect(most.boxes.filter((box) => box.kind === "group").length).toBe(1250);
    expect(most.boxes.length).toBeLessThan(CELLS_MAX);
  });
});

describe("bindings", () => {
  const spread = (name: string, host: string, count: number) =>
    volume(name, {
      host,
      members: Array.from({ length: count }, (_, index) => ({ end: donor(index).id, size: 2 ** 30, span: 1 })),
    });

  test("go from a host to each donor, and from nobody for a volume that is not bound", () => {
    const links = draw(10, 2, 800, [spread("a", "h000", 4), spread("b", "h000", 2), volume("c")]).links;
    const bindings = links.filter((link) => !link.isCable);
    expect(bindings.map((link) => link.to)).toEqual([0, 1, 2, 3].map((number) => donor(number).id));
    expect(bindings[0]?.volumes).toEqual(["a", "b"]);
    expect(links.filter((link) => link.isCable).length).toBe(1);
  });

  test("that are too many are left out, but for those of the selection", () => {
    const volumes = [spread("a", "h000", 900), spread("b", "h001", 3)];
    const picture = draw(1000, 2, 1000, volumes, "Host.h001");
    expect(picture.links.map((link) => link.host)).toEqual(["Host.h001", "Host.h001", "Host.h001"]);
    expect(picture.linksHidden).toBe(901);
    const one = draw(1000, 2, 1000, volumes, "Host.h000");
    expect(one.links.length).toBe(LINKS_MAX);
  });
});

test("arrow keys reach every box, and stay inside", () => {
  const { boxes } = draw(30, 4, 700);
  const seen = new Set<string>();
  for (let at = boxes[0]?.id ?? ""; !seen.has(at); at = neighbour(boxes, at, "ArrowRight")) {
    seen.add(at);
  }
  expect(seen.size).toBe(boxes.length);
  const last = boxes.at(-1)?.id ?? "";
  expect(neighbour(boxes, last, "ArrowRight")).toBe(last);
  expect(neighbour(boxes, last, "Home")).toBe(boxes[0]?.id);
  expect(neighbour(boxes, "Host.h000", "ArrowUp")).toBe("Host.h000");
  expect(neighbour(boxes, "Host.h000", "ArrowDown")).toBe("Switch.s0");
  expect(neighbour(boxes, "nothing", "ArrowDown")).toBe(boxes[0]?.id);
  expect(neighbour([], "nothing", "ArrowDown")).toBe("nothing");
});
