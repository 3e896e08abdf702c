// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

// How the console is built and tested. The same sources and lock file give the same bytes: names have hashes of what
// they contain, and nothing has a date.

import { readFileSync } from "node:fs";
import { defineConfig, type Plugin } from "vitest/config";

/** What is linked into the page; its licence goes with it. */
const LINKED = ["preact"];

/** Writes the licences of what is linked into the page beside it. */
function licences(): Plugin {
  const text = (name: string) =>
    `${name}\n\n${readFileSync(new URL(`node_modules/${name}/LICENSE`, import.meta.url), "utf8")}`;
  return {
    name: "licences",
    apply: "build",
    generateBundle() {
      this.emitFile({ type: "asset", fileName: "licences.txt", source: LINKED.map(text).join("\n") });
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
