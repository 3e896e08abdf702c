// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! One switch: its connection, its inventory, and its part of a round.
//!
//! Threads: the caller's; `switches.rs` gives each switch one. A switch that does not answer is asked again after a
//! pause, so that a round never waits for it twice. What it answered last stays known: its devices are reported as
//! silent, never as gone.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use aquifer_fabric::{Content, DeviceId, DeviceReport, LdId};
use aquifer_fmapi::{AbortBackground, BackgroundStatus, GetBackgroundStatus, Opcode, ReturnCode};
use aquifer_fmapi_client::{Client, Clock};

use crate::choice::Choices;
use crate::config::SwitchConfig;
use crate::contents::Contents;
use crate::device_logs::DeviceLogs;
use crate::discover;
use crate::events::{Events, Notice, Said, Severity};
use crate::inventory::{DeviceView, Inventory};
use crate::release_requests::AskedBack;
use crate::report::report;
use crate::step::path_of;
use crate::step_failure::NotDone;
use crate::unlisted::Unlisted;

/// The first pause after a switch did not answer; it doubles each time, up to the second figure, so that a switch that
/// restarts is found again within seconds.
const RETRY_PAUSE: Duration = Duration::from_millis(50);
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(5);
/// Everything is read again after this time, for switches that have no event logs.
const FRESH_AFTER: Duration = Duration::from_secs(60);
/// A background operation of another manager is aborted after this many times the limit of one: a manager that is alive
/// aborts its own before.
const STALLED_LIMITS: u32 = 2;
/// How long reading a switch may take, which is some hundred commands: a switch that answers each at the last moment
/// would hold a round for hours, and with it all other switches.
const READ_TIME_MAX: Duration = Duration::from_secs(60);
/// Maximum number of notices that wait to be taken; further ones are dropped.
const NOTICES_MAX: usize = 1024;

/// Opens a connection to a switch. The client that it returns has recognised the peer's dialect.
pub type Connect = Box<dyn FnMut() -> Result<Client, String> + Send>;

/// One switch as a peer of the fabric manager.
pub struct Peer {
    pub(crate) config: SwitchConfig,
    pub(crate) clock: Arc<dyn Clock>,
    connect: Connect,
    client: Option<Client>,
    pub(crate) inventory: Arc<Inventory>,
    pub(crate) contents: Contents,
    pub(crate) asked: AskedBack,
    pub(crate) choices: Choices,
    pub(crate) unlisted: Unlisted,
    pub(crate) events: Events,
    device_logs: DeviceLogs,
    notices: Vec<Notice>,
    /// `true` while it answers.
    is_answering: bool,
    /// `true` if everything must be read again.
    pub(crate) is_doubtful: bool,
    read_at: Duration,
    /// When a silent switch is asked again, and how long the pause is.
    silent_until: Duration,
    pause: Duration,
    /// When a background operation that this manager does not wait for was first seen.
    busy_since: Option<Duration>,
}

impl Peer {
    /// Creates a switch that has not been asked yet.
    pub fn new(config: SwitchConfig, clock: Arc<dyn Clock>, connect: Connect) -> Peer {
        Peer {
            config,
            clock,
            connect,
            client: None,
            inventory: Arc::default(),
            contents: Contents::default(),
            asked: AskedBack::default(),
            choices: Choices::default(),
            unlisted: Unlisted::default(),
            events: Events::default(),
            device_logs: DeviceLogs::default(),
            notices: Vec::new(),
            is_answering: false,
            is_doubtful: true,
            read_at: Duration::ZERO,
            silent_until: Duration::ZERO,
            pause: RETRY_PAUSE,
            busy_since: None,
        }
    }

    /// Returns a switch at the address of its configuration, on this clock.
    pub fn at_address(config: SwitchConfig, clock: Arc<dyn Clock>) -> Peer {
        let (address, limits, time) = (config.peer_address(), config.limits(), Arc::clone(&clock));
        let connect = move || {
            let address = address.as_ref().map_err(ToString::to_string)?;
            let transport = address.open(limits.answer).map_err(|failure| failure.to_string())?;
            let mut client = Client::new(transport, Arc::clone(&time), limits);
            client.recognise().map_err(|failure| failure.to_string())?;
            Ok(client)
        };
        Peer::new(config, clock, Box::new(connect))
    }

    /// Returns the switch's configuration.
    pub fn config(&self) -> &SwitchConfig {
        &self.config
    }

    /// Returns what was read last.
    pub fn inventory(&self) -> &Arc<Inventory> {
        &self.inventory
    }

    /// Returns whether it answered the last time it was asked.
    pub fn is_answering(&self) -> bool {
        self.is_answering
    }

