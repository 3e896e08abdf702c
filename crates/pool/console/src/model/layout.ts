// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

// Where everything of the picture is: hosts above, switches between, memory below in groups. Pure: the same pool and
// width give the same picture.
//
// A few dozen donors are boxes with names; hundreds are small cells; beyond CELLS_MAX a group is one bar. So the number
// of drawn elements has a limit, whatever the pool.

import type { Bytes } from "./bytes";
import { fullness, isUnhealthy, stateOf, type Group } from "./groups";
import type { End, Switch, Volume } from "./pool";

/** Ends of memory up to which each has a box with its name. */
export const BOXES_MAX = 64;
/** Ends of memory up to which each has a cell. */
export const CELLS_MAX = 2000;
/** Hosts up to which each has a box with its name. */
export const HOST_BOXES_MAX = 40;
/** Links that are drawn at a time; if there are more, those of the selection alone are. */
export const LINKS_MAX = 120;

const MARGIN = 12;
const GAP = 10;
const LANE_HEAD = 26;
const LANE_GAP = 34;
const PANEL_HEAD = 34;
const PANEL_PAD = 8;
const CELL = 17;
const CELL_GAP = 2;
/** Cells of a group side by side at least, and how much wider than high a large group is. */
const COLUMNS_MIN = 8;
const GROUP_SHAPE = 2.5;

export interface Box {
  readonly id: string;
  readonly kind: "host" | "donor" | "device" | "switch" | "group";
  readonly x: number;
  readonly y: number;
  readonly width: number;
  readonly height: number;
  readonly label: string;
  /** What a screen reader says. */
  readonly description: string;
  /** From 0 to 1; `null` for what cannot be full. */
  readonly fill: number | null;
  readonly isUnhealthy: boolean;
  readonly isDraining: boolean;
  /** Whether there is room for its name. */
  readonly hasLabel: boolean;
}

export interface Panel {
  readonly key: string;
  readonly title: string;
  readonly note: string;
  readonly x: number;
  readonly y: number;
  readonly width: number;
  readonly height: number;
  readonly fill: number;
}

export interface PortBox {
  readonly id: string;
  readonly x: number;
  readonly y: number;
  readonly isUpstream: boolean;
  readonly isUsed: boolean;
}

export interface Lane {
  readonly title: string;
  readonly y: number;
}

export interface Link {
  readonly key: string;
  readonly host: string;
  readonly to: string;
  readonly volumes: readonly string[];
  readonly path: string;
  readonly width: number;
  readonly isCable: boolean;
}

export interface Layout {
  readonly width: number;
  readonly height: number;
  readonly lanes: readonly Lane[];
  readonly panels: readonly Panel[];
  readonly boxes: readonly Box[];
  readonly ports: readonly PortBox[];
  readonly links: readonly Link[];
  /** Bindings that were left out, because there are too many. */
  readonly linksHidden: number;
}

export interface Picture {
  readonly hosts: readonly End[];
  readonly switches: readonly Switch[];
  readonly groups: readonly Group[];
  readonly volumes: readonly Volume[];
  /** The box whose bindings are drawn if not all can be. */
  readonly selected: string | null;
}

const PORT = 11;

/** Places boxes of one size in rows, and returns the y below them. */
function flow(
  count: number,
  box: [number, number],
  area: [number, number, number],
  put: (index: number, x: number, y: number) => void,
): number {
  const [width, height] = box;
  const [left, top, right] = area;
  const columns = Math.max(1, Math.floor((right - left + GAP) / (width + GAP)));
  for (let index = 0; index < count; index += 1) {
    put(index, left + (index % columns) * (width + GAP), top + Math.floor(index / columns) * (height + GAP));
  }
  return top + Math.ceil(count / columns) * (height + GAP) - (count > 0 ? GAP : 0);
}

function describe(end: End): string {
  const bound = end.volumes === 1 ? "1 volume bound" : `${end.volumes} volumes bound`;
  const full = end.kind === "host" ? bound : `${Math.round(fullness(end) * 100)} % promised`;
  return `${end.kind} ${end.name}, ${stateOf(end)}, ${full}`;
}

function boxOf(end: End, place: Pick<Box, "x" | "y" | "width" | "height" | "hasLabel">): Box {
  return {
    id: end.id,
    kind: end.kind,
    label: end.name,
    description: describe(end),
    fill: end.kind === "host" ? null : fullness(end),
    isUnhealthy: isUnhealthy(end),
    isDraining: end.isDraining || end.health === "draining",
    ...place,
  };
}

class Drawing {
  readonly lanes: Lane[] = [];
  readonly panels: Panel[] = [];
  readonly boxes: Box[] = [];
  readonly ports: PortBox[] = [];
  /** Where a link to an end arrives: its own box, or that of its group. */
  readonly anchors = new Map<string, Box>();
  y = MARGIN;

  constructor(readonly width: number) {}

