//! Progress of long work: a line on stderr while the work runs, if stderr is a terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use warpfire_env::{Clock, SystemClock};
use warpfire_terminal::{Size, counted, duration, per_second};

use crate::interrupt::remove_line_at_signal;

/// A progress line: files and bytes done so far, and the start of the work.
pub struct Progress {
    bar: ProgressBar,
    verb: &'static str,
    started_nanos: u64,
    files: u64,
    bytes: u64,
    /// Bytes of the file that is being copied.
    bytes_of_file: u64,
    has_total: bool,
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
pub const FILES_PER_DRAW: u64 = 64;

/// The line while the total is known.
const WITH_TOTAL: &str = "{spinner} {wide_bar} {binary_bytes} of {binary_total_bytes}, \
                          {binary_bytes_per_sec}, {eta} left";

impl Progress {
    /// Starts the clock. `verb` is the past tense for the summary: `copied`.
    #[must_use]
    pub fn start(verb: &'static str) -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(5));
        bar.set_style(ProgressStyle::with_template("{spinner} {msg}").expect("the template is well formed"));
        let started_nanos = SystemClock.monotonic_nanos();
        Progress { bar, verb, started_nanos, files: 0, bytes: 0, bytes_of_file: 0, has_total: false }
    }

    /// Sets the number of bytes that the whole work has, so that the line shows how much time is left.
    pub fn expect_bytes(&mut self, total: u64) {
        self.bar.set_style(ProgressStyle::with_template(WITH_TOTAL).expect("the template is well formed"));
        self.bar.set_length(total);
        self.has_total = true;
    }

    /// Counts bytes of a file that is not done yet.
    pub fn bytes(&mut self, bytes: u64) {
        self.bytes_of_file += bytes;
        if self.has_total {
            self.bar.inc(bytes);
        } else if bytes >= 1 << 20 {
            self.draw();
        }
    }

    /// Counts one file of `bytes` bytes.
    pub fn file(&mut self, bytes: u64) {
        self.files += 1;
        self.bytes += bytes;
        self.bytes_of_file = 0;
        if self.files.is_multiple_of(FILES_PER_DRAW) {
            self.draw();
        }
    }

    /// Forgets the bytes of a file that has failed.
    pub fn failed_file(&mut self) {
        self.bytes_of_file = 0;
    }

    fn draw(&self) {
        // The line is drawn at most five times a second. A message costs more than the check.
        if !self.has_total && !self.bar.is_hidden() {
            let shown = CopySummary { bytes: self.bytes + self.bytes_of_file, ..self.summary() };
            self.bar.set_message(shown.in_words(self.verb));
        }
        self.bar.tick();
    }

    /// Totals so far, of files that are done.
    #[must_use]
    pub fn summary(&self) -> CopySummary {
        let nanos = SystemClock.monotonic_nanos() - self.started_nanos;
        CopySummary { files: self.files, bytes: self.bytes, nanos }
    }

    /// Runs work that prints to stderr, without the line in between.
    pub fn suspend<T>(&self, work: impl FnOnce() -> T) -> T {
        self.bar.suspend(work)
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

/// A line on stderr for work that a signal may end at any moment. The caller describes its end in words.
pub struct WorkLine {
    bar: ProgressBar,
}

/// The line while the end is not known.
const WORK: &str = "{spinner} {msg}";
/// The line while the end is known.
const WORK_WITH_TOTAL: &str = "{spinner} {wide_bar} {percent} % {msg}, {eta} left";

impl WorkLine {
    /// Starts the clock.
    #[must_use]
    pub fn start() -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(5));
        bar.set_style(ProgressStyle::with_template(WORK).expect("the template is well formed"));
        remove_line_at_signal(&bar);
        WorkLine { bar }
    }

    /// Whether somebody sees the line.
    pub fn is_shown(&self) -> bool {
        !self.bar.is_hidden()
    }

    /// Shows these words.
    pub fn message(&self, words: impl std::fmt::Display) {
        // A message costs more than the check.
        if !self.bar.is_hidden() {
            self.bar.set_message(words.to_string());
            self.bar.tick();
        }
    }

    /// Begins another stage: the time that is left is estimated anew.
    pub fn begin_stage(&self) {
        self.bar.reset();
    }

    /// Shows how much of the work is done, and these words.
    pub fn part(&self, done: u64, total: u64, words: impl std::fmt::Display) {
        if self.bar.length() != Some(total) {
            self.bar.set_style(
                ProgressStyle::with_template(WORK_WITH_TOTAL).expect("the template is well formed"),
            );
            self.bar.set_length(total);
        }
        self.bar.set_position(done);
        self.message(words);
    }

    /// Removes the line.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
