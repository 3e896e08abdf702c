// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Parses what a person typed after `--tier` into a checked description of a tier.
//!
//! Pure: nothing is opened here, so every message is about the text.
//!
//! ```text
//! flash:PATH[,size=SIZE][,overwrite][,buffered][,plain-queue]
//! dram:[size=SIZE]
//! node:N[,size=SIZE]               the memory of NUMA node N
//! dax:PATH[,size=SIZE]             a memory device, or a file on one
//! compressed:[size=SIZE][,codec=lz4|zstd]
//! donor:HOST:PORT,cert=FILE,key=FILE,ca=FILE[,crl=FILE][,name=SERVERNAME][,size=SIZE]
//! donor:HOST:PORT,security=plain[,size=SIZE]
//! donor:unix:PATH[,size=SIZE]
//! donor:rdma:HOST:PORT[,device=NAME],OPTION...     bytes go by RDMA, requests over HOST:PORT as above
//! donor:HOST:PORT[*WEIGHT]+HOST:PORT[*WEIGHT]...,OPTION...[,mirror=N]     several donors; the rest is as for one
//! donor:...[,parity=K+M]                           the same, each page in shards
//! pool:VOLUME[,agent=SOCKET][,size=SIZE]           a volume of the pool, whose donors the host's agent knows
//! emulated:PROFILE[,size=SIZE]                     the name of a profile, or the path of one
//! flash:..., donor:..., pool:... [,encrypt=ephemeral]     sealed, with a key that exists only for this run
//! failing:RULE[,RULE]...:SPEC                      a test aid: SPEC, with failures; the rules are in `failure_plan.rs`
//! ```
//!
//! A path cannot contain a comma: whatever follows a comma is an option.

use std::str::FromStr;

use aquifer_core::units::ByteSize;

use super::{FlashSpec, SpecFailure, TierSpec, donors, pool, rules, similar};
use crate::compressed::Codec;

/// How deep `failing:` may be nested in `failing:`.
const NESTING_MAX: u32 = 8;

/// The options of all tiers, to suggest a correction for a typing mistake.
const OPTION_NAMES: &[&str] = &[
    "size",
    "overwrite",
    "buffered",
    "plain-queue",
    "encrypt",
    "cert",
    "key",
    "ca",
    "crl",
    "name",
    "security",
    "device",
    "mirror",
    "parity",
    "codec",
    "agent",
];
/// The kinds of tier, for the same purpose.
const KIND_NAMES: &[&str] = &["flash", "dram", "node", "dax", "compressed", "donor", "emulated", "pool"];

const KINDS: &str =
    "flash:PATH, dram:, node:N, dax:PATH, compressed:, donor:HOST:PORT, pool:VOLUME or emulated:PROFILE";

impl FromStr for TierSpec {
    type Err = SpecFailure;

    fn from_str(text: &str) -> Result<Self, SpecFailure> {
        parse(text, 0).map_err(SpecFailure::new)
    }
}

fn parse(text: &str, nesting: u32) -> Result<TierSpec, String> {
    let Some((kind, rest)) = text.split_once(':') else {
        return Err(format!("no kind of tier is named; write {KINDS}"));
    };
    match kind {
        "flash" => sealed(rest, |rest| flash(rest).map(TierSpec::Flash)),
        "donor" => sealed(rest, donors::parse),
        "pool" => sealed(rest, pool::parse),
        "dram" => Ok(TierSpec::Dram { size: only_size(rest)? }),
        "compressed" => compressed(rest),
        "emulated" => emulated(rest),
        "failing" if nesting < NESTING_MAX => failing(rest, nesting),
        "failing" => Err(format!("failing: is nested more than {NESTING_MAX} times; once is enough")),
        "dax" => dax(rest),
        "node" => node(rest),
        _ => Err(match similar::among(kind, KIND_NAMES) {
            Some(meant) => format!("'{kind}' is not a kind of tier; did you mean {meant}:?"),
            None => format!("'{kind}' is not a kind of tier; write {KINDS}"),
        }),
    }
}