  lane(title: string): void {
    this.lanes.push({ title, y: this.y + 14 });
    this.y += LANE_HEAD;
  }

  put(box: Box): void {
    this.boxes.push(box);
    this.anchors.set(box.id, box);
  }

  hosts(hosts: readonly End[]): void {
    const hasLabel = hosts.length <= HOST_BOXES_MAX;
    const [width, height] = hasLabel ? [104, 44] : [22, 22];
    this.lane(`Hosts (${hosts.length})`);
    const area: [number, number, number] = [MARGIN, this.y, this.width - MARGIN];
    this.y = flow(hosts.length, [width, height], area, (index, x, y) => {
      const host = hosts[index];
      if (host) {
        this.put(boxOf(host, { x, y, width, height, hasLabel }));
      }
    });
    this.y += LANE_GAP;
  }

  switches(switches: readonly Switch[]): void {
    if (switches.length === 0) {
      return;
    }
    this.lane(`Switches (${switches.length})`);
    for (const one of switches) {
      const wanted = Math.max(170, one.ports.length * (PORT + 3) + 2 * PANEL_PAD);
      const width = Math.min(this.width - 2 * MARGIN, wanted);
      const columns = Math.max(1, Math.floor((width - 2 * PANEL_PAD + 3) / (PORT + 3)));
      const height = 28 + Math.ceil(one.ports.length / columns) * (PORT + 3) + 4;
      const description = `switch ${one.name}, ${one.vppbsBound} of ${one.vppbs} vPPBs bound, ${one.ports.length} ports`;
      this.put({
        ...{ id: `Switch.${one.name}`, kind: "switch", x: MARGIN, y: this.y, width, height, label: one.name },
        ...{ description, fill: null, isUnhealthy: false, isDraining: false, hasLabel: true },
      });
      one.ports.forEach((port, index) => {
        const x = MARGIN + PANEL_PAD + (index % columns) * (PORT + 3);
        const y = this.y + 26 + Math.floor(index / columns) * (PORT + 3);
        const isUsed = port.end !== null;
        this.ports.push({ id: `${one.name}/${port.id}`, x, y, isUpstream: port.isUpstream, isUsed });
      });
      this.y += height + GAP;
    }
    this.y += LANE_GAP - GAP;
  }

  memory(groups: readonly Group[]): void {
    const count = groups.reduce((sum, group) => sum + group.ends.length, 0);
    const hasLabel = count <= BOXES_MAX;
    const isBar = count > CELLS_MAX;
    const [width, height, gap] = hasLabel ? [84, 36, 6] : [CELL, CELL, CELL_GAP];
    const room = this.width - 2 * MARGIN - 2 * PANEL_PAD;
    const columnsMax = Math.max(1, Math.floor((room + gap) / (width + gap)));
    this.lane(`Donors and devices (${count})`);
    let [x, rowHeight] = [MARGIN, 0];
    for (const group of groups) {
      const shape = Math.max(COLUMNS_MIN, Math.ceil(Math.sqrt(group.ends.length * GROUP_SHAPE)));
      const columns = Math.min(columnsMax, hasLabel ? Math.min(shape, group.ends.length) : shape);
      const rows = isBar ? 0 : Math.ceil(group.ends.length / columns);
      const panelWidth = Math.min(
        this.width - 2 * MARGIN,
        Math.max(150, columns * (width + gap) - gap + 2 * PANEL_PAD),
      );
      const panelHeight = PANEL_HEAD + rows * (height + gap) - (rows > 0 ? gap : 0) + PANEL_PAD;
      if (x > MARGIN && x + panelWidth > this.width - MARGIN) {
        this.y += rowHeight + GAP;
        [x, rowHeight] = [MARGIN, 0];
      }
      this.panel(group, { x, y: this.y, width: panelWidth, height: panelHeight }, isBar);
      if (!isBar) {
        group.ends.forEach((end, index) => {
          const cx = x + PANEL_PAD + (index % columns) * (width + gap);
          const cy = this.y + PANEL_HEAD + Math.floor(index / columns) * (height + gap);
          this.put(boxOf(end, { x: cx, y: cy, width, height, hasLabel }));
        });
      }
      x += panelWidth + GAP;
      rowHeight = Math.max(rowHeight, panelHeight);
    }
    this.y += rowHeight;
  }

  private panel(group: Group, place: Pick<Panel, "x" | "y" | "width" | "height">, isBar: boolean): void {
    const fill = group.capacity > 0 ? Math.min(1, group.promised / group.capacity) : 0;
    const bad = group.unhealthy > 0 ? `, ${group.unhealthy} unhealthy` : "";
    const note = `${Math.round(fill * 100)} %${bad}`;
    this.panels.push({ key: group.key, title: group.title, note, fill, ...place });
    if (isBar) {
      const description = `group ${group.title}, ${group.ends.length} donors and devices, ${note} promised`;
      const box: Box = {
        ...{ id: `Group.${group.key}`, kind: "group", label: group.title, description, fill, ...place },
        ...{ isUnhealthy: group.unhealthy > 0, isDraining: false, hasLabel: false },
      };
      this.put(box);
      group.ends.forEach((end) => this.anchors.set(end.id, box));
    }
  }
}

