//! One run of `cp`: its options, its decisions on each file, and what it reports.

use std::ffi::{OsStr, OsString};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use serde::Serialize;
use warpfire_terminal::{Failure, Size, is_json, note, path_bytes, path_text, print, print_json, shown};

use super::sink::Sink;
use super::source::{Attributes, Content, NewFile, Trail};
use super::xattrs::Xattrs;
use crate::interrupt::Interrupt;
use crate::progress::Progress;

/// A file is copied in pieces of this size, in bytes.
pub const PIECE_BYTES: usize = 4 << 20;

/// The choices of the command line.
#[derive(Clone, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "they are independent options of the command line")]
pub struct CopyOptions {
    pub recursive: bool,
    pub archive: bool,
    pub salvage: bool,
    /// Leave files that exist.
    pub no_clobber: bool,
    /// Leave files that exist and are not older.
    pub update: bool,
    /// Change nothing; print what would be copied.
    pub dry_run: bool,
    /// The first failure ends the copy.
    pub all_or_nothing: bool,
    pub exclude: Vec<OsString>,
}

/// A file with bytes that could not be read.
#[derive(Clone, Debug, Serialize)]
pub struct LossyCopy {
    /// Its path in the pool.
    pub path: String,
    /// The bytes of a path that is no UTF-8, in base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_bytes: Option<String>,
    /// The bytes that the copy lacks.
    pub missing: Vec<MissingRange>,
}

/// A range of bytes that a copy lacks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct MissingRange {
    /// The first byte.
    pub start: u64,
    /// The byte after the last.
    pub end: u64,
}

/// A file that `--dry-run` would copy.
#[derive(Clone, Debug, Serialize)]
struct PlannedCopy {
    /// The path of the source.
    source: String,
    /// The bytes of a source that is no UTF-8, in base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    source_bytes: Option<String>,
    /// The path of the copy.
    target: String,
    /// The bytes of a target that is no UTF-8, in base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    target_bytes: Option<String>,
}

fn print_plan(source: &Path, target: &Path) -> Result<(), Failure> {
    if !is_json() {
        return print(format!("{} -> {}\n", shown(source), shown(target)));
    }
    print_json(&PlannedCopy {
        source: path_text(source),
        source_bytes: path_bytes(source),
        target: path_text(target),
        target_bytes: path_bytes(target),
    })
}

pub struct CopyJob {
    pub options: CopyOptions,
    pub progress: Progress,
    pub interrupt: Interrupt,
    pub failed: u64,
    pub skipped: u64,
    pub damaged: Vec<LossyCopy>,
    /// Whether the transaction of `--atomic` has been committed.
    pub is_committed: bool,
    /// The failure that every further file would meet too.
    pub end: Option<Failure>,
    trail: Trail,
    /// The buffer of pieces.
    buffer: Vec<u8>,
    has_broken: bool,
}

/// The result of copying data: its bytes, and the end of the last piece.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Poured {
    pub bytes: u64,
    pub end: u64,
}

impl CopyJob {
    pub fn new(options: CopyOptions) -> CopyJob {
        CopyJob {
            options,
            progress: Progress::start("copied"),
            interrupt: Interrupt::watch(),
            failed: 0,
            skipped: 0,
            damaged: Vec::new(),
            is_committed: false,
            end: None,
            trail: Trail::default(),
            buffer: vec![0; PIECE_BYTES],
            has_broken: false,
        }
    }

    /// Whether there is a reason to copy further files.
    pub fn goes_on(&self) -> bool {
        let is_undone = self.options.all_or_nothing && self.failed > 0;
        !(self.interrupt.has_come() || self.has_broken || is_undone)
    }

    /// Ends the copy after the present file: its target can take no more.
    pub fn give_up(&mut self) {
        self.has_broken = true;
    }

    /// Reports a file that could not be copied.
    pub fn skip(&mut self, path: &Path, reason: impl Into<Failure>) {
        self.progress.failed_file();
        let reason: Failure = reason.into();
        if reason.is_closed_pipe() {
            self.give_up();
        }
        if reason.is_end_of_command() && !reason.is_closed_pipe() && !self.interrupt.has_come() {
            self.give_up();
            self.end = Some(reason);
            return;
        }
        // Neither a file that a signal cuts short nor a reader that has enough is a failure of the copy.
        if !self.interrupt.has_come() && !reason.is_closed_pipe() {
            let reason = reason.about(path);
            self.progress.suspend(|| reason.print());
            self.failed += 1;
        }
    }

    /// Takes the result of one copied file: counts its bytes, or reports the error.
    pub fn outcome(&mut self, path: &Path, copied: Result<u64, Failure>) {
        match copied {
            Ok(bytes) => self.progress.file(bytes),
            Err(reason) => self.skip(path, reason),
        }
    }

    /// Whether `--exclude` names this entry of the current directory.
    pub fn is_excluded(&self, name: &OsStr) -> bool {
        !self.options.exclude.is_empty() && self.excludes(&self.trail.path_of(name))
    }

    /// Whether `--exclude` names this path from the top of the copy. A pattern without a slash is compared
    /// with the name alone.
    pub fn excludes(&self, path: &Path) -> bool {
        self.options.exclude.iter().any(|pattern| {
            let pattern = pattern.as_bytes();
            if pattern.contains(&b'/') {
                let pattern = pattern.strip_prefix(b"/").unwrap_or(pattern);
                fast_glob::glob_match(pattern, path.as_os_str().as_bytes())
            } else {
                fast_glob::glob_match(pattern, path.file_name().unwrap_or_default().as_bytes())
            }
        })
    }

