//! SIGINT and SIGTERM of a command that cleans up before it ends, or has a progress line.

use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use indicatif::{ProgressBar, ProgressDrawTarget};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::{flag, low_level};
use warpfire_terminal::Failure;

/// Whether a signal asks the command to end. The first signal only asks; a second one ends the process.
#[derive(Clone, Debug)]
pub struct Interrupt {
    /// 0, or the number of the signal.
    signal: Arc<AtomicUsize>,
}

/// A program that a signal ends has this exit code and the number of the signal.
const EXIT_OF_SIGNALS: usize = 128;

impl Interrupt {
    /// Watches for both signals from now on.
    #[must_use]
    pub fn watch() -> Interrupt {
        let (signal, is_second) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        for (number, value) in [(SIGINT, 2), (SIGTERM, 15)] {
            // In this order: the first signal finds the condition of the default not met, and then meets it.
            // A signal that cannot be watched ends the process as ever.
            let _ = flag::register_conditional_default(number, Arc::clone(&is_second));
            let _ = flag::register(number, Arc::clone(&is_second));
            let _ = flag::register_usize(number, Arc::clone(&signal), value);
        }
        Interrupt { signal }
    }

    /// Whether a signal has come.
    #[must_use]
    pub fn has_come(&self) -> bool {
        self.signal.load(Ordering::Relaxed) != 0
    }

    /// The end of the command after a signal, with what it leaves behind.
    #[must_use]
    pub fn failure(&self, left: &str) -> Failure {
        let code = EXIT_OF_SIGNALS + self.signal.load(Ordering::Relaxed);
        Failure::new(format_args!("interrupted: {left}")).exit_code(u8::try_from(code).unwrap_or(u8::MAX))
    }
}

/// From now on a signal removes the progress line before it ends the process. The pool is left as by a crash,
/// which it survives.
pub fn remove_line_at_signal(line: &ProgressBar) {
    // Without a terminal there is no line, and without the thread a signal ends the process as ever.
    let Ok(mut signals) = Signals::new([SIGINT, SIGTERM]) else { return };
    let line = line.clone();
    let _ = std::thread::Builder::new().spawn(move || {
        for signal in signals.forever() {
            // Nothing is drawn after this.
            line.set_draw_target(ProgressDrawTarget::hidden());
            let mut stderr = std::io::stderr();
            if stderr.is_terminal() {
                let _ = stderr.write_all(CLEAR_LINE);
            }
            let _ = low_level::emulate_default_handler(signal);
        }
    });
}

/// To the begin of the line, and erase it (ECMA-48).
const CLEAR_LINE: &[u8] = b"\r\x1b[2K";
