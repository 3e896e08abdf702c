// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Rejects configurations from which no switch can be made, with the cause and the remedy.

use std::fmt;

use crate::config::{CapacityConfig, DeviceConfig, DeviceKind, PortConfig, PortRole, SwitchConfig};

/// Ports of a switch. The FM API could name 255; the largest documented box has 32.
pub(crate) const PORTS_MAX: usize = 32;
/// Virtual CXL switches of a switch.
pub(crate) const VIRTUAL_SWITCHES_MAX: usize = 16;
/// vPPBs of a virtual CXL switch: one for each port.
pub(crate) const VPPBS_MAX: u8 = 32;
/// Logical devices of an MLD, as the specification has it.
pub(crate) const LDS_MAX: usize = 16;
/// Records of one event log.
pub(crate) const EVENTS_MAX: u16 = 4096;
/// How long a bind may take: a minute.
const BIND_MS_MAX: u64 = 60_000;
/// Maximum memory of one device, so that sums do not overflow: 64 TiB.
const MEMORY_MIB_MAX: u64 = 64 << 20;
/// Maximum number of extents, and the maximum number of tags, that a device can track.
const EXTENTS_MAX: u32 = 65_536;
/// The unit of memory.
pub(crate) const UNIT_MIB: u64 = 256;
/// The smallest and the largest block of dynamic capacity, as powers of two.
pub(crate) const BLOCK_LOG2: std::ops::RangeInclusive<u32> = 6..=28;

/// Why a configuration is invalid, in one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigFailure {
    /// Which part of it.
    pub place: String,
    /// What is wrong.
    pub cause: String,
    /// What to do.
    pub remedy: String,
}

impl fmt::Display for ConfigFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; {}", self.place, self.cause, self.remedy)
    }
}

impl std::error::Error for ConfigFailure {}

fn check(
    holds: bool,
    place: &str,
    cause: impl FnOnce() -> String,
    remedy: impl Into<String>,
) -> Result<(), ConfigFailure> {
    if holds {
        return Ok(());
    }
    Err(ConfigFailure { place: place.into(), cause: cause(), remedy: remedy.into() })
}

impl SwitchConfig {
    /// Rejects an invalid configuration.
    pub fn check(&self) -> Result<(), ConfigFailure> {
        let count = |place, found: usize, max: usize| {
            check((1..=max).contains(&found), place, || format!("{found} of them"), format!("give 1 to {max}"))
        };
        count("ports", self.ports.len(), PORTS_MAX)?;
        count("virtual_switches", self.virtual_switches.len(), VIRTUAL_SWITCHES_MAX)?;
        count("events_per_log", self.events_per_log.into(), EVENTS_MAX.into())?;
        let bind_ms = self.bind_ms;
        check(bind_ms <= BIND_MS_MAX, "bind_ms", || format!("{bind_ms} ms"), format!("give at most {BIND_MS_MAX}"))?;
        for (index, port) in self.ports.iter().enumerate() {
            port.check(&format!("ports[{index}]"))?;
        }
        self.check_virtual_switches()?;
        let mut taken = vec![None; self.ports.len()];
        for (index, device) in self.devices.iter().enumerate() {
            let place = format!("devices[{index}]");
            device.check(&place)?;
            self.check_places(&place, device)?;
            for port_id in &device.ports {
                let other = taken[usize::from(*port_id)].replace(index);
                let cause = || format!("port {port_id} has devices[{}] already", other.unwrap_or_default());
                check(other.is_none(), &place, cause, "give each port one device")?;
            }
        }
        Ok(())
    }

    /// Rejects a configuration of which no driven switch can be made: its devices are MLDs with one head.
    pub(crate) fn check_driven(&self) -> Result<(), ConfigFailure> {
        for (index, device) in self.devices.iter().enumerate() {
            let is_plain = device.kind == DeviceKind::Mld && device.ports.len() == 1 && device.capacity.is_none();
            let cause = || "a driven switch has MLDs with one port, without dynamic capacity".to_owned();
            check(is_plain, &format!("devices[{index}]"), cause, "leave the device out, or make it one")?;
        }
        Ok(())
    }

    fn role(&self, port_id: u8) -> Option<PortRole> {
        self.ports.get(usize::from(port_id)).map(|port| port.role)
    }

