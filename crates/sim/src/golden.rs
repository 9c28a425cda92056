//! Golden images: devices as text, so that the project keeps one image of each format version and opens it
//! for ever.
//!
//! ```text
//! device NAME SIZE_BYTES        then, for each block that is not all zeros:
//! BLOCK: RUN RUN …              RUN is hex bytes, or xx*N for N times the same byte
//! ```

use warpfire_fs::RenameMode;
use warpfire_sim_env::{DeviceSpec, SimWorld};
use warpfire_units::BLOCK_BYTES;

use crate::model::{Picture, show_path};
use crate::op::{Fill, Op};
use crate::session::{Session, Violation};
use crate::stack::Shape;

/// Runs of the same byte from this length on are written as a count.
const RUN_MIN: usize = 8;

/// The shape of the golden pool.
pub const SHAPE: Shape = Shape { zones: 16, zone_bytes: 128 << 10, ..Shape::TINY };

/// The shape of the golden pool with snapshots, which keeps old versions and needs more room.
pub const SHAPE_WITH_SNAPSHOTS: Shape = Shape { zones: 32, ..SHAPE };

/// Makes the golden pool of today's format: every kind of file, data in the commit log, in tables and in
/// slices.
///
/// # Errors
/// If the product disagrees with the model.
pub fn make() -> Result<Session, Violation> {
    let mut session = Session::make(SHAPE, 1)?;
    let path = |text: &str| text.split('/').map(|name| name.as_bytes().to_vec()).collect::<Vec<_>>();
    let fill = |len, seed| Fill { len, seed };
    let ops = [
        Op::Mkdir(path("folder")),
        Op::Put(path("folder/small"), fill(300, 1)),
        Op::Put(path("large"), fill(34_000, 2)),
        Op::CopyRange(path("large"), crate::op::Span { offset: 5, len: 20_000 }, path("folder/small"), 100),
        Op::Symlink(path("link"), b"folder/small".to_vec()),
        Op::Mkfifo(path("pipe")),
        Op::Link(path("large"), path("folder/second")),
        Op::SetXattr(path("folder"), b"user.color".to_vec(), fill(20, 3)),
        Op::Reopen,
        Op::Append(path("folder/small"), fill(50, 4)),
        Op::Truncate(path("large"), 33_000),
        Op::SetMode(path("pipe"), 0o600),
        Op::Sync,
    ];
    for op in &ops {
        session.step(op)?;
    }
    Ok(session)
}

/// Makes a pool of today's format with snapshots: of one file the tables have versions that only snapshots
/// show, and some of these are in tables of the past.
///
/// # Errors
/// If the product disagrees with the model.
pub fn make_with_snapshots() -> Result<Session, Violation> {
    let mut session = Session::make(SHAPE_WITH_SNAPSHOTS, 1)?;
    let path = |text: &str| text.split('/').map(|name| name.as_bytes().to_vec()).collect::<Vec<_>>();
    let mut ops = vec![Op::Mkdir(path("dir")), Op::Put(path("dir/kept"), Fill { len: 9000, seed: 1 })];
    for round in 0..6u8 {
        let name = format!("dir/of round {round}");
        ops.extend([
            Op::Put(path(&name), Fill { len: 100, seed: u64::from(round) }),
            Op::Write(
                path("dir/kept"),
                4096 * u64::from(round % 3),
                Fill { len: 50, seed: u64::from(round) },
            ),
            Op::SetMode(path("dir/kept"), 0o600 + u32::from(round)),
            Op::Snapshot(format!("after {round}").into_bytes()),
            Op::Unlink(path(&name)),
            Op::Reopen,
            Op::Background(8),
        ]);
    }
    ops.extend([Op::DropSnapshot(b"after 2".to_vec()), Op::Sync]);
    for op in &ops {
        session.step(op)?;
    }
    Ok(session)
}

/// Makes a pool of today's format with a bookmark: its snapshot is deleted, and versions have faded.
///
/// # Errors
/// If the product disagrees with the model.
pub fn make_with_bookmark() -> Result<Session, Violation> {
    let mut session = Session::make(SHAPE_WITH_SNAPSHOTS, 1)?;
    let path = |text: &str| text.split('/').map(|name| name.as_bytes().to_vec()).collect::<Vec<_>>();
    let then = b"then".to_vec();
    for op in [
        Op::Mkdir(path("dir")),
        Op::Put(path("dir/moves"), Fill { len: 3000, seed: 1 }),
        Op::Put(path("dir/changes"), Fill { len: 5000, seed: 2 }),
        Op::Put(path("dir/goes"), Fill { len: 300, seed: 3 }),
        Op::Snapshot(then.clone()),
    ] {
        session.step(&op)?;
    }
    let made = session.fs().create_bookmark(&then, b"mark");
    made.map_err(|e| Violation(format!("no bookmark is made: {e}")))?;
    for op in [
        Op::DropSnapshot(then),
        Op::Rename(path("dir/moves"), path("moved"), RenameMode::Replace),
        Op::Unlink(path("dir/goes")),
    ] {
        session.step(&op)?;
    }
    // So many runs that the oldest are merged.
    for round in 0..6 {
        for op in [
            Op::Write(path("dir/changes"), 4096, Fill { len: 50, seed: 4 + round }),
            Op::Reopen,
            Op::Background(8),
        ] {
            session.step(&op)?;
        }
    }
    session.step(&Op::Sync)?;
    Ok(session)
}

