//! A thread that makes changes durable at an interval.
//!
//! ```text
//!   waiting ──interval over──▶ syncing ──▶ waiting
//!      └──────── stop ───────────▶ ended
//! ```

use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use warpfire_fs::Fs;

use crate::store::Engine;
use crate::{Error, ErrorKind, Result};

/// The thread, until it is stopped.
pub(crate) struct Committer {
    stop: Arc<(Mutex<bool>, Condvar)>,
    thread: JoinHandle<()>,
}

impl Committer {
    /// Starts the thread. A sync that fails leaves the pool read-only, which every later call says; so it is not said here.
    pub fn start(fs: Arc<Fs<Engine>>, interval: Duration) -> Result<Self> {
        let stop = Arc::new((Mutex::new(false), Condvar::new()));
        let stopped = Arc::clone(&stop);
        let commit = move || {
            let (flag, woken) = &*stopped;
            let mut stop = flag.lock();
            while !*stop {
                if woken.wait_for(&mut stop, interval).timed_out() {
                    parking_lot::MutexGuard::unlocked(&mut stop, || drop(fs.sync()));
                }
            }
        };
        let failed = |error: std::io::Error| {
            Error::new(
                ErrorKind::Other,
                error.raw_os_error().unwrap_or(libc::EAGAIN),
                format!("cannot start a thread: {error}"),
            )
        };
        let thread = Builder::new().name("warpfire-commit".to_owned()).spawn(commit).map_err(failed)?;
        Ok(Committer { stop, thread })
    }

    /// Stops the thread and waits for it.
    pub fn stop(self) {
        *self.stop.0.lock() = true;
        self.stop.1.notify_one();
        self.thread.join().expect("the committer does not panic");
    }
}
