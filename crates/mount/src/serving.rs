//! The threads that answer the kernel's requests of one mount.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::thread::{self, JoinHandle};

use fuser::{Config, Notifier, SessionACL};
use warpfire_meta::{SliceStore, Store};

use crate::error::MountError;
use crate::mountpoint::system;
use crate::options::{MountOptions, THREADS_MAX};
use crate::server::Server;

/// Greets the kernel and starts the threads that answer it. They end when the kernel has let go of the mount, and then call `at_end`.
///
/// # Errors
/// If the kernel does not speak the protocol, or threads can not be started.
pub(crate) fn serve<E: Store + SliceStore>(
    mut server: Server<E>,
    device: OwnedFd,
    options: &MountOptions,
    at: &Path,
    at_end: impl FnOnce() + Send + 'static,
) -> Result<(JoinHandle<std::io::Result<()>>, Notifier), MountError> {
    let mut config = Config::default();
    config.n_threads = Some(options.threads.clamp(1, THREADS_MAX));
    // A descriptor for each thread needs the device's name, which an ordinary user may not have.
    config.clone_fd = std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").is_ok();
    // Who may come in is the kernel's to say: it knows the mount's owner and `allow_other`.
    if config.n_threads == Some(1)
        && let Ok(connection) = device.try_clone()
    {
        server.serve_alone(connection);
    }
    let known = server.notifier();
    let session = fuser::Session::from_fd(server, device, SessionACL::All, config)
        .map_err(|e| system(at, "agree with the kernel on a protocol", e))?;
    let notifier = session.notifier();
    assert!(known.set(notifier.clone()).is_ok(), "a server serves one mount");
    let run = move || {
        let ended = session.run();
        at_end();
        ended
    };
    let serving = thread::Builder::new()
        .name("warpfire-serve".to_owned())
        .spawn(run)
        .map_err(|e| system(at, "start threads", e))?;
    Ok((serving, notifier))
}
