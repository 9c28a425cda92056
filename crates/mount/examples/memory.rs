//! Mounts a filesystem that lives in memory, until it is unmounted or gets a signal.
//!
//! ```text
//! memory MOUNTPOINT [--allow-other] [--read-only] [--threads N]
//! ```

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use warpfire_env::SystemClock;
use warpfire_fs::{Fs, FsOptions, FsSchema};
use warpfire_meta::MapStore;
use warpfire_mount::{MountOptions, mount};

fn main() -> ExitCode {
    let Some((mountpoint, options)) = arguments() else {
        eprintln!("usage: memory MOUNTPOINT [--allow-other] [--read-only] [--threads N]");
        return ExitCode::from(2);
    };
    match serve(&mountpoint, &options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("memory: {e}");
            ExitCode::FAILURE
        }
    }
}

fn arguments() -> Option<(PathBuf, MountOptions)> {
    let mut mountpoint = None;
    let mut options = MountOptions { fsname: "memory".to_owned(), ..MountOptions::default() };
    let mut arguments = std::env::args_os().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.to_str() {
            Some("--allow-other") => options.allow_other = true,
            Some("--read-only") => options.read_only = true,
            Some("--threads") => options.threads = arguments.next()?.to_str()?.parse().ok()?,
            _ if mountpoint.is_none() => mountpoint = Some(PathBuf::from(argument)),
            _ => return None,
        }
    }
    Some((mountpoint?, options))
}

fn serve(mountpoint: &std::path::Path, options: &MountOptions) -> Result<(), Box<dyn std::error::Error>> {
    let engine = Arc::new(MapStore::new(FsSchema));
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    Fs::format(&*engine, &SystemClock, uid, gid)?;
    let fs = Fs::open(engine, Arc::new(SystemClock), FsOptions::default())?;
    let session = mount(Arc::new(fs), mountpoint, options)?;
    println!("mounted on {}", session.mountpoint().display());
    session.wait()?;
    Ok(())
}
