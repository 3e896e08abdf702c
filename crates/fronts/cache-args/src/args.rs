// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The table of flags.

use std::net::SocketAddr;

use aquifer_core::units::ByteSize;
use clap::Args;

/// Serve a key-value cache to Redis clients: keys in DRAM, values in far memory
///
/// The values are a log in a space of its own, and only the hot ones are in DRAM. While one request waits for a tier,
/// the others continue. When the cache is full, it evicts the oldest values, and spares those that were used since they
/// were stored. The cache is empty when it starts: nothing is kept across a restart.
#[derive(Clone, Debug, Args)]
#[command(after_long_help = "\
Examples:
  aquifer cache --dram 1GiB --tier flash:/var/tmp/cold,size=16GiB --size 15GiB
  aquifer cache --dram 64MiB --tier compressed:size=32MiB --tier flash:/var/tmp/cold --size 512MiB
  aquifer cache --listen 127.0.0.1:7000 --dram 64MiB --tier emulated:xl-flash-slc
  redis-benchmark -p 7000 -t set,get -d 1024 -r 100000 -P 16

Commands: GET SET MGET MSET DEL UNLINK EXISTS INCR INCRBY DECR DECRBY EXPIRE PEXPIRE TTL PTTL
PERSIST PING ECHO INFO DBSIZE FLUSHALL FLUSHDB SELECT COMMAND CONFIG CLIENT QUIT, over RESP2,
pipelined or not.

There is no authentication: anyone who reaches the address can read and change the cache.

Exit status: 0 ended by SIGTERM or SIGINT; 1 it cannot be started or cannot go on; 2 bad arguments;
125 the program cannot be started.")]
pub struct CacheArgs {
    /// The address to serve; port 0 for any free one, which is printed
    #[arg(long, default_value = "127.0.0.1:6379", value_name = "ADDRESS")]
    pub listen: SocketAddr,
    /// DRAM for the index of the keys and for the values that are hot, such as 1GiB
    ///
    /// The index takes 30 bytes for each key that --keys allows. The rest, at least 16 MiB, is the values' budget. The
    /// buffers of connections come on top (--buffers).
    #[arg(long, value_name = "SIZE")]
    pub dram: ByteSize,
    /// Where cold values go, as for `aquifer run`; several are a chain, the fastest first
    #[arg(long, required = true, value_name = "SPEC")]
    pub tier: Vec<String>,
    /// Maximum size of keys and values, in DRAM and in tiers together [default: four times --dram]
    ///
    /// At least 48MiB. The tiers need room for it.
    #[arg(long, value_name = "SIZE")]
    pub size: Option<ByteSize>,
    /// Maximum number of keys [default: one for each KiB of --size]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..=1 << 34))]
    pub keys: Option<u64>,
    /// Maximum number of connections at a time
    #[arg(long, default_value_t = 1024, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub connections: u32,
    /// Maximum size of all connections' buffers together; beyond it, the connections with the largest ones are closed
    ///
    /// At least 128MiB. A connection usually needs up to 64 KiB, and one with large values several times their size.
    #[arg(long, default_value = "256MiB", value_name = "SIZE")]
    pub buffers: ByteSize,
}
