//! `warpfire recover`: a pool that has lost the roots of its devices.
//!
//! The commands that read are those for any pool, with the same arguments.

use std::ffi::OsString;
use std::path::PathBuf;

use serde::Serialize;
use warpfire::{FoundRoots, Pool, PoolOptions, RootDevice};
use warpfire_terminal::{
    Failure, counted, grouped, is_json, path_bytes, path_text, print, print_json, quoted, shown,
};

use super::confirmation::confirm;
use super::{cat, cp, du, find, ls, pool, stat};
use crate::location::PoolName;

const EXAMPLES: &str = "\
Examples:
  warpfire recover show pool         the roots that are left
  warpfire recover ls -lR pool:/     list the files
  warpfire recover cp -r --salvage a.img,b.img:/photos .
                                     copy them out of it
  warpfire recover rebuild-roots pool
                                     make it a pool again

Each device begins with roots: small blocks that name the pool and lead to its state. Without them nothing \
opens the pool. Its log has a copy of the newest root, and its data says which device is which. So all that was \
synced can be found again, also with as many devices missing as the pool has parity. The search reads the first \
block of each zone and the log. Only 'rebuild-roots' writes, and only where roots were.";

// Arguments of `warpfire recover`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The number of the pool, where the devices hold data of several: of one that they were used for before.
    #[arg(long, global = true, value_name = "NUMBER")]
    uuid: Option<String>,

    #[command(subcommand)]
    command: RecoverCommand,
}

#[derive(clap::Subcommand, Debug)]
#[command(defer = true)]
enum RecoverCommand {
    /// Show the roots that a pool has left; write nothing.
    Show(ShowArgs),
    /// Write the roots again on the devices that have lost them.
    RebuildRoots(RebuildArgs),
    /// As 'warpfire ls', in a pool without roots.
    Ls(ls::Args),
    /// As 'warpfire cat', in a pool without roots.
    Cat(cat::Args),
    /// As 'warpfire cp', out of a pool without roots.
    Cp(cp::Args),
    /// As 'warpfire find', in a pool without roots.
    Find(find::Args),
    /// As 'warpfire du', in a pool without roots.
    Du(du::Args),
    /// As 'warpfire stat', in a pool without roots.
    Stat(stat::Args),
}

#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
struct ShowArgs {
    /// Devices or image files separated by commas, or a directory of *.img files.
    #[arg(value_name = "POOL")]
    pool: OsString,
}

#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
struct RebuildArgs {
    /// Devices or image files separated by commas, or a directory of *.img files.
    #[arg(value_name = "POOL")]
    pool: OsString,

    /// Show what would be written, and write nothing.
    #[arg(long)]
    dry_run: bool,

    /// Write without asking.
    #[arg(long, short)]
    yes: bool,
}

/// The roots that a pool has left, as JSON.
#[derive(Debug, Serialize)]
pub struct RecoverOutput {
    /// The id of the pool.
    pool: String,
    /// Its name; empty if it has none.
    label: String,
    /// `root` if a device still holds the newest root, `copy` if its copy in the log was used.
    source: &'static str,
    /// Inodes of the pool: files, directories and the root.
    inodes: u64,
    devices: Vec<RecoverDeviceOutput>,
    /// Positions of the devices that were not found.
    missing: Vec<u16>,
    /// Number of devices whose roots were written; 0 if nothing was written.
    rebuilt: usize,
}

/// A device that was named.
#[derive(Debug, Serialize)]
pub struct RecoverDeviceOutput {
    /// Where it is.
    path: String,
    /// The bytes of a path that is no UTF-8, in base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    path_bytes: Option<String>,
    /// Its position in the pool, from 0; `null` if it is no device of the pool, as far as its data says.
    index: Option<u16>,
    /// `whole`, `lost` (its roots are), `rebuilt`, or `unknown` (no device of the pool).
    roots: &'static str,
}

