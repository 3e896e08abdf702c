// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Initial inputs: valid ones, which reach deep into a decoder, and for each decoder some that are nearly valid.

mod driven_switch;
mod hotness;

use aquifer_authority::JoinToken;
use aquifer_config::Config;
use aquifer_core::record::{BATCH_HEADER_BYTES, HEADER_BYTES};
use aquifer_fmapi::{Category, Dialect, Message, Opcode, ReturnCode};
use aquifer_stats::{Counter, Counters, CurveFigures, CurvePoint, FaultKind, Gauge, Text};
use aquifer_sys::shared_segment::SharedView;
use aquifer_tiers::{Codec, PAGE, encode_for_fuzzing};
use aquifer_wire::{HEADER_BYTES as FRAME_HEADER_BYTES, Header};

pub use self::driven_switch::driven_switch;
pub use self::hotness::{cedt, hotness};

fn texts(texts: &[&str]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

/// Output of a workload, with the result among other lines.
pub fn bench_result() -> Vec<Vec<u8>> {
    let figure = r#""figure":{"name":"triad","value":1.5,"unit":"GB/s","better":"higher"}"#;
    texts(&[
        &format!("hello\n{{\"program\":\"stream\",{figure},\"verified\":true}}\nbye\n"),
        &format!("{{{figure},\"verified\":false}}"),
        "{\"figure\":{\"name\":\"a\",\"value\":1e999,\"unit\":\"s\",\"better\":\"lower\"},\"verified\":true}",
        "{",
        "",
    ])
}

/// Arguments of calls of the C library: good handles and pointers, and each kind of call.
pub fn c_abi() -> Vec<Vec<u8>> {
    let calls = |kind: u8| (0..12).flat_map(move |call| [[0, 0, kind], [8, 16, call], [99; 3], [call; 3], [99; 3]]);
    let mut seeds: Vec<Vec<u8>> = (0..4).map(|kind| calls(kind).flatten().collect()).collect();
    seeds.push((0..=255).collect());
    seeds
}

/// Requests of each kind, and requests that are refused.
pub fn cache_requests() -> Vec<Vec<u8>> {
    texts(&[
        "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$5\r\nvalue\r\n*2\r\n$3\r\nGET\r\n$1\r\nk\r\n",
        "*7\r\n$3\r\nset\r\n$1\r\nk\r\n$0\r\n\r\n$2\r\nPX\r\n$3\r\n100\r\n$2\r\nNX\r\n$3\r\nGET\r\n",
        "PING\r\nEXPIRE k 10\r\nincrby k -5\r\nMSET a 1 b 2\r\n*0\r\nCONFIG GET save\n",
        "*1\r\n$-1\r\n",
        "*9999\r\n",
        "$5\r\nhello\r\n",
    ])
}

/// The configuration that `aquifer run` passes to its preload library.
pub fn config() -> Vec<Vec<u8>> {
    // Every field has a value other than its default.
    let full = include_str!("../../../fronts/config/tests/golden/config_v6.json");
    texts(&[full, &Config::default().to_json(), "{\"version\":3}", "{}", "null"])
}

/// Records of pages, by each codec.
pub fn compressed_page() -> Vec<Vec<u8>> {
    let pages: [[u8; PAGE]; 3] = [
        std::array::from_fn(|index| b"some words that come again, and others"[index * index / 64 % 38]),
        std::array::from_fn(|index| (index / 300) as u8),
        std::array::from_fn(|index| if index % 8 == 7 { 0x80 } else { (index % 8) as u8 }),
    ];
    let codecs = [Codec::Lz4, Codec::Zstd];
    codecs.iter().flat_map(|codec| pages.iter().filter_map(|page| encode_for_fuzzing(*codec, page))).collect()
}

/// Programs (dynamic, static, for another machine), reduced to the headers.
pub fn elf() -> Vec<Vec<u8>> {
    let file = |kind: u16, machine: u16, header: u32, contents: &[u8]| {
        let mut bytes = vec![0; 120];
        bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
        bytes[16..18].copy_from_slice(&kind.to_le_bytes());
        bytes[18..20].copy_from_slice(&machine.to_le_bytes());
        bytes[32..40].copy_from_slice(&64_u64.to_le_bytes());
        bytes[54..56].copy_from_slice(&56_u16.to_le_bytes());
        bytes[56..58].copy_from_slice(&1_u16.to_le_bytes());
        bytes[64..68].copy_from_slice(&header.to_le_bytes());
        bytes[72..80].copy_from_slice(&120_u64.to_le_bytes());
        bytes[96..104].copy_from_slice(&(contents.len() as u64).to_le_bytes());
        bytes.extend_from_slice(contents);
        bytes
    };
    let loader = b"/lib64/ld-linux-x86-64.so.2\0";
    vec![
        file(3, 62, 3, loader),
        file(2, 62, 1, b""),
        file(3, 62, 2, b""),
        file(2, 22, 3, loader),
        b"#!/bin/sh\n".into(),
    ]
}

/// Bodies of requests to the fabric manager.
pub fn fabric_body() -> Vec<Vec<u8>> {
    texts(&[
        r#"{"Name": "v", "MemoryChunkSizeMiB": 2, "Oem": {"Aquifer": {"zone": "lab", "class": "tcp"}}}"#,
        r#"{"Declaration": {"pools": {"main": {"donors": ["d0"]}}, "zones": {"lab": {"quota": "1GiB"}}}}"#,
        r#"{"pools": {"main": {"overcommit_percent": 20, "donors": ["d1"], "devices": ["m1"]}}, "draining": ["d1"],
            "zones": {"lab": {"quota": "2TiB", "hosts": ["h1"]}}, "volumes": {"v": {"host": "h1", "spec": {"size":
            "1GiB", "pool": "main", "zone": "lab", "class": "tcp", "redundancy": {"mirror": {"copies": 2}}}}}}"#,
        r#"{"MemoryChunkInfo": [{"MemoryChunk": {"@odata.id": "/redfish/v1/Chassis"}}], "Links": {}}"#,
        r#"{"UserName": "a", "Password": "b", "RoleId": "Operator", "Enabled": true}"#,
        "[[[[]]]]",
        "",
    ])
}

