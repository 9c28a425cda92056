//! The parts that the measuring examples share: flags, a clock, and a new pool.

use std::error::Error;
use std::fs;
use std::path::PathBuf;

use warpfire::{Pool, Warpfire};
use warpfire_env::{Clock, SystemClock};

pub type ExampleResult<T> = Result<T, Box<dyn Error>>;

/// Space for the log, beside the space that an example asks for.
const SPARE_BYTES: u64 = 1 << 30;

/// Flags of the form `--name value`.
pub struct Flags {
    given: Vec<(String, String)>,
    usage: &'static str,
}

impl Flags {
    /// Parses the command line: `--image`, `--host`, and the flags named in `others`.
    pub fn parse(others: &[&str], usage: &'static str) -> ExampleResult<Flags> {
        let mut given = Vec::new();
        let mut words = std::env::args().skip(1);
        while let Some(word) = words.next() {
            let known = |name: &&str| others.contains(name) || ["image", "host"].contains(name);
            let name = word.strip_prefix("--").filter(known).ok_or(usage)?;
            given.push((name.to_owned(), words.next().ok_or(usage)?));
        }
        Ok(Flags { given, usage })
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.given.iter().rev().find(|(given, _)| given == name).map(|(_, value)| value.as_str())
    }

    /// The path that a flag names.
    pub fn path(&self, name: &str) -> Option<PathBuf> {
        self.text(name).map(PathBuf::from)
    }

    /// The value of a flag that takes a number above zero.
    pub fn number(&self, name: &str, default: u64) -> ExampleResult<u64> {
        let Some(text) = self.text(name) else { return Ok(default) };
        Ok(text.parse().ok().filter(|number| *number > 0).ok_or(self.usage)?)
    }

    /// A new pool with space for so many bytes: on the image that `--image` names, or in memory.
    pub fn pool(&self, room_bytes: u64) -> ExampleResult<Warpfire> {
        let options = Pool::options().size_bytes(room_bytes + SPARE_BYTES);
        Ok(match self.path("image") {
            Some(image) => {
                // An existing file would keep its size.
                if fs::metadata(&image).is_ok_and(|there| there.is_file()) {
                    fs::remove_file(&image)?;
                }
                options.force(true).create([image])?
            }
            None => options.in_memory()?,
        })
    }
}

/// Runs a step, and prints its time and the bytes that it wrote to the devices of the pool. Returns the
/// seconds.
pub fn measured(
    pool: Option<&Warpfire>,
    what: &str,
    step: impl FnOnce() -> ExampleResult<()>,
) -> ExampleResult<f64> {
    let written = || pool.map(|pool| pool.stats().counters().written_bytes);
    let (before, start) = (written(), SystemClock.monotonic_nanos());
    step()?;
    let seconds = (SystemClock.monotonic_nanos() - start) as f64 / 1e9;
    let wrote = match before.zip(written()) {
        Some((before, after)) => format!("{:13} bytes to devices", after - before),
        None => String::new(),
    };
    println!("{what:34} {:9.1} ms {wrote}", seconds * 1000.0);
    Ok(seconds)
}
