// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Hot memory as DAMON counts it: the regions of a scheme with the action `stat`, which does nothing but count.
//!
//! `aquifer tiering apply --damon on` sets such a scheme up over the far nodes; DAMON then looks at the accessed bits
//! of a few pages of each region, and adapts the regions. See `Documentation/admin-guide/mm/damon/usage.rst` on
//! `tried_regions`, which exists since Linux 6.2.
//!
//! What a scheme has found is updated by a command and stays until the next one, so a reading is about the last
//! aggregation interval (100 ms by default).

use std::time::Duration;

use aquifer_nodes::tiering::{Damon, KDAMONDS};
use aquifer_nodes::{Tree, Write, write_all};

use crate::failure::HotnessFailure;
use crate::source::{Addresses, Hot, HotRange, HotnessSource};

/// The action that only counts.
const COUNTS: &str = "stat";
/// Maximum number of regions that are read; DAMON makes 1000 at most unless configured otherwise.
const REGIONS_MAX: usize = 16_384;

/// Regions that a scheme of DAMON has found.
pub struct DamonSource<'a> {
    tree: &'a dyn Tree,
    /// The number of the thread and of its scheme, once started.
    scheme: Option<(u64, usize)>,
}

impl<'a> DamonSource<'a> {
    /// The source in these files.
    pub fn new(tree: &'a dyn Tree) -> DamonSource<'a> {
        DamonSource { tree, scheme: None }
    }

    fn command(&self, kdamond: u64, command: &str) -> Result<(), HotnessFailure> {
        let write = Write::new(format!("{KDAMONDS}/{kdamond}/state"), command);
        write_all(self.tree, &[write]).map_err(HotnessFailure::DamonCommand)
    }

    /// One region. `None` if it is none: DAMON may replace its regions while they are read.
    fn region(&self, directory: &str) -> Option<HotRange> {
        let number = |name: &str| self.tree.number(&format!("{directory}/{name}")).ok();
        let (start, end, accesses) = (number("start")?, number("end")?, number("nr_accesses")?);
        let bytes = end.checked_sub(start).filter(|bytes| *bytes > 0)?;
        (accesses > 0).then_some(HotRange { start, bytes, accesses, is_saturated: false })
    }
}

/// Whether a scheme that counts is on.
pub fn damon_counts(damon: Option<&Damon>) -> bool {
    damon.is_some_and(|damon| counting(damon).is_some())
}

/// The number of a thread that is on, and of its scheme that counts.
fn counting(damon: &Damon) -> Option<(u64, usize)> {
    damon.kdamonds.iter().filter(|kdamond| kdamond.is_on).find_map(|kdamond| {
        let scheme = kdamond.schemes.iter().position(|scheme| scheme.action == COUNTS)?;
        Some((kdamond.number, scheme))
    })
}

impl HotnessSource for DamonSource<'_> {
    fn name(&self) -> String {
        "damon".into()
    }

    fn addresses(&self) -> Addresses {
        Addresses::Host
    }

    fn interval(&self) -> Option<Duration> {
        None
    }

    fn start(&mut self) -> Result<(), HotnessFailure> {
        let damon = Damon::read(self.tree).unwrap_or_default();
        self.scheme = Some(counting(&damon).ok_or(HotnessFailure::DamonOff)?);
        Ok(())
    }

    fn collect(&mut self) -> Result<Hot, HotnessFailure> {
        let Some((kdamond, scheme)) = self.scheme else { return Err(HotnessFailure::DamonOff) };
        self.command(kdamond, "update_schemes_tried_regions")?;
        let path = format!("{KDAMONDS}/{kdamond}/contexts/0/schemes/{scheme}/tried_regions");
        let names = match self.tree.names(&path) {
            Ok(names) => names,
            Err(source) => return Err(HotnessFailure::Damon { path, source }),
        };
        // The directory also has files: total_bytes.
        let numbers: Vec<String> = names.into_iter().filter(|name| name.parse::<u64>().is_ok()).collect();
        let has_lost = numbers.len() > REGIONS_MAX;
        let regions = numbers.iter().take(REGIONS_MAX).filter_map(|name| self.region(&format!("{path}/{name}")));
        Ok(Hot::of(regions, has_lost))
    }

    fn stop(&mut self) -> Result<(), HotnessFailure> {
        match self.scheme.take() {
            // The thread is the operator's and goes on; only the list is freed.
            Some((kdamond, _)) => self.command(kdamond, "clear_schemes_tried_regions"),
            None => Ok(()),
        }
    }
}
