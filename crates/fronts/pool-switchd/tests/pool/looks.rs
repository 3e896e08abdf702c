// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What the program asks of the manager to see what others change: a few numbers each second, and the rest only where
//! these differ.
//!
//! It read all donors, hosts and volumes each second, which cost the manager more the more volumes it had, for nothing.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::fake::{Fake, error, healthy};
use crate::site::{CHANGE, Front, Site, new_directory, write_config};

#[test]
fn what_has_not_changed_is_read_every_ten_seconds() {
    let version = Arc::new(AtomicU64::new(1));
    let shown = Arc::clone(&version);
    let fake = Fake::start(move |method, path| match (method, path) {
        ("GET", "/redfish/v1/Oem/Aquifer") => (200, json!({ "Version": shown.load(Ordering::Relaxed) })),
        _ => healthy(method, path),
    });
    let directory = new_directory("looks");
    write_config(&directory, &fake.url);
    let _front = Front::start(&directory);
    let wait_for = |what: &str, count: usize, limit: Duration| {
        let begun = Instant::now();
        while fake.count(what) < count {
            assert!(begun.elapsed() < limit, "{what}: {} of {count}", fake.count(what));
            std::thread::sleep(Duration::from_millis(20));
        }
        begun.elapsed()
    };
    fake.forget();
    wait_for("GET Aquifer", 5, Duration::from_secs(30));
    assert_eq!(fake.count("GET MemoryChunks"), 0, "nothing has changed");
    version.store(2, Ordering::Relaxed);
    let took = wait_for("GET MemoryChunks", 1, Duration::from_secs(5));
    wait_for("GET Aquifer", 8, Duration::from_secs(30));
    assert_eq!((fake.count("GET MemoryChunks"), fake.count("GET Endpoints")), (1, 1), "after {took:?}");
    wait_for("GET MemoryChunks", 2, Duration::from_secs(30));
    assert!(fake.count("GET Aquifer") > 8, "the whole is read now and then, too");
}

/// The first line that could not be written stopped the program for ever.
#[test]
fn a_report_that_nobody_reads_stops_nothing() {
    let fake = Fake::start(healthy);
    let directory = new_directory("unread");
    write_config(&directory, &fake.url);
    let (_unread, errors) = std::io::pipe().expect("a pipe");
    let errors = std::fs::File::from(std::os::fd::OwnedFd::from(errors));
    let mut filled = errors.try_clone().expect("a file");
    let _front = Front::with_errors(&directory, |_| errors);
    // Its thread waits for room until the test ends.
    std::thread::spawn(move || while filled.write_all(&[b'\n'; 4096]).is_ok() {});
    std::thread::sleep(Duration::from_millis(200));
    // It reports that the manager fails.
    fake.answer(|_, _| (500, error("it is broken")));
    fake.forget();
    let begun = Instant::now();
    while fake.count("GET Aquifer") < 3 {
        assert!(begun.elapsed() < Duration::from_secs(30), "it asks no more");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn what_others_change_is_seen_within_about_a_second() {
    let (site, front) = Site::start("seen");
    let spec = json!({ "size": "256MiB", "pool": "main", "zone": "lab", "class": "tcp", "donor": "d0000" });
    let mut slow = 0;
    for round in 0..5 {
        for (change, units) in [(json!({ "spec": spec }), 1), (json!(null), 0)] {
            let begun = Instant::now();
            assert_eq!(site.ask("POST", CHANGE, &json!({ "Volumes": { "fm-d0000-5": change } })).0, 200);
            front.see("others have changed a volume", |front| front.units()[5] == units);
            // The machine of a test may be busy.
            slow += u32::from(begun.elapsed() > Duration::from_millis(2500));
        }
        assert!(slow <= 2, "{slow} were seen late in {round} rounds");
    }
    site.finish(front);
}