    fn check_virtual_switches(&self) -> Result<(), ConfigFailure> {
        let mut upstream = Vec::new();
        for (index, vcs) in self.virtual_switches.iter().enumerate() {
            let (place, port_id) = (&format!("virtual_switches[{index}]"), vcs.upstream_port);
            let vppbs = vcs.vppbs;
            check(
                (1..=VPPBS_MAX).contains(&vppbs),
                place,
                || format!("{vppbs} vPPBs"),
                format!("give 1 to {VPPBS_MAX}"),
            )?;
            let cause = || format!("port {port_id} is not an upstream port");
            check(self.role(port_id) == Some(PortRole::Upstream), place, cause, "name a port whose role is upstream")?;
            let cause = || format!("port {port_id} belongs to another virtual switch");
            check(!upstream.contains(&port_id), place, cause, "give each one its own upstream port")?;
            upstream.push(port_id);
        }
        Ok(())
    }

    fn check_places(&self, place: &str, device: &DeviceConfig) -> Result<(), ConfigFailure> {
        for port_id in &device.ports {
            let cause = || format!("port {port_id} is not a downstream port");
            let is_downstream = self.role(*port_id) == Some(PortRole::Downstream);
            check(is_downstream, place, cause, "name a port whose role is downstream")?;
            let room = self.ports[usize::from(*port_id)].lds;
            let cause =
                || format!("port {port_id} takes {room} logical devices, and there are {}", device.lds_mib.len());
            check(device.lds_mib.len() <= room.into(), place, cause, "raise lds of the port, or use another port")?;
        }
        Ok(())
    }
}

fn check_link(place: &str, width: u8, speed: u8) -> Result<(), ConfigFailure> {
    let cause = || format!("link_width is {width}");
    check([1, 2, 4, 8, 16].contains(&width), place, cause, "give 1, 2, 4, 8 or 16 lanes")?;
    let cause = || format!("link_speed is {speed}");
    check((1..=6).contains(&speed), place, cause, "give 1 to 6, for 2.5 to 64 GT/s")
}

impl PortConfig {
    fn check(&self, place: &str) -> Result<(), ConfigFailure> {
        check_link(place, self.link_width, self.link_speed)?;
        let cause = || format!("{} logical devices", self.lds);
        check(usize::from(self.lds) <= LDS_MAX, place, cause, format!("give at most {LDS_MAX}"))
    }
}

impl DeviceConfig {
    fn check(&self, place: &str) -> Result<(), ConfigFailure> {
        check_link(place, self.link_width, self.link_speed)?;
        check(!self.ports.is_empty(), place, || "no port".into(), "name the port that it is at")?;
        let memory = self.memory_mib;
        let fits = memory.is_multiple_of(UNIT_MIB) && memory <= MEMORY_MIB_MAX;
        let remedy = format!("give a multiple of {UNIT_MIB}, at most {MEMORY_MIB_MAX}");
        check(fits, place, || format!("memory_mib is {memory}"), remedy)?;
        match self.kind {
            DeviceKind::Mld => self.check_lds(place)?,
            _ => {
                let has_none = self.lds_mib.is_empty() && self.ld_heads.is_empty();
                check(has_none, place, || "lds_mib or ld_heads of no MLD".into(), "leave them out, or make it an mld")?;
            }
        }
        let is_memory = self.kind != DeviceKind::Pcie;
        let has_memory = memory > 0 || self.capacity.is_some();
        check(
            has_memory == is_memory,
            place,
            || format!("memory_mib is {memory}"),
            "give memory to memory devices alone",
        )?;
        let heads = self.ports.len();
        let is_several = self.kind == DeviceKind::Sld && heads > 1 && memory > 0;
        let remedy = "give it dynamic capacity, which has one host at a time, or make it an mld";
        check(!is_several, place, || format!("memory_mib of an sld with {heads} heads has no single host"), remedy)?;
        self.capacity.as_ref().map_or(Ok(()), |capacity| capacity.check(place))
    }

