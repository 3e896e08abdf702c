// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Asks a donor how it stands, as one who borrows nothing.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use aquifer_wire::{
    BorrowerId, HEADER_BYTES, Header, Message, STANDING_BYTES, Standing, VERSION_NEWEST, VERSION_OLDEST,
};

/// Asks the donor at `address`, and waits at most `patience` for each step.
pub fn status(address: SocketAddr, patience: Duration) -> io::Result<Standing> {
    let mut stream = TcpStream::connect_timeout(&address, patience)?;
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(patience))?;
    let bits = || aquifer_sys::raw::random().map_err(|errno| io::Error::from_raw_os_error(errno.0));
    let borrower = BorrowerId(u128::from(bits()?) << 64 | u128::from(bits()?));
    let hello = Message::Hello { oldest: VERSION_OLDEST, newest: VERSION_NEWEST, borrower };
    let Message::Welcome { first_request, .. } = ask(&mut stream, 0, hello)? else { return Err(unexpected()) };
    if ask(&mut stream, first_request, Message::Status)? != Message::Standing {
        return Err(unexpected());
    }
    let mut body = [0; STANDING_BYTES];
    stream.read_exact(&mut body)?;
    Ok(Standing::decode(&body))
}

fn ask(stream: &mut TcpStream, request: u64, message: Message) -> io::Result<Message> {
    stream.write_all(&Header::new(request, message, &[]).encode())?;
    let mut header = [0; HEADER_BYTES];
    stream.read_exact(&mut header)?;
    let header = Header::decode(&header).map_err(io::Error::other)?;
    match header.message {
        Message::Error { refusal } => Err(io::Error::other(refusal)),
        message if header.request == request => Ok(message),
        _ => Err(unexpected()),
    }
}

fn unexpected() -> io::Error {
    io::Error::new(ErrorKind::InvalidData, "not the answer of a donor")
}
