//! The life of snapshots on image files: a month of them under load, and one that holds everything, with
//! counts and their bounds.
//!
//! `cargo run --release -p warpfire --example snapshot_life -- CASE ...` runs one case. `scripts/snapshots`
//! runs them with their peers.
//!
//! - `days IMAGE [STEPS]`: a snapshot after each step of random overwrites, each kept for 72 steps. Then the
//!   same load without snapshots, and with snapshots that stay.
//! - `host-days DIRECTORY [STEPS]`: the same with `btrfs subvolume` in a directory of btrfs.
//! - `deletion IMAGE [FILES] [BYTES]`: a snapshot alone holds many files. It is deleted, and its space is
//!   written again.
//!
//! A line begins with `holds` or `DOES NOT HOLD`, if its figure has a bound.

mod days;
mod deletion;
mod host;

use std::error::Error;
use std::path::Path;

use warpfire_env::{Clock, SystemClock};

type Outcome<T> = Result<T, Box<dyn Error>>;

const MIB: u64 = 1 << 20;

fn now_nanos() -> u64 {
    SystemClock.monotonic_nanos()
}

fn seconds_since(start_nanos: u64) -> f64 {
    (now_nanos() - start_nanos) as f64 / 1e9
}

/// Prints one figure, and whether it is within its bound.
fn show(holds: bool, text: &str) {
    println!("{}  {text}", if holds { "holds" } else { "DOES NOT HOLD" });
}

/// Random numbers from a seed.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// Bytes that do not repeat.
    fn bytes(&mut self, len: u64) -> Vec<u8> {
        (0..len.div_ceil(8)).flat_map(|_| self.next().to_le_bytes()).take(len as usize).collect()
    }
}

/// An image file that does not exist yet: an old one would keep its size.
fn fresh(image: &Path) -> Outcome<()> {
    if image.is_file() {
        std::fs::remove_file(image)?;
    }
    Ok(())
}

fn main() -> Outcome<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default: u64| words.get(at).map_or(Ok(default), |word| word.parse());
    let path = Path::new(words.get(1).ok_or("name a case, and an image or a directory")?);
    match words[0].as_str() {
        "days" => days::of_pool(path, number(2, days::STEPS)?),
        "host-days" => days::of_host(path, number(2, days::STEPS)?),
        "deletion" => deletion::run(path, number(2, 100_000)?, number(3, 10_000)?),
        other => Err(format!("there is no case {other}").into()),
    }
}
