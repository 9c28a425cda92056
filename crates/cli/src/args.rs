//! The table of commands, options and examples. Help, manual pages and completions are generated from it.

use std::path::PathBuf;

use clap::{Parser, Subcommand};

use crate::commands::{
    cat, chmod, chown, completions, cp, device, df, du, find, fsck, help, inspect, label, ln, ls, man, mkdir,
    mkfs, mount, mv, receive, recover, rm, scan, scrub, send, slice, snapshot, stat, status, touch, trim,
    truncate, tune, tx, umount, upkeep, version, volume,
};

const EXAMPLES: &str = "\
Names of files inside a pool:
  POOL:/path  a path in the pool POOL: its devices or image files separated by
              commas, or the directory that holds its *.img files
  :/path      a path in the pool that the variable WARPFIRE_POOL names
  POOL:       the root of the pool
  LABEL=name  in place of POOL: the pool of this name, wherever it is found;
              UUID=number by its number
  PATH        a local path in a mounted pool; POOL may be mounted too, and may
              be the directory that it is mounted on
  local:PATH  a local path, even one that holds ':/'

Examples:
  warpfire mkfs --size 1G a.img     make a pool in one image file
  warpfire mkfs --size 1G --data 4 --parity 2 p/{0..5}.img
                                    make one in six; any two may be lost
  warpfire cp -r ~/photos p:/       copy a directory into the pool
  warpfire mount p /mnt             use the pool like any other filesystem
  warpfire status p                 show devices, redundancy and space
  warpfire fsck p                   check everything

Exit codes:
  0   success
  1   the command failed
  2   the command line is wrong
  3   the pool could not be opened: a device is missing, damaged, in use, or
      belongs to another pool
  75  a conflict: others have changed data that the transaction read; nothing
      was committed: repeat the work in a new transaction
'warpfire fsck' and 'warpfire scrub' use the codes of fsck(8). 'warpfire tx run' ends with the code of its \
program.

'warpfire help COMMAND' shows the options of a command with examples, and 'warpfire help topics' lists pages on \
naming, exit codes, sizes, times, transactions, slices, damage, space and JSON.";

const ABOUT: &str = "\
Warpfire is a filesystem for flash. It keeps very many small files, survives the loss of drives, never returns \
wrong bytes, and makes a change to many files atomic. This command makes pools, mounts and checks them, and works \
on the files in them, mounted or not.";

/// A transactional filesystem for flash.
#[derive(Parser, Debug)]
#[command(
    name = "warpfire",
    version,
    about = ABOUT,
    after_help = EXAMPLES,
    max_term_width = 110,
    disable_help_subcommand = true
)]
pub struct Cli {
    /// Answer in JSON on stdout, and report errors in JSON on stderr: one document a line.
    #[arg(long, global = true)]
    pub json: bool,

    /// Print and read dates and times in UTC, and not in the local zone.
    #[arg(long, global = true)]
    pub utc: bool,

    /// A file or directory in which to search for the pool that LABEL=name or UUID=number names; may be given
    /// several times.
    #[arg(long, global = true, value_name = "PATH")]
    pub search: Vec<PathBuf>,