/// The image of a world's devices.
#[must_use]
pub fn write_image(world: &SimWorld) -> String {
    let mut out = String::new();
    for sim in world.sims() {
        let size_bytes = sim.spec().size_bytes;
        out.push_str(&format!("device {} {size_bytes}\n", sim.spec().name));
        for block in 0..size_bytes / BLOCK_BYTES as u64 {
            let bytes = sim.peek(block * BLOCK_BYTES as u64, BLOCK_BYTES);
            if bytes.iter().any(|b| *b != 0) {
                out.push_str(&format!("{block}:{}\n", write_runs(&bytes)));
            }
        }
    }
    out
}

fn write_runs(bytes: &[u8]) -> String {
    let mut out = String::new();
    let mut plain = false;
    for run in bytes.chunk_by(|a, b| a == b) {
        let byte = run.first().copied().unwrap_or_default();
        if run.len() >= RUN_MIN {
            out.push_str(&format!(" {byte:02x}*{}", run.len()));
            plain = false;
            continue;
        }
        if !plain {
            out.push(' ');
            plain = true;
        }
        run.iter().for_each(|b| out.push_str(&format!("{b:02x}")));
    }
    out
}

/// The world of an image.
///
/// # Errors
/// The first line that is no line of an image.
pub fn read_image(text: &str) -> Result<SimWorld, String> {
    let mut world = SimWorld::new(1);
    for line in text.lines() {
        let bad = || format!("not a line of an image: {line}");
        if let Some(device) = line.strip_prefix("device ") {
            let (name, size) = device.split_once(' ').ok_or_else(bad)?;
            world.add(DeviceSpec::conventional(name, size.parse().map_err(|_| bad())?));
            continue;
        }
        let (block, runs) = line.split_once(':').ok_or_else(bad)?;
        let block: u64 = block.parse().map_err(|_| bad())?;
        let bytes = read_runs(runs).filter(|bytes| bytes.len() == BLOCK_BYTES).ok_or_else(bad)?;
        world.sims().last().ok_or_else(bad)?.poke(block * BLOCK_BYTES as u64, &bytes);
    }
    Ok(world)
}

fn read_runs(runs: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(BLOCK_BYTES);
    let byte = |hex: &str| u8::from_str_radix(hex, 16).ok();
    for run in runs.split_whitespace() {
        if let Some((hex, count)) = run.split_once('*') {
            bytes.extend(std::iter::repeat_n(byte(hex)?, count.parse().ok()?));
            continue;
        }
        for at in (0..run.len()).step_by(2) {
            bytes.push(byte(run.get(at..at + 2)?)?);
        }
    }
    Some(bytes)
}

/// The dump beside the image: a line for each path of a picture, then the same for each of its snapshots.
#[must_use]
pub fn write_dump(picture: &Picture) -> String {
    let mut out = write_entries(picture);
    for (name, then) in &picture.snapshots {
        out.push_str(&format!("\nsnapshot {}\n{}", String::from_utf8_lossy(name), write_entries(then)));
    }
    out
}

fn write_entries(picture: &Picture) -> String {
    let mut out = String::new();
    // Sums instead of bytes: the dump is to be read, and the image holds the bytes.
    for (path, e) in &picture.entries {
        let time = |t: warpfire_env::Timestamp| format!("{}.{:09}", t.seconds, t.nanos);
        out.push_str(&format!(
            "{} {:?} {:o} {}:{} links {} size {} mtime {} ctime {} content {:08x} same as {}",
            show_path(path),
            e.kind,
            e.permissions,
            e.owner.0,
            e.owner.1,
            e.links,
            e.content.size_bytes(),
            time(e.mtime),
            time(e.ctime),
            sum(&e.content.read(0, usize::try_from(e.content.size_bytes()).unwrap_or(0))),
            show_path(&e.same_as)
        ));
        for (name, value) in &e.xattrs {
            out.push_str(&format!(" {}={:08x}", String::from_utf8_lossy(name), sum(value)));
        }
        out.push('\n');
    }
    out
}

/// Fletcher's sum, which is independent of the format's own checksums.
fn sum(bytes: &[u8]) -> u32 {
    let (a, b) = bytes.iter().fold((1u32, 0u32), |(a, b), byte| {
        let a = (a + u32::from(*byte)) % 65_535;
        (a, (b + a) % 65_535)
    });
    b << 16 | a
}