/// Shows, rebuilds or reads.
pub fn run(args: &Args) -> Result<(), Failure> {
    let mut options = Pool::options().without_roots(true);
    if let Some(number) = &args.uuid {
        options = options.wanted_pool(number).map_err(|error| Failure::pool(&error))?;
    }
    match &args.command {
        RecoverCommand::Show(args) => show(&roots_of(&options, &args.pool)?, 0),
        RecoverCommand::RebuildRoots(args) => rebuild(&options, args),
        RecoverCommand::Ls(args) => pool::with_options(&options, || ls::run(args)),
        RecoverCommand::Cat(args) => pool::with_options(&options, || cat::run(args)),
        RecoverCommand::Cp(args) => pool::with_options(&options, || cp::run(args)),
        RecoverCommand::Find(args) => pool::with_options(&options, || find::run(args)),
        RecoverCommand::Du(args) => pool::with_options(&options, || du::run(args)),
        RecoverCommand::Stat(args) => pool::with_options(&options, || stat::run(args)),
    }
}

fn devices_of(name: &OsString) -> Result<Vec<PathBuf>, Failure> {
    let name = PoolName::new(name);
    pool::refuse_mountpoint(&name)?;
    name.devices()
}

fn roots_of(options: &PoolOptions, name: &OsString) -> Result<FoundRoots, Failure> {
    let devices = devices_of(name)?;
    options.find_roots(&devices).map_err(|error| pool::not_opened(&devices, &error))
}

fn rebuild(options: &PoolOptions, args: &RebuildArgs) -> Result<(), Failure> {
    let found = roots_of(options, &args.pool)?;
    if found.lost() == 0 || args.dry_run {
        return show(&found, 0);
    }
    if !args.yes {
        let lost = counted(found.lost() as u64, "device", "devices");
        confirm(&format!("writes the first two zones of {lost} again"))?;
    }
    let devices = devices_of(&args.pool)?;
    let rebuilt = options.rebuild_roots(&devices).map_err(|error| pool::not_opened(&devices, &error))?;
    show(&rebuilt, rebuilt.lost())
}

fn show(found: &FoundRoots, rebuilt: usize) -> Result<(), Failure> {
    let output = RecoverOutput::new(found, rebuilt);
    if is_json() { print_json(&output) } else { print(output.in_words(found)) }
}

impl RecoverOutput {
    fn new(found: &FoundRoots, rebuilt: usize) -> Self {
        let device = |device: &RootDevice| RecoverDeviceOutput {
            path: path_text(&device.path),
            path_bytes: path_bytes(&device.path),
            index: device.index,
            roots: match (device.index, device.has_root) {
                (None, _) => "unknown",
                (Some(_), true) => "whole",
                (Some(_), false) if rebuilt > 0 => "rebuilt",
                (Some(_), false) => "lost",
            },
        };
        RecoverOutput {
            pool: found.pool.clone(),
            label: found.label.clone(),
            source: if found.has_root { "root" } else { "copy" },
            inodes: found.inodes,
            devices: found.devices.iter().map(device).collect(),
            missing: found.missing.clone(),
            rebuilt,
        }
    }

    fn in_words(&self, found: &FoundRoots) -> String {
        let name =
            if self.label.is_empty() { String::new() } else { format!("{}, ", quoted(self.label.as_ref())) };
        let mut text = format!("pool {name}{}, {} inodes\n", self.pool, grouped(self.inodes));
        text += match self.source {
            "root" => "  the newest root was found on a device\n",
            _ => "  the newest root is lost; its copy was found in the log\n",
        };
        for (output, device) in self.devices.iter().zip(&found.devices) {
            let path = shown(&device.path);
            text += &match output.index {
                Some(index) => format!("  device {index}: roots {}, {path}\n", output.roots),
                None => format!("  not of this pool, as far as its data says: {path}\n"),
            };
        }
        for index in &self.missing {
            text += &format!("  device {index}: missing\n");
        }
        text += &match (self.rebuilt, found.lost()) {
            (0, 0) => "nothing has to be rebuilt\n".to_owned(),
            (0, lost) => format!(
                "nothing was written; 'warpfire recover rebuild-roots' writes the roots of {}\n",
                counted(lost as u64, "device", "devices")
            ),
            (rebuilt, _) => {
                format!("the roots of {} were written\n", counted(rebuilt as u64, "device", "devices"))
            }
        };
        text
    }
}
