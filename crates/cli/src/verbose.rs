//! `-v`: what happens in the pool, as notes on stderr.

use std::io::{self, Write};

use tracing::Level;
use warpfire_terminal::note;

/// An event on its way to stderr. It is printed when it is dropped.
#[derive(Default)]
struct NotedEvent(Vec<u8>);

/// Prints the events of this process: with 1 those that explain what a command does, with more all of them.
pub fn start(verbosity: u8) {
    let level = match verbosity {
        0 => return,
        1 => Level::DEBUG,
        _ => Level::TRACE,
    };
    let events = tracing_subscriber::fmt().with_ansi(false).with_target(false).without_time();
    events.with_max_level(level).with_writer(NotedEvent::default).init();
}

impl Write for NotedEvent {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for NotedEvent {
    fn drop(&mut self) {
        let text = String::from_utf8_lossy(&self.0);
        if !text.trim().is_empty() {
            note(text.trim());
        }
    }
}
