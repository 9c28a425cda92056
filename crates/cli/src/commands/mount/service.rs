//! Messages of a server to the system that runs it: events to the log, the state to systemd.
//!
//! A server in the background opens its log again at SIGHUP: whoever rotates a file moves it away first and
//! sends the signal then.

use std::env;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use tracing::Level;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use warpfire_terminal::{Failure, note};

/// The socket of the system log. The journal of systemd listens there too.
const SYSTEM_LOG: &str = "/dev/log";
/// The facility of servers in the system log, by RFC 3164: `daemon`.
const DAEMON: u8 = 3;

/// The environment variable with the levels of events, as other programs in Rust read it.
const LEVELS_VARIABLE: &str = "RUST_LOG";

/// Where the events of a server go.
#[derive(Clone)]
pub enum ServerLog {
    /// To stderr: a server in the foreground.
    Stderr,
    /// To a file.
    File(LogFile),
    /// To the system log.
    System(SystemLog),
    /// Nowhere: the machine has no system log, and no file is named.
    Nowhere,
}

/// A file that events are appended to. Clones share it.
#[derive(Clone)]
pub struct LogFile {
    path: PathBuf,
    open: Arc<RwLock<Arc<File>>>,
}

/// The system log. Clones share the connection.
#[derive(Clone)]
pub struct SystemLog(Arc<RwLock<Arc<UnixDatagram>>>);

/// The levels of the events to log: those of the command line, else of the environment, else `info`.
///
/// # Errors
/// A text that names no levels.
pub fn levels(named: Option<&str>) -> Result<Targets, Failure> {
    let of_environment = || env::var(LEVELS_VARIABLE).ok().filter(|levels| !levels.is_empty());
    let (source, text) = match (named, of_environment()) {
        (Some(named), _) => ("--log-level", named.to_owned()),
        (None, Some(levels)) => (LEVELS_VARIABLE, levels),
        (None, None) => return Ok(Targets::new().with_default(Level::INFO)),
    };
    // A word that is no level would be taken for the name of a part.
    let is_level = |word: &str| {
        let level = word.split_once('=').map_or(word, |(_, level)| level);
        level.eq_ignore_ascii_case("off") || level.parse::<Level>().is_ok()
    };
    text.parse().ok().filter(|_| text.split(',').all(is_level)).ok_or_else(|| {
        Failure::usage(format_args!("{source}: '{text}' names no level of events"))
            .hint("write error, warn, info, debug or trace, for parts as in info,warpfire_log=debug")
    })
}

impl ServerLog {
    /// The log of a server in the background: a file if one is named, else the system log.
    pub fn in_background(path: Option<&Path>) -> Result<ServerLog, Failure> {
        let Some(path) = path else { return Ok(ServerLog::system()) };
        let opened = std::path::absolute(path).and_then(|path| Ok((open_log(&path)?, path)));
        let (file, path) = opened.map_err(|error| Failure::local(path, &error))?;
        Ok(ServerLog::File(LogFile { path, open: Arc::new(RwLock::new(Arc::new(file))) }))
    }

    fn system() -> ServerLog {
        match connect_system_log() {
            Ok(socket) => ServerLog::System(SystemLog(Arc::new(RwLock::new(Arc::new(socket))))),
            Err(error) => {
                note(format_args!("the server has no log: {SYSTEM_LOG}: {error}; name a file with --log"));
                ServerLog::Nowhere
            }
        }
    }

    /// Sends the events of this process there, of these levels.
    pub fn start(&self, levels: Targets) {
        let events = tracing_subscriber::fmt::layer().with_ansi(false).with_target(false);
        let log = match self {
            ServerLog::Stderr => events.with_writer(io::stderr).boxed(),
            ServerLog::File(file) => events.with_writer(file.clone()).boxed(),
            // The system log has a time and a level of its own for each event.
            ServerLog::System(log) => {
                events.without_time().with_level(false).with_writer(log.clone()).boxed()
            }
            ServerLog::Nowhere => return,
        };
        tracing_subscriber::registry().with(log.with_filter(levels)).init();
    }

    /// Opens the log again: a file of that name may be another one now, and so may the system log.
    pub fn reopen(&self) {
        let failed = match self {
            ServerLog::Stderr | ServerLog::Nowhere => return,
            ServerLog::File(log) => open_log(&log.path).and_then(|file| {
                rustix::stdio::dup2_stdout(&file)?;
                rustix::stdio::dup2_stderr(&file)?;
                *log.open.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(file);
                Ok(())
            }),
            ServerLog::System(log) => connect_system_log().map(|socket| {
                *log.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(socket);
            }),
        };
        match failed {
            Ok(()) => tracing::info!("the log is open again"),
            // The old one takes this.
            Err(error) => {
                tracing::error!(%error, "the log cannot be opened again; events go where they went")
            }
        }
    }

