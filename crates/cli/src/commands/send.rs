//! `warpfire send`: write a snapshot, or the changes since one, to stdout as a stream.
//!
//! The server of a mounted pool does the work. A pool that is not mounted is opened for reading.

use std::ffi::{OsStr, OsString};
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use warpfire::{ErrorKind, ResumeToken, SendOptions, SentStream, Warpfire};
use warpfire_env::{Clock, SystemClock};
use warpfire_terminal::{Failure, Size, duration, is_json, note, note_json, per_second, quoted};

use super::mount::control::wire::{Answer, Request};
use super::mount::control::{ServerConnection, foreign_answer};
use super::pool;
use crate::location::PoolName;
use crate::progress::WorkLine;

const EXAMPLES: &str = "\
Examples:
  warpfire send pool monday | ssh backup warpfire receive /mnt:/copies/pool
  warpfire send pool tuesday --since monday | ssh backup warpfire receive \\
      /mnt:/copies/pool
                                     only the changes since monday
  warpfire send pool tuesday --since sent
                                     since a snapshot that is deleted: see
                                     'warpfire snapshot bookmark'
  warpfire send /mnt monday --below /srv > srv.stream
  ssh backup warpfire receive --token /mnt:/copies/pool
                                     after a cut: where the stream goes on
  warpfire send pool --resume TOKEN | ssh backup warpfire receive \\
      /mnt:/copies/pool

The stream goes to stdout: into a pipe or a file. It has names, content, holes, times, owners, permissions, \
access control lists, extended attributes, hard links and special files; bytes that several files share are sent \
once. The receiver checks all of it before it shows any. A snapshot with the door of a volume in it (a clone, or \
one that 'volume create' made) cannot be sent. See 'warpfire receive'.";

// Arguments of `warpfire send`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Devices or image files separated by commas, a directory of *.img files, or a directory of the mounted
    /// pool.
    #[arg(value_name = "POOL")]
    pool: OsString,

    /// The snapshot.
    #[arg(value_name = "SNAPSHOT", required_unless_present = "resume", conflicts_with = "resume")]
    snapshot: Option<OsString>,

    /// Send only the changes since this older snapshot, which the receiver has. A bookmark of it will do.
    #[arg(long, value_name = "OLDER", conflicts_with = "resume")]
    since: Option<OsString>,

    /// Send only this directory of the snapshot.
    #[arg(long, value_name = "PATH", conflicts_with = "resume")]
    below: Option<PathBuf>,

    /// Send the rest of a stream that was cut, from the token that 'warpfire receive --token' prints.
    #[arg(long, value_name = "TOKEN")]
    resume: Option<String>,
}

/// What to send.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SendOrder {
    /// The snapshot; empty to go on with a stream.
    snapshot: Vec<u8>,
    since: Option<Vec<u8>>,
    below: Option<Vec<u8>>,
    /// The token of a stream to go on with.
    resume: Option<String>,
}

/// The end of a stream that was sent.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SentOutput {
    /// Bytes that were written.
    stream_bytes: u64,
    /// Bytes of files in the whole stream. Bytes that several files share are there once.
    data_bytes: u64,
    /// Files and directories that the receiver makes.
    made: u64,
    /// The hash of the whole stream, which the receiver shows too: BLAKE3, in hexadecimal digits.
    hash: String,
    nanos: u64,
}

impl SentOutput {
    fn new(sent: SentStream, nanos: u64) -> SentOutput {
        let SentStream { stream_bytes, data_bytes, made, hash } = sent;
        SentOutput { stream_bytes, data_bytes, made, hash, nanos }
    }
}

/// Sends from an open pool.
///
/// # Errors
/// There is no such snapshot or directory; the token is of another stream; the pool is damaged; `out` takes
/// no more bytes.
pub fn send_from(
    pool: &Warpfire,
    order: &SendOrder,
    out: &mut (dyn Write + Send),
) -> Result<SentOutput, Failure> {
    let started_nanos = SystemClock.monotonic_nanos();
    let name = |bytes: &[u8]| OsStr::from_bytes(bytes).to_owned();
    let sent = match &order.resume {
        Some(token) => {
            let token: ResumeToken = token.parse().map_err(|error| Failure::pool(&error))?;
            pool.resume_send(&token, out)
        }
        None => {
            let options = SendOptions {
                since: order.since.as_deref().map(name),
                below: order.below.as_deref().map(|below| PathBuf::from(name(below))),
            };
            pool.send(name(&order.snapshot), &options, out)
        }
    };
    let sent = sent.map_err(|error| match error.kind() {
        ErrorKind::NotFound if order.resume.is_none() => missing(pool, order),
        ErrorKind::NotADirectory => not_a_directory(order),
        _ => Failure::pool(&error),
    })?;
    Ok(SentOutput::new(sent, SystemClock.monotonic_nanos() - started_nanos))
}

