// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The properties of a device: latency, bandwidth and parallelism, as data files.
//!
//! Built-in profiles are in `profiles/*.toml`, each figure with its source; anybody can write another one and give its
//! path. The keys are the fields below. Their effect on a request: `timing.rs`.

use std::path::Path;

use aquifer_sys::small_file;
use aquifer_tier::OpenFailure;
use serde::Deserialize;

/// The built-in profiles.
const BUILT_IN: [(&str, &str); 7] = [
    ("cmm-b-switch", include_str!("../profiles/cmm-b-switch.toml")),
    ("cmm-h", include_str!("../profiles/cmm-h.toml")),
    ("nvme-gen4", include_str!("../profiles/nvme-gen4.toml")),
    ("rdma-100g", include_str!("../profiles/rdma-100g.toml")),
    ("rdma-400g", include_str!("../profiles/rdma-400g.toml")),
    ("xl-flash-mlc", include_str!("../profiles/xl-flash-mlc.toml")),
    ("xl-flash-slc", include_str!("../profiles/xl-flash-slc.toml")),
];

/// Maximum length of a profile's file; those that come with Aquifer have 1 KiB or so.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// The maximum number of planes in a profile; each costs eight bytes and nothing else.
const PLANES_MAX: u64 = 4096;
/// The longest latency in a profile: 100 ms.
const LATENCY_NS_MAX: u64 = 100_000_000;

/// A device.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// What it is, in one line.
    pub description: String,
    /// Tier to frame.
    pub read: Direction,
    /// Frame to tier.
    pub write: Direction,
    /// What both directions can carry together, if that is less than their sum.
    pub total_bytes_per_second: Option<u64>,
    /// The flash behind the link. Absent for memory.
    pub media: Option<Media>,
    /// Memory in front of the media that holds what was accessed last.
    pub cache: Option<Cache>,
}

/// One direction of the link.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Direction {
    /// The minimum time of a request, however short: points of the distribution, `[share, ns]`, from share 0 to share
    /// 1. Values in between are interpolated linearly.
    pub latency_ns: Vec<(f64, u64)>,
    /// Time for which each request alone occupies the link, which limits requests per second.
    #[serde(default)]
    pub request_ns: u64,
    /// What the link carries in this direction.
    pub bytes_per_second: u64,
}

/// Flash.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Media {
    /// What one plane reads at a time.
    pub page_bytes: u64,
    /// How many pages are read at the same time; page `n` lies on plane `n % planes`.
    pub planes: u64,
    /// How long reading a page occupies its plane.
    pub read_ns: u64,
    /// What all planes together can deliver, if that is less than their sum.
    pub bytes_per_second: Option<u64>,
}

/// Memory in front of the media, direct-mapped.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cache {
    /// How many bytes it holds.
    pub bytes: u64,
    /// The size of a line.
    pub line_bytes: u64,
}

impl Direction {
    /// The latency that `share` of all requests do not exceed. `share` is between 0 and 1.
    pub fn latency_ns_at(&self, share: f64) -> u64 {
        for pair in self.latency_ns.windows(2) {
            let ((from, low), (to, high)) = (pair[0], pair[1]);
            if share <= to && to > from {
                let part = ((share - from) / (to - from)).clamp(0.0, 1.0);
                return low + ((high - low) as f64 * part) as u64;
            }
        }
        self.latency_ns.last().map_or(0, |(_, ns)| *ns)
    }
}

impl Profile {
    /// The profile called `name`, or the one in the file of that path.
    pub fn load(name: &str) -> Result<Profile, OpenFailure> {
        let failure = |reason| OpenFailure::Profile { name: name.into(), reason };
        if let Some((_, text)) = BUILT_IN.iter().find(|(known, _)| *known == name) {
            return Self::parse(text).map_err(failure);
        }
        if !name.contains('/') && !name.ends_with(".toml") {
            let known: Vec<&str> = names().collect();
            return Err(failure(format!("no profile has this name; use {}, or a path", known.join(", "))));
        }
        let text = small_file::read_text(Path::new(name), FILE_BYTES_MAX)
            .map_err(|error| failure(format!("{error}; give the path of a readable profile file")))?;
        Self::parse(&text).map_err(failure)
    }

