// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

// One's own account: its role, and its password.

import { useState } from "preact/hooks";

import type { Problem } from "../api/client";
import { useConsole, useWatch } from "../context";
import { Failure, TextField } from "../ui/parts";
import { ACCOUNTS, explain } from "../watch";

export function AccountPage() {
  const watch = useWatch();
  const { session, role } = useConsole();
  const [password, setPassword] = useState("");
  const [again, setAgain] = useState("");
  const [problem, setProblem] = useState<Problem | null>(null);
  const differs = again !== "" && again !== password;
  const submit = async (event: Event) => {
    event.preventDefault();
    try {
      const path = `${ACCOUNTS}/${encodeURIComponent(session?.account ?? "")}`;
      await watch.client.order({ method: "PATCH", path, body: { Password: password } });
      // The manager has ended all sessions of the account.
      await watch.logout();
      watch.announce("The password is changed. Log in with the new one.");
    } catch (error) {
      setProblem(explain(error));
    }
  };
  return (
    <>
      <h1>Your account</h1>
      <p>
        Account <strong>{session?.account}</strong> has the role <strong>{role}</strong>.
      </p>
      <form class="narrow" onSubmit={(event) => void submit(event)}>
        <h2>Change your password</h2>
        <Failure problem={problem} />
        <TextField
          label="New password"
          type="password"
          value={password}
          complete="new-password"
          hint="All sessions of your account end."
          enter={setPassword}
        />
        <TextField
          label="The same again"
          type="password"
          value={again}
          complete="new-password"
          error={differs ? "The two differ." : null}
          enter={setAgain}
        />
        <button type="submit" disabled={password === "" || password !== again}>
          Change it
        </button>
      </form>
    </>
  );
}
