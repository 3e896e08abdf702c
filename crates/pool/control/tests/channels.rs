// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Ends and a registrar over real sockets: registration, reports, commands, lost channels, two managers.

mod ends;

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use aquifer_control::{ChannelStatus, Entry, Kind, NotSent, Registrar, Report, Unheard};
use aquifer_fabric::{DonorId, Term};
use ends::{Noted, donor, host, keep, log, plain, registrar, release, report, wait_until};

#[test]
fn ends_register_report_and_carry_out_commands_in_order() {
    let (registrar, _) = registrar(plain());
    let (one, two) = (Noted::new(Kind::Donor), Noted::new(Kind::Host));
    let _kept = [keep(&one, "d1", &[registrar.address()], None), keep(&two, "h1", &[registrar.address()], None)];
    assert!(matches!(report(&registrar, &donor("d1"), 1), Report::Donor(_)));
    assert!(matches!(report(&registrar, &host("h1"), 1), Report::Host(_)));
    let commands: Vec<_> = (1..=3).map(|sequence| release("d1", 1, sequence)).collect();
    assert_eq!(registrar.send(&commands), [Ok(()), Ok(()), Ok(())]);
    let outcomes = registrar.send(&[release("d1", 1, 3), release("d2", 1, 1)]);
    assert!(matches!(&outcomes[0], Err(NotSent::Refused(refused)) if refused.why.contains("newer command")));
    assert_eq!(outcomes[1], Err(NotSent::Lost), "nobody has this name");
    assert_eq!(one.lock().expect("no panic").carried_out, commands);
}

#[test]
fn each_kind_learns_its_part_of_the_directory_once() {
    let (registrar, _) = registrar(plain());
    let (one, two) = (Noted::new(Kind::Donor), Noted::new(Kind::Host));
    let _kept = [keep(&one, "d1", &[registrar.address()], None), keep(&two, "h1", &[registrar.address()], None)];
    let learned = |end: &Arc<Mutex<Noted>>| {
        let queries = end.lock().expect("no panic").queries.clone();
        queries.into_iter().filter_map(|query| query.directory).next_back().unwrap_or_default()
    };
    wait_until("both have learned", || {
        registrar.query(Term(1), &BTreeSet::new());
        !learned(&one).hosts.is_empty() && !learned(&two).donors.is_empty()
    });
    assert_eq!(learned(&one).hosts.values().collect::<Vec<_>>(), ["address:127.0.0.1"]);
    let found = learned(&two).donors;
    assert_eq!(found.values().next().expect("d1").addresses, ["127.0.0.1:7411"], "as the manager sees it");
    let before = one.lock().expect("no panic").queries.len();
    report(&registrar, &donor("d1"), 1);
    let queries = one.lock().expect("no panic").queries[before..].to_vec();
    assert!(queries.iter().all(|query| query.directory.is_none()), "nothing has changed");
}

#[test]
fn a_drained_donor_is_told_so_and_others_are_not() {
    let (registrar, _) = registrar(plain());
    let ends = [("d1", Noted::new(Kind::Donor)), ("d2", Noted::new(Kind::Donor))];
    let _kept = ends.each_ref().map(|(name, end)| keep(end, name, &[registrar.address()], None));
    ends.iter().for_each(|(name, _)| drop(report(&registrar, &donor(name), 1)));
    let drained: BTreeSet<DonorId> = ["d2".parse().expect("a name")].into();
    wait_until("both report", || registrar.query(Term(1), &drained).values().all(Result::is_ok));
    let is_drained = |index: usize| {
        let end = ends[index].1.lock().expect("no panic");
        end.queries.last().expect("asked").is_drained
    };
    assert!(!is_drained(0) && is_drained(1));
}

