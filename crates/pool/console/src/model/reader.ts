// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

// Reads what the manager answers. Nothing of it is taken for granted: a value of another type is an error that says
// where it is, so that a page never shows what nobody has sent.

import { parseBytes, type Bytes } from "./bytes";

/** A value is not what the interface says. */
export class Unexpected extends Error {
  constructor(path: string, wanted: string) {
    super(`the manager answered with ${path}, which is not ${wanted}; manager and console may differ in version`);
    this.name = "Unexpected";
  }
}

/** Members of a list at most: what a page can hold. */
const MEMBERS_MAX = 200_000;

/** A value, and where it was found. */
export class Reader {
  constructor(
    private readonly value: unknown,
    private readonly path: string,
  ) {}

  /** A property; its value may be missing. */
  at(...names: string[]): Reader {
    let value = this.value;
    for (const name of names) {
      const has = typeof value === "object" && value !== null && !Array.isArray(value) && Object.hasOwn(value, name);
      value = has ? (value as Record<string, unknown>)[name] : undefined;
    }
    return new Reader(value, [this.path, ...names].join("."));
  }

  get isMissing(): boolean {
    return this.value === undefined || this.value === null;
  }

  /** Reads it, unless it is missing. */
  maybe<T>(read: (reader: Reader) => T): T | null {
    return this.isMissing ? null : read(this);
  }

  text(): string {
    if (typeof this.value !== "string") {
      throw new Unexpected(this.path, "a text");
    }
    return this.value;
  }

  number(): number {
    if (typeof this.value !== "number" || !Number.isFinite(this.value)) {
      throw new Unexpected(this.path, "a number");
    }
    return this.value;
  }

  boolean(): boolean {
    if (typeof this.value !== "boolean") {
      throw new Unexpected(this.path, "true or false");
    }
    return this.value;
  }

  size(): Bytes {
    const bytes = typeof this.value === "string" ? parseBytes(this.value) : null;
    if (bytes === null) {
      throw new Unexpected(this.path, "a size");
    }
    return bytes;
  }

  list<T>(read: (reader: Reader) => T): T[] {
    if (!Array.isArray(this.value) || this.value.length > MEMBERS_MAX) {
      throw new Unexpected(this.path, "a list");
    }
    return this.value.map((one, index) => read(new Reader(one, `${this.path}[${index}]`)));
  }

  /** The last part of a link. */
  linked(): string {
    const path = this.at("@odata.id").text();
    return path.slice(path.lastIndexOf("/") + 1);
  }
}
