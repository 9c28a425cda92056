//! The life of a pool on image files: losses, returns, kills and another shape, with counts and their bounds.
//!
//! `cargo run --release -p warpfire --example pool_life -- DIRECTORY [CASE...] [--mib N] [--away SECONDS]`
//! runs the cases of that number, or all, on images in DIRECTORY, which must not hold any. N is the size of
//! the data (256). The device of case 4 is away for SECONDS at least (0).
//! Each line begins with the number of its case and says whether the bound holds. `scripts/pool-life` runs it
//! with its peers.
//!
//! | case | what happens |
//! |---|---|
//! | 1 | a device is rebuilt, and the bytes are counted |
//! | 2 | two of nine devices are lost one after the other, and then a third |
//! | 3 | a sparse pool of 1 TiB loses a device, empty and with little data |
//! | 4 | a device is away while the pool is written, and comes back |
//! | 5 | devices join, leave and are replaced under load, and the process is killed twenty times in each |
//! | 7 | a pool of 4 + 2 becomes one of 8 + 3 under load, paused, killed and resumed |
//! | 8 | programs read and write beside a scrub and a rebuild: the times of their calls |
//! | 9 | 4 KiB are read at random places, with all devices and with two of six lost |

mod bench_pool;
mod beside;
mod kills;
mod losses;
mod rebuild;
mod shape;

use std::path::PathBuf;
use std::time::Duration;

use bench_pool::Outcome;

fn main() -> Outcome<()> {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|word| word == "--verb") {
        return kills::run_verb(&arguments[1..]);
    }
    let mut option = |name: &str, default: u64| -> Outcome<u64> {
        let Some(at) = arguments.iter().position(|word| word == name) else { return Ok(default) };
        let number = arguments.get(at + 1).ok_or(format!("{name} needs a number"))?.parse()?;
        arguments.drain(at..at + 2);
        Ok(number)
    };
    let mib = option("--mib", 256)?;
    let away = Duration::from_secs(option("--away", 0)?);
    let directory = PathBuf::from(arguments.first().ok_or("name a directory for the images")?);
    let chosen: Vec<u32> = arguments[1..].iter().map(|word| word.parse()).collect::<Result<_, _>>()?;
    for case in [1, 2, 3, 4, 5, 7, 8, 9] {
        if !chosen.is_empty() && !chosen.contains(&case) {
            continue;
        }
        match case {
            1 => rebuild::one(&directory, mib)?,
            2 => losses::two_and_a_third(&directory, mib)?,
            3 => losses::sparse(&directory, mib)?,
            4 => losses::away_and_back(&directory, mib, away)?,
            5 => {
                kills::count_remove(&directory, mib)?;
                kills::verbs(&directory, mib.min(64))?;
            }
            7 => shape::convert(&directory, mib)?,
            8 => beside::programs(&directory, mib)?,
            _ => beside::degraded(&directory, mib)?,
        }
    }
    Ok(())
}
