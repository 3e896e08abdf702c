// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! `aquifer tiering hot`: which memory is hot, as DAMON or the hotness monitor of a CXL device counts it.

use std::io;
use std::process;
use std::str::FromStr;
use std::thread;
use std::time::{Duration, Instant};

use aquifer_core::units::ByteSize;
use aquifer_hotness::{
    Addresses, CedtFailure, DEVICES, DamonSource, Decoder, Hot, HotnessFailure, HotnessSource, Monitor, Settings,
    blocks_of, decoders_of, host_ranges,
};
use aquifer_nodes::tiering::ranges;
use aquifer_nodes::{Nodes, Tree};
use aquifer_sys::device_memory::DeviceMemory;
use aquifer_terminal::{columns, width};
use serde_json::json;

use crate::duration::duration;
use crate::exit::{ExitCode, Failure};
use crate::output;

/// The longest time between two looks at a monitor, so that a long epoch does not prolong a short measurement.
const LOOK_MAX: Duration = Duration::from_secs(1);

/// Show which memory is hot, as DAMON or a CXL device counts it
///
/// DAMON counts accesses to the far nodes once 'aquifer tiering apply --damon on' has set it up. A CXL device with
/// hotness monitors (CHMU, CXL 3.2) counts every access to its memory, by its own addresses. Memory in a region is
/// shown by the host's addresses, in whole pages. It needs root.
#[derive(Clone, Debug, clap::Args)]
#[command(after_long_help = "\
Examples:
  aquifer tiering hot                                  hot memory of the far nodes, by DAMON
  aquifer tiering hot --source chmu:0000:0d:00.0 --over 10s
  aquifer tiering hot --source chmu:0000:0d:00.0,1 --granule 2MiB --threshold 1000 --json")]
pub struct HotArgs {
    /// What counts: damon, or a hotness monitor of a CXL device, chmu:DEVICE[,INDEX]
    #[arg(long, value_name = "SOURCE", default_value = "damon")]
    source: SourceName,

    /// How long it counts
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "1s")]
    over: Duration,

    /// chmu: how much memory one counter covers [default: 4KiB]
    #[arg(long, value_name = "SIZE")]
    granule: Option<ByteSize>,

    /// chmu: the time after which counters start again at zero [default: 100ms]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    epoch: Option<Duration>,

    /// chmu: how many accesses within an epoch make memory hot [default: 32]
    #[arg(long, value_name = "COUNT")]
    threshold: Option<u32>,

    /// chmu: use a monitor although it is enabled, for example by a program that was killed
    #[arg(long)]
    take: bool,

    /// Print at most this many ranges, the hottest first
    #[arg(long, value_name = "COUNT", default_value_t = 20)]
    top: usize,

    /// One JSON object
    #[arg(long)]
    json: bool,
}

/// The source of hotness that the user names.
#[derive(Clone, Debug, PartialEq, Eq)]
enum SourceName {
    Damon,
    Chmu { device: String, index: u8 },
}

impl FromStr for SourceName {
    type Err = String;

    fn from_str(text: &str) -> Result<SourceName, String> {
        if text == "damon" {
            return Ok(SourceName::Damon);
        }
        let wrong = || "write damon, or chmu:DEVICE[,INDEX] like chmu:0000:0d:00.0".to_owned();
        let place = text.strip_prefix("chmu:").ok_or_else(wrong)?;
        let (device, index) = place.split_once(',').unwrap_or((place, "0"));
        // A name of one directory, not a path.
        let is_name = !device.is_empty() && device.chars().all(|it| it.is_ascii_hexdigit() || ":.".contains(it));
        match (is_name && device.contains(':'), index.parse()) {
            (true, Ok(index)) => Ok(SourceName::Chmu { device: device.to_owned(), index }),
            _ => Err(wrong()),
        }
    }
}

/// Counts, and prints.
pub fn hot(args: &HotArgs, tree: &dyn Tree) -> Result<process::ExitCode, Failure> {
    let failed = |failure: HotnessFailure| Failure::new(ExitCode::Failure, failure.to_string(), "");
    let mut source = open(args, tree)?;
    if args.take && source.addresses() == Addresses::Device {
        source.stop().map_err(failed)?;
    }
    source.start().map_err(failed)?;
    let counted = count(&mut *source, args.over);
    // Also after a failure, so that the monitor is free for the next program.
    let stopped = source.stop();
    let hot = counted.map_err(failed)?;
    stopped.map_err(failed)?;
    let decoders = match &args.source {
        SourceName::Chmu { device, .. } => decoders_of(tree, device),
        SourceName::Damon => Ok(Vec::new()),
    };
    let found = Found::of(hot, source.addresses(), decoders);
    let places = if found.addresses == Addresses::Host { node_ranges(tree) } else { Vec::new() };
    let text = if args.json { object } else { page }(&source.name(), &found, args, &places);
    output::print(&text)?;
    Ok(ExitCode::Success.into())
}

