//! The end of a command that fails: one sentence, a hint what to try, and an exit code.

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde::{Deserialize, Serialize};
use warpfire::ErrorKind;

use crate::json::{is_json, line, path_bytes, path_text};
use crate::print::write_stderr;
use crate::shown_name::shown;

/// Exit codes, as `warpfire --help` documents them. 0 is success.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Exit {
    /// The command could not do its work.
    Failed = 1,
    /// The command line is wrong. clap uses the same code.
    Usage = 2,
    /// The pool could not be opened: a device is missing, foreign, damaged or in use.
    Pool = 3,
    /// A transaction could not be committed because of a conflict. sysexits.h defines the code as "try
    /// again".
    Conflict = 75,
}

/// Why a command failed.
#[derive(Debug)]
pub struct Failure {
    message: String,
    hint: Option<String>,
    /// What a program does about it, in one word: see [`kind_word`].
    kind: Cow<'static, str>,
    errno: Option<i32>,
    /// The file or device that it is about.
    path: Option<PathBuf>,
    exit: u8,
    /// Print nothing: the reader of the output is gone (a closed pipe), or the reason is already printed.
    silent: bool,
    /// Every later step of the command would fail for the same reason.
    ends_command: bool,
}

impl Failure {
    /// The command could not do its work.
    pub fn new(message: impl fmt::Display) -> Self {
        let message = without_errno(message.to_string());
        let (kind, exit) = ("failed".into(), Exit::Failed as u8);
        let (silent, ends_command) = (false, false);
        Failure { message, hint: None, kind, errno: None, path: None, exit, silent, ends_command }
    }

    /// The command line is wrong.
    pub fn usage(message: impl fmt::Display) -> Self {
        Failure { exit: Exit::Usage as u8, kind: "usage".into(), ..Failure::new(message) }
    }

    /// A transaction could not be committed, because others have changed what it read.
    pub fn conflict(message: impl fmt::Display) -> Self {
        let kind = kind_word(ErrorKind::Conflict).into();
        Failure { exit: Exit::Conflict as u8, kind, ..Failure::new(message) }
    }

    /// A failure with a reason that another program or thread has printed.
    pub fn silent() -> Self {
        Failure { silent: true, ..Failure::new("the reason is already printed") }
    }

    /// Whether the pool refused for this kind of reason.
    #[must_use]
    pub fn is_of(&self, kind: ErrorKind) -> bool {
        self.kind == kind_word(kind)
    }

    /// The pool could not be opened.
    pub fn pool(error: &warpfire::Error) -> Self {
        Failure { exit: Exit::Pool as u8, ..Failure::from_pool(error) }
    }

    /// The devices do not hold a pool that can be read.
    pub fn unreadable(reason: impl fmt::Display) -> Self {
        Failure {
            exit: Exit::Pool as u8,
            kind: kind_word(ErrorKind::NotAPool).into(),
            ..Failure::new(reason)
        }
    }

    fn from_pool(error: &warpfire::Error) -> Self {
        let (kind, errno) = (kind_word(error.kind()).into(), Some(error.errno()));
        let (hint, path) = (error.hint().map(str::to_owned), error.device().map(Path::to_path_buf));
        Failure { hint, kind, errno, path, ..Failure::new(error) }
    }

    /// An operation on a file of the pool failed.
    pub fn at(path: &Path, error: &warpfire::Error) -> Self {
        let mut failure = Failure::from_pool(error);
        failure.message = format!("{}: {}", shown(path), failure.message);
        failure.of_path(path)
    }

    /// An operation on a file outside the pool failed.
    pub fn local(path: &Path, error: &io::Error) -> Self {
        let (kind, errno) = (local_kind_word(error.kind()).into(), error.raw_os_error());
        Failure { kind, errno, ..Failure::new(format_args!("{}: {error}", shown(path))) }.of_path(path)
    }

    /// As [`local`](Failure::local), with other words for the error.
    pub fn local_as(path: &Path, error: &io::Error, words: impl fmt::Display) -> Self {
        let message = Failure::new(format_args!("{}: {words}", shown(path))).message;
        Failure { message, ..Failure::local(path, error) }
    }

    /// Names the file or device that the failure is about, for a program. The message says it already.
    #[must_use]
    pub fn of_path(self, path: impl Into<PathBuf>) -> Self {
        Failure { path: Some(path.into()), ..self }
    }

    /// Puts the file before the message that the failure is about. A failure that begins with it stays.
    #[must_use]
    pub fn about(mut self, path: &Path) -> Self {
        let about = format!("{}: ", shown(path));
        if !self.message.starts_with(&about) {
            self.message.insert_str(0, &about);
        }
        self.of_path(path)
    }

