//! `warpfire mv`: give files new names inside a pool, all of them in one transaction.

use std::ffi::OsString;
use std::path::Path;

use warpfire_terminal::{Failure, shown};

use super::tally::Tally;
use super::targets::Targets;
use crate::location::{Location, names_directory};
use crate::tree::{self, TransactionTree, Tree, TreeError};

const EXAMPLES: &str = "\
Examples:
  warpfire mv pool:/draft pool:/final
  warpfire mv pool:/1.jpg pool:/2.jpg pool:/photos/
  warpfire mv --exchange pool:/current pool:/next

A command is one transaction, on a mount too: it moves all files, or after a failure none. A file that has the new name is \
replaced. Between pools nothing is moved: copy with 'warpfire cp', then remove with 'warpfire rm'.";

// Arguments of `warpfire mv`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The files and directories to move.
    #[arg(required = true, value_name = "POOL:/path")]
    sources: Vec<OsString>,

    /// The new name, or an existing directory.
    #[arg(required = true, value_name = "DESTINATION")]
    destination: OsString,

    /// Replace nothing: report a file whose new name is taken, and move the others.
    #[arg(long, short, overrides_with = "force")]
    no_clobber: bool,

    /// Replace files that have the new name, as without -n.
    #[arg(long, short, overrides_with = "no_clobber")]
    force: bool,

    /// Swap two names, so that both exist at every moment.
    #[arg(long, conflicts_with_all = ["force", "no_clobber"])]
    exchange: bool,
}

/// Moves the files.
pub fn run(args: &Args) -> Result<(), Failure> {
    let parse = if args.exchange { Location::parse_name } else { Location::parse };
    let destination = parse(&args.destination)?;
    let sources = Location::parse_all(&args.sources, Location::parse_name)?;
    if let Some(other) = sources.iter().find(|source| !source.pool.is_same(&destination.pool)) {
        return Err(Failure::usage(format_args!("{} is in another pool", shown(&other.path)))
            .hint("copy it with 'warpfire cp -r', then remove it with 'warpfire rm -r'"));
    }
    if args.exchange && sources.len() != 1 {
        return Err(Failure::usage("--exchange swaps two names").hint("name two files"));
    }
    let fs = tree::open(&destination.pool)?;
    let kept = tree::transact(&fs, |tx| args.move_all(&fs, tx, &sources, &destination))?;
    fs.close()?;
    kept.finish_changes()
}

impl Args {
    /// Moves the files in a transaction. Returns the count of those that it has moved, and of those that -n
    /// has kept: these are no failure of the transaction.
    fn move_all(
        &self,
        fs: &Tree,
        tx: &TransactionTree,
        sources: &[Location],
        destination: &Location,
    ) -> Result<Tally, Failure> {
        let (tally, kept) = (Tally::default(), Tally::default());
        if self.exchange {
            let path = &sources.first().expect("a source is named").path;
            for path in [path, &destination.path] {
                fs.check_slash(path, |path| tx.symlink_metadata(path))?;
            }
            let swapped = tx.exchange(path, &destination.path).map_err(|error| error.at(path));
            if tally.take(swapped)?.is_some() {
                // Both names have another file now.
                kept.count_change();
                kept.count_change();
            }
        } else {
            let targets = Targets::new(fs, tx, sources.len(), &destination.path)?;
            for Location { path, .. } in sources {
                let moved = targets.of(path).and_then(|to| self.rename(fs, tx, &kept, path, &to));
                if tally.take(moved)? == Some(true) {
                    kept.count_change();
                }
            }
        }
        tally.check_whole("moved")?;
        Ok(kept)
    }

    /// Moves a file. `false` if -n keeps it where it is.
    fn rename(
        &self,
        fs: &Tree,
        tx: &TransactionTree,
        kept: &Tally,
        from: &Path,
        to: &Path,
    ) -> Result<bool, Failure> {
        let failed = |error: TreeError| error.at(from);
        fs.check_slash(from, |path| tx.symlink_metadata(path))?;
        let metadata = tx.symlink_metadata(from).map_err(failed)?;
        if names_directory(to) && !metadata.is_dir() {
            return Err(fs.not_a_directory(to));
        }
        if let Ok(there) = tx.symlink_metadata(to)
            && there.ino == metadata.ino
        {
            let names = format!("{} and {} are", fs.shown(from), fs.shown(to));
            if metadata.is_dir() || metadata.nlink == 1 || is_one_name(tx, from, to) {
                return Err(Failure::new(format_args!("{names} the same file")));
            }
            if self.no_clobber {
                kept.report(&Failure::new(format_args!("{names} two names of one file; both stay")));
                return Ok(false);
            }
            // A rename between two names of one file does nothing, as POSIX says.
            return tx.remove_file(from).map(|()| true).map_err(failed);
        }
        if !self.no_clobber {
            return tx.rename(from, to).map(|()| true).map_err(failed);
        }
        match tx.rename_new(from, to) {
            Err(error) if error.is_already_exists() => {
                kept.report(&Failure::new(format_args!("{}: {} is taken", fs.shown(from), fs.shown(to))));
                Ok(false)
            }
            other => other.map(|()| true).map_err(failed),
        }
    }
}

/// Whether two paths lead to one name of one directory.
fn is_one_name(tx: &TransactionTree, a: &Path, b: &Path) -> bool {
    let directory = |path: &Path| tx.metadata(path.parent().unwrap_or(path)).map(|parent| parent.ino).ok();
    a.file_name() == b.file_name() && directory(a) == directory(b)
}