#[test]
fn a_silent_end_holds_up_one_round_and_then_nobody() {
    let (registrar, _) = registrar(plain());
    let (slow, quick) = (Noted::new(Kind::Donor), Noted::new(Kind::Donor));
    let _kept = [keep(&slow, "d1", &[registrar.address()], None), keep(&quick, "d2", &[registrar.address()], None)];
    report(&registrar, &donor("d1"), 1);
    report(&registrar, &donor("d2"), 1);
    let stuck = slow.lock().expect("no panic");
    assert!(registrar.query(Term(1), &BTreeSet::new())[&donor("d1")].is_err());
    // It is not asked again while it owes an answer, so it does not delay the rounds of the others.
    for _ in 0..3 {
        assert!(registrar.query(Term(1), &BTreeSet::new())[&donor("d1")].is_err());
        assert!(matches!(report(&registrar, &donor("d2"), 1), Report::Donor(_)));
    }
    assert_eq!(registrar.send(&[release("d1", 1, 1)]), [Err(NotSent::Lost)]);
    drop(stuck);
    report(&registrar, &donor("d1"), 1);
    assert!(slow.lock().expect("no panic").carried_out.is_empty(), "what was lost before it was sent never arrives");
}

/// One end that took its time for each answer delayed each round of the manager by that time, twice.
#[test]
fn a_slow_end_delays_nobody_and_is_heard_all_the_same() {
    const ROUNDS: u64 = 10;
    let delay = Duration::from_millis(600);
    let (registrar, _) = registrar(plain());
    let slow = Noted::new(Kind::Donor);
    slow.lock().expect("no panic").delay = delay;
    let quick = ["d1", "d2", "d3"].map(|name| (name, Noted::new(Kind::Donor)));
    let _slow = keep(&slow, "d0", &[registrar.address()], None);
    let _quick = quick.each_ref().map(|(name, end)| keep(end, name, &[registrar.address()], None));
    for name in ["d0", "d1", "d2", "d3"] {
        report(&registrar, &donor(name), 1);
    }
    let begun = Instant::now();
    for sequence in 1..=ROUNDS {
        let heard = registrar.query(Term(1), &BTreeSet::new());
        assert!(heard.values().all(Result::is_ok), "{heard:?}");
        let commands = ["d0", "d1", "d2", "d3"].map(|name| release(name, 1, sequence));
        let outcomes = registrar.send(&commands);
        assert_eq!(outcomes[1..], [Ok(()), Ok(()), Ok(())]);
        assert_eq!(outcomes[0], Err(NotSent::Pending));
    }
    let took = begun.elapsed();
    println!("{ROUNDS} rounds in {took:?}, with an end that takes {delay:?}");
    assert!(took < delay * 5, "{took:?}: rounds wait for the slow end");
    // What it answers while nobody waits for it is heard in a later round, and it carries out what it is sent.
    wait_until("it is heard", || registrar.query(Term(1), &BTreeSet::new()).contains_key(&donor("d0")));
    wait_until("it obeys in rounds, each of which begins with a query", || {
        let _ = registrar.query(Term(1), &BTreeSet::new());
        registrar.send(&[release("d0", 1, ROUNDS + 1)]);
        !slow.lock().expect("no panic").carried_out.is_empty()
    });
    // When it is quick again, it is waited for again.
    slow.lock().expect("no panic").delay = Duration::ZERO;
    let is_known = |outcomes: &[Result<(), NotSent>]| matches!(outcomes, [Ok(()) | Err(NotSent::Refused(_))]);
    wait_until("it is prompt", || is_known(&registrar.send(&[release("d0", 1, u64::MAX)])));
}

/// The network is cut while a command is carried out: its sender does not know the outcome, and finds it in the next
/// report, because a channel carries one request at a time.
#[test]
fn a_channel_that_is_cut_in_mid_command_comes_back() {
    let (registrar, _) = registrar(plain());
    let end = Noted::new(Kind::Donor);
    let (keeper, lines) = keep(&end, "d1", &[registrar.address()], None);
    report(&registrar, &donor("d1"), 1);
    let (has_begun, may_end) = {
        let end = end.lock().expect("no panic");
        (Arc::clone(&end.has_begun), Arc::clone(&end.may_end))
    };
    may_end.store(false, Ordering::Relaxed);
    let outcomes = std::thread::scope(|scope| {
        let sent = scope.spawn(|| registrar.send(&[release("d1", 1, 1)]));
        wait_until("the command has begun", || has_begun.load(Ordering::Relaxed));
        keeper.cut();
        sent.join().expect("no panic")
    });
    assert_eq!(outcomes, [Err(NotSent::Lost)]);
    may_end.store(true, Ordering::Relaxed);
    report(&registrar, &donor("d1"), 1);
    assert_eq!(end.lock().expect("no panic").carried_out.len(), 1, "it was carried out all the same");
    let repeated = registrar.send(&[release("d1", 1, 1)]);
    assert!(matches!(&repeated[0], Err(NotSent::Refused(_))), "{repeated:?}");
    assert!(ends::has_line(&lines, "no channel to the fabric manager"));
}

