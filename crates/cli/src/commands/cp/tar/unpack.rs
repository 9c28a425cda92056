//! Reads the members of a tar stream into a sink.
//!
//! Invariants
//! 1. Every member comes below the destination: no name with `..` is unpacked, a slash before a name is
//!    dropped, and the sink follows no link (`components`).
//! 2. Directories get their attributes at the end, because members may come in any order
//!    (`Unpacking::finish`).
//! 3. A hard link leads to a file below the destination, through no symbolic link (`FileIdentity::Path`).

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use warpfire::FileType;
use warpfire_terminal::{Failure, note, shown};

use super::reader::{ArchiveReader, Member, MemberContent, MemberKind};
use crate::commands::cp::job::CopyJob;
use crate::commands::cp::sink::Sink;
use crate::commands::cp::source::{Attributes, FileIdentity, NewFile};
use crate::commands::cp::xattrs::Xattrs;
use crate::interrupt::Interrupt;

/// Permission bits of a directory that the archive has no member for.
const MODE: u32 = 0o755;

/// The longest wait for bytes before the next look whether a signal has come.
const WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };

/// Bytes that are read at once.
const INPUT_BYTES: usize = 256 << 10;

/// An archive whose reads end when a signal comes.
struct Input {
    file: File,
    interrupt: Interrupt,
}

impl Read for Input {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if self.interrupt.has_come() {
                return Err(io::Error::other("the copy was interrupted"));
            }
            // A signal does not end the read of a pipe, so nothing is read before something is there.
            let mut wanted = [PollFd::new(&self.file, PollFlags::IN)];
            match poll(&mut wanted, Some(&WAIT)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                _ => return self.file.read(buffer),
            }
        }
    }
}

/// Unpacks an archive, or with `None` stdin, into the current directory of a sink, or into a new directory in
/// it.
pub fn unpack(job: &mut CopyJob, sink: &mut dyn Sink, archive: Option<&Path>, name: Option<&OsStr>) {
    let path = archive.unwrap_or(Path::new("stdin"));
    let file = match archive {
        Some(archive) => File::open(archive),
        None => std::io::stdin().as_fd().try_clone_to_owned().map(File::from),
    };
    let file = match file {
        Ok(file) => file,
        Err(error) => return job.skip(path, Failure::local(path, &error)),
    };
    let input = Input { file, interrupt: job.interrupt.clone() };
    let mut reader = ArchiveReader::new(BufReader::with_capacity(INPUT_BYTES, input), path);
    let top = name.map(OsStr::to_owned).into_iter().collect();
    let mut unpacking = Unpacking { top, at: Vec::new(), directories: BTreeMap::new(), has_absolute: false };
    while job.goes_on() {
        match reader.next() {
            Ok(Some(member)) => unpacking.member(job, sink, &mut reader, member),
            Ok(None) => break,
            Err(fault) => {
                job.skip(path, reader.failure(fault));
                break;
            }
        }
        // A signal has cut a read short.
        if reader.has_failed() {
            break;
        }
    }
    unpacking.finish(job, sink);
}

/// The names from the directory that the copy began in.
type Names = Vec<OsString>;

struct Unpacking {
    /// The new directory that the archive comes into, if there is one.
    top: Names,
    /// The directory that the sink is in.
    at: Names,
    /// The directories that get attributes.
    directories: BTreeMap<Names, (Attributes, Xattrs)>,
    /// Whether a member had a slash before its name.
    has_absolute: bool,
}

