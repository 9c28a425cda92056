//! `warpfire scan`: the pools on files, directories and block devices.
//!
//! It reads root zones only and writes nothing. Pools that are in use are listed too.

use std::path::PathBuf;

use serde::Serialize;
use warpfire::{FoundDevice, FoundPool, Opens};
use warpfire_terminal::{
    Failure, Size, counted, is_json, note, path_bytes, path_text, print, print_json, quoted, shown,
};

use super::mount::mounted_pool::{MountedPool, mounted_pools};
use crate::found_pool::scan_all;

const EXAMPLES: &str = "\
Examples:
  warpfire scan                  pools on the block devices of this machine
  warpfire scan ~/pools          on the files in a directory
  warpfire scan /dev/sdb a.img
  WARPFIRE_DEVICES=~/pools warpfire mount LABEL=photos /mnt

Wherever a command takes POOL, LABEL=name and UUID=number name a pool that this search finds.";

// Arguments of `warpfire scan`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Files, block devices and directories. A directory stands for its files and those in its directories
    /// [default: all block devices, and the places of --search and $WARPFIRE_DEVICES].
    #[arg(value_name = "PATH")]
    places: Vec<PathBuf>,
}

/// A pool that was found.
#[derive(Debug, Serialize)]
pub struct ScannedPoolOutput {
    /// The id of the pool.
    pool: String,
    /// Its name; empty if it has none.
    label: String,
    /// Data columns of a new segment.
    data: u16,
    /// Parity columns of a new segment.
    parity: u8,
    /// Bytes of a zone.
    zone_bytes: u64,
    /// Bytes in the zones of all its devices; `null` if its roots do not say so.
    size_bytes: Option<u64>,
    /// `whole`; `degraded`: devices are missing, and it can be opened all the same; `older`: the missing
    /// devices may hold a newer state, so it is opened to read only; `refused`: it cannot be opened.
    state: &'static str,
    /// The reason of the states `older` and `refused`.
    reason: Option<String>,
    /// The directory that it is mounted on.
    mounted_at: Option<String>,
    /// Its devices.
    devices: Vec<ScannedDeviceOutput>,
    /// Devices that do not belong to it any more, and second copies.
    strangers: Vec<StrangerOutput>,
}

/// A device of a pool that was found.
#[derive(Debug, Serialize)]
pub struct ScannedDeviceOutput {
    /// Its position in the pool, from 0.
    index: u16,
    /// Its id.
    uuid: String,
    /// Where it is; `null` if it was not found.
    path: Option<String>,
    /// The bytes of a path that is no UTF-8, in base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    path_bytes: Option<String>,
    /// Bytes in its zones; `null` if no root says so.
    size_bytes: Option<u64>,
    /// `present`, `missing`, `behind` (the pool went on without it), or `leaving`.
    state: &'static str,
}

/// A device that does not belong to the pool of its roots.
#[derive(Debug, Serialize)]
pub struct StrangerOutput {
    /// Where it is.
    path: String,
    /// The bytes of a path that is no UTF-8, in base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    path_bytes: Option<String>,
}

/// Lists the pools.
pub fn run(args: &Args) -> Result<(), Failure> {
    let scan = if args.places.is_empty() { scan_all() } else { warpfire::scan(&args.places) };
    let mounted = mounted_pools();
    for pool in &scan.pools {
        let output = ScannedPoolOutput::new(pool, &mounted);
        if is_json() { print_json(&output) } else { print(output.in_words(pool)) }?;
    }
    for (path, error) in &scan.skipped {
        note(format_args!("{} was not searched: {error}", shown(path)));
    }
    if scan.pools.is_empty() {
        note("no pool was found");
    }
    Ok(())
}

impl ScannedPoolOutput {
    fn new(pool: &FoundPool, mounted: &[MountedPool]) -> Self {
        let is_there = pool.devices.iter().all(|device| device.path.is_some() && !device.is_offline);
        let (state, reason) = match &pool.opens {
            Opens::ForWriting if is_there => ("whole", None),
            Opens::ForWriting => ("degraded", None),
            Opens::ForReading(error) => ("older", Some(error.to_string())),
            Opens::No(error) => ("refused", Some(error.to_string())),
        };
        let mounted_at = mounted.iter().find(|mounted| mounted.id == pool.pool && mounted.shows_all);
        let stranger =
            |path: &PathBuf| StrangerOutput { path: path_text(path), path_bytes: path_bytes(path) };
        ScannedPoolOutput {
            pool: pool.pool.clone(),
            label: pool.label.clone(),
            data: pool.data,
            parity: pool.parity,
            zone_bytes: pool.zone_bytes,
            size_bytes: pool.devices.iter().map(|device| device.size_bytes).sum(),
            state,
            reason,
            mounted_at: mounted_at.map(|mounted| path_text(&mounted.mountpoint)),
            devices: pool.devices.iter().map(ScannedDeviceOutput::new).collect(),
            strangers: pool.strangers.iter().map(stranger).collect(),
        }
    }

    fn in_words(&self, pool: &FoundPool) -> String {
        let there = pool.devices.iter().filter(|device| device.path.is_some()).count();
        let name =
            if self.label.is_empty() { String::new() } else { format!("{}, ", quoted(self.label.as_ref())) };
        let devices = counted(self.devices.len() as u64, "device", "devices");
        let size = self.size_bytes.map(|bytes| format!(", {}", Size(bytes))).unwrap_or_default();
        let mut text = format!(
            "pool {name}{}, {} data and {} parity, {there} of {devices}{size}\n",
            self.pool, self.data, self.parity
        );
        text += &match (&self.reason, self.state) {
            (Some(reason), "older") => format!("  only for reading: {reason}\n"),
            (Some(reason), _) => format!("  cannot be opened: {reason}\n"),
            (None, state) => format!("  {state}\n"),
        };
        if let Some(at) = &self.mounted_at {
            text += &format!("  mounted at {}\n", shown(at.as_ref()));
        }
        for (device, found) in self.devices.iter().zip(&pool.devices) {
            let place = found.path.as_deref().map_or_else(|| format!("({})", device.uuid), shown);
            text += &format!("  device {}: {}, {place}\n", device.index, device.state);
        }
        for path in &pool.strangers {
            text += &format!("  not of this pool any more, or a second copy: {}\n", shown(path));
        }
        text
    }
}

impl ScannedDeviceOutput {
    fn new(device: &FoundDevice) -> Self {
        let path = device.path.as_deref();
        ScannedDeviceOutput {
            index: device.index,
            uuid: device.uuid.clone(),
            path: path.map(path_text),
            path_bytes: path.and_then(path_bytes),
            size_bytes: device.size_bytes,
            state: match path {
                None => "missing",
                Some(_) if device.is_offline => "behind",
                Some(_) if device.is_leaving => "leaving",
                Some(_) => "present",
            },
        }
    }
}