/// Requests to the fabric manager: one for each method of each path, and some with bodies, queries and headers.
pub fn fabric_request() -> Vec<Vec<u8>> {
    let volume = "/redfish/v1/Chassis/Pools/MemoryDomains/main/MemoryChunks/db";
    let connections = "POST /redfish/v1/Fabrics/Aquifer/Connections HTTP/1.1\nx-auth-token: OPERATOR\n\n";
    let host = "/redfish/v1/Fabrics/Aquifer/Endpoints/Host.h001";
    let (chunks, cache) = volume.rsplit_once("/db").map_or((volume, ""), |(chunks, _)| (chunks, "cache"));
    let mut all = texts(&[
        &format!("GET {volume}?$select=Name,Oem/Aquifer&$expand=* HTTP/1.1\nx-auth-token: READER\naccept: */*\n\n"),
        &format!("PATCH {volume} HTTP/1.1\nx-auth-token: OPERATOR\nif-match: *\n\n{{\"MemoryChunkSizeMiB\": 9216}}"),
        &format!(
            "POST {chunks} HTTP/1.1\nx-auth-token: OPERATOR\n\n{{\"Name\": \"new\", \"MemoryChunkSizeMiB\": 2048, \
             \"Oem\": {{\"Aquifer\": {{\"zone\": \"lab\", \"class\": \"tcp\"}}}}}}"
        ),
        &format!(
            "{connections}{{\"MemoryChunkInfo\": [{{\"MemoryChunk\": {{\"@odata.id\": \"{chunks}/{cache}\"}}}}], \
             \"Links\": {{\"InitiatorEndpoints\": [{{\"@odata.id\": \"{host}\"}}]}}}}"
        ),
        "GET /redfish/v1/Fabrics/Aquifer/Endpoints?$filter=Oem/Aquifer/Kind%20eq%20'Donor'&$top=2&$skip=1 HTTP/1.1\n\
         x-auth-token: READER\nif-none-match: W/\"a\"\nodata-version: 4.0\n\n",
        "GET /redfish/v1/Fabrics?only HTTP/1.1\nx-auth-token: READER\n\n",
        "PATCH /redfish/v1/AccountService/Accounts/rita HTTP/1.1\nx-auth-token: ADMINISTRATOR\n\n\
         {\"RoleId\": \"Operator\", \"Enabled\": false}",
        "POST /redfish/v1/EventService/Subscriptions/Members HTTP/1.1\nx-auth-token: ADMINISTRATOR\n\n\
         {\"Destination\": \"http://[::1]:9/a\", \"Protocol\": \"Redfish\", \"Context\": \"c\", \"MessageIds\": []}",
        "POST /redfish/v1/Oem/Aquifer/Plans HTTP/1.1\nx-auth-token: READER\n\n\
         {\"Declaration\": {\"zones\": {\"lab\": {\"quota\": \"1GiB\", \"hosts\": [\"h000\"]}}}}",
        "POST /redfish/v1/SessionService/Sessions HTTP/1.1\norigin: http://a\nhost: a\n\n\
         {\"UserName\": \"amy\", \"Password\": \"b\"}",
        "PUT /redfish/v1 HTTP/1.1\n\n",
    ]);
    let names = [("{PoolId}", "main"), ("{VolumeId}", "db"), ("{ZoneId}", "lab"), ("{EndpointId}", "Donor.d0001")];
    let names = names.into_iter().chain([("{SwitchId}", "s0"), ("{PortId}", "2"), ("{VcsId}", "0"), ("{VppbId}", "1")]);
    let names =
        names.chain([("{ChassisId}", "box"), ("{DeviceId}", "m000"), ("{LdId}", "0"), ("{AccountId}", "oscar")]);
    let names: Vec<(&str, &str)> = names.chain([("{RoleId}", "Operator"), ("{TaskId}", "1")]).collect();
    let document = aquifer_manager::openapi();
    for (path, methods) in document["paths"].as_object().expect("paths") {
        let path = names.iter().fold(path.clone(), |path, (name, value)| path.replace(name, value));
        for method in methods.as_object().expect("methods").keys().map(|method| method.to_uppercase()) {
            all.push(format!("{method} {path} HTTP/1.1\nx-auth-token: ADMINISTRATOR\n\n").into_bytes());
        }
    }
    all
}

