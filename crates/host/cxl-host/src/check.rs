// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Compares sizes along the way from a device to the host's addresses, and with what a fabric manager has bound.
//!
//! Pure. If two sizes differ, a part of the memory is not used, or a bind, an unbind or the firmware's set-up was left
//! incomplete.

use serde::Serialize;

use crate::listing::{Listing, Region};

/// Something that does not fit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The device, decoder or region.
    pub object: String,
    /// What is wrong, and what to do.
    pub finding: String,
}

/// Everything that does not fit. `bound` has what was bound, by serial number.
pub fn check(listing: &Listing, bound: &[(u64, u64)]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut add = |object: &str, finding: String| findings.push(Finding { object: object.to_owned(), finding });
    for (serial, bytes) in bound {
        let Some(memdev) = listing.memdevs.iter().find(|memdev| memdev.serial == Some(*serial)) else {
            add(&format!("{serial:#x}"), "was bound and is not here; see the kernel log, or bind it again".into());
            continue;
        };
        let has = memdev.ram_bytes + memdev.pmem_bytes;
        if has != *bytes {
            add(&memdev.text(), format!("has {has} bytes and {bytes} were bound; unbind it and bind it again"));
        }
    }
    for memdev in &listing.memdevs {
        if !bound.is_empty() && !bound.iter().any(|(serial, _)| memdev.serial == Some(*serial)) {
            add(&memdev.text(), "is here and was not bound; unbind it at the fabric manager".into());
        }
        if memdev.endpoint.is_none() {
            add(&memdev.text(), "has no endpoint: no port on the way has a decoder for it; see the kernel log".into());
        }
        for decoder in memdev.decoders.iter().filter(|decoder| decoder.dpa_bytes > 0 && decoder.region.is_none()) {
            add(&decoder.name, format!("has {} bytes and no region; destroy what is left of it", decoder.dpa_bytes));
        }
    }
    for region in &listing.regions {
        check_region(listing, region, &mut add);
    }
    findings
}

fn check_region(listing: &Listing, region: &Region, add: &mut impl FnMut(&str, String)) {
    let all = || listing.memdevs.iter().flat_map(|memdev| &memdev.decoders);
    let decoders: Vec<_> =
        region.targets.iter().filter_map(|target| all().find(|decoder| decoder.name == *target)).collect();
    let of_devices: u64 = decoders.iter().map(|decoder| decoder.dpa_bytes).sum();
    if decoders.len() == region.targets.len() && of_devices != region.bytes {
        add(&region.name, format!("has {} bytes and its decoders {of_devices}; destroy it", region.bytes));
    }
    for decoder in decoders.iter().filter(|decoder| region.is_committed && decoder.hpa_bytes != region.bytes) {
        let (decodes, bytes) = (decoder.hpa_bytes, region.bytes);
        add(&decoder.name, format!("decodes {decodes} bytes of {}, which has {bytes}; destroy it", region.name));
    }
    let window = listing.windows.iter().find(|window| Some(&window.name) == region.window.as_ref());
    if let (Some(window), Some(start)) = (window, region.resource) {
        let fits = start >= window.start
            && start.checked_add(region.bytes).is_some_and(|end| end <= window.start.saturating_add(window.bytes));
        if !fits {
            add(&region.name, format!("lies outside its window {}; destroy it", window.name));
        }
    }
    if !region.is_committed {
        add(&region.name, "is not committed; destroy it and create it again".into());
    } else if !region.is_enabled {
        add(&region.name, "is committed and not enabled, so its memory is not used; destroy it".into());
    }
    let of_memory: u64 = region.devices.iter().map(|device| device.bytes).sum();
    if region.is_enabled && region.mode == "ram" && of_memory != region.bytes {
        add(&region.name, format!("has {} bytes and its memory devices {of_memory}; see the kernel log", region.bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listing::{Decoder, Memdev, Window};

    fn fitting() -> Listing {
        let decoder = |name: &str| Decoder {
            name: name.into(),
            mode: "ram".into(),
            dpa_bytes: 256 << 20,
            hpa_bytes: 512 << 20,
            region: Some("region0".into()),
        };
        let memdev = |number: u64| Memdev {
            name: format!("mem{number}"),
            serial: Some(number),
            ram_bytes: 256 << 20,
            pmem_bytes: 0,
            pci_path: None,
            endpoint: Some(format!("endpoint{number}")),
            decoders: vec![decoder(&format!("decoder{number}.0"))],
        };
        Listing {
            memdevs: vec![memdev(1), memdev(2)],
            windows: vec![Window {
                name: "decoder0.0".into(),
                start: 4 << 30,
                bytes: 4 << 30,
                ways: 1,
                granularity_bytes: 256,
                takes_ram: true,
                takes_pmem: true,
                regions: vec!["region0".into()],
            }],
            regions: vec![Region {
                name: "region0".into(),
                window: Some("decoder0.0".into()),
                mode: "pmem".into(),
                resource: Some(4 << 30),
                bytes: 512 << 20,
                granularity_bytes: 256,
                targets: vec!["decoder1.0".into(), "decoder2.0".into()],
                is_committed: true,
                is_enabled: true,
                devices: Vec::new(),
            }],
            devices: Vec::new(),
        }
    }

    #[test]
    fn sizes_that_fit_give_no_finding() {
        assert_eq!(check(&fitting(), &[]), []);
        assert_eq!(check(&fitting(), &[(1, 256 << 20), (2, 256 << 20)]), []);
        assert_eq!(check(&Listing::default(), &[]), []);
    }

    #[test]
    fn each_size_that_differs_is_found_at_its_object() {
        type Change = fn(&mut Listing);
        let cases: [(Change, &str, &str); 9] = [
            (|it| it.memdevs[0].ram_bytes = 1 << 30, "mem1 (serial 0x1)", "were bound"),
            (|it| it.memdevs[0].serial = Some(9), "0x1", "is not here"),
            (|it| it.memdevs[1].endpoint = None, "mem2 (serial 0x2)", "no endpoint"),
            (|it| it.memdevs[0].decoders[0].region = None, "decoder1.0", "no region"),
            (|it| it.memdevs[0].decoders[0].dpa_bytes = 128 << 20, "region0", "its decoders"),
            (|it| it.memdevs[0].decoders[0].hpa_bytes = 256 << 20, "decoder1.0", "decodes"),
            (|it| it.regions[0].resource = Some(2 << 30), "region0", "outside its window"),
            (|it| it.regions[0].is_committed = false, "region0", "not committed"),
            (|it| it.regions[0].mode = "ram".into(), "region0", "its memory devices 0"),
        ];
        for (change, object, part) in cases {
            let mut listing = fitting();
            change(&mut listing);
            let found = check(&listing, &[(1, 256 << 20), (2, 256 << 20)]);
            assert!(
                found.iter().any(|finding| finding.object == object && finding.finding.contains(part)),
                "{object}: {part}: {found:?}"
            );
        }
        let found = check(&fitting(), &[(1, 256 << 20)]);
        assert!(found[0].finding.contains("was not bound"), "{found:?}");
    }
}
