//! A snapshot alone holds many files. It is deleted, and its space is written again.

use std::path::Path;

use warpfire::{ErrorKind, Pool, Warpfire};

use super::{MIB, Outcome, Rng, fresh, now_nanos, seconds_since, show};

/// Files of one directory.
const A_DIRECTORY: u64 = 1000;

fn fill(fs: &Warpfire, files: u64, bytes: u64) -> Outcome<()> {
    let mut rng = Rng(3);
    let block = rng.bytes(bytes + MIB);
    for number in 0..files {
        if number.is_multiple_of(A_DIRECTORY) {
            fs.create_dir(format!("/{}", number / A_DIRECTORY))?;
        }
        let at = rng.below(MIB) as usize;
        let mut content = block[at..at + bytes as usize].to_vec();
        content[..8].copy_from_slice(&number.to_le_bytes());
        fs.write(format!("/{}/{number}", number / A_DIRECTORY), content)?;
    }
    Ok(fs.sync()?)
}

/// Writes so many bytes as files of 1 MiB. A full pool is asked again until the deadline.
fn write_again(fs: &Warpfire, bytes: u64, deadline_nanos: u64) -> Outcome<u64> {
    let (mut rng, mut written) = (Rng(9), 0);
    let content = rng.bytes(MIB);
    while written < bytes {
        match fs.write(format!("/again-{}", written / MIB), &content) {
            Ok(()) => written += MIB,
            Err(error) if error.kind() == ErrorKind::NoSpace && now_nanos() < deadline_nanos => {}
            Err(error) if error.kind() == ErrorKind::NoSpace => return Ok(written),
            Err(error) => return Err(error.into()),
        }
    }
    fs.sync()?;
    Ok(written)
}

pub fn run(image: &Path, files: u64, bytes: u64) -> Outcome<()> {
    fresh(image)?;
    let all = files * bytes;
    // Room for the files and their metadata once, and not twice.
    let size_bytes = all * 13 / 10 + files * 200 + 512 * MIB;
    let fs = Pool::options().size_bytes(size_bytes).force(true).create([image])?;
    fill(&fs, files, bytes)?;
    fs.create_snapshot("all")?;
    let start_nanos = now_nanos();
    for directory in 0..files.div_ceil(A_DIRECTORY) {
        fs.remove_dir_all(format!("/{directory}"))?;
    }
    fs.sync()?;
    println!("{files} files of {bytes} bytes removed in {:.1} s", seconds_since(start_nanos));
    let start_nanos = now_nanos();
    let promised = fs.snapshot_space()?[0].alone_bytes;
    println!(
        "counted in {:.2} s: deleting the snapshot frees {} MiB",
        seconds_since(start_nanos),
        promised / MIB
    );
    let before = fs.space()?.available_bytes;
    let start_nanos = now_nanos();
    fs.delete_snapshot("all")?;
    let deletion_ms = seconds_since(start_nanos) * 1e3;
    show(deletion_ms <= 10.0, &format!("the deletion returned after {deletion_ms:.1} ms"));
    let at_once = fs.space()?.available_bytes;
    let shown = at_once.saturating_sub(before);
    show(
        shown.abs_diff(promised) * 100 <= promised,
        &format!(
            "df: {} MiB available before, {} at once after: {} more",
            before / MIB,
            at_once / MIB,
            shown / MIB
        ),
    );
    let start_nanos = now_nanos();
    let written = write_again(&fs, promised / MIB * MIB, start_nanos + 60_000_000_000)?;
    show(
        written >= promised / MIB * MIB,
        &format!(
            "{} MiB of {} were written again in {:.1} s",
            written / MIB,
            promised / MIB,
            seconds_since(start_nanos)
        ),
    );
    Ok(fs.close()?)
}
