// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

// Accounts: who may log in, and with which role. For administrators.

import { useEffect, useState } from "preact/hooks";

import type { Problem, Request } from "../api/client";
import { readAccount } from "../api/resources";
import { useConsole, useWatch } from "../context";
import { commandLine } from "../model/acts";
import { ROLES, type Account, type Role } from "../model/pool";
import { Dialog } from "../ui/dialog";
import { Badge, Choice, Command, Failure, TextField } from "../ui/parts";
import { Table, type Column } from "../ui/table";
import { ACCOUNTS, explain } from "../watch";

type Wish = { readonly kind: "add" } | { readonly kind: "change" | "remove"; readonly account: Account };

export function AccountsPage() {
  const watch = useWatch();
  const { session } = useConsole();
  const [accounts, setAccounts] = useState<readonly Account[]>([]);
  const [problem, setProblem] = useState<Problem | null>(null);
  const [wish, setWish] = useState<Wish | null>(null);
  const read = async () => {
    try {
      setAccounts(await watch.client.collection(ACCOUNTS, readAccount));
      setProblem(null);
    } catch (error) {
      setProblem(explain(error));
    }
  };
  useEffect(() => void read(), []);
  const columns: Column<Account>[] = [
    { title: "Account", by: (one) => one.name, cell: (one) => one.name },
    { title: "Role", by: (one) => ROLES.indexOf(one.role), cell: (one) => one.role },
    {
      title: "State",
      cell: (one) => (one.isEnabled ? <Badge tone="good">enabled</Badge> : <Badge tone="notice">disabled</Badge>),
    },
    {
      title: "Changes",
      cell: (one) => (
        <span class="actions">
          <button type="button" class="quiet" onClick={() => setWish({ kind: "change", account: one })}>
            Change<span class="unseen"> account {one.name}</span>
          </button>
          {one.name !== session?.account && (
            <button type="button" class="quiet" onClick={() => setWish({ kind: "remove", account: one })}>
              Remove<span class="unseen"> account {one.name}</span>
            </button>
          )}
        </span>
      ),
    },
  ];
  const done = (what: string) => {
    setWish(null);
    watch.announce(what);
    void read();
  };
  return (
    <>
      <h1>Accounts</h1>
      <Failure problem={problem} />
      <div class="tools">
        <button type="button" onClick={() => setWish({ kind: "add" })}>
          Add an account
        </button>
      </div>
      <Table caption="Accounts" rows={accounts} columns={columns} keyOf={(one) => one.name} empty="No accounts." />
      <Command text={commandLine(["accounts"], location.origin)} />
      {wish && <AccountDialog wish={wish} close={() => setWish(null)} done={done} />}
    </>
  );
}

interface AccountDialogProps {
  wish: Wish;
  close: () => void;
  done: (what: string) => void;
}

const TITLES = { add: "Add an account", change: "Change account", remove: "Remove account" } as const;

function AccountDialog({ wish, close, done }: AccountDialogProps) {
  const watch = useWatch();
  const known = wish.kind === "add" ? null : wish.account;
  const [name, setName] = useState(known?.name ?? "");
  const [role, setRole] = useState<Role>(known?.role ?? "ReadOnly");
  const [password, setPassword] = useState("");
  const [isEnabled, setEnabled] = useState(known?.isEnabled ?? true);
  const [problem, setProblem] = useState<Problem | null>(null);
  const submit = async (event: Event) => {
    event.preventDefault();
    try {
      await watch.client.order(request(wish, { name, role, password, isEnabled }));
      done(`${TITLES[wish.kind]}${known ? ` ${name}` : ""}: done.`);
    } catch (error) {
      setProblem(explain(error));
    }
  };
  const hint = known ? "empty to keep it; its sessions end" : "at least twelve characters";
  return (
    <Dialog title={known ? `${TITLES[wish.kind]} ${known.name}` : TITLES.add} close={close}>
      <form onSubmit={(event) => void submit(event)}>
        <Failure problem={problem} />
        {wish.kind === "add" && <TextField label="Name" value={name} required enter={setName} />}
        {wish.kind === "remove" ? (
          <p>Its sessions end at once. What it has changed stays.</p>
        ) : (
          <>
            <Choice label="Role" value={role} options={ROLES} choose={setRole} />
            <TextField
              label="Password"
              type="password"
              value={password}
              complete="new-password"
              hint={hint}
              required={wish.kind === "add"}
              enter={setPassword}
            />
          </>
        )}
        {wish.kind === "change" && (
          <label class="check">
            <input type="checkbox" checked={isEnabled} onChange={(event) => setEnabled(event.currentTarget.checked)} />
            It may log in.
          </label>
        )}
        <div class="actions">
          <button type="button" class="quiet" onClick={close}>
            Back
          </button>
          <button type="submit" class={wish.kind === "remove" ? "danger" : ""}>
            {wish.kind === "add" ? "Add it" : wish.kind === "change" ? "Change it" : "Remove it"}
          </button>
        </div>
      </form>
    </Dialog>
  );
}

interface Wanted {
  readonly name: string;
  readonly role: Role;
  readonly password: string;
  readonly isEnabled: boolean;
}

function request(wish: Wish, { name, role, password, isEnabled }: Wanted): Request {
  const path = `${ACCOUNTS}/${encodeURIComponent(name)}`;
  switch (wish.kind) {
    case "add":
      return { method: "POST", path: ACCOUNTS, body: { UserName: name, Password: password, RoleId: role } };
    case "change": {
      const body = {
        ...(role === wish.account.role ? {} : { RoleId: role }),
        ...(isEnabled === wish.account.isEnabled ? {} : { Enabled: isEnabled }),
        ...(password === "" ? {} : { Password: password }),
      };
      return { method: "PATCH", path, body };
    }
    case "remove":
      return { method: "DELETE", path };
  }
}
