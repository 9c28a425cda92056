//! The client of a request, as the work that it has asked for sees it.
//!
//! Invariants
//! 1. Work waits for a client only where the client asked for a stream or for parts of a result, and no
//!    longer than the mount stays (`patiently`, `goes_on`). Progress that a client does not take is left out.

use std::io::{self, Read, Write};
use std::ops::ControlFlow;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{SendFlags, send};
use warpfire_env::{Clock, SystemClock};
use warpfire_terminal::Failure;

use super::wire::Answer;

/// Shortest time between two progress answers.
const PROGRESS_NANOS: u64 = 200_000_000;

/// A client whose request is being worked on.
pub struct Client<'a> {
    stream: &'a UnixStream,
    /// Whether the mount ends.
    is_stopping: &'a AtomicBool,
    /// The rest of a progress answer that the socket has taken in part.
    rest: Vec<u8>,
    sent_nanos: Option<u64>,
}

impl<'a> Client<'a> {
    pub fn new(stream: &'a UnixStream, is_stopping: &'a AtomicBool) -> Client<'a> {
        Client { stream, is_stopping, rest: Vec::new(), sent_nanos: None }
    }

    /// The bytes of a progress answer that the client has not taken: they come before its next answer.
    pub fn into_rest(self) -> Vec<u8> {
        self.rest
    }

    /// Sends progress, if the client takes it at once and the last one is a while ago.
    pub fn progress(&mut self, answer: &Answer) {
        let now_nanos = SystemClock.monotonic_nanos();
        if self.sent_nanos.is_some_and(|sent| now_nanos - sent < PROGRESS_NANOS) {
            return;
        }
        if self.rest.is_empty() {
            self.rest = answer.to_line();
        }
        if let Ok(sent) = send(self.stream, &self.rest, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            self.rest.drain(..sent.min(self.rest.len()));
            self.sent_nanos = Some(now_nanos);
        }
    }

    /// Sends a part of the result, and waits until the client has taken it. `Break`: it takes no more.
    pub fn part(&mut self, answer: &Answer) -> ControlFlow<()> {
        match (&*self.stream).write_all(&answer.to_line()) {
            Ok(()) => self.goes_on(0),
            Err(_) => ControlFlow::Break(()),
        }
    }

    /// Lets the client know that a stream follows.
    ///
    /// # Errors
    /// The client is gone.
    pub fn begin_stream(&self) -> Result<(), Failure> {
        let sent = (&*self).write_all(&Answer::Streaming.to_line());
        sent.map_err(|error| Failure::local(Path::new("the client"), &error))
    }

    /// Makes a call until the client has bytes or room for some, however long that takes, and the mount
    /// stays.
    fn patiently(&self, call: &mut dyn FnMut(&UnixStream) -> io::Result<usize>) -> io::Result<usize> {
        loop {
            match call(self.stream) {
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                    if self.is_stopping.load(Ordering::SeqCst) {
                        return Err(io::ErrorKind::ConnectionAborted.into());
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                done => return done,
            }
        }
    }

    /// Waits for so long, and says whether the work goes on: the client is there, and the mount too.
    pub fn goes_on(&self, pause_nanos: u64) -> ControlFlow<()> {
        let pause = Timespec {
            tv_sec: i64::try_from(pause_nanos / 1_000_000_000).unwrap_or(i64::MAX),
            tv_nsec: i64::try_from(pause_nanos % 1_000_000_000).expect("below a second"),
        };
        let mut closing = [PollFd::new(self.stream, PollFlags::RDHUP)];
        let is_closed = poll(&mut closing, Some(&pause)).is_ok_and(|ready| ready > 0);
        let is_stopping = self.is_stopping.load(Ordering::SeqCst);
        if is_closed || is_stopping { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

impl Read for &Client<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.patiently(&mut |mut stream| stream.read(buffer))
    }
}

impl Write for &Client<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.patiently(&mut |mut stream| stream.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
