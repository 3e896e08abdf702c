// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Several clients of one front, several fronts of one pool, and strangers: what is reported as done is done, and
//! nobody is slowed down.

use std::io::Write;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use aquifer_fmapi::{LdAllocation, SetLdAllocations};
use aquifer_fmapi_client::{Client as FmapiClient, Hop, Limits, SystemClock, Tcp};
use serde_json::{Value, json};

use crate::site::{Client, Front, Site};

/// How often two clients meet.
const ROUNDS: u64 = 6;
/// Connections of a stranger at a time.
const STRANGERS: usize = 100;
/// How long one allocation may take beside them; it takes milliseconds.
const ORDER_TIME_MAX: Duration = Duration::from_secs(5);

/// Sends two orders at the same time. Returns their answers.
fn at_once(orders: [(&Client, String); 2]) -> [Result<Value, String>; 2] {
    let start = std::sync::Barrier::new(2);
    std::thread::scope(|scope| {
        let threads = orders.map(|(client, line)| {
            let start = &start;
            scope.spawn(move || {
                start.wait();
                client.fmapi(&line)
            })
        });
        threads.map(|thread| thread.join().expect("no panic"))
    })
}

/// Frees the logical device, whatever has become of it.
fn free(site: &Site, front: &Front) {
    let volumes = json!({ "Volumes": { "fm-d0000-0": { "host": null } } });
    if site.ld(0).is_some_and(|(_, host)| host.is_some()) {
        assert_eq!(site.ask("POST", crate::site::CHANGE, &volumes).0, 200);
        site.daemon.settle(&site.token);
    }
    front.see("nothing is bound", |front| (0..2).all(|vcs| front.vppb(vcs, 0)["status"] == "unbound"));
}

/// Two clients want the same logical device: each allocates it with its own size and binds it at its own host.
fn meet(site: &Site, clients: [&Client; 2], fronts: &[&Front]) {
    let mut bound = [0; 2];
    for round in 0..ROUNDS {
        let sizes = [1 + 2 * round, 2 + 2 * round];
        let allocate = sizes.map(|units| format!("allocate --port 0 --ld 0 --size {}MiB", 256 * units));
        let [one, other] = allocate;
        let ended = at_once([(clients[0], one), (clients[1], other)]);
        let (units, _) = site.ld(0).expect("one of them has made it");
        let done: Vec<u64> = ended.iter().zip(sizes).filter(|(end, _)| end.is_ok()).map(|(_, units)| units).collect();
        assert!(done.contains(&units), "{units} units, and reported were {done:?}: {ended:?}");
        fronts.iter().for_each(|front| front.see("its size", |front| front.units()[0] == units));
        let bind = [0, 1].map(|vcs| format!("bind --vcs {vcs} --vppb 0 --port 0 --ld 0"));
        let [one, other] = bind;
        let ended = at_once([(clients[0], one), (clients[1], other)]);
        let winners: Vec<usize> = (0..2).filter(|vcs| ended[*vcs].is_ok()).collect();
        let [winner] = winners[..] else { panic!("exactly one wins: {ended:?}") };
        let host = site.ld(0).expect("it is there").1;
        assert_eq!(host, Some(format!("h00{winner}")), "{ended:?}");
        bound[winner] += 1;
        for front in fronts {
            front.see("who has it", |front| {
                let ld = |vcs| front.vppb(vcs, 0)["ld_id"].clone();
                ld(winner) == 0 && ld(1 - winner).is_null()
            });
        }
        fronts.iter().for_each(|front| free(site, front));
    }
    println!("bound at the first and the second host: {bound:?}");
}

#[test]
fn two_clients_of_a_front_get_true_answers() {
    let (site, front) = Site::start("clients");
    meet(&site, [&front.client(), &front.client()], &[&front]);
    site.finish(front);
}

#[test]
fn two_fronts_of_a_pool_show_the_same_and_give_true_answers() {
    let (site, front) = Site::start("fronts");
    let second = Front::start(&site.directory);
    meet(&site, [&front.client(), &second.client()], &[&front, &second]);
    assert_eq!(front.fmapi("vcs"), second.fmapi("vcs"));
    drop(second);
    site.finish(front);
}

/// Opens connections, sends what is no packet, no message, or no request, and begins again.
fn disturb(address: &str, is_over: &AtomicBool) {
    let mut number = 0u8;
    while !is_over.load(Ordering::Relaxed) {
        let mut streams = Vec::new();
        for _ in 0..STRANGERS {
            number = number.wrapping_add(1);
            let Ok(mut stream) = TcpStream::connect(address) else { break };
            let _ = stream.set_write_timeout(Some(Duration::from_millis(100)));
            let bytes: Vec<u8> = (0..10_000u32).map(|at| (at as u8).wrapping_mul(number)).collect();
            // The other end may have gone.
            let _ = stream.write_all(&bytes[..usize::from(number) * 32]);
            streams.push(stream);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_stranger_with_a_hundred_connections_slows_no_order() {
    let (site, front) = Site::start("strangers");
    let address = front.peer.strip_prefix("tcp:").expect("an address").to_owned();
    let tcp = Tcp::connect(&address, Duration::from_secs(5)).expect("it listens");
    let mut client = FmapiClient::new(Box::new(tcp), SystemClock::shared(), Limits::default());
    client.recognise().expect("a switch");
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| disturb(&address, &is_over));
        let mut longest = Duration::ZERO;
        for units in 1..=20 {
            let begun = Instant::now();
            let allocations = vec![LdAllocation { range_1: units, range_2: 0 }];
            let set = client.set_ld_allocations(&[Hop::Port(0)], &SetLdAllocations { first_ld_id: 1, allocations });
            longest = longest.max(begun.elapsed());
            if let Err(failure) = set {
                is_over.store(true, Ordering::Relaxed);
                panic!("{failure}; {:?}", front.said());
            }
        }
        is_over.store(true, Ordering::Relaxed);
        println!("the longest of 20 allocations took {longest:?}");
        assert!(longest < ORDER_TIME_MAX, "{longest:?}");
    });
    assert_eq!(site.ld(1).map(|(units, _)| units), Some(20));
    let said = front.said();
    assert!(said.len() < 200, "{} lines of strangers", said.len());
    front.see("who comes afterwards is served", |front| front.fmapi("identify").is_ok());
    site.finish(front);
}