/// Frames of each message, and some that are nearly frames.
pub fn control() -> Vec<Vec<u8>> {
    let frame = |text: &str| {
        let length = u32::try_from(text.len()).expect("a short text").to_le_bytes();
        [&b"AQC1"[..], &length, &[7, 0, 0, 0], text.as_bytes()].concat()
    };
    let golden = concat!(
        include_str!("../../../pool/control/tests/golden/messages_v1.jsonl"),
        include_str!("../../../pool/control/tests/golden/messages_v2.jsonl"),
        include_str!("../../../pool/control/tests/golden/messages_v3.jsonl"),
        include_str!("../../../pool/control/tests/golden/messages_v6.jsonl"),
    );
    let mut seeds: Vec<Vec<u8>> = golden.lines().map(frame).collect();
    seeds.push(golden.lines().flat_map(frame).collect());
    seeds.extend(texts(&["AQC1", "AQC1\u{7f}\u{7f}\u{7f}\u{7f}\0\0\0\0{}", "GET / HTTP/1.1\r\n\r\n"]));
    seeds
}

/// A join token, as it is shown and as people copy it, and some that are nearly one.
pub fn join_token() -> Vec<Vec<u8>> {
    let token = JoinToken::new([7; 8], [9; 32], &"ab".repeat(32)).reveal();
    let (cut, (head, tail)) = (&token[..token.len() - 1], token.split_at(40));
    texts(&[
        &token,
        &format!("  {token}\n"),
        cut,
        &format!("{head}\n{tail}"),
        &token.to_uppercase(),
        "aqj1...",
        "aqj2.",
    ])
}