/// Calls `parse` with the description without `encrypt=`, and wraps the result in encryption if that option was given.
fn sealed(rest: &str, parse: impl FnOnce(&str) -> Result<TierSpec, String>) -> Result<TierSpec, String> {
    let (place, said) = rest.split_once(',').unwrap_or((rest, ""));
    let (mut left, mut is_sealed) = (place.to_owned(), false);
    for option in said.split(',').filter(|_| rest.contains(',')) {
        match option.split_once('=').unwrap_or((option, "")) {
            ("encrypt", "ephemeral") => is_sealed = true,
            ("encrypt", _) => {
                return Err(
                    "encrypt= takes no key: nothing in a tier outlives the program, and neither does its key, \
                            which is stored nowhere; write encrypt=ephemeral"
                        .into(),
                );
            }
            _ => left = left + "," + option,
        }
    }
    let spec = parse(&left)?;
    Ok(if is_sealed { TierSpec::Encrypted { inner: Box::new(spec) } } else { spec })
}

fn flash(rest: &str) -> Result<FlashSpec, String> {
    let (path, rest) = rest.split_once(',').unwrap_or((rest, ""));
    if path.is_empty() {
        return Err("a flash tier needs a path; write flash:PATH with a directory, a file or a block device".into());
    }
    let mut spec = FlashSpec::at(path);
    for option in options(rest) {
        match option {
            ("size", Some(value)) => set_size(&mut spec.size, value)?,
            ("overwrite", None) => spec.overwrite = true,
            ("buffered", None) => spec.buffered = true,
            ("plain-queue", None) => spec.plain_queue = true,
            (name, _) => return Err(unknown(name, "size=SIZE, overwrite, buffered, plain-queue or encrypt=ephemeral")),
        }
    }
    Ok(spec)
}

fn dax(rest: &str) -> Result<TierSpec, String> {
    let (path, rest) = rest.split_once(',').unwrap_or((rest, ""));
    if path.is_empty() {
        return Err("a dax tier needs a path; write dax:PATH with a memory device such as /dev/dax0.0".into());
    }
    Ok(TierSpec::Dax { path: path.into(), size: only_size(rest)? })
}

fn node(rest: &str) -> Result<TierSpec, String> {
    let (number, rest) = rest.split_once(',').unwrap_or((rest, ""));
    let Ok(number) = number.parse() else {
        return Err(format!("'{number}' is not the number of a NUMA node; write for example node:1"));
    };
    Ok(TierSpec::Node { number, size: only_size(rest)? })
}

fn compressed(rest: &str) -> Result<TierSpec, String> {
    let (mut size, mut codec) = (None, None);
    for option in options(rest) {
        match option {
            ("size", Some(value)) => set_size(&mut size, value)?,
            ("codec", Some(_)) if codec.is_some() => return Err("codec= is given twice; give it once".into()),
            ("codec", Some(value)) => codec = Some(codec_of(value)?),
            (name, _) => return Err(unknown(name, "size=SIZE, codec=lz4 or codec=zstd")),
        }
    }
    Ok(TierSpec::Compressed { size, codec: codec.unwrap_or_default() })
}

fn codec_of(name: &str) -> Result<Codec, String> {
    let found = Codec::ALL.iter().find(|(known, _)| *known == name);
    found.map(|(_, codec)| *codec).ok_or_else(|| match similar::among(name, &Codec::ALL.map(|(known, _)| known)) {
        Some(meant) => format!("'{name}' is not a codec; did you mean {meant}?"),
        None => format!("'{name}' is not a codec; write codec=lz4, which is fast, or codec=zstd, which is smaller"),
    })
}

fn emulated(rest: &str) -> Result<TierSpec, String> {
    let (profile, rest) = rest.split_once(',').unwrap_or((rest, ""));
    if profile.is_empty() {
        let names: Vec<&str> = crate::profile::names().collect();
        return Err(format!("an emulated tier needs a profile; write one of {}, or a path", names.join(", ")));
    }
    Ok(TierSpec::Emulated { profile: profile.into(), size: only_size(rest)? })
}

fn failing(rest: &str, nesting: u32) -> Result<TierSpec, String> {
    let Some((rules, inner)) = rest.split_once(':') else {
        return Err("a failing tier needs rules and a tier; write for example failing:after=100:dram:".into());
    };
    let plan = rules::parse(rules)?;
    Ok(TierSpec::Failing { plan, inner: Box::new(parse(inner, nesting + 1)?) })
}

/// `a,b=c` as pairs. An empty text has no options; two adjacent commas have an option without a name between them.
pub(super) fn options(text: &str) -> impl Iterator<Item = (&str, Option<&str>)> {
    text.split(',').filter(move |_| !text.is_empty()).map(|option| match option.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (option, None),
    })
}

pub(super) fn only_size(text: &str) -> Result<Option<ByteSize>, String> {
    let mut size = None;
    for option in options(text) {
        match option {
            ("size", Some(value)) => set_size(&mut size, value)?,
            (name, _) => return Err(unknown(name, "size=SIZE")),
        }
    }
    Ok(size)
}

