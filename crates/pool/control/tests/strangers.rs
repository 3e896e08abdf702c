// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A peer that is not an end, or not the end that it claims to be, gets nothing and delays nobody.

mod ends;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aquifer_control::{
    ChannelStatus, Deposed, End, FRAME_BYTES_MAX, HEADER_BYTES, HELLO_BYTES_MAX, Keeper, KeeperSettings, Kind, Message,
    NotStarted, Patterns, Query, Refused, Registrar, RegistrarSettings, Report, decode, encode, payload_bytes,
};
use aquifer_fabric::{Cause, Command, HostReport, Term, VolumeId, VolumeReport};
use ends::{
    Authority, Lines, Noted, TIMEOUT, donor, has_line, host, keep, log, plain, present, registrar, registration,
    release, report, wait_until,
};

fn secure(authority: &Authority) -> RegistrarSettings {
    RegistrarSettings { tls: Some(authority.sign("127.0.0.1", authority)), ..plain() }
}

#[test]
fn a_certificate_says_who_an_end_is() {
    let authority = Authority::new();
    let (registrar, lines) =
        registrar(RegistrarSettings { donors: Patterns(vec!["dns:*.donors.example".into()]), ..secure(&authority) });
    let end = Noted::new(Kind::Donor);
    let own = authority.sign("d1.donors.example", &authority);
    let (kept, _) = keep(&end, "d1", &[registrar.address()], Some(&own));
    report(&registrar, &donor("d1"), 1);
    let entry = registrar.entries().1.remove(&donor("d1")).expect("registered");
    assert_eq!(entry.identity, "dns:d1.donors.example");

    // Another certificate of the same authority cannot take the name over, even while its owner is gone.
    kept.stop();
    let thief = authority.sign("d2.donors.example", &authority);
    let (kept, said) = keep(&Noted::new(Kind::Donor), "d1", &[registrar.address()], Some(&thief));
    wait_until("the thief knows", || has_line(&said, "registered with another certificate"));
    assert_eq!(kept.statuses(), [ChannelStatus::Apart]);
    drop(kept);

    // A tenant's certificate registers no donor, and a donor's certificate registers no name that its operator did not
    // list.
    let tenant = authority.sign("batch.example", &authority);
    let (kept, said) = keep(&Noted::new(Kind::Donor), "d3", &[registrar.address()], Some(&tenant));
    wait_until("the tenant knows", || has_line(&said, "dns:batch.example may not register a donor"));
    drop(kept);
    assert_eq!(registrar.entries().1.len(), 1);
    assert!(has_line(&lines, "not registered"));

    // The renewed certificate of the owner is still the owner's.
    let renewed = authority.sign("d1.donors.example", &authority);
    let _kept = keep(&end, "d1", &[registrar.address()], Some(&renewed));
    report(&registrar, &donor("d1"), 1);
}

#[test]
fn ends_of_another_authority_are_strangers_in_both_directions() {
    let (authority, other) = (Authority::new(), Authority::new());
    let (registrar, lines) = registrar(secure(&authority));
    let forged = other.sign("d1.example", &authority);
    let (kept, said) = keep(&Noted::new(Kind::Donor), "d1", &[registrar.address()], Some(&forged));
    wait_until("the forger knows", || has_line(&said, "signed by another authority"));
    drop(kept);
    // An end does not talk to a manager that another authority has signed either.
    let distrusting = authority.sign("d1.example", &other);
    let (kept, said) = keep(&Noted::new(Kind::Donor), "d1", &[registrar.address()], Some(&distrusting));
    wait_until("the end knows", || has_line(&said, "the manager's certificate is signed by another authority"));
    drop(kept);
    let (kept, said) = keep(&Noted::new(Kind::Donor), "d1", &[registrar.address()], None);
    wait_until("plain text is not TLS", || !said.lock().expect("no panic").is_empty());
    drop(kept);
    assert!(registrar.entries().1.is_empty());
    assert!(!lines.lock().expect("no panic").is_empty());
}

