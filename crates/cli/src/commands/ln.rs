//! `warpfire ln`: give files further names inside a pool, all of them in one transaction.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use warpfire::Tx;
use warpfire_terminal::{Failure, shown};

use super::pool;
use super::tally::Tally;
use super::targets::Targets;
use crate::location::{Location, PathArgument};

const EXAMPLES: &str = "\
Examples:
  warpfire ln pool:/film pool:/again         another name of the same file
  warpfire ln -s ../films/one pool:/one      a symbolic link
  warpfire ln -sf v2 pool:/current           point a link elsewhere

A command is one transaction: it makes all links, or after a failure none. The text of a symbolic link is \
stored as it is written. On a mount an absolute text begins at the root of the system, and not at that of \
the pool.";

/// Arguments of `warpfire ln`.
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
    let fs = pool::open(&link.pool)?;
    let tx = fs.begin()?;
    let places = if targets.len() == 1 && args.symbolic && args.force && is_link(&tx, &link.path) {
        // The link itself is replaced, also one that points to a directory.
        None
    } else {
        Some(Targets::new(&tx, targets.len(), &link.path)?)
    };
    let tally = Tally::default();
    for target in &targets {
        let target = Path::new(target);
        let name = places.as_ref().map_or(Ok(link.path.clone()), |places| places.of(target));
        tally.take(name.and_then(|name| args.link(&tx, target, &name)))?;
    }
    tally.finish_whole("linked")?;
    tx.commit()?;
    Ok(fs.close()?)
}

fn is_link(tx: &Tx, path: &Path) -> bool {
    tx.symlink_metadata(path).is_ok_and(|metadata| metadata.is_symlink())
}

impl Args {
    /// The path of a file in the pool, or the text of a symbolic link.
    fn target(&self, argument: &OsString, link: &Location) -> Result<OsString, Failure> {
        match (PathArgument::parse(argument), self.symbolic) {
            (PathArgument::Pool(location), false) if location.pool == link.pool => Ok(location.path.into()),
            (PathArgument::Pool(location), false) => {
                Err(Failure::usage(format_args!("{} is in another pool", shown(&location.path)))
                    .hint("a file has all its names in one pool; copy it with 'warpfire cp'"))
            }
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
            (PathArgument::Local(_), false) => Location::parse(argument).map(|location| location.path.into()),
        }
    }

    fn link(&self, tx: &Tx, target: &Path, name: &Path) -> Result<(), Failure> {
        let failed = |error| Failure::at(name, &error);
        if self.force
            && let Ok(there) = tx.symlink_metadata(name)
        {
            if !self.symbolic && tx.symlink_metadata(target).is_ok_and(|file| file.ino() == there.ino()) {
                return Err(Failure::new(format_args!(
                    "{} and {} are the same file",
                    shown(target),
                    shown(name)
                )));
            }
            tx.remove_file(name).map_err(failed)?;
        }
        if self.symbolic {
            return tx.symlink(target, name).map_err(failed);
        }
        let original = tx.symlink_metadata(target).map_err(|error| Failure::at(target, &error))?;
        if original.is_dir() {
            return Err(Failure::new(format_args!("{} is a directory", shown(target)))
                .hint("a directory has one name; make a symbolic link with -s"));
        }
        tx.hard_link(target, name).map_err(failed)
    }
}