pub(super) fn set_size(size: &mut Option<ByteSize>, value: &str) -> Result<(), String> {
    if size.is_some() {
        return Err("size= is given twice; give it once".into());
    }
    *size = Some(value.parse()?);
    Ok(())
}

pub(super) fn unknown(name: &str, known: &str) -> String {
    if let Some(meant) = similar::among(name, OPTION_NAMES) {
        return format!("'{name}' is not an option of this tier, or lacks its value; did you mean {meant}?");
    }
    format!("'{name}' is not an option of this tier, or lacks its value; write {known} (a path cannot contain a comma)")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use aquifer_borrower::{DonorSecurity, DonorSpec};
    use aquifer_tier::{Activity, FailurePlan};
    use aquifer_tls::{BorrowerFiles, Files};

    use super::*;

    fn spec(text: &str) -> TierSpec {
        text.parse().unwrap_or_else(|failure| panic!("{failure}"))
    }

    #[test]
    fn flash_takes_a_path_and_options() {
        assert_eq!(spec("flash:/a b/c:d"), TierSpec::Flash(FlashSpec::at("/a b/c:d")));
        let full = FlashSpec {
            size: Some(ByteSize(4 << 30)),
            overwrite: true,
            buffered: true,
            plain_queue: true,
            ..FlashSpec::at("/flash")
        };
        assert_eq!(spec("flash:/flash,plain-queue,buffered,overwrite,size=4GiB"), TierSpec::Flash(full));
    }

    #[test]
    fn memory_and_emulated_devices_take_a_size() {
        assert_eq!(spec("dram:"), TierSpec::Dram { size: None });
        assert_eq!(spec("dram:size=1MiB"), TierSpec::Dram { size: Some(ByteSize(1 << 20)) });
        assert_eq!(spec("emulated:cmm-h"), TierSpec::Emulated { profile: "cmm-h".into(), size: None });
        let sized = TierSpec::Emulated { profile: "./my.toml".into(), size: Some(ByteSize(1 << 30)) };
        assert_eq!(spec("emulated:./my.toml,size=1GiB"), sized);
    }

    #[test]
    fn nodes_take_a_number_and_memory_devices_a_path() {
        assert_eq!(spec("node:1"), TierSpec::Node { number: 1, size: None });
        assert_eq!(spec("node:0,size=1MiB"), TierSpec::Node { number: 0, size: Some(ByteSize(1 << 20)) });
        assert_eq!(spec("dax:/dev/dax0.0"), TierSpec::Dax { path: "/dev/dax0.0".into(), size: None });
        let sized = TierSpec::Dax { path: "/mnt/pmem/file".into(), size: Some(ByteSize(1 << 30)) };
        assert_eq!(spec("dax:/mnt/pmem/file,size=1GiB"), sized);
        for (text, part) in [
            ("node:", "node:1"),
            ("node:x", "'x' is not the number"),
            ("node:-1", "'-1' is not the number"),
            ("node:1,overwrite", "size=SIZE"),
            ("dax:", "/dev/dax0.0"),
            ("dax:/dev/dax0.0,sise=1", "did you mean size?"),
        ] {
            let message = text.parse::<TierSpec>().unwrap_err().to_string();
            assert!(message.contains(part), "{text}: {message}");
        }
    }

    #[test]
    fn compressed_memory_takes_a_size_and_a_codec() {
        let compressed = |size, codec| TierSpec::Compressed { size, codec };
        assert_eq!(spec("compressed:"), compressed(None, Codec::Lz4));
        assert_eq!(spec("compressed:codec=zstd"), compressed(None, Codec::Zstd));
        let sized = compressed(Some(ByteSize(4 << 30)), Codec::Lz4);
        assert_eq!(spec("compressed:size=4GiB,codec=lz4"), sized);
        assert!(sized.is_same_place(&spec("failing::compressed:codec=zstd")));
    }

    #[test]
    fn donors_take_an_address_and_options() {
        let security = DonorSecurity::Plain;
        let donor = |address: &str, size| {
            TierSpec::Donor(DonorSpec {
                address: address.into(),
                size,
                security: security.clone(),
                rdma: None,
                tree: None,
                reservation: 0,
            })
        };
        assert_eq!(spec("donor:host:7000,security=plain"), donor("host:7000", None));
        let sized = donor("[::1]:7000", Some(ByteSize(1 << 30)));
        assert_eq!(spec("donor:[::1]:7000,size=1GiB,security=plain"), sized);
        let local = |size| {
            let security = DonorSecurity::Local;
            TierSpec::Donor(DonorSpec {
                address: "unix:/run/a:1.sock".into(),
                size,
                security,
                rdma: None,
                tree: None,
                reservation: 0,
            })
        };
        assert_eq!(spec("donor:unix:/run/a:1.sock"), local(None));
        assert_eq!(spec("donor:unix:/run/a:1.sock,size=1GiB"), local(Some(ByteSize(1 << 30))));
        assert!(
            matches!(spec("donor:unix:/c++/a*2"), TierSpec::Donor(donor) if donor.socket_path() == Some("/c++/a*2"))
        );
        for (text, name, crl) in [
            ("donor:host:7000,cert=/c,key=k,ca=./a", "host", None),
            ("donor:[::1]:7000,ca=./a,security=tls,key=k,cert=/c,crl=l", "::1", Some("l".into())),
            ("donor:10.0.0.2:7000,cert=/c,key=k,ca=./a,name=memory.example", "memory.example", None),
        ] {
            let TierSpec::Donor(donor) = spec(text) else { panic!("not a donor") };
            let identity = Files { cert: "/c".into(), key: "k".into(), ca: "./a".into() };
            let files = BorrowerFiles { identity, crl, service: None };
            assert_eq!(donor.security, DonorSecurity::Tls { files, name: name.into() }, "{text}");
        }
    }

    #[test]
    fn tiers_that_leave_the_machine_can_be_sealed() {
        let sealed = |inner| TierSpec::Encrypted { inner: Box::new(inner) };
        let size = Some(ByteSize(1 << 30));
        let flash = TierSpec::Flash(FlashSpec { size, ..FlashSpec::at("/a") });
        assert_eq!(spec("flash:/a,encrypt=ephemeral,size=1GiB"), sealed(flash));
        assert_eq!(
            spec("donor:a:1+b:1,mirror=2,encrypt=ephemeral,security=plain"),
            sealed(spec("donor:a:1+b:1,mirror=2,security=plain"))
        );
        assert!(spec("flash:/a").is_same_place(&spec("failing::flash:/a,encrypt=ephemeral")));
        for text in ["flash:/a,encrypt", "flash:/a,encrypt=/etc/key", "donor:a:1,security=plain,encrypt="] {
            let message = text.parse::<TierSpec>().unwrap_err().to_string();
            assert!(message.contains("takes no key") && message.ends_with("write encrypt=ephemeral"), "{message}");
        }
        // These tiers do not leave the machine, so the option is unknown for them.
        for text in ["dram:encrypt=ephemeral", "compressed:encrypt=ephemeral", "emulated:cmm-h,encrypt=ephemeral"] {
            let message = text.parse::<TierSpec>().unwrap_err().to_string();
            assert!(message.contains("'encrypt' is not an option of this tier"), "{message}");
        }
    }

    #[test]
    fn failing_takes_rules_and_a_tier() {
        let TierSpec::Failing { plan, inner } = spec(
            "failing:after=100,on=write+discard,times=3,errno=ENOSPC,offsets=0-1MiB,delay=1.5ms:flash:/x,overwrite",
        ) else {
            panic!("not a failing tier");
        };
        let wanted = FailurePlan {
            on: vec![Activity::Write, Activity::Discard],
            offsets: Some(0..1 << 20),
            after: Some(100),
            times: 3,
            errno: libc::ENOSPC,
            delay: Duration::from_micros(1500),
            ..FailurePlan::default()
        };
        assert_eq!(plan, wanted);
        assert_eq!(*inner, TierSpec::Flash(FlashSpec { overwrite: true, ..FlashSpec::at("/x") }));
        let TierSpec::Failing { plan, .. } = spec("failing:every=7,corrupt=3,full-after=8KiB:dram:") else {
            panic!("not a failing tier");
        };
        assert_eq!((plan.every, plan.corrupt, plan.full_after_bytes), (Some(7), Some(3), Some(8192)));
    }

    #[test]
    fn every_bad_spec_gets_one_line_with_cause_and_remedy() {
        for (text, cause, remedy) in [
            ("", "no kind", "flash:PATH"),
            ("/tmp", "no kind", "flash:PATH"),
            ("disk:/tmp", "'disk'", "flash:PATH"),
            ("flash:", "needs a path", "flash:PATH"),
            ("flash:,size=1GiB", "needs a path", "flash:PATH"),
            ("flash:/tmp,size=many", "'many'", "4GiB"),
            ("flash:/tmp,size=-1GiB", "'-1GiB'", "4GiB"),
            ("flash:/tmp,size", "'size'", "size=SIZE"),
            ("flash:/tmp,,overwrite", "''", "size=SIZE"),
            ("flash:/tmp,fast", "'fast'", "overwrite"),
            ("flash:/tmp,overwrite=1", "'overwrite'", "overwrite"),
            ("flash:/tmp,size=1GiB,size=2GiB", "twice", "once"),
            ("dram:4GiB", "'4GiB'", "size=SIZE"),
            ("dram:size=1e9", "'1e9'", "4GiB"),
            ("compressed:codec=zstdd", "'zstdd' is not a codec", "did you mean zstd?"),
            ("compressed:codec=gzip", "'gzip' is not a codec", "codec=lz4"),
            ("compressed:codec=lz4,codec=zstd", "given twice", "once"),
            ("compressed:codecs=lz4", "'codecs'", "did you mean codec?"),
            ("compresed:", "'compresed'", "did you mean compressed:?"),
            ("compressed:4GiB", "'4GiB'", "codec=zstd"),
            ("emulated:", "needs a profile", "xl-flash-slc"),
            ("emulated:cmm-h,4GiB", "'4GiB'", "size=SIZE"),
            ("donor:", "not a donor's address", "donor:HOST:PORT"),
            ("donor:host", "'host'", "donor:HOST:PORT"),
            ("donor::7000", "':7000'", "donor:HOST:PORT"),
            ("donor:host:0", "'host:0'", "donor:HOST:PORT"),
            ("donor:host:70000", "'host:70000'", "donor:HOST:PORT"),
            ("donor:host:7000", "over TLS", "donor:host:7000,security=plain"),
            ("donor:host:7000,size=1GiB", "over TLS", "donor:host:7000,cert=FILE,key=FILE,ca=FILE"),
            ("donor:host:7000,security=tls,cert=c,key=k", "over TLS", "ca=FILE"),
            ("donor:host:7000,cert=,key=k,ca=a", "'cert'", "cert=FILE"),
            ("donor:host:7000,cert=c,key=k,ca=a,name=a b", "'a b'", "a host's name"),
            ("donor:a b:7000,cert=c,key=k,ca=a", "'a b'", "name=SERVERNAME"),
            ("donor:host:7000,security=plain,cert=c", "no certificates", "leave it out"),
            ("donor:host:7000,security=plain,crl=l", "no certificates", "crl="),
            ("donor:host:7000,cert=c,key=k,ca=a,crl=", "'crl'", "crl=FILE"),
            ("donor:host:7000,security=ssl", "'ssl'", "security=plain"),
            ("donor:host:7000,security", "'security'", "security=plain"),
            ("donor:unix:", "not a socket path", "donor:unix:PATH"),
            ("donor:unix:/s,security=plain", "'security'", "size=SIZE"),
            ("node:x", "'x'", "node:1"),
            ("dax:", "needs a path", "/dev/dax0.0"),
            ("failing:", "needs rules", "failing:after=100:dram:"),
            ("failing:after=x:dram:", "'x'", "number"),
            ("failing:every=0:dram:", "'0'", "at least 1"),
            ("failing:often:dram:", "'often'", "after=N"),
            ("failing:on=sometimes:dram:", "'sometimes'", "read"),
            ("failing:errno=EWHAT:dram:", "'EWHAT'", "EIO"),
            ("failing:offsets=5:dram:", "'5'", "0-1MiB"),
            ("failing:offsets=2-1:dram:", "'2-1'", "0-1MiB"),
            ("failing:delay=5:dram:", "'5'", "200us"),
            ("failing:delay=5h:dram:", "'5h'", "200us"),
            ("failing:after=1:disk:", "'disk'", "flash:PATH"),
            ("a\nb", "no kind", "flash:PATH"),
            ("flash:/tmp,a\r\nb", "'a\\r\\nb'", "overwrite"),
        ] {
            let message = text.parse::<TierSpec>().expect_err(text).to_string();
            assert!(message.contains(cause), "{text}: {message}");
            assert!(message.contains(remedy), "{text}: {message}");
            assert!(!message.contains('\n'), "{text}: {message}");
        }
        let deep = "failing::".repeat(20);
        assert!(deep.parse::<TierSpec>().is_err());
    }
}