/** A curve from the lower edge of a box to the upper edge of another one. */
function curve(from: Box, to: Box): string {
  const [x1, y1] = [from.x + from.width / 2, from.y + from.height];
  const [x2, y2] = [to.x + to.width / 2, to.y];
  const bend = Math.max(16, (y2 - y1) / 2);
  const point = (x: number, y: number) => `${Math.round(x * 10) / 10},${Math.round(y * 10) / 10}`;
  return `M${point(x1, y1)} C${point(x1, y1 + bend)} ${point(x2, y2 - bend)} ${point(x2, y2)}`;
}

/** Thicker for more bytes: 1 for a MiB, one more for each 64 times as much. */
function thickness(bytes: Bytes): number {
  return Math.min(6, Math.max(1, Math.log2(Math.max(1, bytes / 2 ** 20)) / 6 + 1));
}

/** Bindings between hosts and what holds their volumes' members. */
function bindings(drawing: Drawing, picture: Picture): Link[] {
  const found = new Map<string, { from: Box; to: Box; host: string; volumes: Set<string>; bytes: Bytes }>();
  for (const volume of picture.volumes) {
    const from = volume.host === null ? undefined : drawing.anchors.get(`Host.${volume.host}`);
    for (const member of from ? volume.members : []) {
      const to = drawing.anchors.get(member.end);
      if (from && to) {
        const key = `${from.id} ${to.id}`;
        const link = found.get(key) ?? { from, to, host: from.id, volumes: new Set(), bytes: 0 };
        link.volumes.add(volume.name);
        link.bytes += member.size;
        found.set(key, link);
      }
    }
  }
  return [...found].map(([key, link]) => ({
    key,
    host: link.host,
    to: link.to.id,
    volumes: [...link.volumes].sort(),
    path: curve(link.from, link.to),
    width: thickness(link.bytes),
    isCable: false,
  }));
}

/** Cables between switches and what is connected to their ports. */
function cables(drawing: Drawing, switches: readonly Switch[]): Link[] {
  const links: Link[] = [];
  for (const one of switches) {
    const box = drawing.anchors.get(`Switch.${one.name}`);
    for (const port of one.ports) {
      const end = port.end === null ? undefined : drawing.anchors.get(port.end);
      if (box && end) {
        const [host, to] = port.isUpstream ? [end, box] : [box, end];
        const key = `cable ${one.name} ${port.id}`;
        links.push({ key, host: host.id, to: to.id, volumes: [], path: curve(host, to), width: 1, isCable: true });
      }
    }
  }
  return links;
}

export function isOf(link: Link, selected: string | null): boolean {
  return selected !== null && (link.host === selected || link.to === selected || link.volumes.includes(selected));
}

/** Lays the picture out for a width in pixels. */
export function layout(picture: Picture, width: number): Layout {
  const drawing = new Drawing(Math.max(280, Math.floor(width)));
  drawing.hosts(picture.hosts);
  drawing.switches(picture.switches);
  drawing.memory(picture.groups);
  const all = [...bindings(drawing, picture), ...cables(drawing, picture.switches)];
  const first = all.filter((link) => isOf(link, picture.selected));
  const links = all.length > LINKS_MAX ? first.slice(0, LINKS_MAX) : all;
  return {
    width: drawing.width,
    height: Math.ceil(drawing.y + MARGIN),
    lanes: drawing.lanes,
    panels: drawing.panels,
    boxes: drawing.boxes,
    ports: drawing.ports,
    links,
    linksHidden: all.length - links.length,
  };
}

/** The box that an arrow key leads to; `from` itself at the edge. */
export function neighbour(boxes: readonly Box[], from: string, key: string): string {
  const index = boxes.findIndex((box) => box.id === from);
  const here = boxes[index];
  if (!here) {
    return boxes[0]?.id ?? from;
  }
  switch (key) {
    case "ArrowLeft":
      return boxes[index - 1]?.id ?? from;
    case "ArrowRight":
      return boxes[index + 1]?.id ?? from;
    case "Home":
      return boxes[0]?.id ?? from;
    case "End":
      return boxes.at(-1)?.id ?? from;
    default: {
      const sign = key === "ArrowDown" ? 1 : -1;
      const isThere = (box: Box) => (box.y - here.y) * sign > 2;
      const distance = (box: Box) => Math.abs(box.y - here.y) * 4 + Math.abs(box.x - here.x);
      return boxes.filter(isThere).sort((a, b) => distance(a) - distance(b))[0]?.id ?? from;
    }
  }
}