    /// Whether nobody reads stdout any more, so that the command should end.
    pub fn is_closed_pipe(&self) -> bool {
        self.silent && self.exit == 0
    }

    /// Marks a failure that every later step of the command would meet too.
    #[must_use]
    pub fn ends_command(self) -> Self {
        Failure { ends_command: true, ..self }
    }

    /// Whether the command should end, and not go on with its next file: nobody reads stdout any more, or
    /// every later step would fail for the same reason.
    pub fn is_end_of_command(&self) -> bool {
        self.ends_command || self.is_closed_pipe()
    }

    pub(crate) fn from_stdout(error: io::Error) -> Self {
        let (kind, errno) = (local_kind_word(error.kind()).into(), error.raw_os_error());
        let failure = Failure::new(format_args!("cannot write the answer: {error}"));
        let failure = Failure { kind, errno, ..failure };
        if error.kind() != io::ErrorKind::BrokenPipe {
            return failure;
        }
        // The reader has all that it wants, as in `warpfire ls | head`.
        Failure { silent: true, exit: 0, ..failure }
    }

    /// Adds what to try, as a clause in lower case without a full stop.
    #[must_use]
    pub fn hint(mut self, hint: impl fmt::Display) -> Self {
        self.hint = Some(hint.to_string());
        self
    }

    /// Replaces the exit code by one that belongs to the command.
    #[must_use]
    pub fn exit_code(self, code: u8) -> Self {
        Failure { exit: code, ..self }
    }

    /// Whether the failure is a conflict of a transaction.
    pub fn is_conflict(&self) -> bool {
        self.exit == Exit::Conflict as u8
    }

    /// The message and the hint, as a sentence for people.
    pub fn whole(&self) -> String {
        match &self.hint {
            Some(hint) => format!("{}; {hint}", self.message),
            None => self.message.clone(),
        }
    }

    /// Prints the failure to stderr and returns the exit code.
    pub fn report(&self) -> ExitCode {
        self.print();
        ExitCode::from(self.exit)
    }

    /// Prints the failure to stderr: a sentence, or with [`is_json`] a document.
    pub fn print(&self) {
        if self.silent {
            return;
        }
        if is_json() {
            return write_stderr(&line(&ErrorDocument { error: self.document() }));
        }
        crate::note(self.whole());
    }

    fn document(&self) -> ErrorFields {
        ErrorFields {
            kind: self.kind.clone(),
            errno: self.errno,
            message: self.message.clone(),
            hint: self.hint.clone(),
            path: self.path.as_ref().map(path_text),
            path_bytes: self.path.as_ref().and_then(path_bytes),
            exit_code: self.exit,
        }
    }
}

/// A failure on its way from the process that meets it to the one that reports it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RelayedFailure {
    kind: String,
    errno: Option<i32>,
    message: String,
    hint: Option<String>,
    exit: u8,
}

impl From<&Failure> for RelayedFailure {
    fn from(failure: &Failure) -> Self {
        RelayedFailure {
            kind: failure.kind.clone().into_owned(),
            errno: failure.errno,
            message: failure.message.clone(),
            hint: failure.hint.clone(),
            exit: failure.exit,
        }
    }
}

impl From<RelayedFailure> for Failure {
    fn from(relayed: RelayedFailure) -> Self {
        let RelayedFailure { kind, errno, message, hint, exit } = relayed;
        // No failure that another process sends is a success.
        let exit = exit.max(Exit::Failed as u8);
        Failure { kind: kind.into(), errno, hint, exit, ..Failure::new(message) }
    }
}

/// A failure on stderr, as JSON.
#[derive(Debug, Serialize)]
struct ErrorDocument {
    error: ErrorFields,
}

#[derive(Debug, Serialize)]
struct ErrorFields {
    kind: Cow<'static, str>,
    errno: Option<i32>,
    message: String,
    hint: Option<String>,
    /// The file, or the device of a pool, that the failure is about; `null` if it is not about one alone.
    path: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    path_bytes: Option<String>,
    exit_code: u8,
}