    /// Returns what happened since the last call.
    pub fn take_notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices)
    }

    pub(crate) fn notice(&mut self, kind: &'static str, severity: Severity, message: String) {
        if self.notices.len() < NOTICES_MAX {
            self.notices.push(Notice { kind, severity, message });
        }
    }

    /// Reads the switch, and reports each device that is known; None for one about which nothing is known now.
    pub fn reports(&mut self) -> BTreeMap<DeviceId, Option<DeviceReport>> {
        let mut is_read = false;
        if !self.is_paused() {
            match self.with_client(Self::read) {
                Ok(()) => is_read = true,
                Err(why) => self.fall_silent(&why.to_string()),
            }
        }
        let devices = self.inventory.devices.iter();
        let one = |(name, device): (&DeviceId, &DeviceView)| {
            let report = is_read.then(|| report(&self.config, &self.inventory, &self.contents, name, device)).flatten();
            (name.clone(), report)
        };
        devices.map(one).collect()
    }

    /// Carries something out with the client, connecting first if need be. After a failure of the transport, the next
    /// call connects again.
    pub(crate) fn with_client<T>(
        &mut self,
        act: impl FnOnce(&mut Self, &mut Client) -> Result<T, NotDone>,
    ) -> Result<T, NotDone> {
        if self.is_paused() {
            return Err(NotDone::Lost(format!("switch {} does not answer; check that it runs", self.config.name)));
        }
        let mut client = match self.client.take() {
            Some(client) => client,
            None => self.open()?,
        };
        // A step may also wait for a background operation.
        let background = Duration::from_secs(self.config.background_seconds);
        client.end_by(self.clock.now() + READ_TIME_MAX + background);
        let done = act(self, &mut client);
        // After an answer was lost, the next one comes over a new connection: a late answer reaches nobody.
        if !matches!(done, Err(NotDone::Lost(_))) {
            self.client = Some(client);
        }
        done
    }

    /// Opens a connection. What happened while there was none shows in the switch's logs; without any, nothing is known
    /// of its memory any more.
    fn open(&mut self) -> Result<Client, NotDone> {
        if self.events.are_missing() {
            self.contents.forget_all();
        }
        self.device_logs.ask_again();
        (self.connect)().map_err(|why| NotDone::Lost(format!("switch {}: {why}", self.config.name)))
    }

    /// Returns whether it has recently not answered, and is not asked again yet.
    fn is_paused(&self) -> bool {
        self.clock.now() < self.silent_until
    }

    fn fall_silent(&mut self, why: &str) {
        if self.is_answering {
            self.notice("SwitchSilent", Severity::Warning, why.to_owned());
        }
        self.is_answering = false;
        self.client = None;
        self.silent_until = self.clock.now() + self.pause;
        self.pause = (self.pause * 2).min(RETRY_PAUSE_MAX);
    }

    fn read(&mut self, client: &mut Client) -> Result<(), NotDone> {
        let clock = Arc::clone(&self.clock);
        client.end_by(clock.now() + READ_TIME_MAX);
        self.read_events(client)?;
        let is_old = clock.now().saturating_sub(self.read_at) >= FRESH_AFTER;
        let is_fresh = self.is_doubtful || is_old || !self.is_answering;
        let mut now = discover::read(client, &*clock, &self.config.name, &self.inventory, is_fresh)?;
        if is_fresh {
            self.read_at = clock.now();
            self.is_doubtful = false;
        }
        let mut said = Said::default();
        let read = self.events.read_devices(client, &*clock, &self.config.name, &now, &mut said);
        let logs = read.and_then(|()| self.device_logs.read(client, &*clock, &now, &mut said));
        self.take_in(said);
        logs?;
        self.note_changes(&now);
        for (name, device) in now.devices.iter_mut().filter(|(_, device)| device.is_reachable) {
            device.capacity.iter_mut().for_each(|capacity| self.unlisted.complete(name, capacity));
        }
        self.keep(now);
        self.sweep_wiping(client)?;
        self.end_all_wiping(client)?;
        self.end_overdue_offers(client)?;
        self.ask_for_wiping(client)?;
        self.abort_stalled(client)?;
        if !self.is_answering {
            let (ports, devices) = (self.inventory.ports.len(), self.inventory.devices.len());
            let what = format!("switch {} answers: {ports} ports, {devices} memory devices", self.config.name);
            self.notice("SwitchAnswers", Severity::Ok, what);
        }
        self.is_answering = true;
        self.pause = RETRY_PAUSE;
        Ok(())
    }

    /// Keeps the inventory, and marks LDs that are bound as used. An unchanged inventory stays the same object, so that
    /// readers need not compare it.
    pub(crate) fn keep(&mut self, now: Inventory) {
        let held = now.vppbs().filter_map(|(_, _, vppb)| now.bound_to(&vppb));
        held.for_each(|(name, ld_id)| self.contents.set(name, ld_id, Content::Used));
        if *self.inventory != now {
            self.inventory = Arc::new(now);
        }
    }

    /// Reads the records of the switch's logs, so that what they say of LDs is known before one is handed out.
    pub(crate) fn read_events(&mut self, client: &mut Client) -> Result<(), NotDone> {
        let (clock, mut said) = (Arc::clone(&self.clock), Said::default());
        let read = self.events.read(client, &*clock, &self.config.name, &mut said);
        // Records that were read count, even if others could not be read.
        self.take_in(said);
        Ok(read?)
    }

    pub(crate) fn take_in(&mut self, said: Said) {
        if said.has_lost {
            self.contents.forget_all();
            self.is_doubtful = true;
            let what = format!(
                "switch {}: event records may have been lost; its unbound LDs in pools are wiped again",
                self.config.name
            );
            self.notice("EventsLost", Severity::Warning, what);
        }
        for (port_id, ld_id) in said.bound {
            let at_port = self.inventory.device_at(port_id).map(|(name, device)| (name.clone(), device.all_lds()));
            let Some((name, lds)) = at_port else { continue };
            let is_it = |of: &LdId| ld_id.is_none_or(|ld_id| of.0 == u16::from(ld_id)) || *of == aquifer_fabric::NO_LD;
            lds.iter().filter(|of| is_it(of)).for_each(|of| self.contents.set(&name, *of, Content::Used));
        }
        self.is_doubtful |= !said.changed_ports.is_empty() || !said.doubtful_blocks.is_empty();
        // Whatever was there, even if it is there again: it may have been used elsewhere, or reset in mid-wipe.
        for port_id in said.changed_ports {
            self.inventory.devices_at(port_id).for_each(|name| self.contents.forget(name));
        }
        said.doubtful_blocks.iter().for_each(|name| self.contents.forget_blocks(name));
        for notice in said.notices {
            self.notice(notice.kind, notice.severity, notice.message);
        }
    }

    /// Compares the inventory with the previous one, and reports devices that were inserted or removed.
    fn note_changes(&mut self, now: &Inventory) {
        let before = Arc::clone(&self.inventory);
        for (name, device) in &now.devices {
            let was_present = before.devices.get(name).is_some_and(|device| device.is_present);
            if was_present == device.is_present {
                continue;
            }
            self.contents.forget(name);
            self.unlisted.forget_device(name);
            let (port_id, switch) = (device.ports.first().copied().unwrap_or_default(), &self.config.name);
            let (kind, severity, what) = match device.is_present {
                true => ("DeviceInserted", Severity::Ok, "is at"),
                false => ("DeviceRemoved", Severity::Critical, "was pulled out of"),
            };
            let what = format!("device {name} {what} port {port_id} of switch {switch}");
            self.notice(kind, severity, what);
        }
    }

    /// Aborts a background operation that does not end. Its manager may have crashed, and as long as it runs, the
    /// switch refuses further background operations of all managers.
    fn abort_stalled(&mut self, client: &mut Client) -> Result<(), NotDone> {
        let now = self.clock.now();
        if !self.inventory.is_changing() {
            self.busy_since = None;
            return Ok(());
        }
        let limit = Duration::from_secs(self.config.background_seconds) * STALLED_LIMITS;
        if now.saturating_sub(*self.busy_since.get_or_insert(now)) < limit {
            return Ok(());
        }
        self.busy_since = None;
        let what = format!("switch {}: a background operation did not end and is aborted", self.config.name);
        self.notice("OperationAborted", Severity::Warning, what);
        match client.call(&[], &AbortBackground {}) {
            Err(failure) if failure.return_code().is_none() => Err(failure.into()),
            _ => Ok(()),
        }
    }

    /// Asks whether the devices that are wiping in the background are done.
    fn ask_for_wiping(&mut self, client: &mut Client) -> Result<(), NotDone> {
        for (name, ld_id) in self.contents.wiping() {
            let Some(device) = self.inventory.devices.get(&name).filter(|device| device.is_reachable) else { continue };
            let status = client.call(&path_of(device, ld_id), &GetBackgroundStatus {});
            let content = match status {
                Ok(status) if status.is_running => continue,
                Ok(status) if has_sanitized(&status) => Content::Wiped,
                Err(failure) if failure.is_fatal() => return Err(failure.into()),
                Ok(_) | Err(_) => Content::Used,
            };
            self.contents.set(&name, ld_id, content);
        }
        Ok(())
    }
}

/// Returns whether the last operation of a device was to wipe it, and was done. After a reset, a device reports zeros:
/// no operation, none of it done, and success.
fn has_sanitized(status: &BackgroundStatus) -> bool {
    let is_done = !status.is_running && status.percent == 100;
    is_done && Opcode(status.opcode) == Opcode::SANITIZE && ReturnCode(status.return_code) == ReturnCode::SUCCESS
}
