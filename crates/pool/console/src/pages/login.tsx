// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

// Logging in. The token is kept for this tab; the password is kept nowhere.

import { useState } from "preact/hooks";

import type { Problem } from "../api/client";
import { useWatch } from "../context";
import { Failure, TextField } from "../ui/parts";
import { explain } from "../watch";

export function LoginPage() {
  const watch = useWatch();
  const [account, setAccount] = useState("");
  const [password, setPassword] = useState("");
  const [problem, setProblem] = useState<Problem | null>(null);
  const [isBusy, setBusy] = useState(false);
  const submit = async (event: Event) => {
    event.preventDefault();
    setBusy(true);
    try {
      await watch.login(account, password);
    } catch (error) {
      setPassword("");
      setProblem(explain(error));
      setBusy(false);
    }
  };
  return (
    <main id="main" class="login" tabIndex={-1}>
      <form onSubmit={(event) => void submit(event)}>
        <h1>
          <span class="brand">Aquifer</span> fabric manager
        </h1>
        <Failure problem={problem} />
        <TextField label="Account" value={account} complete="username" required enter={setAccount} />
        <TextField
          label="Password"
          type="password"
          value={password}
          complete="current-password"
          required
          enter={setPassword}
        />
        <button type="submit" disabled={isBusy || account === "" || password === ""}>
          {isBusy ? "Logging in…" : "Log in"}
        </button>
        <p class="hint">
          The first start of the manager makes the account <code>admin</code>; its password is in the file{" "}
          <code>initial-password</code> of the state directory.
        </p>
      </form>
    </main>
  );
}
