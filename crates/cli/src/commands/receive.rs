//! `warpfire receive`: read a stream of `warpfire send` from stdin into a directory of a pool.
//!
//! The server of a mounted pool does the work. A pool that is not mounted is opened for it.

use std::ffi::{OsStr, OsString};
use std::io::{self, IsTerminal, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use warpfire::{ErrorKind, FsError, Pool, ReceiveProgress, ReceivedStream, Transaction, Warpfire};
use warpfire_env::{Clock, SystemClock};
use warpfire_terminal::{
    Failure, Size, duration, is_json, path_bytes, path_text, print, print_json, quoted, shown,
};

use super::mount::control::wire::{Answer, Request};
use super::mount::control::{ServerConnection, foreign_answer};
use super::pool;
use super::send::lengthen_pipe;
use crate::location::Location;
use crate::progress::WorkLine;

const EXAMPLES: &str = "\
Examples:
  warpfire send pool monday | warpfire receive backup:/pool
  warpfire receive /mnt:/copies/pool < pool.stream
  warpfire send pool tuesday --since monday | warpfire receive backup:/pool
  warpfire receive --token backup:/pool      after a cut: what the sender needs
  warpfire receive --abort backup:/pool      drop the part that has arrived

A whole snapshot is received into a directory that does not exist, or is empty. Changes are received into a \
directory that shows the older snapshot, and has not been changed since. The directory shows its old state until \
everything has arrived and its hash is right; then it shows the new state at once. In the same step the pool gets \
a snapshot of it, which the next changes need.

After a cut, everything up to the last mark of the stream is kept: 8 MiB apart at most. Nothing before that is \
sent again.";

// Arguments of `warpfire receive`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The directory to receive into. The directory above it exists.
    #[arg(value_name = "POOL:/path")]
    target: OsString,

    /// The name of this pool's snapshot [default: the sender's, with a number if it is taken].
    #[arg(long, value_name = "NAME", conflicts_with_all = ["token", "abort"])]
    snapshot: Option<OsString>,

    /// Receive nothing; print the token from which the sender goes on.
    #[arg(long, conflicts_with = "abort")]
    token: bool,

    /// Receive nothing; drop the part of a stream that has arrived for this directory.
    #[arg(long)]
    abort: bool,
}

/// What to receive.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ReceiveOrder {
    target: Vec<u8>,
    snapshot: Option<Vec<u8>>,
}

/// The end of a stream that was received.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ReceivedOutput {
    /// The name of the sender's snapshot.
    sent: String,
    /// The name of this pool's snapshot.
    snapshot: String,
    /// The name in base64, if it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    snapshot_bytes: Option<String>,
    /// Bytes of files in the stream.
    data_bytes: u64,
    /// The hash of the stream, which the sender shows too: BLAKE3, in hexadecimal digits.
    hash: String,
    nanos: u64,
}

/// How far a stream is received.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ReceiveProgressOutput {
    /// The name of the sender's snapshot.
    sent: String,
    /// The older snapshot, if only the changes since one are received.
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<String>,
    /// Bytes of files that have arrived.
    data_bytes: u64,
    /// Whether the whole stream has arrived: then another `warpfire receive` reads nothing more.
    is_complete: bool,
    /// What `warpfire send --resume` takes.
    token: String,
}

/// The end of `warpfire receive --abort`.
#[derive(Serialize)]
struct AbortedOutput {
    /// Whether something was dropped.
    dropped: bool,
}

impl ReceivedOutput {
    fn new(received: &ReceivedStream, nanos: u64) -> ReceivedOutput {
        ReceivedOutput {
            sent: path_text(Path::new(&received.sent)),
            snapshot: path_text(Path::new(&received.snapshot.name)),
            snapshot_bytes: path_bytes(&received.snapshot.name),
            data_bytes: received.data_bytes,
            hash: received.hash.clone(),
            nanos,
        }
    }
}

impl From<ReceiveProgress> for ReceiveProgressOutput {
    fn from(progress: ReceiveProgress) -> Self {
        ReceiveProgressOutput {
            sent: path_text(Path::new(&progress.sent)),
            since: progress.since.map(|since| path_text(Path::new(&since))),
            data_bytes: progress.data_bytes,
            is_complete: progress.is_complete,
            token: progress.token.to_string(),
        }
    }
}

/// Receives into an open pool. `commit` makes the commit of the last step.
///
/// # Errors
/// The stream was cut or changed, or does not fit the directory; the pool is full.
pub fn receive_in(
    pool: &Warpfire,
    order: &ReceiveOrder,
    from: &mut dyn Read,
    commit: &dyn Fn(Transaction<warpfire::Engine>) -> Result<(), FsError>,
) -> Result<ReceivedOutput, Failure> {
    let started_nanos = SystemClock.monotonic_nanos();
    let target = path(&order.target);
    let snapshot = order.snapshot.as_deref().map(OsStr::from_bytes);
    let received = pool.receive_by(&target, snapshot, from, commit);
    let received = received.map_err(|error| Failure::at(&target, &error))?;
    Ok(ReceivedOutput::new(&received, SystemClock.monotonic_nanos() - started_nanos))
}

