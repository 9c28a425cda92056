//! Mounts a filesystem in memory, until it is unmounted or the process gets a signal.
//!
//! ```text
//! memory MOUNTPOINT [--size-mib N] [--allow-other] [--read-only] [--threads N] [--no-queues]
//!     [--views-at DIRECTORY]
//! ```
//!
//! All of Warpfire takes part except real devices: the pool is one device in memory.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use warpfire_env::{Clock, Device, MemDevice, SystemClock, SystemRandom};
use warpfire_fs::{Fs, FsOptions, FsSchema};
use warpfire_log::Log;
use warpfire_meta::{Engine, EngineOptions};
use warpfire_mount::{MountOptions, mount};
use warpfire_pool::{CreateOptions, Pool};

const USAGE: &str = "usage: memory MOUNTPOINT [--size-mib N] [--allow-other] [--read-only] [--threads N] [--no-queues] [--views-at DIRECTORY]";

/// The parsed command line.
struct Arguments {
    mountpoint: PathBuf,
    size_bytes: u64,
    options: MountOptions,
}

fn main() -> ExitCode {
    let Some(arguments) = arguments() else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    match serve(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("memory: {e}");
            ExitCode::FAILURE
        }
    }
}

fn arguments() -> Option<Arguments> {
    let mut mountpoint = None;
    let mut size_mib = 1024;
    let mut options = MountOptions { fsname: "memory".to_owned(), ..MountOptions::default() };
    let mut arguments = std::env::args_os().skip(1);
    while let Some(argument) = arguments.next() {
        let mut number = || arguments.next()?.to_str()?.parse::<u32>().ok();
        match argument.to_str() {
            Some("--allow-other") => options.allow_other = true,
            Some("--read-only") => options.read_only = true,
            Some("--no-queues") => options.queues = false,
            Some("--views-at") => options.views_at = Some(arguments.next()?.into()),
            Some("--threads") => options.threads = usize::try_from(number()?).ok()?,
            Some("--size-mib") => size_mib = number()?,
            _ if mountpoint.is_none() => mountpoint = Some(PathBuf::from(argument)),
            _ => return None,
        }
    }
    Some(Arguments { mountpoint: mountpoint?, size_bytes: u64::from(size_mib) << 20, options })
}

fn serve(arguments: &Arguments) -> Result<(), Box<dyn std::error::Error>> {
    let device: Arc<dyn Device> = Arc::new(MemDevice::new("memory", arguments.size_bytes));
    let alone = CreateOptions { data: 1, parity: 0, zone_bytes: None, force: false };
    let pool = Pool::create(vec![device], &alone, &SystemRandom, SystemClock.now())?;
    let (log, recovered) = Log::create(pool)?;
    let engine = Arc::new(Engine::open(log, recovered, FsSchema, EngineOptions::default())?);
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    Fs::format(&*engine, &SystemClock, uid, gid)?;
    let fs = Fs::open(engine, Arc::new(SystemClock), FsOptions::default())?;
    let session = mount(Arc::new(fs), &arguments.mountpoint, &arguments.options)?;
    println!("mounted on {}", session.mountpoint().display());
    session.wait()?;
    Ok(())
}
