//! Copies stdin to a file, and files to stdout.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::ops::Range;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use warpfire::FileType;
use warpfire_terminal::{Failure, print};

use super::job::CopyJob;
use super::sink::{Existing, Sink};
use super::source::{Attributes, Content, NewFile, Piece};
use super::xattrs::Xattrs;

/// Permission bits of a file that is made from stdin.
const MODE: u32 = 0o644;

/// The longest wait for bytes before the next look whether a signal has come.
const WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };
const NO_WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// Copies stdin to a name in the current directory of a sink.
pub fn copy_stdin(job: &mut CopyJob, sink: &mut dyn Sink, name: Option<&OsStr>) {
    let source = Path::new("stdin");
    let Some(name) = name else {
        let reason = Failure::new("has no name").hint("name the new file in the destination");
        return job.skip(source, reason);
    };
    let attributes = Attributes::made_up(FileType::File, MODE);
    let new = NewFile { name, attributes: &attributes };
    job.file(sink, source, new, |job, sink| {
        let input = std::io::stdin().as_fd().try_clone_to_owned();
        let input = input.map_err(|error| Failure::local(source, &error))?;
        let mut content = StdinContent { input: File::from(input), len: 0 };
        job.contents(sink, source, new, &Xattrs::default(), &mut content)
    });
}

/// All bytes until stdin ends.
struct StdinContent {
    input: File,
    len: u64,
}

impl Content for StdinContent {
    fn next(&mut self, buffer: &mut [u8]) -> Result<Option<Piece>, Failure> {
        let mut read = 0;
        // A pipe gives a few pages at a time, and each piece is a write of the target: it takes all that is
        // there.
        while read < buffer.len() && (read == 0 || self.has_input(&NO_WAIT)) {
            match self.input.read(&mut buffer[read..]) {
                Ok(0) => break,
                Ok(bytes) => read += bytes,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(Failure::local(Path::new("stdin"), &error)),
            }
        }
        if read == 0 {
            return Ok(None);
        }
        self.len += read as u64;
        Ok(Some(Piece::at(self.len - read as u64, read)))
    }

    fn len(&self) -> u64 {
        self.len
    }

    /// Nobody knows what comes.
    fn map(&mut self) -> Result<Vec<Range<u64>>, Failure> {
        Err(Failure::new("has no length"))
    }

    /// A signal does not end the read of a pipe, so nothing is read before something is there.
    fn is_ready(&mut self) -> bool {
        self.has_input(&WAIT)
    }
}

impl StdinContent {
    fn has_input(&self, wait: &Timespec) -> bool {
        let mut wanted = [PollFd::new(&self.input, PollFlags::IN)];
        // What cannot be waited for is read at once.
        !matches!(poll(&mut wanted, Some(wait)), Ok(0) | Err(rustix::io::Errno::INTR))
    }
}

/// Stdout, which takes regular files one after the other.
#[derive(Debug)]
pub struct StdoutSink;

/// Zeros for holes.
const ZEROS: &[u8] = &[0; 64 << 10];

fn print_zeros(mut bytes: u64) -> Result<(), Failure> {
    while bytes > 0 {
        let len = bytes.min(ZEROS.len() as u64);
        print(&ZEROS[..usize::try_from(len).expect("at most the zeros that there are")])?;
        bytes -= len;
    }
    Ok(())
}

fn not_printed() -> Failure {
    Failure::new("only regular files are copied to stdout").hint("take '--tar' for directories")
}

impl Sink for StdoutSink {
    fn look(&mut self, _: &OsStr) -> Result<Option<Existing>, Failure> {
        Ok(None)
    }

    fn enter(&mut self, _: Option<&OsStr>, _: &Attributes, _: &Xattrs, _: bool) -> Result<(), Failure> {
        Err(not_printed())
    }

    fn keep(&mut self, _: &Attributes, _: &Xattrs) -> Result<(), Failure> {
        Ok(())
    }

    fn leave(&mut self) {}

    fn file(
        &mut self,
        job: &mut CopyJob,
        _: NewFile<'_>,
        _: &Xattrs,
        content: &mut dyn Content,
    ) -> Result<u64, Failure> {
        let mut end = 0;
        let mut is_closed = false;
        let poured = job.pour(content, |bytes, at| {
            let printed = print_zeros(at - end).and_then(|()| print(bytes));
            is_closed = printed.is_err();
            end = at + bytes.len() as u64;
            printed
        });
        if is_closed {
            job.give_up();
        }
        let poured = poured?;
        print_zeros(content.len().saturating_sub(poured.end))?;
        Ok(poured.bytes)
    }

    fn symlink(&mut self, _: NewFile<'_>, _: &OsStr) -> Result<(), Failure> {
        Err(not_printed())
    }

    fn special(&mut self, _: NewFile<'_>, _: &Xattrs) -> Result<(), Failure> {
        Err(not_printed())
    }

    /// Each name is printed.
    fn link(&mut self, _: NewFile<'_>) -> Result<bool, Failure> {
        Ok(false)
    }

    fn shown(&self, _: &OsStr) -> PathBuf {
        PathBuf::from("stdout")
    }
}