fn open<'a>(args: &HotArgs, tree: &'a dyn Tree) -> Result<Box<dyn HotnessSource + 'a>, Failure> {
    let SourceName::Chmu { device, index } = &args.source else { return Ok(Box::new(DamonSource::new(tree))) };
    let failure = |cause: String, remedy: &str| Failure::new(ExitCode::Failure, cause, remedy);
    let default = Settings::default();
    let settings = Settings {
        granule_bytes: args.granule.map_or(default.granule_bytes, |size| size.0),
        epoch: args.epoch.unwrap_or(default.epoch),
        threshold: args.threshold.unwrap_or(default.threshold),
        ..default
    };
    let blocks = blocks_of(tree, device);
    let mut missing = format!("{device} shows no hotness monitors");
    // Monitors are counted over all blocks.
    let mut left = *index;
    for block in blocks {
        let path = format!("{DEVICES}/{device}/resource{}", block.bar);
        let window = DeviceMemory::open(path.as_ref()).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => {
                failure(format!("another program has the monitors of {device}"), "end it, or wait until it has ended")
            }
            _ => failure(
                format!("{path} cannot be mapped: {error}"),
                "run it as root, without kernel lockdown, and without a driver that keeps the window to itself",
            ),
        })?;
        let offset = usize::try_from(block.offset).unwrap_or(usize::MAX / 2);
        match Monitor::open(format!("chmu:{device},{index}"), window, offset, left, settings) {
            Ok(monitor) => return Ok(Box::new(monitor)),
            Err(HotnessFailure::NoMonitor { monitors, .. }) => {
                left -= monitors;
                missing = format!("{device} has {} hotness monitors, counted from 0", index - left);
            }
            Err(other) => return Err(failure(other.to_string(), "")),
        }
    }
    Err(failure(missing, "'aquifer tiering status', as root, lists the devices that have some"))
}

/// Collects for a time, often enough that a hot list does not overflow.
fn count(source: &mut dyn HotnessSource, over: Duration) -> Result<Hot, HotnessFailure> {
    let Some(interval) = source.interval() else {
        thread::sleep(over);
        return source.collect();
    };
    let (begun, mut hot) = (Instant::now(), Hot::default());
    loop {
        let left = over.saturating_sub(begun.elapsed());
        thread::sleep(interval.clamp(Duration::from_millis(1), LOOK_MAX).min(left));
        hot = hot.with(source.collect()?);
        if left.is_zero() {
            return Ok(hot);
        }
    }
}

/// Returns physical addresses with their nodes.
fn node_ranges(tree: &dyn Tree) -> Vec<(u64, u64, u32)> {
    let Ok(nodes) = Nodes::read(tree) else { return Vec::new() };
    let of = |node: u32| ranges(tree, node).into_iter().map(move |(start, end)| (start, end, node));
    nodes.all().iter().flat_map(|node| of(node.number)).collect()
}

fn node_of(places: &[(u64, u64, u32)], address: u64) -> Option<u32> {
    places.iter().find(|(start, end, _)| (*start..*end).contains(&address)).map(|(_, _, node)| *node)
}

/// What was found, with the addresses that are printed.
#[derive(Debug, PartialEq, Eq)]
struct Found {
    hot: Hot,
    addresses: Addresses,
    /// Hot memory of the device that is in no region of the host, and is left out.
    outside_bytes: u64,
    /// Why the addresses are the device's although it is in a region.
    untranslated: Option<String>,
}

impl Found {
    /// Returns the host's addresses, if the source has them or these decoders of the device do.
    fn of(hot: Hot, addresses: Addresses, decoders: Result<Vec<Decoder>, CedtFailure>) -> Found {
        let untranslated = decoders.as_ref().err().map(CedtFailure::to_string);
        let decoders = decoders.unwrap_or_default();
        if addresses == Addresses::Host || decoders.is_empty() {
            return Found { hot, addresses, outside_bytes: 0, untranslated };
        }
        let translated: Vec<_> = hot.ranges.iter().map(|range| host_ranges(&decoders, range)).collect();
        let outside_bytes = translated.iter().map(|(_, outside_bytes)| outside_bytes).sum();
        let ranges = translated.into_iter().flat_map(|(ranges, _)| ranges);
        Found { hot: Hot::of(ranges, hot.has_lost), addresses: Addresses::Host, outside_bytes, untranslated }
    }
}

