//! The commands: one module for each, with its arguments and its function `run`.

use std::process::ExitCode;

use warpfire_terminal::Failure;

use crate::args::{Cli, Command};

pub mod cat;
pub mod chmod;
pub mod chown;
pub mod completions;
pub mod cp;
pub mod device;
pub mod df;
pub mod du;
pub mod find;
pub mod fsck;
pub mod help;
pub mod inspect;
pub mod label;
pub mod ln;
pub mod ls;
pub mod man;
pub mod mkdir;
pub mod mkfs;
pub mod mount;
pub mod mv;
pub mod receive;
pub mod recover;
pub mod rm;
pub mod scan;
pub mod scrub;
pub mod send;
pub mod slice;
pub mod snapshot;
pub mod stat;
pub mod status;
pub mod touch;
pub mod trim;
pub mod truncate;
pub mod tune;
pub mod tx;
pub mod umount;
pub mod upkeep;
pub mod version;
pub mod volume;

mod confirmation;
mod damage;
pub mod pool;
mod tally;
mod targets;
mod walk;

/// Runs the command.
pub fn run(cli: Cli) -> Result<ExitCode, Failure> {
    match cli.command {
        Command::Mkfs(args) => mkfs::run(&args),
        Command::Mount(args) => mount::run(&args),
        Command::Umount(args) => umount::run(&args),
        Command::Status(args) => return status::run(&args),
        Command::Cp(args) => cp::run(&args),
        Command::Ls(args) => ls::run(&args),
        Command::Cat(args) => cat::run(&args),
        Command::Rm(args) => rm::run(&args),
        Command::Mv(args) => mv::run(&args),
        Command::Ln(args) => ln::run(&args),
        Command::Chmod(args) => chmod::run(&args),
        Command::Chown(args) => chown::run(&args),
        Command::Touch(args) => touch::run(&args),
        Command::Truncate(args) => truncate::run(&args),
        Command::Du(args) => du::run(&args),
        Command::Device(args) => device::run(&args),
        Command::Df(args) => df::run(&args),
        Command::Find(args) => find::run(&args),
        Command::Slice(args) => slice::run(&args),
        Command::Tx(args) => return tx::run(&args),
        Command::Stat(args) => stat::run(&args),
        Command::Mkdir(args) => mkdir::run(&args),
        Command::Fsck(args) => return fsck::run(&args),
        Command::Scrub(args) => return scrub::run(&args),
        Command::Scan(args) => scan::run(&args),
        Command::Recover(args) => recover::run(&args),
        Command::Label(args) => label::run(&args),
        Command::Snapshot(args) => snapshot::run(&args),
        Command::Clone(args) => volume::run_clone(&args),
        Command::Volume(args) => volume::run(&args),
        Command::Send(args) => send::run(&args),
        Command::Receive(args) => receive::run(&args),
        Command::Trim(args) => trim::run(&args),
        Command::Upkeep(args) => upkeep::run(&args),
        Command::Tune(args) => tune::run(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Man(args) => man::run(&args),
        Command::Completions(args) => completions::run(&args),
        Command::Version(args) => version::run(&args),
        Command::Help(args) => help::run(&args),
    }?;
    Ok(ExitCode::SUCCESS)
}
