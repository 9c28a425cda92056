//! SIGINT and SIGTERM of a command that cleans up before it ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
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
