//! Shuffles the scenes of a film, by pointers and by copying: `scenes IMAGE MEGABYTES SCENES`.
//!
//! IMAGE is overwritten. Scenes have different lengths, so they begin at any byte. The program prints the
//! time of each step, the bytes that it wrote to the device, and how fast the film is read before and after.
//! It reads the shuffled film twice, because the first read defragments small scenes.

use std::error::Error;

use warpfire::{File, OpenOptions, Pool, Slice, Warpfire};
use warpfire_env::{Clock, SystemClock};

const READ_BYTES: usize = 1 << 20;
const MEGABYTE: f64 = 1e6;
/// Multiplying by an odd number and keeping the remainder scatters scenes.
const ODD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Space per byte of the film: for it, for its copy, and for the log until it is cleaned.
const ROOM: u64 = 4;

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [image, megabytes, scenes] = words.as_slice() else {
        return Err("usage: scenes IMAGE MEGABYTES SCENES".into());
    };
    let (bytes, scenes) = (megabytes.parse::<u64>()? << 20, scenes.parse::<u64>()?);
    // An old image would keep its size.
    if std::path::Path::new(image).is_file() {
        std::fs::remove_file(image)?;
    }
    let fs = Pool::options().size_bytes(ROOM * bytes + (1 << 30)).force(true).create([image])?;
    let make =
        |name: &str| OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&fs, name);
    let film = make("/film")?;
    let mut piece = vec![0; READ_BYTES];
    measured(&fs, "write", bytes, || {
        for at in (0..bytes).step_by(READ_BYTES) {
            piece.iter_mut().enumerate().for_each(|(i, byte)| *byte = (at >> 16) as u8 ^ i as u8);
            film.append(&piece)?;
        }
        fs.sync()
    })?;
    measured(&fs, "read the film", bytes, || read(&film))?;

    let cuts = cuts(bytes, scenes);
    let shuffled = make("/shuffled")?;
    measured(&fs, "shuffle by pointers", bytes, || {
        let taken = order(scenes).map(|n| film.yank(cuts[n]..cuts[n + 1])).collect::<Result<Vec<_>, _>>()?;
        shuffled.paste_at(&Slice::join(&taken)?, 0)?;
        fs.sync()
    })?;
    measured(&fs, "read the shuffled film", bytes, || read(&shuffled))?;
    measured(&fs, "read it again", bytes, || read(&shuffled))?;

    let copied = make("/copied")?;
    measured(&fs, "shuffle by copying", bytes, || {
        for n in order(scenes) {
            let mut scene = vec![0; usize::try_from(cuts[n + 1] - cuts[n]).expect("a scene fits in memory")];
            film.read_exact_at(&mut scene, cuts[n])?;
            copied.append(&scene)?;
        }
        fs.sync()
    })?;
    if !same(&shuffled, &copied, bytes)? {
        return Err("the two shuffled films differ".into());
    }
    measured(&fs, "copy the film by pointers", bytes, || fs.copy("/film", "/again").map(|_| ()))?;
    Ok(())
}

/// The offsets at which scenes begin and end, at uneven distances.
fn cuts(bytes: u64, scenes: u64) -> Vec<u64> {
    let even = |n: u64| n * (bytes / scenes);
    let uneven = |n: u64| even(n) + n.wrapping_mul(ODD) % (bytes / scenes / 2).max(1);
    std::iter::once(0).chain((1..scenes).map(uneven)).chain([bytes]).collect()
}

/// The scenes in a scattered order, each once.
fn order(scenes: u64) -> impl Iterator<Item = usize> {
    let mut all: Vec<u64> = (0..scenes).collect();
    all.sort_by_key(|n| n.wrapping_mul(ODD));
    all.into_iter().map(|n| usize::try_from(n).expect("few scenes"))
}

fn read(file: &File) -> warpfire::Result<()> {
    let mut piece = vec![0; READ_BYTES];
    let mut at = 0;
    loop {
        match file.read_at(&mut piece, at)? {
            0 => return Ok(()),
            read => at += read as u64,
        }
    }
}

fn same(one: &File, other: &File, bytes: u64) -> warpfire::Result<bool> {
    let (mut left, mut right) = (vec![0; READ_BYTES], vec![0; READ_BYTES]);
    for at in (0..bytes).step_by(READ_BYTES) {
        if one.read_at(&mut left, at)? != other.read_at(&mut right, at)? || left != right {
            return Ok(false);
        }
    }
    Ok(true)
}

fn measured(
    fs: &Warpfire,
    what: &str,
    bytes: u64,
    step: impl FnOnce() -> warpfire::Result<()>,
) -> warpfire::Result<()> {
    let written = || fs.stats().devices.iter().map(|device| device.counters.written_bytes).sum::<u64>();
    let (before, start) = (written(), SystemClock.monotonic_nanos());
    step()?;
    let seconds = seconds_since(start);
    let (rate, wrote) = (bytes as f64 / MEGABYTE / seconds, written() - before);
    println!("{what:28} {:9.1} ms {rate:9.0} MB/s {wrote:12} bytes written", seconds * 1000.0);
    Ok(())
}

fn seconds_since(start: u64) -> f64 {
    (SystemClock.monotonic_nanos() - start) as f64 / 1e9
}
