//! `warpfire df`: the space of pools, as `df` shows it for a mounted one.

use std::ffi::OsString;

use serde::Serialize;
use warpfire_terminal::{Columns, Failure, Size, grouped, is_json, print, print_json};

use super::pool::warn_of_age;
use super::status;
use super::tally::Tally;

const EXAMPLES: &str = "\
Examples:
  warpfire df pool
  warpfire df -h /mnt a.img,b.img
  WARPFIRE_POOL=pool warpfire df

Used space is needed by files, tables and open transactions; removed files do not count, though their bytes \
may still wait for cleaning. Available space can be written. The rest is kept for deleting and cleaning. \
'warpfire status' shows the same figures.";

// Arguments of `warpfire df`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES, disable_help_flag = true)]
pub struct Args {
    /// Pools: devices or image files separated by commas, directories of *.img files, or directories of
    /// mounted pools [default: $WARPFIRE_POOL].
    #[arg(value_name = "POOL", default_value = "", hide_default_value = true)]
    pools: Vec<OsString>,

    /// Print sizes such as 1.5 GiB instead of bytes.
    #[arg(long, short = 'h')]
    human_readable: bool,

    /// Print help.
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
}

/// The space of one pool.
#[derive(Serialize)]
struct PoolSpace {
    /// The id of the pool.
    pool: String,
    /// The directory that it is mounted on.
    mounted_at: Option<String>,
    /// The capacity.
    total_bytes: u64,
    /// Bytes that files, tables and open transactions need.
    used_bytes: u64,
    /// Bytes that can be written.
    available_bytes: u64,
    /// Files, directories and links.
    files: u64,
}

/// Prints the space of each pool.
pub fn run(args: &Args) -> Result<(), Failure> {
    let tally = Tally::default();
    let mut spaces = Vec::new();
    let mut columns = Columns::new(&["pool", "size", "used", "available", "use", "files"]);
    for name in &args.pools {
        let report = match status::report(name) {
            Err(failure) if args.pools.len() == 1 => return Err(failure),
            other => tally.take(other)?,
        };
        let Some(report) = report else { continue };
        warn_of_age(report.age());
        let space = report.space;
        let shown =
            |bytes: u64| if args.human_readable { Size(bytes).to_string() } else { bytes.to_string() };
        let usable = (space.used_bytes + space.available_bytes).max(1);
        columns.row([
            if name.is_empty() { report.pool.clone() } else { warpfire_terminal::shown(name.as_ref()) },
            shown(space.total_bytes),
            shown(space.used_bytes),
            shown(space.available_bytes),
            format!("{}%", space.used_bytes.saturating_mul(100).div_ceil(usable)),
            grouped(space.files),
        ]);
        spaces.push(PoolSpace {
            pool: report.pool,
            mounted_at: report.mounted_at,
            total_bytes: space.total_bytes,
            used_bytes: space.used_bytes,
            available_bytes: space.available_bytes,
            files: space.files,
        });
    }
    if is_json() {
        spaces.iter().try_for_each(print_json)?;
    } else {
        print(columns.to_string())?
    }
    tally.finish()
}