/// Says which of the names does not exist.
fn missing(pool: &Warpfire, order: &SendOrder) -> Failure {
    let is_bookmark =
        |name: &OsStr| pool.bookmarks().is_ok_and(|found| found.iter().any(|bookmark| bookmark.name == name));
    let snapshot = OsStr::from_bytes(&order.snapshot);
    if pool.open_snapshot(snapshot).is_err() {
        let hint = match is_bookmark(snapshot) {
            true => "that is a bookmark: it has no files, and only --since takes one",
            false => "'warpfire snapshot list' shows them, and 'warpfire snapshot create' makes one",
        };
        return Failure::new(format_args!("the pool has no snapshot {}", quoted(snapshot))).hint(hint);
    }
    let since = order.since.as_deref().map(OsStr::from_bytes);
    if let Some(name) = since.filter(|name| pool.open_snapshot(name).is_err() && !is_bookmark(name)) {
        return Failure::new(format_args!("the pool has no snapshot or bookmark {}", quoted(name)))
            .hint("'warpfire snapshot list' shows them; a bookmark is made before its snapshot is deleted");
    }
    let below = OsStr::from_bytes(order.below.as_deref().unwrap_or_default());
    Failure::new(format_args!("the snapshot has no directory {}", quoted(below)))
        .hint("the path begins at the root of the pool")
}

fn not_a_directory(order: &SendOrder) -> Failure {
    let below = OsStr::from_bytes(order.below.as_deref().unwrap_or_default());
    let failure = Failure::new(format_args!("{} is no directory of both snapshots", quoted(below)));
    match order.since {
        Some(_) => failure.hint("send it whole, without --since"),
        None => failure.hint("--below takes a directory, and not a link to one"),
    }
}

/// Sends to stdout.
pub fn run(args: &Args) -> Result<(), Failure> {
    if io::stdout().is_terminal() {
        return Err(Failure::usage("a stream is not for a terminal")
            .hint("pipe it into 'warpfire receive', or write it to a file with '>'"));
    }
    let order = SendOrder {
        snapshot: args.snapshot.as_deref().unwrap_or_default().as_bytes().to_vec(),
        since: args.since.as_deref().map(|since| since.as_bytes().to_vec()),
        below: args.below.as_deref().map(|below| below.as_os_str().as_bytes().to_vec()),
        resume: args.resume.clone(),
    };
    let name = PoolName::new(&args.pool);
    lengthen_pipe(io::stdout());
    let line = WorkLine::start();
    let mut out = ShownOutput { line: &line, bytes: 0, failed: None };
    let sent = match ServerConnection::of_pool(&name)? {
        Some(server) => send_mounted(server, order, &mut out),
        None => pool::open_for_reading(&name).and_then(|pool| send_from(&pool, &order, &mut out)),
    };
    line.finish();
    let failed = out.failed.take();
    let sent = match (sent, failed) {
        (_, Some(error)) => return Err(Failure::local(Path::new("stdout"), &error)),
        (sent, None) => sent?,
    };
    if is_json() {
        note_json(&sent);
    } else {
        note(format_args!(
            "sent {} in {} ({}/s), hash {}",
            Size(sent.stream_bytes),
            duration(sent.nanos),
            Size(per_second(sent.stream_bytes, sent.nanos)),
            sent.hash
        ));
    }
    Ok(())
}

fn send_mounted(
    server: ServerConnection,
    order: SendOrder,
    out: &mut dyn Write,
) -> Result<SentOutput, Failure> {
    let mut stream = server.begin_stream(Request::Send(order))?;
    // When stdout takes no more, the connection is dropped, and the server stops.
    io::copy(&mut stream.chunks(), out).map_err(|error| Failure::local(Path::new("the stream"), &error))?;
    match stream.answer()? {
        Answer::Sent(sent) => Ok(sent),
        _ => Err(foreign_answer()),
    }
}

/// Bytes of a pipe that a stream goes through: so much the two sides may be apart.
const PIPE_BYTES: usize = 1 << 20;

/// Makes a pipe longer, if this is one. The other side may have done so, or the system may not allow it: then
/// the stream is slower.
pub(super) fn lengthen_pipe(fd: impl AsFd) {
    let _ = rustix::pipe::fcntl_setpipe_size(fd, PIPE_BYTES);
}

/// Stdout, and the line that shows how much has been written.
struct ShownOutput<'a> {
    line: &'a WorkLine,
    bytes: u64,
    failed: Option<io::Error>,
}

impl Write for ShownOutput<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Past the buffer for lines, which would cut the stream at each byte that ends one.
        let written = rustix::io::write(rustix::stdio::stdout(), bytes).map_err(io::Error::from);
        let written = written.inspect_err(|error| {
            if error.kind() != io::ErrorKind::Interrupted {
                self.failed = Some(error.kind().into());
            }
        })?;
        self.bytes += written as u64;
        self.line.message(format_args!("{} sent", Size(self.bytes)));
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
