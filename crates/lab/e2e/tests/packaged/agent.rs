// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What the agent does within the limits of its unit: it reads permits again, it sees programs, and its watchdog.

use std::collections::BTreeSet;

use aquifer_e2e::run::eventually;

use super::{QUESTION, Site, lent_bytes};

/// Answers to the watchdog that show that it is answered again and again.
const ANSWERS: usize = 4;

impl Site {
    /// The programs that the agent has stored as users of its volumes, each with its start in ticks since boot.
    pub fn users(&self) -> Vec<(u64, u64)> {
        let text = self.0.run("cat /var/lib/aquifer/agent/agent.json");
        let state: serde_json::Value = serde_json::from_str(&text).expect("one object");
        let number = |user: &serde_json::Value, name: &str| user["process"][name].as_u64().expect("a number");
        let users = state["users"].as_array().expect("a list");
        users.iter().map(|user| (number(user, "pid"), number(user, "started"))).collect()
    }

    /// The start of a process in ticks since boot: field 22 of proc_pid_stat(5). Its name must have no spaces.
    fn start_of(&self, process: &str) -> u64 {
        self.0.run(&format!("cut --delimiter=' ' --fields=22 /proc/{process}/stat")).trim().parse().expect("a number")
    }
}

/// The page permits a user by name, before the volume is there, and without a restart of the agent.
pub fn agent_has_read_the_permits_again(site: &Site) {
    let said = site.0.run("journalctl --no-pager --output=cat --unit=aquifer-agent");
    assert!(said.lines().any(|line| line.ends_with("the permits of volumes were reloaded")), "{said}");
    let before = site.users();
    let run = |user: &str| {
        let command = format!(
            "systemd-run --quiet --wait --pipe --uid={user} --property=SupplementaryGroups=aquifer \
             aquifer run --dram 16MiB --tier pool:db -- true"
        );
        site.0.attempt(&command, QUESTION)
    };
    let ended = run("www-data");
    assert_eq!(ended.status, Some(0), "{}", ended.stderr);
    let refused = run("games");
    assert_ne!(refused.status, Some(0));
    let line = format!("{}{}", refused.stdout, refused.stderr);
    assert!(line.contains("may not use it"), "{line}");
    eventually("the agent notices that the program has ended", || site.users() == before);
}

/// Within the limits of its unit, the agent knows which process of another user has opened a volume, and notices that
/// it has ended: the volume's memory then goes back to the donor.
pub fn agent_sees_programs(site: &Site) {
    let first = site.0.run("pgrep -x checking").trim().to_owned();
    let expected = (first.parse().expect("one process"), site.start_of(&first));
    assert_eq!(site.users(), [expected]);
    site.0.run(
        "systemd-run --unit=second aquifer run --dram 16MiB --tier pool:db -- \
         /root/programs/checking /root/second 900",
    );
    let ready = site.0.path("/root/second.ready");
    eventually("the second program has filled its memory", || ready.exists());
    let (both, lent) = (site.users(), lent_bytes(site));
    assert_eq!(both.len(), 2);
    let (second, started) = both[1];
    assert_eq!(site.start_of(&second.to_string()), started);
    site.0.run(&format!("kill -KILL {second}"));
    eventually("the agent notices that the second program has ended", || site.users() == [expected]);
    eventually("its memory is back", || lent_bytes(site) < lent);
    site.0.run("rm second.ready; systemctl reset-failed second 2> /dev/null || true");
}

/// The watchdog restarts an agent that hangs, and the program does not notice.
pub fn agent_that_hangs_is_restarted(site: &Site) {
    assert_eq!(site.property("aquifer-agent", "WatchdogUSec"), "2min");
    let users = site.users();
    site.0.run(
        "mkdir -p /run/systemd/system/aquifer-agent.service.d
         printf '[Service]\nWatchdogSec=3\n' > /run/systemd/system/aquifer-agent.service.d/watchdog.conf
         systemctl daemon-reload; systemctl restart aquifer-agent",
    );
    // It must not end an agent that merely has nothing to do. A busy machine may keep even that one from answering in
    // time; then begin again.
    let restarts = || site.property("aquifer-agent", "NRestarts");
    let (mut before, mut answers) = (restarts(), BTreeSet::new());
    eventually("an agent that has nothing to do answers the watchdog, and is not restarted", || {
        let (now, answered) = (restarts(), site.property("aquifer-agent", "WatchdogTimestampMonotonic"));
        if now != before {
            answers.clear();
            before = now;
        }
        answers.insert(answered);
        answers.len() > ANSWERS
    });
    site.0.run("systemctl kill --signal=STOP --kill-who=main aquifer-agent");
    eventually("the agent is restarted", || restarts() != before);
    eventually("the agent is back", || site.is_active("aquifer-agent"));
    assert!(site.0.run("journalctl --no-pager --unit=aquifer-agent").contains("Watchdog timeout"));
    assert_eq!(site.users(), users);
    site.0.run(
        "rm -r /run/systemd/system/aquifer-agent.service.d
         systemctl daemon-reload; systemctl restart aquifer-agent",
    );
}