    /// Leaves the terminal: what this process prints from now on goes to the file, or nowhere.
    pub fn take_output(&self) -> Result<(), Failure> {
        let failed = |error: io::Error| Failure::new(format_args!("cannot leave the terminal: {error}"));
        let file = match self {
            ServerLog::Stderr => return Ok(()),
            ServerLog::File(log) => log.file(),
            _ => Arc::new(OpenOptions::new().append(true).open("/dev/null").map_err(failed)?),
        };
        rustix::stdio::dup2_stdout(&file).map_err(|error| failed(error.into()))?;
        rustix::stdio::dup2_stderr(&file).map_err(|error| failed(error.into()))
    }
}

fn open_log(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).open(path)
}

fn connect_system_log() -> io::Result<UnixDatagram> {
    let socket = UnixDatagram::unbound()?;
    socket.connect(SYSTEM_LOG)?;
    // An event is dropped rather than that a request waits for the log.
    socket.set_nonblocking(true)?;
    Ok(socket)
}

impl LogFile {
    fn file(&self) -> Arc<File> {
        Arc::clone(&self.open.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl<'a> MakeWriter<'a> for LogFile {
    type Writer = Arc<File>;

    fn make_writer(&'a self) -> Arc<File> {
        self.file()
    }
}

/// One event on its way to the system log. It is sent when it is dropped.
pub struct SystemLogEvent {
    socket: Arc<UnixDatagram>,
    text: Vec<u8>,
}

impl<'a> MakeWriter<'a> for SystemLog {
    type Writer = SystemLogEvent;

    fn make_writer(&'a self) -> SystemLogEvent {
        self.event(&Level::INFO)
    }

    fn make_writer_for(&'a self, event: &tracing::Metadata<'_>) -> SystemLogEvent {
        self.event(event.level())
    }
}

impl SystemLog {
    fn event(&self, level: &Level) -> SystemLogEvent {
        let socket = Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner));
        SystemLogEvent { socket, text: heading(level, std::process::id()).into_bytes() }
    }
}

/// The start of a line for the system log.
fn heading(level: &Level, process: u32) -> String {
    let severity = match *level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    };
    format!("<{}>warpfire[{process}]: ", DAEMON * 8 + severity)
}

impl Write for SystemLogEvent {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for SystemLogEvent {
    fn drop(&mut self) {
        // A log that does not take the event cannot be reported anywhere.
        let _ = self.socket.send(self.text.trim_ascii_end());
    }
}

/// Sends systemd the state of this service, if systemd has asked for it: see sd_notify(3).
pub fn notify(state: &str) {
    let Some(path) = env::var_os("NOTIFY_SOCKET") else { return };
    let address = match path.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(&path),
    };
    let sent = address.and_then(|address| UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address));
    if let Err(error) = sent {
        tracing::warn!(%error, "systemd does not take the state of this service");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_reaches_the_system_log_as_one_line_with_its_level() {
        let (ours, log) = UnixDatagram::pair().expect("a pair");
        let events = tracing_subscriber::fmt().with_ansi(false).with_target(false).without_time();
        let events =
            events.with_level(false).with_writer(SystemLog(Arc::new(RwLock::new(Arc::new(ours))))).finish();
        tracing::subscriber::with_default(events, || {
            tracing::error!(device = "a.img", "a device is gone");
        });
        let mut line = [0; 256];
        let len = log.recv(&mut line).expect("an event");
        let expected = format!("<27>warpfire[{}]: a device is gone device=\"a.img\"", std::process::id());
        assert_eq!(String::from_utf8_lossy(&line[..len]), expected);
    }

    #[test]
    fn levels_are_those_of_all_events_or_of_parts() {
        let enabled = |text: &str, target: &str, level: &Level| {
            levels(Some(text)).expect(text).would_enable(target, level)
        };
        assert!(enabled("debug", "warpfire_fs", &Level::DEBUG));
        assert!(!enabled("warn", "warpfire_fs", &Level::INFO));
        assert!(enabled("warn,warpfire_log=trace", "warpfire_log::log", &Level::TRACE));
        assert!(!enabled("warn,warpfire_log=trace", "warpfire_fs", &Level::TRACE));
        for wrong in ["", "loud", "info,", "warpfire_log=loud"] {
            assert!(levels(Some(wrong)).is_err(), "{wrong}");
        }
    }
}