    fn check_lds(&self, place: &str) -> Result<(), ConfigFailure> {
        let (lds, heads) = (self.lds_mib.len(), self.ports.len());
        check(
            (1..=LDS_MAX).contains(&lds),
            place,
            || format!("{lds} logical devices in lds_mib"),
            format!("give 1 to {LDS_MAX}"),
        )?;
        let odd = self.lds_mib.iter().find(|mib| !mib.is_multiple_of(UNIT_MIB) || **mib > MEMORY_MIB_MAX);
        let cause = || format!("lds_mib has {}", odd.copied().unwrap_or_default());
        check(odd.is_none(), place, cause, format!("give multiples of {UNIT_MIB}"))?;
        let sum: u64 = self.lds_mib.iter().sum();
        let cause = || format!("lds_mib adds up to {sum}, memory_mib is {}", self.memory_mib);
        check(sum <= self.memory_mib, place, cause, "give the logical devices less, or the device more")?;
        let listed = self.ld_heads.len();
        let cause = || format!("{listed} entries in ld_heads for {lds} logical devices");
        check(listed == 0 || listed == lds, place, cause, "give one for each, or none")?;
        let beyond = self.ld_heads.iter().find(|head| usize::from(**head) >= heads);
        let cause = || format!("head {} of {heads}", beyond.copied().unwrap_or_default());
        check(beyond.is_none(), place, cause, "number heads from 0, as they are in ports")
    }
}

impl CapacityConfig {
    fn check(&self, place: &str) -> Result<(), ConfigFailure> {
        let place = &format!("{place}.capacity");
        let count = self.regions.len();
        check((1..=8).contains(&count), place, || format!("{count} regions"), "give 1 to 8")?;
        for (index, region) in self.regions.iter().enumerate() {
            let place = &format!("{place}.regions[{index}]");
            let length = region.length_mib;
            let fits = length > 0 && length.is_multiple_of(UNIT_MIB) && length <= MEMORY_MIB_MAX;
            check(fits, place, || format!("length_mib is {length}"), format!("give a multiple of {UNIT_MIB}"))?;
            let block = region.block_bytes;
            let fits = block.is_power_of_two() && BLOCK_LOG2.contains(&block.trailing_zeros());
            check(fits, place, || format!("block_bytes is {block}"), "give a power of two from 64 to 268435456")?;
        }
        for (what, found) in [("extents", self.extents), ("tags", self.tags)] {
            let cause = || format!("{what} is {found}");
            check((1..=EXTENTS_MAX).contains(&found), place, cause, format!("give 1 to {EXTENTS_MAX}"))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(change: impl FnOnce(&mut SwitchConfig)) -> String {
        let mut config = SwitchConfig::example();
        change(&mut config);
        config.check().expect_err("refused").to_string()
    }

    #[test]
    fn the_example_is_a_switch() {
        assert_eq!(SwitchConfig::example().check(), Ok(()));
        assert_eq!(SwitchConfig::memory_box().check(), Ok(()));
    }

    #[test]
    fn refusals_say_where_why_and_what_to_do() {
        assert_eq!(refused(|config| config.ports.clear()), "ports: 0 of them; give 1 to 32");
        assert_eq!(
            refused(|config| config.ports[3].link_width = 3),
            "ports[3]: link_width is 3; give 1, 2, 4, 8 or 16 lanes"
        );
        assert_eq!(
            refused(|config| config.virtual_switches[1].upstream_port = 6),
            "virtual_switches[1]: port 6 belongs to another virtual switch; give each one its own upstream port"
        );
        assert_eq!(
            refused(|config| config.devices[1].ports[0] = 0),
            "devices[1]: port 0 has devices[0] already; give each port one device"
        );
        assert_eq!(
            refused(|config| config.devices[1].lds_mib[0] = 2048),
            "devices[1]: lds_mib adds up to 2816, memory_mib is 1024; give the logical devices less, or the device more"
        );
        assert_eq!(
            refused(|config| config.devices[0].ports[0] = 7),
            "devices[0]: port 7 is not a downstream port; name a port whose role is downstream"
        );
        assert_eq!(
            refused(|config| config.devices[2].capacity.as_mut().unwrap().regions[1].block_bytes = 100),
            "devices[2].capacity.regions[1]: block_bytes is 100; give a power of two from 64 to 268435456"
        );
        assert_eq!(
            refused(|config| config.devices[1].ld_heads = vec![1; 4]),
            "devices[1]: head 1 of 1; number heads from 0, as they are in ports"
        );
        assert_eq!(
            refused(|config| config.ports[1].lds = 2),
            "devices[1]: port 1 takes 2 logical devices, and there are 4; raise lds of the port, or use another port"
        );
    }
}
