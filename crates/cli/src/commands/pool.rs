//! Opening of the pool that a command uses.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use warpfire::{DeviceState, ErrorKind, Pool, PoolOptions, StateAge, Warpfire, check_named_once};
use warpfire_env::{Device, FileDevice, OpenError};
use warpfire_terminal::{Failure, note};

use crate::location::PoolName;
use crate::tree::{mounted_at, refuse_mounted};

/// What to do with a pool of another version of warpfire.
pub const OTHER_VERSION: &str =
    "copy its files with the version of warpfire that made it, and make a new pool with this one";

/// How pools are opened whose devices have lost their roots; `None` unless the command line asks for it.
static WITHOUT_ROOTS: Mutex<Option<PoolOptions>> = Mutex::new(None);

/// Runs a command that reads, in pools whose devices have lost their roots. `options` open them.
pub fn with_options<T>(options: &PoolOptions, run: impl FnOnce() -> T) -> T {
    *WITHOUT_ROOTS.lock().expect("no holder panics") = Some(options.clone());
    let result = run();
    *WITHOUT_ROOTS.lock().expect("no holder panics") = None;
    result
}

/// These options, or those for a pool without roots if the command line asks for one.
pub fn as_asked(options: &PoolOptions) -> PoolOptions {
    WITHOUT_ROOTS.lock().expect("no holder panics").clone().unwrap_or_else(|| options.clone())
}

/// Opens a pool for a scrub by these options, with its devices. Nothing happens in it without a call. If the
/// pool is degraded, prints a note on stderr. The inner error says that the pool is too damaged to be opened.
#[expect(clippy::type_complexity, reason = "one caller takes it apart at once")]
pub fn open_to_scrub(
    options: &PoolOptions,
    name: &PoolName,
) -> Result<(Vec<Arc<dyn Device>>, Result<Warpfire, warpfire::Error>), Failure> {
    let devices = devices_by(name, FileDevice::open)?;
    let opened = match options.clone().background(false).open_on(devices.clone()) {
        Ok(pool) => {
            warn_if_degraded(&pool);
            Ok(pool)
        }
        Err(error) if error.kind() == ErrorKind::Damaged => Err(error),
        Err(error) => return Err(not_opened(&name.devices()?, &error)),
    };
    Ok((devices, opened))
}

/// Opens a pool for one command that only reads it. Its devices need no permission to write, and other
/// commands may read it at the same time. If the pool is degraded, prints a note on stderr.
pub fn open_for_reading(name: &PoolName) -> Result<Warpfire, Failure> {
    open_as(&Pool::options().read_only(true), name)
}

/// As [`open_for_reading`], by these options.
pub fn open_as(options: &PoolOptions, name: &PoolName) -> Result<Warpfire, Failure> {
    refuse_mountpoint(name)?;
    open_devices(options, name.devices()?)
}

/// As [`open_as`], with another device beside those of the name.
pub fn open_with(options: &PoolOptions, name: &PoolName, other: &Path) -> Result<Warpfire, Failure> {
    refuse_mountpoint(name)?;
    let mut devices = name.devices()?;
    if devices.iter().all(|device| check_named_once(&[device.clone(), other.to_path_buf()]).is_ok()) {
        devices.push(other.to_path_buf());
    }
    open_devices(options, devices)
}

fn open_devices(options: &PoolOptions, devices: Vec<PathBuf>) -> Result<Warpfire, Failure> {
    let pool = as_asked(options).open(&devices).map_err(|error| not_opened(&devices, &error))?;
    warn_if_degraded(&pool);
    Ok(pool)
}

/// Opens a pool for reading, for a command that shows its devices itself.
pub fn open_quietly(name: &PoolName) -> Result<Warpfire, Failure> {
    let devices = name.devices()?;
    Pool::options().read_only(true).open(&devices).map_err(|error| not_opened(&devices, &error))
}

/// Refuses the name of a directory that a pool is mounted on, for commands that need the devices.
pub fn refuse_mountpoint(name: &PoolName) -> Result<(), Failure> {
    name.mountpoint().map_or(Ok(()), |(mountpoint, _)| Err(mounted_at(&mountpoint)))
}

/// The failure to open the devices of a pool. Says where the pool is mounted, if that is the reason.
pub fn not_opened(devices: &[PathBuf], error: &warpfire::Error) -> Failure {
    match error.kind() {
        ErrorKind::InUse => refuse_mounted(devices, error),
        _ => Failure::pool(error),
    }
}

/// Prints on stderr which devices are missing, have failed or are offline, and whether the state is an older
/// one.
pub fn warn_if_degraded(pool: &Warpfire) {
    let stats = pool.stats();
    warn_of_age(stats.state_age);
    let lost: Vec<String> =
        stats.devices.iter().filter(|device| !device.is_present()).map(ToString::to_string).collect();
    if !lost.is_empty() {
        let rest = match stats.losses_left {
            Some(_) => "all data can still be read",
            None => "some data cannot be read without them",
        };
        note(format_args!(
            "the pool is degraded: {} of {} devices {} ({}); {rest}",
            lost.len(),
            stats.devices.len(),
            away_words(stats.devices.iter().map(|device| device.state)),
            lost.join(", ")
        ));
    }
}

/// Prints on stderr that the state of a pool is an older one, or may be.
pub fn warn_of_age(age: StateAge) {
    match age {
        StateAge::Newest => {}
        StateAge::MayBeOlder => note(
            "this may be an older state of the pool: the missing devices are enough to have gone on alone; \
             reconnect them to see the newest state",
        ),
        StateAge::Older => note(
            "this is an older state of the pool: its devices hold data of a later session, whose roots are \
             lost; reconnect missing devices, or restore later changes from a backup",
        ),
    }
}

/// The ways in which devices are away, in words.
pub fn away_words(states: impl Iterator<Item = DeviceState>) -> &'static str {
    let (mut is_lost, mut is_offline) = (false, false);
    for state in states.filter(|state| *state != DeviceState::Present) {
        (is_offline, is_lost) =
            if state == DeviceState::Offline { (true, is_lost) } else { (is_offline, true) };
    }
    match (is_lost, is_offline) {
        (_, false) => "missing or failed",
        (true, true) => "missing, failed or offline",
        (false, true) => "offline",
    }
}

/// The devices themselves, open for reading, for commands that look below the filesystem.
pub fn devices(name: &PoolName) -> Result<Vec<Arc<dyn Device>>, Failure> {
    devices_by(name, FileDevice::open_for_reading)
}

fn devices_by(
    name: &PoolName,
    open: impl Fn(&Path) -> Result<FileDevice, OpenError>,
) -> Result<Vec<Arc<dyn Device>>, Failure> {
    refuse_mountpoint(name)?;
    let paths = name.devices()?;
    check_named_once(&paths).map_err(|error| Failure::pool(&error))?;
    let open = |path: &PathBuf| -> Result<Arc<dyn Device>, Failure> {
        match open(path) {
            Ok(device) => Ok(Arc::new(device)),
            Err(error) => Err(not_opened(&paths, &error.into())),
        }
    };
    paths.iter().map(open).collect()
}
