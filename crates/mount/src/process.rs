//! The process of a server: the kernel's memory management must not wait for the filesystem that it serves.

use std::fs;
use std::io;
use std::thread;

use rustix::process::{configure_io_flusher_behavior, geteuid};
use signal_hook::consts::SIGHUP;
use signal_hook::iterator::Signals;

/// The adjustment of `oom_score_adj` for a server of root: other processes are killed first.
const OOM_ADJUSTMENT: &str = "-900";

/// Prepares this process to serve a filesystem. Called before threads are started, which inherit it.
///
/// The kernel may free memory by writing a program's pages to this filesystem. While the server allocates
/// memory for such a write, the kernel must not start another one and wait for it (`PR_SET_IO_FLUSHER`). When
/// memory runs out, the kernel kills others before a server that they depend on. Both need root; without,
/// nothing changes.
pub fn prepare_server_process() {
    if !geteuid().is_root() {
        return;
    }
    let flusher = configure_io_flusher_behavior(true).map_err(|e| e.to_string());
    let preferred = fs::write("/proc/self/oom_score_adj", OOM_ADJUSTMENT).map_err(|e| e.to_string());
    for failed in [flusher, preferred].into_iter().filter_map(Result::err) {
        // A container may lack CAP_SYS_RESOURCE. The server works without.
        tracing::debug!(error = failed, "process not prepared for low memory");
    }
}

/// Calls `reopen` at each SIGHUP, on a thread of its own, until the process ends. Servers reopen their log
/// then. A mount of this process has to leave the signal alone: see
/// [`MountOptions::unmount_on_hangup`](crate::MountOptions::unmount_on_hangup).
///
/// # Errors
/// If the signal cannot be watched, or the thread cannot be started.
pub fn watch_hangups(reopen: impl Fn() + Send + 'static) -> io::Result<()> {
    let mut signals = Signals::new([SIGHUP])?;
    let watch = move || signals.forever().for_each(|_| reopen());
    thread::Builder::new().name("warpfire-hangup".to_owned()).spawn(watch).map(drop)
}
