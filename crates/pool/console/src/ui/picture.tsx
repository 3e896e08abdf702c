// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

// Draws a layout. One stop of the tabulator key, arrow keys from box to box; each box is a button that selects.

import { memo } from "preact/compat";
import { useEffect, useRef, useState } from "preact/hooks";

import { useConsole } from "../context";
import { HEAT_WORDS, heatLevel } from "../model/activity";
import { isOf, neighbour, type Box, type Layout, type Link, type Panel } from "../model/layout";

interface PictureProps {
  picture: Layout;
  selected: string | null;
  select: (id: string | null) => void;
}

const MOVES = ["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home", "End"];

export function PictureView({ picture, selected, select }: PictureProps) {
  const { heat, pool } = useConsole();
  const [at, setAt] = useState<string | null>(null);
  const moved = useRef(false);
  const svg = useRef<SVGSVGElement>(null);
  const current = picture.boxes.some((box) => box.id === at) ? at : (picture.boxes[0]?.id ?? null);
  useEffect(() => {
    if (moved.current) {
      moved.current = false;
      svg.current?.querySelector<SVGGElement>('[tabindex="0"]')?.focus();
    }
  }, [current]);
  const pressed = (event: KeyboardEvent) => {
    if (MOVES.includes(event.key) && current) {
      event.preventDefault();
      moved.current = true;
      setAt(neighbour(picture.boxes, current, event.key));
    } else if ((event.key === "Enter" || event.key === " ") && current) {
      event.preventDefault();
      select(current === selected ? null : current);
    } else if (event.key === "Escape") {
      select(null);
    }
  };
  const clicked = (id: string) => {
    setAt(id);
    select(id === selected ? null : id);
  };
  const levels = new Map(pool.ends.map((end) => [end.id, heatLevel(heat.get(end.id), end.capacity)]));
  return (
    <svg
      ref={svg}
      class="picture"
      width={picture.width}
      height={picture.height}
      role="group"
      aria-label="The pool as a picture; arrow keys go from one to the next, Enter selects"
      onKeyDown={pressed}
    >
      {picture.panels.map(({ key, x, y, width, height }) => (
        <rect key={key} class="panel" x={x} y={y} width={width} height={height} rx={6} />
      ))}
      <Links links={picture.links} selected={selected} />
      {picture.lanes.map((lane) => (
        <text key={lane.title} class="lane" x={12} y={lane.y}>
          {lane.title}
        </text>
      ))}
      {picture.panels.map((panel) => (
        <PanelHead key={panel.key} panel={panel} />
      ))}
      {picture.boxes.map((box) => (
        <BoxView
          key={box.id}
          box={box}
          isStop={box.id === current}
          isSelected={box.id === selected}
          heat={levels.get(box.id) ?? 0}
          choose={clicked}
        />
      ))}
      {picture.ports.map((port) => {
        const kind = `port ${port.isUpstream ? "upstream" : "downstream"} ${port.isUsed ? "used" : ""}`;
        return <rect key={port.id} class={kind} x={port.x} y={port.y} width={11} height={11} rx={2} />;
      })}
    </svg>
  );
}

/** Above the links, so that it can be read. */
function PanelHead({ panel }: { panel: Panel }) {
  const room = Math.floor((panel.width - 16) / 7);
  const length = Math.max(4, room - panel.note.length - 1);
  const title = panel.title.length > length ? `${panel.title.slice(0, length - 1)}…` : panel.title;
  return (
    <g class="head" aria-hidden="true">
      <text x={panel.x + 8} y={panel.y + 17}>
        {title}
      </text>
      <text class="note" x={panel.x + panel.width - 8} y={panel.y + 17} text-anchor="end">
        {panel.note}
      </text>
      <rect class="track" x={panel.x + 8} y={panel.y + 23} width={panel.width - 16} height={4} rx={2} />
      <rect class="used" x={panel.x + 8} y={panel.y + 23} width={(panel.width - 16) * panel.fill} height={4} rx={2} />
    </g>
  );
}

function Links({ links, selected }: { links: readonly Link[]; selected: string | null }) {
  return (
    <g class="links" aria-hidden="true">
      {links.map((link) => {
        const kind = link.isCable ? "cable" : "binding";
        const part = selected === null ? "" : isOf(link, selected) ? "chosen" : "faint";
        return <path key={link.key} class={`${kind} ${part}`} d={link.path} stroke-width={link.width} />;
      })}
    </g>
  );
}

interface BoxProps {
  box: Box;
  isStop: boolean;
  isSelected: boolean;
  heat: 0 | 1 | 2 | 3;
  choose: (id: string) => void;
}

/** Drawn again only if it has changed: there may be thousands. */
const BoxView = memo(PlainBox, (before, after) => {
  const same = (["isStop", "isSelected", "heat"] as const).every((name) => before[name] === after[name]);
  const [a, b] = [before.box, after.box];
  const names = Object.keys(a) as (keyof Box)[];
  return same && before.choose === after.choose && names.every((name) => a[name] === b[name]);
});

function PlainBox({ box, isStop, isSelected, heat, choose }: BoxProps) {
  const words = [
    ["box", box.kind],
    box.isUnhealthy ? ["bad"] : [],
    box.isDraining ? ["draining"] : [],
    isSelected ? ["chosen"] : [],
    box.hasLabel ? [] : ["small"],
    heat > 0 ? [`heat-${heat}`] : [],
  ].flat();
  const said = heat > 0 ? `${box.description}, ${HEAT_WORDS[heat]}` : box.description;
  const room = Math.floor((box.width - 12) / 7);
  const label = box.label.length > room ? `${box.label.slice(0, room - 1)}…` : box.label;
  return (
    <g
      class={words.join(" ")}
      role="button"
      // In small letters: as an attribute of SVG it would be ignored otherwise.
      tabindex={isStop ? 0 : -1}
      aria-label={said}
      aria-pressed={isSelected}
      data-id={box.id}
      onClick={() => choose(box.id)}
    >
      <title>{said}</title>
      <rect class="body" x={box.x} y={box.y} width={box.width} height={box.height} rx={box.hasLabel ? 5 : 3} />
      {box.fill !== null && <Fill box={box} fill={box.fill} />}
      {box.hasLabel && (
        <text x={box.x + 8} y={box.y + (box.fill === null ? 18 : 16)}>
          {label}
        </text>
      )}
      {box.isUnhealthy && <path class="cross" d={cross(box)} />}
      {heat > 0 && <circle class="heat" cx={box.x + box.width - 5} cy={box.y + 5} r={box.hasLabel ? 3.5 : 2.5} />}
    </g>
  );
}

/** How full it is: a bar below the name, or the cell filled from below. */
function Fill({ box, fill }: { box: Box; fill: number }) {
  if (box.kind === "group") {
    return null;
  }
  if (box.hasLabel) {
    const width = box.width - 16;
    return (
      <>
        <rect class="track" x={box.x + 8} y={box.y + box.height - 13} width={width} height={6} rx={3} />
        <rect class="used" x={box.x + 8} y={box.y + box.height - 13} width={width * fill} height={6} rx={3} />
      </>
    );
  }
  const height = (box.height - 2) * fill;
  return <rect class="used" x={box.x + 1} y={box.y + box.height - 1 - height} width={box.width - 2} height={height} />;
}

function cross(box: Box): string {
  const [x, y, size] = [box.x + box.width - (box.hasLabel ? 16 : 14), box.y + (box.hasLabel ? 6 : 4), 9];
  return `M${x},${y}l${size},${size}m${-size},0l${size},${-size}`;
}
