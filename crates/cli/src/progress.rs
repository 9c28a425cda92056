//! Progress of long work: a line on stderr while the work runs, if stderr is a terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use warpfire_env::{Clock, SystemClock};
use warpfire_terminal::{Size, counted, duration, per_second};

/// A progress line: files and bytes done so far, and the start of the work.
pub struct Progress {
    bar: ProgressBar,
    verb: &'static str,
    started_nanos: u64,
    files: u64,
    bytes: u64,
}

/// Totals of a finished copy.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub struct CopySummary {
    /// Files, directories and links.
    pub files: u64,
    /// Bytes of file contents.
    pub bytes: u64,
    /// Time from the first file to the final sync, in nanoseconds.
    pub nanos: u64,
}

/// Files between two updates of the line.
const FILES_PER_DRAW: u64 = 64;

impl Progress {
    /// Starts the clock. `verb` is the past tense for the summary: `copied`.
    #[must_use]
    pub fn start(verb: &'static str) -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(5));
        bar.set_style(ProgressStyle::with_template("{spinner} {msg}").expect("the template is well formed"));
        Progress { bar, verb, started_nanos: SystemClock.monotonic_nanos(), files: 0, bytes: 0 }
    }

    /// Counts one file of `bytes` bytes.
    pub fn file(&mut self, bytes: u64) {
        self.files += 1;
        self.bytes += bytes;
        if self.files.is_multiple_of(FILES_PER_DRAW) || bytes >= 1 << 20 {
            self.bar.set_message(self.summary().in_words(self.verb));
            self.bar.tick();
        }
    }

    fn summary(&self) -> CopySummary {
        let nanos = SystemClock.monotonic_nanos() - self.started_nanos;
        CopySummary { files: self.files, bytes: self.bytes, nanos }
    }

    /// Removes the line and returns the totals.
    #[must_use]
    pub fn finish(self) -> CopySummary {
        self.bar.finish_and_clear();
        self.summary()
    }
}

impl CopySummary {
    /// `copied 10,000 files, 1.2 GiB in 3.2 s (380 MiB/s, 3,100 files/s)`
    #[must_use]
    pub fn in_words(&self, verb: &str) -> String {
        format!(
            "{verb} {}, {} in {} ({}/s, {}/s)",
            counted(self.files, "file", "files"),
            Size(self.bytes),
            duration(self.nanos),
            Size(per_second(self.bytes, self.nanos)),
            counted(per_second(self.files, self.nanos), "file", "files"),
        )
    }
}
