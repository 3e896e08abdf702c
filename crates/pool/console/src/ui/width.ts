// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

// The width that an element has, for what is drawn into it.

import type { RefObject } from "preact";
import { useLayoutEffect, useRef, useState } from "preact/hooks";

/** The width before the first measurement. */
const USUAL_WIDTH = 640;

export function useWidth<T extends HTMLElement>(): [RefObject<T>, number] {
  const element = useRef<T>(null);
  const [width, setWidth] = useState(USUAL_WIDTH);
  useLayoutEffect(() => {
    const measured = element.current;
    if (!measured) {
      return undefined;
    }
    const measure = () => {
      const now = Math.floor(measured.clientWidth);
      if (now > 0) {
        setWidth(now);
      }
    };
    measure();
    const observer = new ResizeObserver(measure);
    observer.observe(measured);
    return () => observer.disconnect();
  }, []);
  return [element, width];
}