impl Unpacking {
    fn member<R: Read>(
        &mut self,
        job: &mut CopyJob,
        sink: &mut dyn Sink,
        reader: &mut ArchiveReader<R>,
        member: Member,
    ) {
        let Member { path, kind, mut attributes, xattrs } = member;
        let source = Path::new(OsStr::from_bytes(&path));
        let names = match self.below_top(source) {
            Ok(names) => names,
            Err(failure) => return job.skip(source, failure),
        };
        let below: PathBuf = names.iter().skip(self.top.len()).collect();
        if below.ancestors().any(|above| above != Path::new("") && job.excludes(above)) {
            return;
        }
        let xattrs = if job.options.archive { Xattrs::of_list(xattrs) } else { Xattrs::default() };
        let (name, directory) = match (kind == MemberKind::Directory, names.split_last()) {
            (false, Some((name, directory))) if names.len() > self.top.len() => (name, directory),
            (false, _) => return job.skip(Path::new("./"), Failure::new("has no name")),
            (true, _) => {
                match self.go_to(job, sink, &names) {
                    Ok(()) => drop(self.directories.insert(names, (attributes, xattrs))),
                    Err(failure) => job.skip(source, failure),
                }
                return;
            }
        };
        if let MemberKind::HardLink(first) = &kind {
            match self.below_top(Path::new(OsStr::from_bytes(first))) {
                Ok(first) => attributes.identity = Some(FileIdentity::Path(first.iter().collect())),
                Err(failure) => return job.skip(source, failure),
            }
        }
        if let Err(failure) = self.go_to(job, sink, directory) {
            return job.skip(source, failure);
        }
        let new = NewFile { name, attributes: &attributes };
        job.file(sink, source, new, |job, sink| match kind {
            MemberKind::File(ranges) => {
                let mut content = MemberContent::new(reader, ranges, attributes.len.unwrap_or(0));
                job.contents(sink, source, new, &xattrs, &mut content)
            }
            MemberKind::HardLink(first) => {
                let first = shown(Path::new(OsStr::from_bytes(&first)));
                Err(Failure::new(format_args!("is another name of {first}, which is not there")))
            }
            MemberKind::Symlink(to) => sink.symlink(new, OsStr::from_bytes(&to)).map(|()| 0),
            MemberKind::Special => sink.special(new, &xattrs).map(|()| 0),
            MemberKind::Directory => unreachable!("it was entered above"),
            MemberKind::Other(letter) => {
                let letter = letter.escape_ascii();
                Err(Failure::new(format_args!("is of kind '{letter}', which a pool does not have")))
            }
        });
    }

    /// The names of a member's path below the directory that the copy began in.
    fn below_top(&mut self, path: &Path) -> Result<Names, Failure> {
        let bytes = path.as_os_str().as_bytes();
        if bytes.starts_with(b"/") && !std::mem::replace(&mut self.has_absolute, true) {
            note("the '/' before names of the archive is left out");
        }
        let mut names = self.top.clone();
        for name in bytes.split(|&byte| byte == b'/') {
            match name {
                b"" | b"." => {}
                b".." => return Err(Failure::new("is not unpacked: a name with '..' leads elsewhere")),
                name if name.contains(&0) => return Err(Failure::new("has a NUL in its name")),
                name => names.push(OsStr::from_bytes(name).to_owned()),
            }
        }
        Ok(names)
    }

    /// Brings the sink into a directory. Those on the way that are missing are made.
    fn go_to(&mut self, job: &CopyJob, sink: &mut dyn Sink, directory: &[OsString]) -> Result<(), Failure> {
        let common = self.at.iter().zip(directory).take_while(|(at, wanted)| at == wanted).count();
        while self.at.len() > common {
            sink.leave();
            self.at.pop();
        }
        for name in directory.iter().skip(common) {
            let is_new = sink.look(name)?.is_none();
            let made_up = Attributes::made_up(FileType::Dir, MODE);
            sink.enter(Some(name), &made_up, &Xattrs::default(), job.options.dry_run)?;
            self.at.push(name.clone());
            if is_new {
                self.directories.entry(self.at.clone()).or_insert((made_up, Xattrs::default()));
            }
        }
        Ok(())
    }

    /// Sets the attributes of directories, each before those of the one above it, and brings the sink back to
    /// where the copy began.
    fn finish(&mut self, job: &mut CopyJob, sink: &mut dyn Sink) {
        for (names, (attributes, xattrs)) in std::mem::take(&mut self.directories).into_iter().rev() {
            let kept = match job.options.dry_run {
                true => Ok(()),
                false => self.go_to(job, sink, &names).and_then(|()| sink.keep(&attributes, &xattrs)),
            };
            job.outcome(&names.iter().collect::<PathBuf>(), kept.map(|()| 0));
        }
        while self.at.pop().is_some() {
            sink.leave();
        }
    }
}