    /// A profile from the text of its file. The failure is one line with cause and remedy.
    pub fn parse(text: &str) -> Result<Profile, String> {
        let profile: Profile = toml::from_str(text).map_err(|error| {
            let line = error.span().map_or(0, |span| text[..span.start].lines().count().max(1));
            format!(
                "line {line}: {}; compare with a profile that comes with Aquifer",
                error.message().replace('\n', " ")
            )
        })?;
        profile.check().map(|()| profile)
    }

    fn check(&self) -> Result<(), String> {
        self.read.check("read")?;
        self.write.check("write")?;
        let mut rates = vec![self.read.bytes_per_second, self.write.bytes_per_second];
        rates.extend(self.total_bytes_per_second);
        if let Some(media) = &self.media {
            rates.extend(media.bytes_per_second);
            if media.page_bytes < 512 || !(1..=PLANES_MAX).contains(&media.planes) || media.read_ns > LATENCY_NS_MAX {
                return Err(format!(
                    "[media] needs page_bytes of at least 512, 1 to {PLANES_MAX} planes, and read_ns up to {LATENCY_NS_MAX}"
                ));
            }
        }
        // Below this a 2 MiB block takes longer than the emulation waits.
        if rates.iter().any(|rate| *rate < 10_000_000) {
            return Err("bytes_per_second below 10 MB/s; write bytes, not megabytes".into());
        }
        match (&self.cache, &self.media) {
            (Some(_), None) => Err("[cache] needs a [media] behind it".into()),
            (Some(cache), Some(_)) if cache.line_bytes < 64 || cache.bytes < cache.line_bytes => {
                Err("[cache] needs line_bytes of at least 64, and bytes of at least one line".into())
            }
            _ => Ok(()),
        }
    }
}

impl Direction {
    fn check(&self, name: &str) -> Result<(), String> {
        let points = &self.latency_ns;
        let rising = points.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1);
        let ends = points.first().zip(points.last()).is_some_and(|(first, last)| first.0 == 0.0 && last.0 == 1.0);
        let bounded = points.iter().all(|(_, ns)| *ns <= LATENCY_NS_MAX) && self.request_ns <= LATENCY_NS_MAX;
        if rising && ends && bounded {
            Ok(())
        } else {
            Err(format!("[{name}] latency_ns must rise from [0.0, …] to [1.0, …], up to {LATENCY_NS_MAX} ns"))
        }
    }
}

/// The names of the built-in profiles.
pub fn names() -> impl Iterator<Item = &'static str> {
    BUILT_IN.iter().map(|(name, _)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_built_in_profile_is_sound() {
        for name in names() {
            let profile = Profile::load(name).unwrap();
            assert!(!profile.description.is_empty(), "{name}");
        }
    }

    #[test]
    fn a_profile_is_loaded_from_a_path() {
        let path = std::env::temp_dir().join(format!("aquifer-profile-{}.toml", std::process::id()));
        std::fs::write(&path, include_str!("../profiles/cmm-h.toml")).unwrap();
        let loaded = Profile::load(path.to_str().unwrap());
        std::fs::remove_file(&path).unwrap();
        assert_eq!(loaded.unwrap(), Profile::load("cmm-h").unwrap());
    }

    #[test]
    fn bad_profiles_name_cause_and_remedy_in_one_line() {
        let good = include_str!("../profiles/rdma-100g.toml");
        for (bad, part) in [
            (good.replace("bytes_per_second", "bytes_per_minute"), "line"),
            (good.replace("[1.0,", "[0.9,"), "latency_ns"),
            ("description = 1".into(), "line 1"),
            (good.replace("12_500_000_000", "12"), "not megabytes"),
            (format!("{good}\n[cache]\nbytes = 1\nline_bytes = 64\n"), "[media]"),
        ] {
            let reason = Profile::parse(&bad).unwrap_err();
            assert!(reason.contains(part), "{reason}");
            assert!(!reason.contains('\n'), "{reason}");
        }
        for name in ["no-such-device", "/no/such/file.toml", "/dev/zero"] {
            let failure = Profile::load(name).unwrap_err().to_string();
            assert!(failure.contains(name), "{failure}");
        }
    }

    #[test]
    fn latencies_follow_their_points() {
        let direction = Direction {
            latency_ns: vec![(0.0, 100), (0.5, 200), (1.0, 1000)],
            request_ns: 0,
            bytes_per_second: 1 << 30,
        };
        for (share, ns) in [(0.0, 100), (0.25, 150), (0.5, 200), (0.75, 600), (1.0, 1000)] {
            assert_eq!(direction.latency_ns_at(share), ns, "{share}");
        }
    }
}
