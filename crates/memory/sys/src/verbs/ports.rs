// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The ports of the RDMA devices, and the choice among them, from the kernel's data in `/sys/class/infiniband`.
//!
//! See the kernel's `Documentation/ABI/stable/sysfs-class-infiniband`. Nothing is opened here.

use std::fs;
use std::net::{IpAddr, Ipv6Addr};
use std::path::Path;

use super::failure::VerbsFailure;

const CLASS: &str = "/sys/class/infiniband";
/// Number of entries examined in a port's address table: more than an interface has addresses.
const GIDS_MAX: usize = 256;

/// A usable port, with one of its addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// The device's name.
    pub device: String,
    /// The port's number on the device, from 1 on.
    pub number: u8,
    /// True for Ethernet (RoCE), false for InfiniBand.
    pub is_ethernet: bool,
    /// Index of the entry in its address table.
    pub gid_index: u8,
    /// The address in that entry; for RoCE, an IPv6 address, or an IPv4 address mapped to IPv6.
    pub gid: [u8; 16],
    /// Its address in an InfiniBand subnet; 0 for RoCE.
    pub lid: u16,
}

impl Port {
    /// The IP address of the port, for RoCE.
    pub fn ip(&self) -> Option<IpAddr> {
        self.is_ethernet.then(|| Ipv6Addr::from(self.gid).to_canonical())
    }

    /// How well it can reach others, lower is better: a routable address ranks before a link-local one.
    fn rank(&self) -> u8 {
        match self.ip() {
            None => 0,
            Some(IpAddr::V4(_)) => 1,
            Some(IpAddr::V6(ip)) if (ip.segments()[0] & 0xffc0) != 0xfe80 => 2,
            Some(IpAddr::V6(_)) => 3,
        }
    }
}

/// Every address of every port that is up, and the names of all devices.
pub fn ports() -> (Vec<Port>, Vec<String>) {
    list(Path::new(CLASS))
}

/// The port to use: one of the device `wanted`, if given, and with the IP address `local`, if a port has it. Otherwise
/// the first of those that rank best for reaching others.
pub fn choose(wanted: Option<&str>, local: Option<IpAddr>) -> Result<Port, VerbsFailure> {
    let (ports, devices) = ports();
    pick(ports, devices, wanted, local)
}

fn pick(
    ports: Vec<Port>,
    devices: Vec<String>,
    wanted: Option<&str>,
    local: Option<IpAddr>,
) -> Result<Port, VerbsFailure> {
    if let Some(wanted) = wanted
        && !devices.iter().any(|device| device == wanted)
    {
        return Err(VerbsFailure::NoSuchDevice { wanted: wanted.to_owned(), there: devices });
    }
    let Some(first) = devices.first() else { return Err(VerbsFailure::NoDevice) };
    let mut ports: Vec<Port> =
        ports.into_iter().filter(|port| wanted.is_none_or(|wanted| port.device == wanted)).collect();
    ports.sort_by_key(|port| (local.is_none() || port.ip() != local, port.rank()));
    ports.into_iter().next().ok_or_else(|| VerbsFailure::NoPort(wanted.unwrap_or(first).to_owned()))
}

fn list(class: &Path) -> (Vec<Port>, Vec<String>) {
    let devices = names(class);
    let mut found = Vec::new();
    for device in &devices {
        let ports = class.join(device).join("ports");
        for number in names(&ports) {
            if let Ok(number) = number.parse::<u8>() {
                of_port(&ports.join(number.to_string()), device, number, &mut found);
            }
        }
    }
    (found, devices)
}

/// The addresses of one port, if it is up.
fn of_port(port: &Path, device: &str, number: u8, found: &mut Vec<Port>) {
    let text = |name: &str| fs::read_to_string(port.join(name)).unwrap_or_default().trim().to_owned();
    // "4: ACTIVE"
    if !text("state").starts_with('4') {
        return;
    }
    let is_ethernet = text("link_layer") == "Ethernet";
    let lid = u16::from_str_radix(text("lid").trim_start_matches("0x"), 16).unwrap_or(0);
    for index in 0..GIDS_MAX {
        let Some(gid) = gid(&text(&format!("gids/{index}"))) else {
            if port.join(format!("gids/{index}")).exists() { continue } else { break }
        };
        // RoCE version 1 does not leave the link.
        if is_ethernet && text(&format!("gid_attrs/types/{index}")) != "RoCE v2" {
            continue;
        }
        let gid_index = index as u8;
        found.push(Port { device: device.to_owned(), number, is_ethernet, gid_index, gid, lid });
        if !is_ethernet {
            break;
        }
    }
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort_unstable();
    names
}

