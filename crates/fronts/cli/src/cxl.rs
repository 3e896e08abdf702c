// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! `aquifer cxl`: CXL memory of this host, listed, made into regions, and brought online and offline.
//!
//! `aquifer_cxl_host` reads, decides and writes; `list.rs` prints.

mod list;

use std::process;

use aquifer_core::units::ByteSize;
use aquifer_cxl_host::{CxlFailure, Listing, Progress, Region, Request, Zone, create, destroy, offline, online};
use aquifer_nodes::dax::Device;
use aquifer_nodes::{Machine, Tree};
use serde_json::json;

use crate::exit::{ExitCode, Failure, say};
use crate::output;

/// List CXL memory, and turn devices bound to this host into memory for programs
///
/// A region joins CXL devices into one range of memory. The kernel shows it as a memory device, such as dax0.0, whose
/// memory is either a NUMA node (online) or belongs to the program that opens the device (offline). All commands except
/// list need root.
#[derive(Clone, Debug, clap::Args)]
#[command(arg_required_else_help = true)]
#[command(after_long_help = "\
Examples:
  aquifer cxl list
  aquifer cxl create mem0 mem1          all of their memory, interleaved
  aquifer cxl online dax0.0             as a NUMA node; then run --numa dram:3,cxl:1
  aquifer cxl offline dax0.0 --migrate  for programs; then run --tier dax:/dev/dax0.0
  aquifer cxl destroy region0")]
pub struct CxlArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Clone, Debug, clap::Subcommand)]
enum Action {
    List(list::ListArgs),
    Create(CreateArgs),
    Destroy(DestroyArgs),
    Online(OnlineArgs),
    Offline(OfflineArgs),
}

/// Make a region of volatile memory: all of it, or nothing
#[derive(Clone, Debug, clap::Args)]
#[command(after_long_help = "\
Examples:
  aquifer cxl create mem0
  aquifer cxl create 0x1000 0x1001 --size 512MiB --granularity 4KiB")]
struct CreateArgs {
    /// CXL devices by name or serial number, in the order in which they take turns: 1, 2, 4, 8 or 16; or 3, 6 or 12, in
    /// a window that interleaves over 3, 6 or 12 host bridges
    #[arg(required = true, value_name = "MEMDEV")]
    memdevs: Vec<String>,

    /// The size of the region [default: all that is free, the same from each device]
    #[arg(long, value_name = "SIZE")]
    size: Option<ByteSize>,

    /// How many bytes in a row are on one device: a power of two from 256 to 16KiB
    #[arg(long, value_name = "SIZE", default_value = "256")]
    granularity: ByteSize,

    /// The window of the host's addresses, such as decoder0.0 [default: the first that fits]
    #[arg(long, value_name = "NAME")]
    window: Option<String>,

    /// One JSON object with the region
    #[arg(long)]
    json: bool,
}

/// Destroy a region: take its memory offline, and free its decoders
#[derive(Clone, Debug, clap::Args)]
#[command(after_long_help = "\
Examples:
  aquifer cxl destroy region0
  aquifer cxl destroy region0 --migrate    move memory that is in use to other nodes")]
struct DestroyArgs {
    /// Its name in 'aquifer cxl list'
    #[arg(value_name = "REGION")]
    region: String,

    /// Move memory that is in use to other nodes, instead of naming its holders
    #[arg(long)]
    migrate: bool,

    /// One JSON object with the destroyed region
    #[arg(long)]
    json: bool,
}

/// Give the memory of a memory device to the kernel, as a NUMA node
#[derive(Clone, Debug, clap::Args)]
#[command(after_long_help = "\
Examples:
  aquifer cxl online dax0.0
  aquifer cxl online dax0.0 --kernel    also for the kernel's own memory, which cannot be moved away again")]
struct OnlineArgs {
    /// Its name in 'aquifer cxl list'
    #[arg(value_name = "DEVICE")]
    device: String,

    /// Let the kernel put its own memory there: it cannot go offline while it has some
    #[arg(long)]
    kernel: bool,

    /// One JSON object with the device
    #[arg(long)]
    json: bool,
}

/// Take the memory of a memory device from the kernel, for programs that open the device
#[derive(Clone, Debug, clap::Args)]
#[command(after_long_help = "\
Examples:
  aquifer cxl offline dax0.0
  aquifer cxl offline dax0.0 --migrate    move memory that is in use to other nodes")]
struct OfflineArgs {
    /// Its name in 'aquifer cxl list'
    #[arg(value_name = "DEVICE")]
    device: String,

    /// Move memory that is in use to other nodes, instead of naming its holders
    #[arg(long)]
    migrate: bool,

    /// One JSON object with the device
    #[arg(long)]
    json: bool,
}

/// Carries out one of them.
pub fn cxl(args: &CxlArgs) -> Result<process::ExitCode, Failure> {
    let tree = Machine::running();
    match &args.action {
        Action::List(args) => list::list(args, &tree)?,
        Action::Create(args) => {
            let request = Request {
                memdevs: args.memdevs.clone(),
                bytes: args.size.map(|size| size.0),
                granularity_bytes: args.granularity.0,
                window: args.window.clone(),
            };
            print_region(&create(&tree, &request).map_err(failure)?, "created", args.json)?;
        }
        Action::Destroy(args) => {
            let region = destroy(&tree, &args.region, args.migrate, &mut report).map_err(failure)?;
            print_region(&region, "destroyed", args.json)?;
        }
        Action::Online(args) => {
            let zone = if args.kernel { Zone::Normal } else { Zone::Movable };
            online(&tree, &device(&tree, &args.device)?, zone, &mut report).map_err(failure)?;
            print_device(&tree, &args.device, args.json)?;
        }
        Action::Offline(args) => {
            offline(&tree, &device(&tree, &args.device)?, args.migrate, &mut report).map_err(failure)?;
            print_device(&tree, &args.device, args.json)?;
        }
    }
    Ok(ExitCode::Success.into())
}

fn failure(failure: CxlFailure) -> Failure {
    Failure::new(ExitCode::Failure, failure.to_string(), "")
}

fn device(tree: &dyn Tree, name: &str) -> Result<Device, Failure> {
    let listing = Listing::read(tree).map_err(failure)?;
    let all = listing.regions.iter().flat_map(|region| &region.devices).chain(&listing.devices);
    let found = all.map(|device| device.name.clone()).collect();
    let missing = || failure(CxlFailure::NoSuch { kind: "memory device", name: name.to_owned(), found });
    listing.device(name).cloned().ok_or_else(missing)
}

/// Prints the progress of a device: each block can take seconds.
fn report(progress: &Progress) {
    let of = |blocks: usize| ByteSize(blocks as u64 * progress.block_bytes);
    say(&format!("{} of {}", of(progress.done), of(progress.all)));
}

fn print_region(region: &Region, what: &str, as_json: bool) -> Result<(), Failure> {
    let devices: Vec<&str> = region.devices.iter().map(|device| device.name.as_str()).collect();
    let text = if as_json {
        json!(region).to_string()
    } else {
        format!("{} {what}: {}, {}", region.name, ByteSize(region.bytes), devices.join(", "))
    };
    output::print(&(text + "\n")).map(|_| ())
}

fn print_device(tree: &dyn Tree, name: &str, as_json: bool) -> Result<(), Failure> {
    let device = device(tree, name)?;
    let text = if as_json { json!(device).to_string() } else { list::device_text(&device) };
    output::print(&(text + "\n")).map(|_| ())
}
