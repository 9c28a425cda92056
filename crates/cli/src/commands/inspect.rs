//! `warpfire inspect`: show the structures on flash, through the independent reader. Nothing is written.

use std::ffi::{OsStr, OsString};

use clap::Subcommand;
use warpfire_check::CheckError;
use warpfire_check::inspect::{self, DumpValue};
use warpfire_terminal::{Failure, is_json, print, print_json};

use super::pool::{self, OTHER_VERSION, devices};
use crate::location::{Location, PoolName};

const EXAMPLES: &str = "\
Examples:
  warpfire inspect label pool            the roots on the devices
  warpfire inspect segments pool         all live segments
  warpfire inspect stripe pool 17 0      the first stripe of segment 17
  warpfire inspect tables pool           the tables of the metadata engine
  warpfire inspect inode pool:/photos    all records of one file

The pool must not be mounted.";

// Arguments of `warpfire inspect`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    target: InspectTarget,
}

// The structures. Every variant begins with the pool.
#[derive(Subcommand, Debug)]
#[command(defer = true)]
enum InspectTarget {
    /// Show the roots on the devices.
    Label {
        /// Devices or image files separated by commas, or a directory of *.img files.
        pool: OsString,
    },
    /// List all live segments.
    Segments {
        /// Devices or image files separated by commas, or a directory of *.img files.
        pool: OsString,
    },
    /// Show one segment with its stripes.
    Segment {
        /// Devices or image files separated by commas, or a directory of *.img files.
        pool: OsString,
        /// The segment's number.
        segment: u64,
    },
    /// Show one stripe, on each column.
    Stripe {
        /// Devices or image files separated by commas, or a directory of *.img files.
        pool: OsString,
        /// The segment's number.
        segment: u64,
        /// The stripe's position in the segment, from 0.
        stripe: u32,
    },
    /// List the tables of the metadata engine.
    Tables {
        /// Devices or image files separated by commas, or a directory of *.img files.
        pool: OsString,
    },
    /// Show one table with its contents.
    Table {
        /// Devices or image files separated by commas, or a directory of *.img files.
        pool: OsString,
        /// The table's number.
        table: u64,
    },
    /// Show all versions of one key.
    Key {
        /// Devices or image files separated by commas, or a directory of *.img files.
        pool: OsString,
        /// The key, in hexadecimal.
        key: String,
    },
    /// Show all records of one file.
    Inode {
        /// The file, by path.
        #[arg(value_name = "POOL:/path")]
        location: OsString,
    },
}

/// Prints the structure.
pub fn run(args: &Args) -> Result<(), Failure> {
    let open = |pool: &OsStr| devices(&PoolName::new(pool));
    let dump = match &args.target {
        InspectTarget::Label { pool } => inspect::root(&open(pool)?),
        InspectTarget::Segments { pool } => inspect::segments(&open(pool)?),
        InspectTarget::Segment { pool, segment } => inspect::segment(&open(pool)?, *segment),
        InspectTarget::Stripe { pool, segment, stripe } => inspect::stripe(&open(pool)?, *segment, *stripe),
        InspectTarget::Tables { pool } => inspect::tables(&open(pool)?),
        InspectTarget::Table { pool, table } => inspect::table(&open(pool)?, *table),
        InspectTarget::Key { pool, key } => inspect::key(&open(pool)?, &bytes_of(key)?),
        InspectTarget::Inode { location } => {
            let location = Location::parse(location)?;
            let number = number_of(&location)?;
            inspect::inode(&devices(&location.pool)?, number)
        }
    }
    .map_err(failed)?;
    match &dump {
        _ if !is_json() => print(dump.to_string()),
        DumpValue::List(entries) => entries.iter().try_for_each(print_json),
        dump => print_json(dump),
    }
}

fn failed(error: CheckError) -> Failure {
    match error {
        CheckError::NotFound(_) => Failure::new(error),
        CheckError::OtherVersion(_) => Failure::unreadable(error).hint(OTHER_VERSION),
        _ => Failure::unreadable(error),
    }
}

/// The inode number of a file.
fn number_of(location: &Location) -> Result<u64, Failure> {
    let fs = pool::open_for_reading(&location.pool)?;
    let metadata =
        fs.symlink_metadata(&location.path).map_err(|error| Failure::at(&location.path, &error))?;
    Ok(metadata.ino())
}

fn bytes_of(hexadecimal: &str) -> Result<Vec<u8>, Failure> {
    let wrong = || {
        Failure::usage(format_args!("the key '{hexadecimal}' is not hexadecimal"))
            .hint("write two digits for each byte")
    };
    let digits = hexadecimal.chars().map(|digit| digit.to_digit(16));
    let digits = digits.collect::<Option<Vec<u32>>>().ok_or_else(wrong)?;
    let (pairs, []) = digits.as_chunks::<2>() else { return Err(wrong()) };
    Ok(pairs
        .iter()
        .map(|[high, low]| u8::try_from(high * 16 + low).expect("two digits are a byte"))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hexadecimal_is_whole_bytes() {
        assert_eq!(bytes_of("00ff10").expect("bytes"), [0, 0xff, 0x10]);
        assert!(bytes_of("0").is_err() && bytes_of("xy").is_err());
    }
}
