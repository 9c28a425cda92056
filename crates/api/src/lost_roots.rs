//! Pools that have lost their roots: read as they are, and given their roots back.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::io::Errno;
use warpfire_env::Device;
use warpfire_format::Uuid;
use warpfire_recover::{FoundPool, RecoverError, RootSource, find_pool};

use crate::devices::open_all;
use crate::options::collect_paths;
use crate::{Error, ErrorKind, PoolOptions, Result, Warpfire};

/// The roots that a pool has left: the answer of [`PoolOptions::find_roots`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FoundRoots {
    /// The number of the pool.
    pub pool: String,
    /// Its name; empty if it has none.
    pub label: String,
    /// Whether the root zones of a device still hold the newest root. Otherwise the state comes from the copy
    /// of a root in the commit log.
    pub has_root: bool,
    /// The devices that were named, in their order.
    pub devices: Vec<RootDevice>,
    /// The places in the table of devices of those that were not found.
    pub missing: Vec<u16>,
    /// Inodes of the pool. Its state was opened, and every sync that returned is in it.
    pub inodes: u64,
}

impl FoundRoots {
    /// Number of the devices that have lost their roots and get them back from
    /// [`PoolOptions::rebuild_roots`].
    #[must_use]
    pub fn lost(&self) -> usize {
        self.devices.iter().filter(|device| !device.has_root && device.index.is_some()).count()
    }
}

/// A device that was named.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RootDevice {
    /// Its path.
    pub path: PathBuf,
    /// Its place in the table of devices; `None` if it is no device of the pool, as far as its columns say.
    pub index: Option<u16>,
    /// Whether it holds roots.
    pub has_root: bool,
}

impl PoolOptions {
    /// Opens a pool for reading even if its devices have lost their roots; `false` by default. For an
    /// existing pool only.
    ///
    /// Roots lie in the first two zones of each device. Each checkpoint also writes a copy of its root into
    /// the commit log, and the columns of segments say which device is which. So up to m devices may be
    /// missing all the same. The search reads the first block of each zone and the whole commit log. Nothing
    /// is written: [`rebuild_roots`](PoolOptions::rebuild_roots) does that.
    #[must_use]
    pub fn without_roots(mut self, without_roots: bool) -> Self {
        self.without_roots = without_roots;
        self
    }

    /// The pool to find without roots, by its number in hexadecimal, where the devices hold data of several:
    /// of an older pool, for example, that they were used for before.
    ///
    /// # Errors
    /// `InvalidInput` if the text is no number of a pool.
    pub fn wanted_pool(mut self, number: &str) -> Result<Self> {
        let digits = number.replace('-', "");
        let uuid = u128::from_str_radix(&digits, 16).ok().filter(|_| digits.len() == 32).and_then(Uuid::new);
        let refused = || Error::invalid(format!("{number} is no number of a pool"));
        self.wanted_pool = Some(uuid.ok_or_else(|| refused().with_hint("it has 32 hexadecimal digits"))?);
        Ok(self)
    }

    /// Finds the state of a pool that has lost roots, and opens it to see that it is whole enough. Nothing is
    /// written.
    ///
    /// # Errors
    /// As [`open`](PoolOptions::open). `NotAPool` if the devices hold no root and no copy of one, or if too
    /// many are missing.
    pub fn find_roots<P: AsRef<Path>>(&self, paths: impl IntoIterator<Item = P>) -> Result<FoundRoots> {
        let paths = collect_paths(paths)?;
        let (found, pool) = self.open_found(&open_all(&paths, true)?)?;
        summary(&found, &paths, &pool)
    }

    /// Writes the roots of a pool again on the devices that have lost them. Before that, the state is opened
    /// for reading. Devices that still have roots are not written.
    ///
    /// # Errors
    /// As [`find_roots`](PoolOptions::find_roots), and those of the devices.
    pub fn rebuild_roots<P: AsRef<Path>>(&self, paths: impl IntoIterator<Item = P>) -> Result<FoundRoots> {
        let paths = collect_paths(paths)?;
        let (found, pool) = self.open_found(&open_all(&paths, false)?)?;
        let summary = summary(&found, &paths, &pool)?;
        pool.close()?;
        found.rebuild_roots()?;
        Ok(summary)
    }

    /// The state that the devices lead to, and the pool as of it, open for reading.
    pub(crate) fn open_found(&self, devices: &[Arc<dyn Device>]) -> Result<(FoundPool, Warpfire)> {
        let options = self.clone().read_only(true).without_roots(false).background(false);
        let found = find_pool(devices, self.wanted_pool)?;
        let pool = options.open_on(found.devices_with_roots())?;
        Ok((found, pool))
    }
}

/// The devices of a pool, each with its root: one that has lost it seems to have it. To read only.
///
/// # Errors
/// As [`PoolOptions::find_roots`].
pub fn devices_with_roots(devices: &[Arc<dyn Device>]) -> Result<Vec<Arc<dyn Device>>> {
    Ok(PoolOptions::default().open_found(devices)?.0.devices_with_roots())
}

fn summary(found: &FoundPool, paths: &[PathBuf], pool: &Warpfire) -> Result<FoundRoots> {
    let devices = paths.iter().zip(&found.devices).map(|(path, device)| RootDevice {
        path: path.clone(),
        index: device.index.map(|index| index.0),
        has_root: device.has_root,
    });
    Ok(FoundRoots {
        pool: found.uuid().to_string(),
        label: found.label().to_owned(),
        has_root: found.source == RootSource::Root,
        devices: devices.collect(),
        missing: found.missing().into_iter().map(|(index, _)| index.0).collect(),
        inodes: pool.space()?.inodes,
    })
}

impl From<RecoverError> for Error {
    fn from(error: RecoverError) -> Self {
        let message = error.to_string();
        let not_a_pool = Error::new(ErrorKind::NotAPool, Errno::INVAL.raw_os_error(), message);
        match error {
            RecoverError::Roots(error) => error.into(),
            RecoverError::Device(error) => error.into(),
            RecoverError::NothingFound { .. } => not_a_pool.with_hint(
                "name the other devices of the pool too; a pool whose log is overwritten cannot be found",
            ),
            RecoverError::Several { .. } => {
                not_a_pool.with_hint("choose one by its number, with 'warpfire recover --uuid'")
            }
            RecoverError::Apart { .. } => {
                not_a_pool.with_hint("name the devices of one part only: each part can be read alone")
            }
        }
    }
}