#[test]
fn without_certificates_only_this_machine_is_reached() {
    let open = RegistrarSettings { listen: ([0, 0, 0, 0], 0).into(), ..plain() };
    let failure = Registrar::start(open, Vec::new(), log(&Lines::default())).expect_err("refused");
    assert!(matches!(failure, NotStarted::Plain(_)), "{failure}");
    // 192.0.2.1 is for documentation (RFC 5737); nothing is sent to it.
    let (_kept, said) = keep(&Noted::new(Kind::Donor), "d1", &[([192, 0, 2, 1], 7444).into()], None);
    wait_until("it is refused", || has_line(&said, "is on another machine, and this end has no certificate"));
}

fn exchange(stream: &mut TcpStream, message: &Message) -> Option<Message> {
    stream.write_all(&encode(1, message).expect("short")).ok()?;
    receive(stream)
}

fn receive(stream: &mut TcpStream) -> Option<Message> {
    let mut header = [0; HEADER_BYTES];
    stream.read_exact(&mut header).ok()?;
    let (bytes, _) = payload_bytes(&header, FRAME_BYTES_MAX).expect("the manager sends frames");
    let mut payload = vec![0; bytes];
    stream.read_exact(&mut payload).ok()?;
    Some(decode(&payload).expect("the manager sends messages"))
}

fn connect(registrar: &Registrar) -> TcpStream {
    let stream = TcpStream::connect(registrar.address()).expect("it listens");
    stream.set_read_timeout(Some(TIMEOUT)).expect("set");
    stream
}

#[test]
fn what_is_no_registration_ends_the_connection() {
    let (registrar, _) = registrar(plain());
    let hello = |oldest, newest| Message::Hello { oldest, newest, registration: registration(Kind::Donor, "d1") };
    let mut oversized = encode(1, &Message::Ping).expect("short");
    oversized[4..8].copy_from_slice(&u32::try_from(HELLO_BYTES_MAX + 1).expect("small").to_le_bytes());
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &oversized, &encode(1, &Message::Ping).expect("short"), b"AQC1"] {
        let mut stream = connect(&registrar);
        stream.write_all(bytes).expect("sent");
        // It may have ended already.
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        // A reset is an end, too: the registrar did not read all.
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.is_empty(), "{answer:?}");
    }
    let refusal = exchange(&mut connect(&registrar), &hello(7, 9)).expect("an answer");
    assert!(
        matches!(&refusal, Message::Refused(refused) if refused.why.contains("upgrade the older end")),
        "{refusal:?}"
    );
    let wrong = Message::Hello { oldest: 1, newest: 1, registration: registration(Kind::Donor, "D 1") };
    assert!(matches!(exchange(&mut connect(&registrar), &wrong), Some(Message::Refused(_))));
    assert_eq!(exchange(&mut connect(&registrar), &hello(1, 9)), Some(Message::Welcome { version: 6 }));
}

#[test]
fn an_end_of_an_older_version_gets_commands_without_their_causes() {
    let (registrar, _) = registrar(plain());
    let cause = Cause { request: "ticket-4711".parse().expect("an id"), traceparent: None };
    let sent = Command { cause: Some(cause), ..release("d1", 1, 1) };
    for (version, gets) in [(3, release("d1", 1, 1)), (4, sent.clone())] {
        let hello = Message::Hello { oldest: 1, newest: version, registration: registration(Kind::Donor, "d1") };
        let mut stream = connect(&registrar);
        assert_eq!(exchange(&mut stream, &hello), Some(Message::Welcome { version }));
        std::thread::scope(|scope| {
            let sending = scope.spawn(|| {
                wait_until("it has a channel", || registrar.connected().contains(&donor("d1")));
                registrar.send(std::slice::from_ref(&sent))
            });
            assert_eq!(receive(&mut stream), Some(Message::Commands(vec![gets])), "version {version}");
            stream.write_all(&encode(1, &Message::Outcomes(vec![Ok(())])).expect("short")).expect("sent");
            assert_eq!(sending.join().expect("no panic"), [Ok(())]);
        });
        drop(stream);
        wait_until("its channel has ended", || !registrar.connected().contains(&donor("d1")));
    }
}