    /// Copies a directory into the current directory of the sink, or with `None` the contents into the
    /// current directory itself. `fill` copies the entries. The attributes are set last: each entry changes
    /// the times, and a mode without write permission would refuse it.
    pub fn directory(
        &mut self,
        sink: &mut dyn Sink,
        source: &Path,
        name: Option<&OsStr>,
        attributes: &Attributes,
        xattrs: Result<Xattrs, Failure>,
        fill: impl FnOnce(&mut CopyJob, &mut dyn Sink) -> Result<(), Failure>,
    ) {
        if !self.options.recursive {
            return self.skip(source, Failure::new("is a directory").hint("copy it with -r"));
        }
        // The entries of a directory are copied even if its own attributes are lost.
        let (xattrs, read) = match xattrs {
            Ok(xattrs) => (xattrs, Ok(())),
            Err(failure) => (Xattrs::default(), Err(failure)),
        };
        if let Err(failure) = sink.enter(name, attributes, &xattrs, self.options.dry_run) {
            return self.skip(source, failure);
        }
        self.trail.enter(name.unwrap_or_default());
        let filled = fill(self, sink);
        self.trail.leave();
        let kept = match filled.and(read) {
            Ok(()) if self.options.dry_run => Ok(0),
            Ok(()) => sink.keep(attributes, &xattrs).map(|()| 0),
            Err(failure) => Err(failure),
        };
        if name.is_some() {
            sink.leave();
        }
        self.outcome(source, kept);
    }

    /// Copies a file. `make` reads the source and makes the copy; it is called only if the options want the
    /// file and it is no other name of one that was copied before.
    pub fn file(
        &mut self,
        sink: &mut dyn Sink,
        source: &Path,
        new: NewFile<'_>,
        make: impl FnOnce(&mut CopyJob, &mut dyn Sink) -> Result<u64, Failure>,
    ) {
        match self.is_wanted(sink, new) {
            Ok(true) => {}
            Ok(false) => return self.skipped += 1,
            Err(failure) => return self.skip(source, failure),
        }
        if self.options.dry_run {
            let planned = print_plan(source, &sink.shown(new.name));
            let planned = planned.map(|()| new.attributes.len.unwrap_or(0));
            if planned.is_err() {
                self.give_up();
            }
            return self.outcome(source, planned);
        }
        let linked = match new.attributes.identity {
            Some(_) => sink.link(new),
            None => Ok(false),
        };
        let copied = match linked {
            Ok(true) => Ok(0),
            Ok(false) => make(self, sink),
            Err(failure) => Err(failure),
        };
        self.outcome(source, copied);
    }

    /// Copies a regular file: `make` of [`file`](CopyJob::file).
    pub fn contents(
        &mut self,
        sink: &mut dyn Sink,
        source: &Path,
        new: NewFile<'_>,
        xattrs: &Xattrs,
        content: &mut dyn Content,
    ) -> Result<u64, Failure> {
        let copied = sink.file(self, new, xattrs, content)?;
        let missing = content.missing();
        if !missing.is_empty() {
            self.report_damage(source, &missing);
        }
        Ok(copied)
    }

    fn report_damage(&mut self, source: &Path, missing: &[Range<u64>]) {
        for range in missing {
            let lost = Size(range.end - range.start);
            let line = format!("{}: bytes {}..{} ({lost}) are lost", shown(source), range.start, range.end);
            self.progress.suspend(|| note(line));
        }
        let missing = missing.iter().map(|range| MissingRange { start: range.start, end: range.end });
        self.damaged.push(LossyCopy {
            path: path_text(source),
            path_bytes: path_bytes(source),
            missing: missing.collect(),
        });
    }

    fn is_wanted(&self, sink: &mut dyn Sink, new: NewFile<'_>) -> Result<bool, Failure> {
        if !(self.options.no_clobber || self.options.update) {
            return Ok(true);
        }
        let existing = sink.look(new.name)?;
        let is_newer = |existing: &super::sink::Existing| {
            new.attributes.modified.is_none_or(|modified| modified > existing.modified)
        };
        Ok(existing.is_none_or(|existing| !self.options.no_clobber && is_newer(&existing)))
    }

    /// Copies all data of a file by `write`, which gets bytes and their offset, and shows the progress.
    ///
    /// # Errors
    /// The source or the target fails, or a signal ends the copy.
    pub fn pour(
        &mut self,
        content: &mut dyn Content,
        mut write: impl FnMut(&[u8], u64) -> Result<(), Failure>,
    ) -> Result<Poured, Failure> {
        let mut poured = Poured { bytes: 0, end: 0 };
        self.each_piece(content, |progress, bytes, at| {
            write(bytes, at)?;
            let len = bytes.len() as u64;
            poured = Poured { bytes: poured.bytes + len, end: at + len };
            progress.bytes(len);
            Ok(())
        })?;
        Ok(poured)
    }

    /// Reads a file piece by piece.
    ///
    /// # Errors
    /// As `pour`.
    pub fn each_piece(
        &mut self,
        content: &mut dyn Content,
        mut take: impl FnMut(&mut Progress, &[u8], u64) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let CopyJob { buffer, progress, interrupt, .. } = self;
        loop {
            if interrupt.has_come() {
                return Err(Failure::new("the copy was interrupted"));
            }
            if !content.is_ready() {
                continue;
            }
            match content.next(buffer)? {
                Some(piece) => take(progress, &buffer[piece.bytes.clone()], piece.at)?,
                None => return Ok(()),
            }
        }
    }
}