#[test]
fn two_managers_and_the_one_with_the_smaller_term_is_deposed() {
    let ((old, _), (new, _)) = (registrar(plain()), registrar(plain()));
    let end = Noted::new(Kind::Donor);
    let (keeper, _) = keep(&end, "d1", &[old.address(), new.address()], None);
    report(&old, &donor("d1"), 1);
    report(&new, &donor("d1"), 2);
    assert_eq!(keeper.statuses(), [ChannelStatus::Registered, ChannelStatus::Registered]);
    let deposed = Err(Unheard::Deposed { seen: Term(2) });
    wait_until("it is deposed", || old.query(Term(1), &BTreeSet::new())[&donor("d1")] == deposed);
    let refused = old.send(&[release("d1", 1, 9)]);
    assert!(matches!(&refused[0], Err(NotSent::Refused(why)) if why.why.contains("deposed")), "{refused:?}");
    assert_eq!(new.send(&[release("d1", 2, 1)]), [Ok(())]);
}

#[test]
fn a_channel_stands_as_it_does_since_its_last_change() {
    let (registrar, _) = registrar(plain());
    let end = Noted::new(Kind::Donor);
    let begun = SystemTime::now();
    let (keeper, _) = keep(&end, "d1", &[registrar.address()], None);
    report(&registrar, &donor("d1"), 1);
    let [(ChannelStatus::Registered, since)] = keeper.channels()[..] else { panic!("{:?}", keeper.channels()) };
    assert!(begun <= since);
    report(&registrar, &donor("d1"), 1);
    assert_eq!(keeper.channels(), [(ChannelStatus::Registered, since)]);
    drop(registrar);
    wait_until("the channel is lost", || keeper.channels()[0].0 == ChannelStatus::Apart);
    let lost = keeper.channels();
    assert!(lost[0].1 > since);
    // Attempts that fail change nothing.
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(keeper.channels(), lost);
}

#[test]
fn a_restarted_manager_knows_ends_that_are_silent() {
    let (first, _) = registrar(plain());
    let end = Noted::new(Kind::Donor);
    let (keeper, _) = keep(&end, "d1", &[first.address()], None);
    report(&first, &donor("d1"), 1);
    let stored: Vec<Entry> = first.entries().1.into_values().collect();
    keeper.stop();
    drop(first);
    let again = Registrar::start(plain(), stored, log(&ends::Lines::default())).expect("it starts");
    assert_eq!(again.query(Term(2), &BTreeSet::new())[&donor("d1")], Err(Unheard::Apart));
    assert!(again.forget(&donor("d1")));
    assert!(again.query(Term(2), &BTreeSet::new()).is_empty());
}

#[test]
fn a_restarted_end_replaces_its_earlier_channel() {
    let (registrar, _) = registrar(plain());
    let (old, new) = (Noted::new(Kind::Donor), Noted::new(Kind::Donor));
    let (kept, _) = keep(&old, "d1", &[registrar.address()], None);
    report(&registrar, &donor("d1"), 1);
    // As after `kill -9`: the earlier process is gone, and the manager has not noticed.
    std::mem::forget(kept);
    let before = old.lock().expect("no panic");
    let _kept = keep(&new, "d1", &[registrar.address()], None);
    wait_until("the newer one is asked", || {
        registrar.query(Term(1), &BTreeSet::new());
        !new.lock().expect("no panic").queries.is_empty()
    });
    drop(before);
}