#[test]
fn an_agent_of_an_older_version_gets_volumes_without_their_names() {
    let (registrar, _) = registrar(plain());
    let named = |name| Command { step: present("h1", name), ..release("d1", 1, 1) };
    let sent = named("db".parse().ok());
    for (version, gets) in [(4, named(None)), (5, sent.clone())] {
        let hello = Message::Hello { oldest: 1, newest: version, registration: registration(Kind::Host, "h1") };
        let mut stream = connect(&registrar);
        assert_eq!(exchange(&mut stream, &hello), Some(Message::Welcome { version }));
        std::thread::scope(|scope| {
            let sending = scope.spawn(|| {
                wait_until("it has a channel", || registrar.connected().contains(&host("h1")));
                registrar.send(std::slice::from_ref(&sent))
            });
            assert_eq!(receive(&mut stream), Some(Message::Commands(vec![gets])), "version {version}");
            stream.write_all(&encode(1, &Message::Outcomes(vec![Ok(())])).expect("short")).expect("sent");
            assert_eq!(sending.join().expect("no panic"), [Ok(())]);
        });
        drop(stream);
        wait_until("its channel has ended", || !registrar.connected().contains(&host("h1")));
    }
}

/// An agent that has a volume.
struct Holder(HostReport);

impl End for Holder {
    fn report(&mut self, _: &Query) -> Result<Report, Deposed> {
        Ok(Report::Host(self.0.clone()))
    }

    fn carry_out(&mut self, _: &Command) -> Result<(), Refused> {
        Ok(())
    }
}

#[test]
fn a_manager_of_an_older_version_gets_reports_without_names() {
    let report = |name| {
        let volume = VolumeReport { name, ..VolumeReport::default() };
        HostReport { volumes: [(VolumeId(7), volume)].into(), ..HostReport::default() }
    };
    let name = || "db".parse().ok();
    for (version, gets) in [(4, report(None)), (5, report(name()))] {
        let manager = TcpListener::bind("127.0.0.1:0").expect("a port");
        let managers = vec![manager.local_addr().expect("bound").to_string().parse().expect("an address")];
        let settings = KeeperSettings { managers, tls: None, registration: registration(Kind::Host, "h1") };
        let end: Arc<Mutex<dyn End>> = Arc::new(Mutex::new(Holder(report(name()))));
        let _kept = Keeper::start(settings, &end, Box::new(|_| ())).expect("it starts");
        let (mut stream, _) = manager.accept().expect("it connects");
        stream.set_read_timeout(Some(TIMEOUT)).expect("set");
        assert!(matches!(receive(&mut stream), Some(Message::Hello { newest: 6, .. })));
        stream.write_all(&encode(0, &Message::Welcome { version }).expect("short")).expect("sent");
        let answer = exchange(&mut stream, &Message::Query(Query { term: Term(1), ..Query::default() }));
        assert_eq!(answer, Some(Message::Reported(Report::Host(gets))), "version {version}");
    }
}