fn object(name: &str, found: &Found, args: &HotArgs, places: &[(u64, u64, u32)]) -> String {
    let hot = &found.hot;
    let range = |range: &aquifer_hotness::HotRange| {
        json!({
            "start": range.start,
            "bytes": range.bytes,
            "accesses": range.accesses,
            "is_saturated": range.is_saturated,
            "node": node_of(places, range.start),
        })
    };
    let object = json!({
        "source": name,
        "addresses": if found.addresses == Addresses::Host { "host" } else { "device" },
        "counted_s": args.over.as_secs_f64(),
        "has_lost": hot.has_lost,
        "hot_bytes": hot.bytes(),
        "hot_ranges": hot.ranges.len(),
        "outside_bytes": found.outside_bytes,
        "untranslated": found.untranslated,
        "ranges": hot.ranges.iter().take(args.top).map(range).collect::<Vec<_>>(),
    });
    format!("{object}\n")
}

fn page(name: &str, found: &Found, args: &HotArgs, places: &[(u64, u64, u32)]) -> String {
    let hot = &found.hot;
    let (bytes, over) = (ByteSize(hot.bytes()), args.over);
    let mut text = format!("{name}: {bytes} hot in {} ranges, in {over:?}\n", hot.ranges.len());
    if hot.has_lost {
        text.push_str(
            "More was hot, and is not listed: look at fewer bytes, with a higher --threshold or --granule.\n",
        );
    }
    if found.outside_bytes > 0 {
        let outside = ByteSize(found.outside_bytes);
        text.push_str(&format!(
            "{outside} of the device is hot and in no region: 'aquifer cxl list' has its regions.\n"
        ));
    }
    if found.addresses == Addresses::Device {
        let why = found.untranslated.as_deref().unwrap_or("'aquifer cxl list' has no region with it.");
        text.push_str(&format!("Addresses are the device's own: {why}\n"));
    }
    if hot.ranges.is_empty() {
        return text;
    }
    let head = ["ADDRESS", "SIZE", "ACCESSES", "NODE"].map(str::to_owned).to_vec();
    let row = |range: &aquifer_hotness::HotRange| {
        let sign = if range.is_saturated { "+" } else { "" };
        let node = node_of(places, range.start).map_or_else(|| "-".to_owned(), |node| node.to_string());
        let size = ByteSize(range.bytes).to_string();
        vec![format!("{:#x}", range.start), size, format!("{}{sign}", range.accesses), node]
    };
    let rows: Vec<Vec<String>> = std::iter::once(head).chain(hot.ranges.iter().take(args.top).map(row)).collect();
    text.push_str(&columns(&rows, width()));
    text
}

#[cfg(test)]
mod tests {
    use aquifer_hotness::model::{Model, Shape};
    use aquifer_nodes::Fixture;

    use super::*;

    const ARGS: HotArgs = HotArgs {
        source: SourceName::Damon,
        over: Duration::from_millis(1),
        granule: None,
        epoch: None,
        threshold: None,
        take: false,
        top: 20,
        json: false,
    };

    fn range(start: u64, accesses: u64, is_saturated: bool) -> aquifer_hotness::HotRange {
        aquifer_hotness::HotRange { start, bytes: 4096, accesses, is_saturated }
    }

