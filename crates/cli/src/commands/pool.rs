//! Opening of the pool that a command uses.

use std::path::PathBuf;
use std::sync::Arc;

use warpfire::{Pool, PoolOptions, Warpfire, check_named_once};
use warpfire_env::{Device, FileDevice};
use warpfire_terminal::{Failure, note};

use crate::location::PoolName;

/// Opens a pool for one command that changes it. If the pool is degraded, prints a note on stderr.
pub fn open(name: &PoolName) -> Result<Warpfire, Failure> {
    open_as(&Pool::options(), name)
}

/// Opens a pool for one command that only reads it. Its devices need no permission to write, and other
/// commands may read it at the same time. If the pool is degraded, prints a note on stderr.
pub fn open_for_reading(name: &PoolName) -> Result<Warpfire, Failure> {
    open_as(&Pool::options().read_only(true), name)
}

/// As [`open`], by these options.
pub fn open_as(options: &PoolOptions, name: &PoolName) -> Result<Warpfire, Failure> {
    let pool = options.open(name.devices()?).map_err(|error| Failure::pool(&error))?;
    warn_if_degraded(&pool);
    Ok(pool)
}

/// Opens a pool for reading, for a command that shows its devices itself.
pub fn open_quietly(name: &PoolName) -> Result<Warpfire, Failure> {
    Pool::options().read_only(true).open(name.devices()?).map_err(|error| Failure::pool(&error))
}

/// Prints on stderr which devices are missing or have failed.
fn warn_if_degraded(pool: &Warpfire) {
    let stats = pool.stats();
    let lost: Vec<String> =
        stats.devices.iter().filter(|device| !device.is_present()).map(ToString::to_string).collect();
    if !lost.is_empty() {
        note(format_args!(
            "the pool is degraded: {} of {} devices missing or failed ({}); all data can still be read",
            lost.len(),
            stats.devices.len(),
            lost.join(", ")
        ));
    }
}

/// The devices themselves, open for reading, for commands that look below the filesystem.
pub fn devices(name: &PoolName) -> Result<Vec<Arc<dyn Device>>, Failure> {
    let open = |path: PathBuf| -> Result<Arc<dyn Device>, Failure> {
        match FileDevice::open_for_reading(&path) {
            Ok(device) => Ok(Arc::new(device)),
            Err(error) => Err(Failure::pool(&error.into())),
        }
    };
    let paths = name.devices()?;
    check_named_once(&paths).map_err(|error| Failure::pool(&error))?;
    paths.into_iter().map(open).collect()
}
