//! `warpfire ln`: give files further names inside a pool, all of them in one transaction.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use warpfire_terminal::{Failure, shown};

use super::tally::Tally;
use super::targets::Targets;
use crate::location::{Location, PathArgument, names_directory};
use crate::tree::{self, TransactionTree, Tree, TreeError};

const EXAMPLES: &str = "\
Examples:
  warpfire ln pool:/film pool:/again         another name of the same file
  warpfire ln -s ../films/one pool:/one      a symbolic link
  warpfire ln -sf v2 pool:/current           point a link elsewhere

A command is one transaction: it makes all links, or after a failure none. The text of a symbolic link is \
stored as it is written. On a mount an absolute text begins at the root of the system, and not at that of \
the pool.";

// Arguments of `warpfire ln`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The files to link to; with -s the texts of the links.
    #[arg(required = true, value_name = "TARGET")]
    targets: Vec<OsString>,

    /// The name of the link, or an existing directory.
    #[arg(required = true, value_name = "POOL:/path")]
    link: OsString,

    /// Make symbolic links.
    #[arg(long, short)]
    symbolic: bool,

    /// Replace files and links that have the name of a link.
    #[arg(long, short)]
    force: bool,
}

/// Makes the links.
pub fn run(args: &Args) -> Result<(), Failure> {
    let link = Location::parse(&args.link)?;
    let targets = args.targets.iter().map(|target| args.target(target, &link));
    let targets = targets.collect::<Result<Vec<_>, _>>()?;
    let fs = tree::open(&link.pool)?;
    let tally = tree::transact(&fs, |tx| args.link_all(&fs, tx, &targets, &link.path))?;
    fs.close()?;
    tally.finish_changes()
}

fn is_link(tx: &TransactionTree, path: &Path) -> bool {
    tx.symlink_metadata(path).is_ok_and(|metadata| metadata.is_symlink())
}

fn elsewhere(location: &Location) -> Failure {
    Failure::usage(format_args!("{} is in another pool", shown(&location.path)))
        .hint("a file has all its names in one pool; copy it with 'warpfire cp'")
}

impl Args {
    /// The path of a file in the pool, or the text of a symbolic link.
    fn target(&self, argument: &OsString, link: &Location) -> Result<OsString, Failure> {
        match (PathArgument::parse(argument), self.symbolic) {
            (PathArgument::Pool(location), false) if location.pool == link.pool => Ok(location.path.into()),
            (PathArgument::Pool(location), false) => Err(elsewhere(&location)),
            (PathArgument::Pool(location), true) => {
                Err(Failure::usage(format_args!("'{}' names a pool", shown(Path::new(argument)))).hint(
                    format_args!(
                        "a link holds a path alone: write '{}', or the way there from the link",
                        shown(&location.path)
                    ),
                ))
            }
            (PathArgument::Local(_), true) if argument.as_bytes().is_empty() => {
                Err(Failure::usage("a symbolic link needs a text").hint("name its target"))
            }
            (PathArgument::Local(text), true) => Ok(text.into()),
            (PathArgument::Local(_), false) => {
                let location = Location::parse(argument)?;
                if location.pool.is_same(&link.pool) {
                    Ok(location.path.into())
                } else {
                    Err(elsewhere(&location))
                }
            }
        }
    }

    /// Makes the links in a transaction, and counts them.
    fn link_all(
        &self,
        fs: &Tree,
        tx: &TransactionTree,
        targets: &[OsString],
        link: &Path,
    ) -> Result<Tally, Failure> {
        let places = if targets.len() == 1 && self.symbolic && self.force && is_link(tx, link) {
            // The link itself is replaced, also one that points to a directory.
            None
        } else {
            Some(Targets::new(fs, tx, targets.len(), link)?)
        };
        let tally = Tally::default();
        for target in targets {
            let target = Path::new(target);
            let name = places.as_ref().map_or(Ok(link.to_path_buf()), |places| places.of(target));
            tally.change(name.and_then(|name| self.link(fs, tx, target, &name)))?;
        }
        tally.check_whole("linked")?;
        Ok(tally)
    }

    fn link(&self, fs: &Tree, tx: &TransactionTree, target: &Path, name: &Path) -> Result<(), Failure> {
        let failed = |error: TreeError| error.at(name);
        if names_directory(name) {
            return Err(fs.not_a_directory(name));
        }
        if self.force
            && let Ok(there) = tx.symlink_metadata(name)
        {
            if !self.symbolic && tx.symlink_metadata(target).is_ok_and(|file| file.ino == there.ino) {
                return Err(Failure::new(format_args!(
                    "{} and {} are the same file",
                    fs.shown(target),
                    fs.shown(name)
                )));
            }
            tx.remove_file(name).map_err(failed)?;
        }
        if self.symbolic {
            return tx.symlink(target.as_os_str(), name).map_err(failed);
        }
        let original = tx.symlink_metadata(target).map_err(|error| error.at(target))?;
        if original.is_dir() {
            return Err(Failure::new(format_args!("{} is a directory", fs.shown(target)))
                .hint("a directory has one name; make a symbolic link with -s"));
        }
        tx.hard_link(target, name).map_err(failed)
    }
}
