// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

// How the console is built and tested. The same sources and lock file give the same bytes: names have hashes of what
// they contain, and nothing has a date.

import { readFileSync } from "node:fs";
import { defineConfig, type Plugin } from "vitest/config";

/** Licences that what is linked into the page may have. */
const ALLOWED = ["Apache-2.0", "BSD-3-Clause", "ISC", "MIT"];

interface Manifest {
  readonly license?: string;
  readonly dependencies?: Record<string, string>;
}

function file(path: string): string {
  return readFileSync(new URL(path, import.meta.url), "utf8");
}

/** The text of a package's licence file. */
function licenceOf(name: string): string {
  const { license } = JSON.parse(file(`node_modules/${name}/package.json`)) as Manifest;
  if (!license || !ALLOWED.includes(license)) {
    throw new Error(`${name} has the licence ${license}; only ${ALLOWED.join(", ")} may be linked into the page`);
  }
  return `${name}\n\n${file(`node_modules/${name}/LICENSE`)}`;
}

/** Writes the licences of the packages that are linked into the page to a file beside it. */
function licences(): Plugin {
  const { dependencies } = JSON.parse(file("package.json")) as Manifest;
  return {
    name: "licences",
    apply: "build",
    generateBundle() {
      const source = Object.keys(dependencies ?? {})
        .map(licenceOf)
        .join("\n");
      this.emitFile({ type: "asset", fileName: "licences.txt", source });
    },
  };
}

export default defineConfig({
  base: "/console/",
  esbuild: { jsx: "automatic", jsxImportSource: "preact", legalComments: "none" },
  build: {
    target: "es2022",
    outDir: "../../../target/console",
    emptyOutDir: true,
    // Everything is a file of its own, as the content-security policy wants it.
    assetsInlineLimit: 0,
    modulePreload: false,
    reportCompressedSize: false,
  },
  plugins: [licences()],
  test: {
    // A busy machine may take long; nothing here is judged by its time.
    testTimeout: 300_000,
    hookTimeout: 300_000,
    fileParallelism: false,
    projects: [
      {
        extends: true,
        test: { name: "parts", include: ["tests/**/*.test.{ts,tsx}"], environment: "node" },
      },
      {
        extends: true,
        test: {
          name: "browser",
          include: ["e2e/**/*.test.ts"],
          environment: "node",
        },
      },
    ],
  },
});