/// An end that remembered the greatest term would refuse every manager from then on.
#[test]
fn a_term_that_no_manager_takes_is_refused_and_not_remembered() {
    let manager = TcpListener::bind("127.0.0.1:0").expect("a port");
    let end = Noted::new(Kind::Donor);
    let (_kept, _) = keep(&end, "d1", &[manager.local_addr().expect("bound")], None);
    let (mut stream, _) = manager.accept().expect("it connects");
    stream.set_read_timeout(Some(TIMEOUT)).expect("set");
    assert!(matches!(receive(&mut stream), Some(Message::Hello { .. })));
    stream.write_all(&encode(0, &Message::Welcome { version: 5 }).expect("short")).expect("sent");
    let query = |term| Message::Query(Query { term: Term(term), ..Query::default() });
    for term in [u64::MAX, u64::MAX - 1, 1 << 43] {
        let refusal = |refused: &Refused| refused.why.contains("ahead of this machine's clock; set the clock");
        let answer = exchange(&mut stream, &query(term));
        assert!(matches!(&answer, Some(Message::Unable(refused)) if refusal(refused)), "{answer:?}");
        let answer = exchange(&mut stream, &Message::Commands(vec![release("d1", term, 1)]));
        let Some(Message::Outcomes(outcomes)) = answer else { panic!("{answer:?}") };
        assert!(matches!(&outcomes[..], [Err(refused)] if refusal(refused)), "{outcomes:?}");
    }
    // Years ahead: the clock of a manager may be wrong.
    assert!(matches!(exchange(&mut stream, &query(1 << 42)), Some(Message::Reported(_))));
    assert_eq!(end.lock().expect("no panic").gate.term(), Term(1 << 42));
}

#[test]
fn an_end_that_answers_something_else_loses_its_channel() {
    let (registrar, _) = registrar(plain());
    let hello = Message::Hello { oldest: 1, newest: 1, registration: registration(Kind::Donor, "d1") };
    for answer in [
        encode(1, &Message::Pong).expect("short"),
        encode(77, &Message::Deposed(Term(9))).expect("short"),
        // A term that is not greater deposes nobody.
        encode(1, &Message::Deposed(Term(0))).expect("short"),
        // Nothing can have changed since a report that was never made.
        encode(1, &Message::Unchanged).expect("short"),
        b"AQC1\xff\xff\xff\xff\x01\0\0\0".to_vec(),
        b"AQC1\x02\0\0\0\x01\0\0\0{}".to_vec(),
    ] {
        let mut stream = connect(&registrar);
        assert_eq!(exchange(&mut stream, &hello), Some(Message::Welcome { version: 1 }));
        let asked = std::thread::scope(|scope| {
            let asking = scope.spawn(|| {
                wait_until("it has a channel", || registrar.connected().contains(&donor("d1")));
                registrar.query(Term(1), &[].into())
            });
            assert!(matches!(receive(&mut stream), Some(Message::Query(_))));
            stream.write_all(&answer).expect("sent");
            asking.join().expect("no panic")
        });
        assert!(asked[&donor("d1")].is_err(), "{asked:?}");
        assert_eq!(receive(&mut stream), None, "the channel has ended");
        wait_until("it has no channel", || !registrar.connected().contains(&donor("d1")));
    }
}

/// Strangers take all places that one network has. An end registers at once, in the place of the one that has waited
/// longest: strangers that come again and again would keep it out for ever otherwise.
#[test]
fn an_end_registers_while_strangers_hold_all_places() {
    let (registrar, _) = registrar(plain());
    let hello = Message::Hello { oldest: 1, newest: 9, registration: registration(Kind::Donor, "d1") };
    for _ in 0..3 {
        let strangers: Vec<TcpStream> = (0..40).map(|_| connect(&registrar)).collect();
        // Longer than a stranger keeps its place from newcomers, and shorter than it may take.
        std::thread::sleep(Duration::from_millis(1500));
        assert_eq!(exchange(&mut connect(&registrar), &hello), Some(Message::Welcome { version: 6 }));
        drop(strangers);
    }
}

/// Strangers take their places and say nothing. Ends register all the same, since a stranger's time is short.
#[test]
fn silent_strangers_do_not_keep_ends_out() {
    let (registrar, _) = registrar(plain());
    let strangers: Vec<TcpStream> = (0..100).map(|_| connect(&registrar)).collect();
    let end = Noted::new(Kind::Donor);
    let _kept = keep(&end, "d1", &[registrar.address()], None);
    report(&registrar, &donor("d1"), 1);
    drop(strangers);
}