/// The word for a kind of failure of a pool.
fn kind_word(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::NotFound => "not_found",
        ErrorKind::AlreadyExists => "already_exists",
        ErrorKind::NotADirectory => "not_a_directory",
        ErrorKind::IsADirectory => "is_a_directory",
        ErrorKind::DirectoryNotEmpty => "directory_not_empty",
        ErrorKind::PermissionDenied => "permission_denied",
        ErrorKind::InvalidInput => "invalid_input",
        ErrorKind::NoSpace => "no_space",
        ErrorKind::ReadOnly => "read_only",
        ErrorKind::Expired => "expired",
        ErrorKind::Damaged => "damaged",
        ErrorKind::InUse => "in_use",
        ErrorKind::NotAPool => "not_a_pool",
        ErrorKind::Device => "device",
        ErrorKind::Conflict => "conflict",
        ErrorKind::WrongTransaction => "wrong_transaction",
        ErrorKind::TransactionTooLarge => "transaction_too_large",
        ErrorKind::NoMemory => "no_memory",
        ErrorKind::Unsupported => "unsupported",
        ErrorKind::LimitReached => "limit_reached",
        ErrorKind::Held => "held",
        ErrorKind::StreamBroken => "stream_broken",
        ErrorKind::StreamRefused => "stream_refused",
        _ => "failed",
    }
}

/// The word for a kind of failure outside of pools: the same as for a file in a pool.
fn local_kind_word(kind: io::ErrorKind) -> &'static str {
    let same = match kind {
        io::ErrorKind::NotFound => ErrorKind::NotFound,
        io::ErrorKind::AlreadyExists => ErrorKind::AlreadyExists,
        io::ErrorKind::NotADirectory => ErrorKind::NotADirectory,
        io::ErrorKind::IsADirectory => ErrorKind::IsADirectory,
        io::ErrorKind::DirectoryNotEmpty => ErrorKind::DirectoryNotEmpty,
        io::ErrorKind::PermissionDenied => ErrorKind::PermissionDenied,
        io::ErrorKind::InvalidInput | io::ErrorKind::InvalidFilename => ErrorKind::InvalidInput,
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorKind::NoSpace,
        io::ErrorKind::ReadOnlyFilesystem => ErrorKind::ReadOnly,
        io::ErrorKind::ResourceBusy => ErrorKind::InUse,
        io::ErrorKind::OutOfMemory => ErrorKind::NoMemory,
        io::ErrorKind::Unsupported => ErrorKind::Unsupported,
        _ => ErrorKind::Other,
    };
    kind_word(same)
}

/// The text without the numbers that the standard library adds to errors of the system.
pub(crate) fn without_errno(mut text: String) -> String {
    const NUMBER: &str = " (os error ";
    while let Some(start) = text.find(NUMBER) {
        let rest = &text[start + NUMBER.len()..];
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        if digits == 0 || !rest[digits..].starts_with(')') {
            break;
        }
        text.replace_range(start..=start + NUMBER.len() + digits, "");
    }
    text
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<warpfire::Error> for Failure {
    fn from(error: warpfire::Error) -> Self {
        Failure::from_pool(&error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_of_a_system_error_is_a_sentence_for_people() {
        let refused = io::Error::from_raw_os_error(13);
        let failure = Failure::local(Path::new("a\x07"), &refused);
        assert_eq!(failure.to_string(), "a\\u{7}: Permission denied");
        assert_eq!(Failure::new("a (os error 2): b (os error 13)").to_string(), "a: b");
        assert_eq!(Failure::new("a (os error x)").to_string(), "a (os error x)");
        assert_eq!(
            Failure::new("busy").about(Path::new("/f")).about(Path::new("/f")).to_string(),
            "/f: busy"
        );
    }

    #[test]
    fn a_failure_as_json_has_its_kind_its_errno_and_the_whole_path() {
        use std::os::unix::ffi::OsStrExt;
        let path = Path::new(std::ffi::OsStr::from_bytes(b"/a\xff"));
        let failure = Failure::local(path, &io::Error::from_raw_os_error(2)).hint("look elsewhere");
        let text = line(&ErrorDocument { error: failure.document() });
        let expected = concat!(
            r#"{"version":1,"error":{"kind":"not_found","errno":2,"message":"/a\u{fffd}: "#,
            r#"No such file or directory","hint":"look elsewhere","path":"/a\u{fffd}","#,
            r#""path_bytes":"L2H/","exit_code":1}}"#,
            "\n"
        );
        assert_eq!(text, expected.replace("\\u{fffd}", "\u{fffd}"));
        let usage = Failure::usage("wrong").document();
        assert_eq!((&*usage.kind, usage.errno, usage.path, usage.exit_code), ("usage", None, None, 2));
    }

    #[test]
    fn a_closed_pipe_is_success_and_a_full_disk_is_not() {
        let closed = Failure::from_stdout(io::Error::from(io::ErrorKind::BrokenPipe));
        assert!(closed.is_closed_pipe() && closed.report() == ExitCode::SUCCESS);
        let full = Failure::from_stdout(io::Error::from(io::ErrorKind::StorageFull));
        assert!(!full.is_closed_pipe());
    }
}
