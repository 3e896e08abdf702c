// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Takes a configuration that was read again while the agent runs (SIGHUP). Its permits replace those in force; a
//! change of any other setting needs a restart, which the log says. A configuration that cannot be read changes
//! nothing.
//!
//! Threads: the caller's.

use std::fmt;
use std::sync::Arc;

use crate::host::Shared;
use crate::settings::Settings;

/// Takes configurations for a running agent.
pub struct Reloader {
    shared: Arc<Shared>,
    log: Arc<dyn Fn(&str) + Send + Sync>,
}

impl fmt::Debug for Reloader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reloader").finish_non_exhaustive()
    }
}

impl Reloader {
    pub(crate) fn new(shared: Arc<Shared>, log: Arc<dyn Fn(&str) + Send + Sync>) -> Reloader {
        Reloader { shared, log }
    }

    /// Takes the configuration as it was read, or the line that says why it could not be read.
    pub fn reload(&self, read: Result<Settings, String>) {
        let settings = match read {
            Ok(settings) => settings,
            Err(failure) => {
                return (self.log)(&format!(
                    "new permits were not loaded, and the previous ones stay in force: {failure}"
                ));
            }
        };
        let changed = changed(&self.shared.settings, &settings).join(", ");
        self.shared.replace_permits(settings.volumes);
        match changed.is_empty() {
            true => (self.log)("the permits of volumes were reloaded"),
            false => (self.log)(&format!(
                "the permits of volumes were reloaded; other settings have changed, too, and need a restart of the \
                 agent: {changed}"
            )),
        }
    }
}

/// Returns the names of the settings that differ, except for the permits.
fn changed(running: &Settings, read: &Settings) -> Vec<&'static str> {
    let Settings {
        host,
        socket,
        state,
        programs_max,
        metrics,
        managers,
        tenant,
        revocations,
        donors,
        collector,
        labels,
        cxl,
        volumes: _,
    } = running;
    let settings = [
        ("host", *host == read.host),
        ("socket", *socket == read.socket),
        ("state", *state == read.state),
        ("programs_max", *programs_max == read.programs_max),
        ("metrics", *metrics == read.metrics),
        ("manager", *managers == read.managers),
        ("tenant", *tenant == read.tenant && *revocations == read.revocations),
        ("donors", *donors == read.donors),
        ("telemetry", *collector == read.collector),
        ("labels", *labels == read.labels),
        ("cxl", *cxl == read.cxl),
    ];
    settings.into_iter().filter(|(_, is_same)| !is_same).map(|(name, _)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_other_setting_that_changed_is_named() {
        let least = "host = 'a'\n[manager]\naddresses = ['m:1']\n";
        let running: Settings = least.parse().unwrap();
        let changed = |text: &str| super::changed(&running, &text.parse().expect(text));
        assert_eq!(changed(&format!("{least}[[volume]]\nname = '*'\n")), [""; 0]);
        let all = "host = 'b'\nsocket = '/s'\nstate = '/t'\nprograms_max = 3\nmetrics = '127.0.0.1:1'\nlabels = {rack = 'r'}\n\
                   [manager]\naddresses = ['m:2']\n[tenant]\ncert = '/c'\nkey = '/k'\nca = '/a'\n\
                   [donors.d]\naddress = 'd:1'\n[telemetry]\ncollector = 'http://127.0.0.1:4318'\n[cxl]\n";
        let names = [
            "host",
            "socket",
            "state",
            "programs_max",
            "metrics",
            "manager",
            "tenant",
            "donors",
            "telemetry",
            "labels",
            "cxl",
        ];
        assert_eq!(changed(all), names);
        assert_eq!(changed("host = 'a'\n[manager]\naddresses = ['m:1', 'm:2']\n"), ["manager"]);
    }
}
