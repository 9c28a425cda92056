//! Messages of a server to the system that runs it: events to the log, the state to systemd.

use std::env;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::sync::Arc;

use tracing::Level;
use tracing_subscriber::fmt::MakeWriter;
use warpfire_terminal::{Failure, note};

/// The socket of the system log. The journal of systemd listens there too.
const SYSTEM_LOG: &str = "/dev/log";
/// The facility of servers in the system log, by RFC 3164: `daemon`.
const DAEMON: u8 = 3;

/// Where the events of a server go.
pub enum ServerLog {
    /// To stderr: a server in the foreground.
    Stderr,
    /// To a file.
    File(Arc<File>),
    /// To the system log.
    System(Arc<UnixDatagram>),
    /// Nowhere: the machine has no system log, and no file is named.
    Nowhere,
}

impl ServerLog {
    /// The log of a server in the background: a file if one is named, else the system log.
    pub fn in_background(path: Option<&Path>) -> Result<ServerLog, Failure> {
        let Some(path) = path else { return Ok(ServerLog::system()) };
        let file = OpenOptions::new().append(true).create(true).open(path);
        file.map(|file| ServerLog::File(Arc::new(file))).map_err(|error| Failure::local(path, &error))
    }

    fn system() -> ServerLog {
        let connected = UnixDatagram::unbound().and_then(|socket| {
            socket.connect(SYSTEM_LOG)?;
            // An event is dropped rather than that a request waits for the log.
            socket.set_nonblocking(true)?;
            Ok(socket)
        });
        match connected {
            Ok(socket) => ServerLog::System(Arc::new(socket)),
            Err(error) => {
                note(format_args!("the server has no log: {SYSTEM_LOG}: {error}; name a file with --log"));
                ServerLog::Nowhere
            }
        }
    }

    /// Sends the events of this process there.
    pub fn start(&self) {
        let events = tracing_subscriber::fmt().with_ansi(false).with_target(false);
        let events = events.with_max_level(Level::INFO);
        match self {
            ServerLog::Stderr => events.with_writer(io::stderr).init(),
            ServerLog::File(file) => events.with_writer(Arc::clone(file)).init(),
            // The system log has a time and a level of its own for each event.
            ServerLog::System(socket) => {
                let log = SystemLog(Arc::clone(socket));
                events.without_time().with_level(false).with_writer(log).init();
            }
            ServerLog::Nowhere => {}
        }
    }

    /// Leaves the terminal: what this process prints from now on goes to the file, or nowhere.
    pub fn take_output(&self) -> Result<(), Failure> {
        let failed = |error: io::Error| Failure::new(format_args!("cannot leave the terminal: {error}"));
        let file = match self {
            ServerLog::Stderr => return Ok(()),
            ServerLog::File(file) => Arc::clone(file),
            _ => Arc::new(OpenOptions::new().append(true).open("/dev/null").map_err(failed)?),
        };
        rustix::stdio::dup2_stdout(&file).map_err(|error| failed(error.into()))?;
        rustix::stdio::dup2_stderr(&file).map_err(|error| failed(error.into()))
    }
}

struct SystemLog(Arc<UnixDatagram>);

/// One event on its way to the system log. It is sent when it is dropped.
struct SystemLogEvent {
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
        SystemLogEvent { socket: Arc::clone(&self.0), text: heading(level, std::process::id()).into_bytes() }
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
        let events = events.with_level(false).with_writer(SystemLog(Arc::new(ours))).finish();
        tracing::subscriber::with_default(events, || {
            tracing::error!(device = "a.img", "a device is gone");
        });
        let mut line = [0; 256];
        let len = log.recv(&mut line).expect("an event");
        let expected = format!("<27>warpfire[{}]: a device is gone device=\"a.img\"", std::process::id());
        assert_eq!(String::from_utf8_lossy(&line[..len]), expected);
    }
}