    #[test]
    fn sources_are_damon_and_monitors_of_pci_functions() {
        let chmu = |device: &str, index| Ok(SourceName::Chmu { device: device.to_owned(), index });
        assert_eq!("damon".parse(), Ok(SourceName::Damon));
        assert_eq!("chmu:0000:0d:00.0".parse(), chmu("0000:0d:00.0", 0));
        assert_eq!("chmu:0000:0d:00.0,3".parse(), chmu("0000:0d:00.0", 3));
        for wrong in ["", "chmu:", "chmu:../x", "chmu:0000:0d:00.0,", "chmu:0000:0d:00.0,256", "chmu:mem0", "pebs"] {
            assert!(wrong.parse::<SourceName>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_device_without_monitors_is_named_with_what_lists_them() {
        let source = "chmu:0000:0d:00.0".parse().unwrap();
        let failure = hot(&HotArgs { source, ..ARGS }, &Fixture::new()).unwrap_err().to_string();
        assert!(failure.contains("0000:0d:00.0 shows no hotness monitors"), "{failure}");
        assert!(hot(&ARGS, &Fixture::new()).unwrap_err().to_string().contains("apply --damon on"));
    }

    #[test]
    fn hot_ranges_are_printed_with_their_nodes_and_a_loss_is_said() {
        let places = [(0, 1 << 30, 0), (1 << 30, 2 << 30, 1)];
        let hot = Hot::of([range(0x1000, 2, false), range(1 << 30, 9, true), range(4 << 30, 1, false)], true);
        let found = Found::of(hot, Addresses::Host, Ok(Vec::new()));
        let text = page("damon", &found, &HotArgs { top: 2, ..ARGS }, &places);
        for line in
            ["damon: 12KiB hot in 3 ranges, in 1ms", "0x40000000  4KiB  9+        1", "0x1000      4KiB  2         0"]
        {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        assert!(text.contains("is not listed") && !text.contains("0x100000000"), "{text}");
        let value: serde_json::Value = serde_json::from_str(&object("damon", &found, &ARGS, &places)).unwrap();
        assert_eq!((value["hot_bytes"].as_u64(), value["has_lost"].as_bool()), (Some(12288), Some(true)));
        assert_eq!((value["ranges"][0]["node"].as_u64(), value["ranges"][2]["node"].as_u64()), (Some(1), None));
    }

    #[test]
    fn a_devices_addresses_become_the_hosts_by_its_decoders_and_stay_its_own_without() {
        let places = [(4 << 30, 5 << 30, 2)];
        let hot = Hot::of([range(0x2000, 7, false), range(0x1000, 9, true), range(1 << 30, 8, false)], false);
        let decoder = Decoder::new(0, (4 << 30, 1 << 20), 2, 4096, 1).unwrap();
        let found = Found::of(hot.clone(), Addresses::Device, Ok(vec![decoder]));
        let text = page("chmu:0000:0d:00.0,0", &found, &ARGS, &places);
        let rows = ["0x100003000  4KiB  9+        2", "0x100005000  4KiB  7         2"];
        assert!(text.contains(&format!("{}\n{}\n", rows[0], rows[1])) && !text.contains("0x40000000"), "{text}");
        assert!(text.contains("4KiB of the device is hot and in no region"), "{text}");
        let value: serde_json::Value = serde_json::from_str(&object("chmu", &found, &ARGS, &places)).unwrap();
        assert_eq!((value["addresses"].as_str(), value["outside_bytes"].as_u64()), (Some("host"), Some(4096)));
        assert_eq!(
            (value["ranges"][0]["start"].as_u64(), value["hot_bytes"].as_u64()),
            (Some(0x1_0000_3000), Some(8192))
        );

        let found = Found::of(hot.clone(), Addresses::Device, Ok(Vec::new()));
        assert_eq!(found, Found { hot, addresses: Addresses::Device, outside_bytes: 0, untranslated: None });
        let text = page("chmu", &found, &ARGS, &[]);
        assert!(text.contains("Addresses are the device's own: 'aquifer cxl list' has no region with it."), "{text}");
    }

    #[test]
    fn addresses_stay_the_devices_with_the_cause_where_the_order_of_targets_is_not_known() {
        let hot = Hot::of([range(0x2000, 7, false)], false);
        let found = Found::of(hot.clone(), Addresses::Device, Err(CedtFailure::NoWindow { start: 1 << 32 }));
        assert_eq!((&found.hot, found.addresses), (&hot, Addresses::Device));
        let text = page("chmu", &found, &ARGS, &[]);
        assert!(text.contains("Addresses are the device's own: no window of ") && text.contains("0x2000  "), "{text}");
        let value: serde_json::Value = serde_json::from_str(&object("chmu", &found, &ARGS, &[])).unwrap();
        assert!(value["untranslated"].as_str().is_some_and(|why| why.contains("0x100000000")), "{value}");
        assert_eq!(value["addresses"].as_str(), Some("device"));
    }

    #[test]
    fn a_monitor_is_emptied_again_and_again_until_the_time_is_over() {
        let device = Model::shared(Shape::default());
        let settings = Settings { epoch: Duration::from_millis(1), threshold: 1, ..Settings::default() };
        let mut monitor = Monitor::open("model".into(), device.clone(), 0, 0, settings).unwrap();
        monitor.start().unwrap();
        for page in 0..40 {
            device.borrow_mut().access(page * 4096, false);
        }
        device.borrow_mut().pass(Duration::from_millis(1));
        let found = count(&mut monitor, Duration::from_millis(20)).unwrap();
        assert_eq!((found.ranges.len(), found.has_lost), (40, false));
    }
}