/// The fabric manager's reference configuration, and short ones.
pub fn fabric_config() -> Vec<Vec<u8>> {
    texts(&[
        aquifer_manager::reference(),
        "state = \"s\"\nlisten = \"[::1]:0\"\n[tls]\ncertificate = \"c\"\nkey = \"k\"\n[peers]\nkind = \"simulated\"\n",
        "state = \"s\"\n[peers]\nkind = \"simulated\"\ndonor-capacity = \"1TiB\"\ndevices = 128\nkill-at-effect = 7\n",
        "state = \"s\"\npeers = { kind = \"simulated\" }\n[rounds]\nidle-ms = 1\n[sessions]\nfailures = 100\n",
        "state = 1",
        "[state]\nkind = \"etcd\"\ndirectory = \"s\"\nendpoints = [\"http://a:1\"]\n[peers]\nkind = \"simulated\"\n",
    ])
}

/// Answers of etcd: to a range, to a transaction that held and one that did not, about a lease, and errors.
pub fn etcd_answer() -> Vec<Vec<u8>> {
    let with_status = |status: u16, body: &str| [&status.to_be_bytes()[..], body.as_bytes()].concat();
    vec![
        with_status(200, r#"{"header":{"revision":"2"},"kvs":[{"key":"cC9h","mod_revision":"2","value":"aGk="}]}"#),
        with_status(200, r#"{"header":{"revision":"7"},"succeeded":true,"responses":[{"response_put":{}}]}"#),
        with_status(200, r#"{"header":{"revision":"7"},"responses":[{"response_range":{"kvs":[{"key":"YQ=="}]}}]}"#),
        with_status(200, r#"{"result":{"header":{"revision":"2"},"ID":"2324035641716781321","TTL":"30"}}"#),
        with_status(404, r#"{"error":"e","message":"etcdserver: requested lease not found","code":5}"#),
        with_status(200, r#"{"error":{"grpc_code":14,"http_code":503,"message":"etcdserver: no leader"}}"#),
        Vec::new(),
    ]
}

/// A file of a named mapping, and its nodes after a size: of pages of the mapping, the second of them at the end.
pub fn named() -> Vec<Vec<u8>> {
    let golden = include_bytes!("../../../memory/named/tests/golden/named_v1.bin");
    let entry = |place: u64| [place.to_le_bytes(), (place * 77).to_le_bytes()].concat();
    let node = |first: u64| (first..first + 20).flat_map(entry).collect::<Vec<u8>>();
    let mut two = [&300_u16.to_le_bytes()[..], &node(6)].concat();
    two.resize(2 + PAGE, 0);
    two.extend(node(30));
    vec![golden.to_vec(), [&19_u16.to_le_bytes()[..], &node(4)].concat(), two, golden[..2 * PAGE].to_vec()]
}

/// Device profiles that together use every section.
pub fn profile() -> Vec<Vec<u8>> {
    texts(&[
        include_str!("../../../memory/tiers/profiles/cmm-h.toml"),
        include_str!("../../../memory/tiers/profiles/rdma-100g.toml"),
        include_str!("../../../memory/tiers/profiles/xl-flash-slc.toml"),
        "description = \"\u{e4}\"\n[read]\nlatency_ns = [[nan, 1], [1.0, 2]]\nbytes_per_second = 1\n",
    ])
}

/// A recording, its events alone, and truncated recordings.
pub fn recording() -> Vec<Vec<u8>> {
    let golden = include_bytes!("../../../memory/core/tests/golden/recording_v2.bin");
    let events = &golden[HEADER_BYTES + BATCH_HEADER_BYTES..];
    vec![golden.to_vec(), events.to_vec(), golden[..golden.len() - 30].to_vec(), golden[..HEADER_BYTES].to_vec()]
}

/// Sizes as users write them.
pub fn size() -> Vec<Vec<u8>> {
    texts(&[
        "4GiB",
        "307MiB",
        "1.5GiB",
        "4096",
        "12 KiB",
        "16EiB",
        "18446744073709551615",
        "1e9",
        ".",
        "-1",
        "\u{b2}KB",
    ])
}

/// A segment as a pager leaves it.
pub fn stats_segment() -> Vec<Vec<u8>> {
    let counters = Counters::create().expect("a memfd can be made");
    Counter::ALL.iter().for_each(|counter| counters.add(*counter, 7));
    counters.set(Gauge::Pid, 4711);
    counters.set_resident_bytes(4096);
    for (index, kind) in FaultKind::ALL.iter().enumerate() {
        (0..40).for_each(|power| counters.record(*kind, (index as u64 + 1) << power));
    }
    counters.write(Text::Policy, "s3fifo");
    counters.write(Text::Program, "caf\u{e9} \"quoted\"\n");
    let point = |bytes: u64| CurvePoint { bytes: bytes << 20, bytes_per_s: 1e9 / bytes as f64, fetches_per_s: 7.5 };
    counters.write_curve(&CurveFigures {
        measured_ns: 10_000_000_000,
        samples: 300,
        content_bytes: 1 << 30,
        touched_bytes_per_s: 2e9,
        waited: 0.1,
        fetch_s: 80e-6,
        points: [1, 64, 900].map(point).to_vec(),
    });
    let view = SharedView::open(counters.descriptor().expect("it was made here")).expect("it was made so");
    let whole: Vec<u8> = (0..view.len()).flat_map(|word| view.load(word).to_ne_bytes()).collect();
    let header = whole[..64].to_vec();
    vec![whole, header, vec![0; 64]]
}

/// Tier specifications as users write them.
pub fn tier_spec() -> Vec<Vec<u8>> {
    texts(&[
        "flash:/mnt/nvme,size=8GiB,overwrite,buffered,plain-queue",
        "dram:size=1GiB",
        "compressed:size=1GiB,codec=zstd",
        "emulated:cmm-h,size=1GiB",
        "failing:after=100,on=write+discard,times=3,errno=ENOSPC,offsets=0-1MiB,delay=1.5ms:flash:/x,overwrite",
        "failing:every=7,corrupt=3,full-after=8KiB:failing:after=1:dram:",
        "donor:host:7000",
        "node:1,size=1GiB",
        "dax:/dev/dax0.0,size=1GiB",
        "",
    ])
}

/// One message of each kind, and two in one stream.
pub fn agent_messages() -> Vec<Vec<u8>> {
    use aquifer_agent_wire::{
        Answer, Denial, ListedVolume, Listing, MemberProgress, MemberView, Order, Progress, Redundancy, Request,
        TenantFiles, View, encode,
    };
    let files = TenantFiles { cert: "/c".into(), key: "/k".into(), ca: "/a".into(), crl: Some("/l".into()) };
    let (address, server_name) = ("10.0.0.1:7411".into(), "d".into());
    let member =
        MemberView { member: 3, address, server_name, weight: 2, slabs: 9, reservation: 8, order: Order::Drain };
    let redundancy = Redundancy::Parity { data: 4, parity: 1 };
    let view = View { revision: 5, redundancy, files: Some(files), members: vec![member], is_withdrawn: false };
    let progress = MemberProgress { member: 3, progress: Progress::Draining { slabs: 9, is_stalled: true } };
    let requests = [
        Request::Open { version: 1, volume: "db".into(), session: 7, holds: vec![3] },
        Request::Progress(vec![progress]),
        Request::List { version: 1 },
        Request::Statistics { version: 1 },
        Request::Close,
    ];
    let volume = ListedVolume { name: "db".into(), id: "00000000000000a1".into(), slabs: 8, is_bound: true };
    let listing = Listing { files: None, volumes: vec![volume] };
    let ids = vec!["00000000000000a1".into()];
    let denials = [Denial::NotPermitted { uid: 1, gid: 2 }, Denial::Ambiguous { ids }, Denial::NoMetrics];
    let answers = [Answer::View(view), Answer::Listing(listing)].into_iter().chain(denials.map(Answer::Denied));
    let requests: Vec<Vec<u8>> = requests.iter().map(|request| encode(request).expect("it is short")).collect();
    let answers = answers.map(|answer| encode(&answer).expect("it is short"));
    let stream = requests.concat();
    requests.into_iter().chain(answers).chain([stream]).collect()
}

/// One message of each command, and payloads in the form that `targets::fmapi` splits.
pub fn fmapi() -> Vec<Vec<u8>> {
    let message = |opcode: &Opcode| {
        let payload = vec![0; 16];
        Message::new(Category::Request, 7, *opcode, ReturnCode::SUCCESS, payload).encode(&Dialect::STANDARD)
    };
    let cut = |index: usize| [&[index as u8, 4][..], &[1, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0]].concat();
    Opcode::ALL.iter().map(message).chain((0..Opcode::ALL.len()).map(cut)).collect()
}

/// Messages as `targets::cxl_switch` cuts them: one of each command, to the switch and to a device, and a bind with an
/// unbind.
pub fn cxl_switch() -> Vec<Vec<u8>> {
    let dialect = &Dialect::STANDARD;
    let cut = |message: &[u8], later_ms| [&[message.len() as u8, later_ms], message].concat();
    let message = |opcode: &Opcode, payload: &[u8]| {
        Message::new(Category::Request, 7, *opcode, ReturnCode::SUCCESS, payload.to_vec()).encode(dialect)
    };
    let tunnelled =
        |port_id: u8, inner: &[u8]| message(&Opcode::TUNNEL, &[&[port_id, 0, inner.len() as u8, 0], inner].concat());
    let lengths = [0, 1, 2, 3, 6, 12, 16, 32];
    let each = Opcode::ALL.iter().map(|opcode| {
        let messages = lengths.iter().map(|length| message(opcode, &vec![0; *length]));
        let messages: Vec<Vec<u8>> = messages.collect();
        let inside = messages.iter().flat_map(|inner| [1, 2].map(|port_id| cut(&tunnelled(port_id, inner), 0)));
        messages.iter().map(|message| cut(message, 0)).chain(inside).collect::<Vec<_>>().concat()
    });
    let bind = cut(&message(&Opcode::BIND_VPPB, &[0, 0, 1, 0, 0, 0]), 0);
    let unbind = cut(&message(&Opcode::UNBIND_VPPB, &[0, 0, 1]), 100);
    each.chain([[bind, unbind].concat()]).collect()
}

/// A certificate with a DNS name and a common name.
pub fn certificate() -> Vec<Vec<u8>> {
    vec![include_bytes!("../seeds/certificate.der").to_vec()]
}

/// Limits of tenants.
pub fn tenants() -> Vec<Vec<u8>> {
    texts(&[
        "dns:a.example quota=16GiB connections=64 rate=2GiB requests=100000 # note\n* quota=0\n",
        "uid:0 quota=all",
    ])
}

/// One frame of each message between a donor and its borrowers.
pub fn wire() -> Vec<Vec<u8>> {
    let mut rest = &include_bytes!("../../../remote/wire/tests/golden/frames_v1.bin")[..];
    let mut frames = Vec::new();
    while let Some(header) = rest.first_chunk::<FRAME_HEADER_BYTES>() {
        let body_bytes = Header::decode(header).expect("the golden file is good").body_bytes as usize;
        let (frame, behind) = rest.split_at(FRAME_HEADER_BYTES + body_bytes);
        frames.push(frame.to_vec());
        rest = behind;
    }
    frames
}
