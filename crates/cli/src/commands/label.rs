//! `warpfire label`: the name of a pool.
//!
//! The server of a mounted pool changes it. A pool that is not mounted is opened for it.

use std::ffi::OsString;

use serde::Serialize;
use warpfire::Pool;
use warpfire_terminal::{Failure, is_json, print, print_json, quoted};

use super::mount::control::wire::{Answer, Request};
use super::mount::control::{ServerConnection, foreign_answer};
use super::{pool, status};
use crate::location::PoolName;

/// Most bytes of a name.
const BYTES_MAX: usize = 64;

const EXAMPLES: &str = "\
Examples:
  warpfire label pool                show the name of the pool
  warpfire label pool photos         name it
  warpfire label /mnt photos         the pool that is mounted on a directory
  warpfire label --clear pool        without a name";

// Arguments of `warpfire label`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Devices or image files separated by commas, a directory of *.img files, or a directory of the mounted
    /// pool.
    #[arg(value_name = "POOL")]
    pool: OsString,

    /// The new name: at most 64 bytes without control characters.
    #[arg(value_name = "NAME", value_parser = parse_label)]
    name: Option<String>,

    /// Take the name from the pool.
    #[arg(long, conflicts_with = "name")]
    clear: bool,
}

/// The name of a pool, as JSON.
#[derive(Debug, Serialize)]
pub struct LabelOutput {
    /// The id of the pool.
    pool: String,
    /// Its name; empty if it has none.
    label: String,
}

/// A name from the command line.
///
/// # Errors
/// It is too long, or has a control character.
pub fn parse_label(text: &str) -> Result<String, String> {
    if text.len() > BYTES_MAX {
        return Err(format!("a name has at most {BYTES_MAX} bytes, and this one has {}", text.len()));
    }
    if text.chars().any(char::is_control) {
        return Err("a name has no control characters".to_owned());
    }
    Ok(text.to_owned())
}

/// Shows or changes the name.
pub fn run(args: &Args) -> Result<(), Failure> {
    let name = PoolName::new(&args.pool);
    let new = args.name.clone().or_else(|| args.clear.then(String::new));
    if let Some(label) = new {
        match ServerConnection::of_pool(&name)? {
            Some(server) => match server.ask(Request::SetLabel { label }, |_| ())? {
                Answer::Labelled => {}
                _ => return Err(foreign_answer()),
            },
            None => {
                let opened = pool::open_as(&Pool::options(), &name)?;
                opened.set_label(&label).map_err(|error| Failure::pool(&error))?;
                opened.close().map_err(|error| Failure::pool(&error))?;
            }
        }
    }
    let status = status::report(&args.pool)?;
    if is_json() {
        return print_json(&LabelOutput { pool: status.pool, label: status.label });
    }
    match status.label.as_str() {
        "" => print(format!("pool {} has no name\n", status.pool)),
        label => print(format!("pool {} is named {}\n", status.pool, quoted(label.as_ref()))),
    }
}