/// Parses an address as sysfs writes it; `None` for an empty entry.
fn gid(text: &str) -> Option<[u8; 16]> {
    let address: Ipv6Addr = text.parse().ok()?;
    (!address.is_unspecified()).then_some(address.octets())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory like the kernel's: a card with two ports, one of which is down, and one for InfiniBand.
    fn class(name: &str) -> std::path::PathBuf {
        let root = std::env::temp_dir().join(format!("aquifer-infiniband-{name}-{}", std::process::id()));
        let write = |path: &str, text: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{text}\n")).unwrap();
        };
        for (port, state) in [(1, "4: ACTIVE"), (2, "1: DOWN")] {
            write(&format!("rxe0/ports/{port}/state"), state);
            write(&format!("rxe0/ports/{port}/link_layer"), "Ethernet");
            write(&format!("rxe0/ports/{port}/lid"), "0x0");
            for (index, gid, kind) in [
                (0, "fe80:0000:0000:0000:5054:00ff:fe00:0001", "RoCE v2"),
                (1, "0000:0000:0000:0000:0000:ffff:0a00:0001", "IB/RoCE v1"),
                (2, "0000:0000:0000:0000:0000:0000:0000:0000", ""),
                (3, "0000:0000:0000:0000:0000:ffff:0a00:0001", "RoCE v2"),
                (4, "0000:0000:0000:0000:0000:ffff:0a00:0102", "RoCE v2"),
            ] {
                write(&format!("rxe0/ports/{port}/gids/{index}"), gid);
                write(&format!("rxe0/ports/{port}/gid_attrs/types/{index}"), kind);
            }
        }
        write("mlx5_0/ports/1/state", "4: ACTIVE");
        write("mlx5_0/ports/1/link_layer", "InfiniBand");
        write("mlx5_0/ports/1/lid", "0x1f");
        write("mlx5_0/ports/1/gids/0", "fe80:0000:0000:0000:0002:c903:0000:0001");
        root
    }

    #[test]
    fn the_port_with_the_address_is_taken_and_else_one_that_reaches_others() {
        let root = class("choose");
        let (ports, devices) = list(&root);
        let _ = fs::remove_dir_all(&root);
        let choose = |wanted: Option<&str>, local: Option<&str>| {
            let local = local.map(|text| text.parse().unwrap());
            pick(ports.clone(), devices.clone(), wanted, local)
                .map(|port| (port.device, port.number, port.gid_index, port.lid))
        };
        assert_eq!(choose(None, Some("10.0.1.2")).unwrap(), ("rxe0".into(), 1, 4, 0));
        assert_eq!(choose(Some("rxe0"), Some("192.0.2.1")).unwrap(), ("rxe0".into(), 1, 3, 0));
        assert_eq!(choose(Some("rxe0"), None).unwrap(), ("rxe0".into(), 1, 3, 0));
        assert_eq!(choose(None, None).unwrap(), ("mlx5_0".into(), 1, 0, 31), "InfiniBand before Ethernet");
        let message = choose(Some("rxe7"), None).unwrap_err().to_string();
        assert_eq!(message, "there is no RDMA device rxe7; name one of mlx5_0, rxe0");
    }

    #[test]
    fn without_a_device_or_a_port_it_says_what_to_do() {
        let message = pick(Vec::new(), Vec::new(), None, None).unwrap_err().to_string();
        assert!(message.contains("modprobe rdma_rxe") && !message.contains('\n'), "{message}");
        let message = pick(Vec::new(), vec!["rxe0".into()], None, None).unwrap_err().to_string();
        assert!(message.contains("rxe0") && message.contains("rdma link"), "{message}");
        assert_eq!(list(Path::new("/nowhere")), (Vec::new(), Vec::new()));
    }
}
