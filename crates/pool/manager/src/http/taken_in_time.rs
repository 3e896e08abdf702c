// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A stream whose peer has to take what is sent to it: a client that asks and does not read would keep its connection,
//! and the answer's memory, for ever.
//!
//! The time runs from the first write that has to wait until everything has been written, so that reading a few bytes
//! now and then does not extend it.

use std::io::{self, ErrorKind, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

pub(super) struct TakenInTime<S> {
    stream: S,
    wait_max: Duration,
    /// Set while something waits to be written.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> TakenInTime<S> {
    pub(super) fn new(stream: S, wait_max: Duration) -> Self {
        TakenInTime { stream, wait_max, deadline: None }
    }

    fn in_time<T>(&mut self, context: &mut Context<'_>, tried: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if tried.is_ready() {
            return tried;
        }
        let wait_max = self.wait_max;
        let deadline = self.deadline.get_or_insert_with(|| Box::pin(sleep(wait_max)));
        deadline.as_mut().poll(context).map(|()| Err(ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for TakenInTime<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for TakenInTime<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let tried = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.in_time(context, tried)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let tried = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.in_time(context, tried)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// Called when everything has been written.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let tried = Pin::new(&mut self.stream).poll_flush(context);
        if matches!(tried, Poll::Ready(Ok(()))) {
            self.deadline = None;
        }
        self.in_time(context, tried)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let tried = Pin::new(&mut self.stream).poll_shutdown(context);
        self.in_time(context, tried)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    fn run<T>(test: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        runtime.block_on(test)
    }

    #[test]
    fn a_peer_that_does_not_read_is_given_up() {
        let (ours, _theirs) = duplex(16);
        let mut stream = TakenInTime::new(ours, Duration::from_millis(20));
        let written = run(stream.write_all(&[0; 64]));
        assert_eq!(written.expect_err("nobody reads").kind(), ErrorKind::TimedOut);
    }

    #[test]
    fn reading_a_byte_now_and_then_does_not_extend_the_time() {
        let (ours, mut theirs) = duplex(16);
        let mut stream = TakenInTime::new(ours, Duration::from_millis(50));
        let written = run(async {
            tokio::spawn(async move {
                while theirs.read_u8().await.is_ok() {
                    sleep(Duration::from_millis(5)).await;
                }
            });
            stream.write_all(&[0; 4096]).await
        });
        assert_eq!(written.expect_err("it takes too long").kind(), ErrorKind::TimedOut);
    }

    #[test]
    fn a_peer_that_reads_everything_has_all_the_time_again() {
        let (ours, mut theirs) = duplex(16);
        let mut stream = TakenInTime::new(ours, Duration::from_millis(600));
        let written = run(async {
            tokio::spawn(async move {
                while theirs.read_exact(&mut [0; 64]).await.is_ok() {
                    sleep(Duration::from_millis(100)).await;
                }
            });
            for _ in 0..8 {
                stream.write_all(&[0; 64]).await?;
                stream.flush().await?;
            }
            Ok::<_, io::Error>(())
        });
        assert!(written.is_ok(), "{written:?}");
    }
}