    /// Say on stderr what happens in the pool; -vv says more.
    #[arg(long, short, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,

    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands. The parser builds the options of the one that is called: those of all take longer than many
/// calls do. Then a doc comment on the options would take the place of the command's, so they have others.
#[derive(Subcommand, Debug)]
#[command(defer = true)]
pub enum Command {
    /// Make a pool on devices or image files.
    Mkfs(mkfs::Args),
    /// Mount a pool on a directory.
    Mount(mount::Args),
    /// Unmount a pool and wait until its server has closed it.
    Umount(umount::Args),
    /// Show devices, redundancy, space and counters of a pool.
    Status(status::Args),
    /// Show the space of pools.
    Df(df::Args),
    /// Show, add and remove devices of a pool.
    Device(device::Args),
    /// List the pools on files and block devices.
    Scan(scan::Args),
    /// Read or repair a pool that has lost the roots of its devices.
    Recover(recover::Args),
    /// Show or change the name of a pool.
    Label(label::Args),
    /// Keep a pool as it is now, under a name; list and delete such snapshots.
    Snapshot(snapshot::Args),
    /// Make a directory that shows another one and can be changed: at once, whatever its size.
    Clone(volume::CloneArgs),
    /// Make, list and delete volumes: directories that are deleted at once, whatever their size.
    Volume(volume::Args),
    /// Write a snapshot, or the changes since one, to stdout as a stream.
    Send(send::Args),
    /// Read a stream from stdin into a directory of a pool.
    Receive(receive::Args),
    /// Copy files into a pool, out of it, or inside it.
    Cp(cp::Args),
    /// List directories.
    Ls(ls::Args),
    /// Print files.
    Cat(cat::Args),
    /// Find files by name, type, size and age.
    Find(find::Args),
    /// Show the space that directories and files take.
    Du(du::Args),
    /// Show the metadata of files.
    Stat(stat::Args),
    /// Make directories.
    Mkdir(mkdir::Args),
    /// Move files inside a pool: all or none.
    Mv(mv::Args),
    /// Make hard and symbolic links.
    Ln(ln::Args),
    /// Remove files and directories.
    Rm(rm::Args),
    /// Set the permission bits of files.
    Chmod(chmod::Args),
    /// Set the owner and the group of files.
    Chown(chown::Args),
    /// Set the times of files; make files that do not exist.
    Touch(touch::Args),
    /// Set the length of files.
    Truncate(truncate::Args),
    /// Check everything in a pool; write nothing.
    Fsck(fsck::Args),
    /// Read everything and repair damage from parity.
    Scrub(scrub::Args),
    /// Show how a pool gets its redundancy back; pause that, or change its rate.
    Upkeep(upkeep::Args),
    /// Change the numbers of data and parity devices, and the space that is kept free.
    Tune(tune::Args),
    /// Release the space of images and drives that a pool does not need.
    Trim(trim::Args),
    /// Join, cut, paste and shuffle files by moving pointers.
    Slice(slice::Args),
    /// Change a mounted pool in transactions: all changes or none.
    Tx(tx::Args),
    /// Show the structures on flash: labels, segments, stripes, tables, keys, inodes.
    Inspect(inspect::Args),
    /// Write the manual pages to a directory.
    Man(man::Args),
    /// Print a completion script for a shell.
    Completions(completions::Args),
    /// Show the versions of this program, of the on-disk format and of the JSON documents.
    Version(version::Args),
    /// Show the help of a command, or a page on a topic.
    Help(help::Args),
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::Cli;

    /// With the options of every command.
    fn whole() -> clap::Command {
        let mut program = Cli::command();
        program.build();
        program
    }

    #[test]
    fn the_arguments_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_options_do_not_change_what_a_command_is_about() {
        let (named, whole) = (Cli::command(), whole());
        for command in named.get_subcommands() {
            let built = whole.find_subcommand(command.get_name()).unwrap();
            assert_eq!(command.get_about().unwrap().to_string(), built.get_about().unwrap().to_string());
        }
    }

    /// Paragraphs wrap at the width of the terminal. Lines with an indent are tables and do not.
    #[test]
    fn examples_and_tables_fit_a_terminal_of_80_columns() {
        let mut commands = vec![whole()];
        while let Some(command) = commands.pop() {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            for line in help.lines().filter(|line| line.starts_with(' ')) {
                assert!(line.chars().count() <= 80, "{}: {line}", command.get_name());
            }
            commands.extend(command.get_subcommands().cloned());
        }
    }

    #[test]
    fn every_command_shows_an_example() {
        for command in whole().get_subcommands().filter(|command| !command.is_hide_set()) {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("warpfire "), "{} has no example", command.get_name());
        }
    }
}