/// How far a stream for this directory of an open pool is received.
///
/// # Errors
/// The pool is damaged.
pub fn progress_in(pool: &Warpfire, target: &[u8]) -> Result<Option<ReceiveProgressOutput>, Failure> {
    let target = path(target);
    let progress = pool.receive_progress(&target).map_err(|error| Failure::at(&target, &error))?;
    Ok(progress.map(ReceiveProgressOutput::from))
}

/// Drops the part that has arrived for this directory of an open pool.
///
/// # Errors
/// A stream arrives now; the pool takes no changes.
pub fn abort_in(pool: &Warpfire, target: &[u8]) -> Result<bool, Failure> {
    let target = path(target);
    pool.abort_receive(&target).map_err(|error| Failure::at(&target, &error))
}

fn path(bytes: &[u8]) -> PathBuf {
    PathBuf::from(OsString::from_vec(bytes.to_vec()))
}

/// Receives from stdin.
pub fn run(args: &Args) -> Result<(), Failure> {
    let location = Location::parse(&args.target)?;
    let target = location.path.as_os_str().as_bytes().to_vec();
    if args.token {
        return show_token(&location, target);
    }
    if args.abort {
        return abort(&location, target);
    }
    if io::stdin().is_terminal() {
        return Err(Failure::usage("a stream is read from stdin, and stdin is a terminal")
            .hint("pipe 'warpfire send' into this command, or read a file with '<'"));
    }
    let order =
        ReceiveOrder { target, snapshot: args.snapshot.as_deref().map(|name| name.as_bytes().to_vec()) };
    lengthen_pipe(io::stdin());
    let line = WorkLine::start();
    let mut input = ShownInput { line: &line, bytes: 0 };
    let received = match ServerConnection::of_pool(&location.pool)? {
        Some(server) => receive_mounted(server, order, &mut input),
        None => receive_unmounted(&location, &order, &mut input),
    };
    line.finish();
    let received = received.map_err(|failure| match input.bytes {
        0 if failure.is_of(ErrorKind::StreamBroken) => {
            Failure::new(format_args!("{}: nothing has arrived on stdin", shown(&location.path)))
                .of_path(&location.path)
                .hint("the file is empty, or the command before the pipe has failed")
        }
        _ => failure,
    })?;
    if is_json() {
        return print_json(&received);
    }
    print(format!(
        "received {} of files in {}; snapshot {} keeps {}; hash {}\n",
        Size(received.data_bytes),
        duration(received.nanos),
        quoted(OsStr::new(&received.snapshot)),
        shown(&location.path),
        received.hash
    ))
}

fn receive_unmounted(
    location: &Location,
    order: &ReceiveOrder,
    input: &mut dyn Read,
) -> Result<ReceivedOutput, Failure> {
    let opened = pool::open_as(&Pool::options(), &location.pool)?;
    let received = receive_in(&opened, order, input, &|tx| tx.commit())?;
    opened.close().map_err(|error| Failure::pool(&error))?;
    Ok(received)
}

fn receive_mounted(
    server: ServerConnection,
    order: ReceiveOrder,
    input: &mut dyn Read,
) -> Result<ReceivedOutput, Failure> {
    let mut stream = server.begin_stream(Request::Receive(order))?;
    stream.send_all(input)?;
    match stream.answer()? {
        Answer::Received(received) => Ok(received),
        _ => Err(foreign_answer()),
    }
}

fn show_token(location: &Location, target: Vec<u8>) -> Result<(), Failure> {
    let found = match ServerConnection::of_pool(&location.pool)? {
        Some(server) => match server.ask(Request::ReceiveProgress { target }, |_| ())? {
            Answer::ReceiveProgress(found) => found,
            _ => return Err(foreign_answer()),
        },
        None => progress_in(&pool::open_for_reading(&location.pool)?, &target)?,
    };
    let Some(found) = found else {
        return Err(Failure::new(format_args!("{}: no stream is received in part", shown(&location.path)))
            .hint("send the stream from its beginning, without --resume"));
    };
    if is_json() {
        return print_json(&found);
    }
    print(format!("{}\n", found.token))
}

fn abort(location: &Location, target: Vec<u8>) -> Result<(), Failure> {
    let dropped = match ServerConnection::of_pool(&location.pool)? {
        Some(server) => match server.ask(Request::AbortReceive { target }, |_| ())? {
            Answer::ReceiveAborted(dropped) => dropped,
            _ => return Err(foreign_answer()),
        },
        None => {
            let opened = pool::open_as(&Pool::options(), &location.pool)?;
            let dropped = abort_in(&opened, &target)?;
            opened.close().map_err(|error| Failure::pool(&error))?;
            dropped
        }
    };
    if is_json() {
        return print_json(&AbortedOutput { dropped });
    }
    print(match dropped {
        true => format!("the part for {} is dropped\n", shown(&location.path)),
        false => format!("nothing had arrived for {}\n", shown(&location.path)),
    })
}

/// Stdin, and the line that shows how much has been read.
struct ShownInput<'a> {
    line: &'a WorkLine,
    bytes: u64,
}

impl Read for ShownInput<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = io::stdin().read(buffer)?;
        self.bytes += read as u64;
        self.line.message(format_args!("{} received", Size(self.bytes)));
        Ok(read)
    }
}
