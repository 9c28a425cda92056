//! `warpfire chmod`: set the permission bits of files.

use std::ffi::OsString;

use warpfire_terminal::Failure;

use super::tally::Tally;
use super::walk::{Moment, walk};
use crate::location::Location;
use crate::tree::{self, NewAttributes, TreeError};

mod mode_change;

use mode_change::ModeChange;

const EXAMPLES: &str = "\
Examples:
  warpfire chmod 644 pool:/notes.txt
  warpfire chmod -R u=rwX,go=rX pool:/photos
  warpfire chmod a-w,+t pool:/shared

A mode is octal, or clauses of u, g, o, a; one of + - =; and r, w, x, X, s, t, or one of u, g, o. A clause \
without u, g, o and a leaves out the bits of the umask. Write '--' before a mode that begins with '-'.

Each file is a change of its own. A file that fails is reported, the others are changed, and the exit code \
is 1.";

// Arguments of `warpfire chmod`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The permission bits, in octal or as changes.
    mode: ModeChange,

    /// The files. A symbolic link that is named is followed.
    #[arg(required = true, value_name = "POOL:/path")]
    locations: Vec<OsString>,

    /// Change directories with everything in them; symbolic links in them stay as they are.
    #[arg(long, short = 'R')]
    recursive: bool,
}

/// Changes each file.
pub fn run(args: &Args) -> Result<(), Failure> {
    let locations = Location::parse_all(&args.locations, Location::parse_followed)?;
    let umask = umask();
    let tally = Tally::default();
    for group in locations.chunk_by(|a, b| a.pool == b.pool) {
        let fs = tree::open(&group[0].pool)?;
        for Location { path, .. } in group {
            let failed = |error: TreeError| error.at(path);
            let Some(metadata) = tally.take(fs.metadata(path).map_err(failed))? else { continue };
            if !(args.recursive && metadata.is_dir()) {
                let mode = args.mode.apply(metadata.mode, metadata.is_dir(), umask);
                tally.change(fs.set(path, &to(mode)).map_err(failed))?;
                continue;
            }
            walk(&fs, &tally, &path.join(""), usize::MAX, |moment, found| {
                if moment == Moment::Left || found.metadata.is_symlink() {
                    return Ok(());
                }
                let mode = args.mode.apply(found.metadata.mode, found.metadata.is_dir(), umask);
                found.set(&fs, &to(mode))?;
                tally.count_change();
                Ok(())
            })?;
        }
        fs.close()?;
    }
    tally.finish_changes()
}

fn to(mode: u32) -> NewAttributes {
    NewAttributes { mode: Some(mode), ..NewAttributes::default() }
}

/// The creation mask of this process. The system has no call that only reads it.
pub fn umask() -> u32 {
    let mask = rustix::process::umask(rustix::fs::Mode::empty());
    rustix::process::umask(mask);
    mask.as_raw_mode()
}
