//! The one table of commands, options and examples. Help, man pages and completions are made from it.

use clap::{Parser, Subcommand};

use crate::commands::{
    cat, completions, cp, fsck, inspect, ls, man, mkdir, mkfs, mount, rm, scrub, slice, stat, status, tx,
    umount,
};

const EXAMPLES: &str = "\
Naming files inside a pool:
  POOL:/path       POOL is devices or image files separated by commas, or a directory of *.img files
  :/path           the pool that the environment variable WARPFIRE_POOL names

Examples:
  warpfire mkfs --size 1G a.img                          a pool in one image file
  warpfire mkfs --size 1G --data 4 --parity 2 p/{0..5}.img   six files, any two may be lost
  warpfire cp -r ~/photos p:/                            copy a tree into the pool
  warpfire mount p /mnt                                  use it like any other filesystem
  warpfire status p                                      devices, redundancy and space
  warpfire fsck p                                        check everything

Exit codes:
  0  done
  1  something that was asked for could not be done
  2  the command line does not say what to do
  3  the pool could not be opened: a device is missing, foreign, damaged or in use
  75 a transaction could not be committed, because what it read has changed
'warpfire fsck' and 'warpfire scrub' have those of fsck(8), 'warpfire tx run' those of the program that it runs.";

/// A transactional filesystem for flash.
#[derive(Parser, Debug)]
#[command(name = "warpfire", version, about, after_help = EXAMPLES, max_term_width = 110)]
pub struct Cli {
    /// Print the answer as JSON.
    #[arg(long, global = true)]
    pub json: bool,

    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Make a pool on devices or image files.
    Mkfs(mkfs::Args),
    /// Mount a pool on a directory.
    Mount(mount::Args),
    /// Unmount a pool and wait until it is closed.
    Umount(umount::Args),
    /// Show devices, redundancy, space and counters of a pool.
    Status(status::Args),
    /// Copy files into a pool, out of it, or inside it.
    Cp(cp::Args),
    /// List a directory.
    Ls(ls::Args),
    /// Print files.
    Cat(cat::Args),
    /// Remove files and directories.
    Rm(rm::Args),
    /// Show all that is known about files.
    Stat(stat::Args),
    /// Make directories.
    Mkdir(mkdir::Args),
    /// Check everything with independent code.
    Fsck(fsck::Args),
    /// Read everything and repair what parity covers.
    Scrub(scrub::Args),
    /// Rearrange files by moving pointers: join, cut, paste, shuffle.
    Slice(slice::Args),
    /// Work on a mounted pool in transactions: all of it or nothing.
    Tx(tx::Args),
    /// Look at what is on flash: labels, segments, stripes, tables, keys, inodes.
    Inspect(inspect::Args),
    /// Write the manual pages to a directory.
    #[command(hide = true)]
    Man(man::Args),
    /// Print a completion script for a shell.
    #[command(hide = true)]
    Completions(completions::Args),
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::Cli;

    #[test]
    fn the_arguments_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_shows_an_example() {
        for command in Cli::command().get_subcommands().filter(|command| !command.is_hide_set()) {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("warpfire "), "{} has no example", command.get_name());
        }
    }
}
