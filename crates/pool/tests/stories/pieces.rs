//! A column that is rewritten piece by piece: each piece is short, the column has the bytes that it had, and
//! a rewrite that is ended leaves nothing behind.

use std::ops::ControlFlow;

use warpfire_env::Device;
use warpfire_pool::{CreateOptions, PieceWork, Pool, Suspects, Turns, Vacated};
use warpfire_sim_env::{DeviceSpec, SimWorld};
use warpfire_units::BLOCK_BYTES;

use crate::rig::{
    DEVICE_BYTES, WrittenSegment, ZONE_BYTES, assert_reads, block_at, create, id, world, write_segment,
};

/// Pieces of so many bytes, up to a number of them.
struct Pieces {
    bytes: u64,
    done: Vec<PieceWork>,
    ends_after: usize,
}

impl Pieces {
    fn of(bytes: u64) -> Pieces {
        Pieces { bytes, done: Vec::new(), ends_after: usize::MAX }
    }
}

impl Turns for Pieces {
    fn piece_bytes(&self) -> u64 {
        self.bytes
    }

    fn after_piece(&mut self, work: PieceWork) -> ControlFlow<()> {
        // The column's own rows are read first, and at another time the rows that they are computed from.
        assert!(
            work.read_bytes <= self.bytes.saturating_mul(2) && work.written_bytes <= self.bytes,
            "{work:?}"
        );
        self.done.push(work);
        if self.done.len() < self.ends_after { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }
}

/// Stripes of several lengths, of which one is a row.
const LENGTHS: [usize; 4] = [90_000, 5, 70_000, usize::MAX];

/// A segment of which the first column has a block that does not verify.
fn damaged(world: &SimWorld, pool: &Pool) -> WrittenSegment {
    let written = write_segment(pool, id(1), &LENGTHS);
    let (device, at) = block_at(&written, 0, 0, Some(2));
    world.sims()[device].rot(at, 3);
    written
}

fn rows(written: &WrittenSegment) -> u64 {
    written.descriptor.stripes.iter().map(|run| u64::from(run.rows) * u64::from(run.count)).sum()
}

#[test]
fn every_piece_is_short_and_the_column_is_as_it_was_first_written() {
    const ROW: u64 = BLOCK_BYTES as u64;
    for zoned in [false, true] {
        let spec = match zoned {
            true => DeviceSpec::zoned("zns", DEVICE_BYTES, ZONE_BYTES),
            false => DeviceSpec::append_only("flash", DEVICE_BYTES),
        };
        for rows_at_once in [3, 4, 7, 12, 3000] {
            let world = SimWorld::of(80, 4, &spec);
            let zone_bytes = (!zoned).then_some(ZONE_BYTES);
            let pool =
                create(&world, &CreateOptions { data: 2, parity: 1, zone_bytes, force: false }).unwrap();
            let written = damaged(&world, &pool);
            let mut turns = Pieces::of(rows_at_once * ROW);
            let resilvered = pool
                .resilver_in_pieces(id(1), Suspects::Unverified, &Vacated::default(), &mut turns)
                .unwrap();
            let context = format!("zoned: {zoned}, {rows_at_once} blocks at once");
            assert_eq!((resilvered.moves.len(), resilvered.failure), (1, None), "{context}");
            let sum = |of: fn(&PieceWork) -> u64| turns.done.iter().map(of).sum::<u64>();
            assert_eq!(sum(|work| work.written_bytes), rows(&written) * ROW, "{context}");
            assert!(
                turns.done.len() > LENGTHS.len() || rows_at_once == 3000,
                "{context}: {}",
                turns.done.len()
            );
            // Header and rows of the new column, byte by byte as those of the old one, but for the damage.
            let mut moved = written;
            let bytes = |moved: &WrittenSegment, stripe, row| {
                let (device, at) = block_at(moved, stripe, 0, row);
                let mut block = vec![0; BLOCK_BYTES];
                world.sims()[device].read(at, &mut block).unwrap();
                block
            };
            let all =
                |moved: &WrittenSegment| -> Vec<Vec<u8>> {
                    let stripes =
                        (0..).zip(moved.descriptor.stripes.iter().flat_map(|run| {
                            std::iter::repeat_n(run.rows, usize::try_from(run.count).unwrap())
                        }));
                    let blocks = stripes.flat_map(|(stripe, rows)| {
                        std::iter::once((stripe, None)).chain((0..rows).map(move |row| (stripe, Some(row))))
                    });
                    blocks
                        .filter(|at| *at != (0, Some(2)))
                        .map(|(stripe, row)| bytes(moved, stripe, row))
                        .collect()
                };
            let before = all(&moved);
            moved.descriptor = resilvered.descriptor;
            assert!(all(&moved) == before, "{context}");
            pool.free_old_zones(resilvered.old_zones);
            assert!(pool.verify(id(1)).unwrap().is_whole, "{context}");
            assert_reads(&pool, &moved);
            assert_eq!(pool.status().lost(), 0, "{context}: no device has refused a write");
        }
    }
}

#[test]
fn a_work_that_is_ended_after_any_piece_leaves_the_segment_and_the_space_as_they_were() {
    let (world, pool) = world(81, 4, 2, 1);
    let written = damaged(&world, &pool);
    let free =
        |pool: &Pool| -> Vec<u32> { pool.status().devices.iter().map(|device| device.free_zones).collect() };
    let before = free(&pool);
    let resilver = |ends_after| {
        let mut turns = Pieces { ends_after, ..Pieces::of(64 << 10) };
        pool.resilver_in_pieces(id(1), Suspects::Unverified, &Vacated::default(), &mut turns).unwrap()
    };
    let mut ends_after = 1;
    loop {
        let resilvered = resilver(ends_after);
        if !resilvered.is_ended {
            assert_eq!((resilvered.moves.len(), resilvered.failure), (1, None));
            break;
        }
        assert_eq!(resilvered.descriptor.columns, written.descriptor.columns);
        assert_eq!(free(&pool), before, "after {ends_after} pieces");
        assert_reads(&pool, &written);
        ends_after += 1;
    }
    assert!(ends_after > 10, "the work has many pieces");
}

#[test]
fn a_scrub_in_pieces_finds_what_a_scrub_at_once_finds() {
    for bytes in [1, 12 << 10, 100_000, u64::MAX] {
        let (world, pool) = world(82, 4, 2, 1);
        let written = damaged(&world, &pool);
        let mut turns = Pieces::of(bytes.max(3 * BLOCK_BYTES as u64));
        let found = pool.verify_in_pieces(id(1), &mut turns).unwrap().expect("nothing ends it");
        assert!(!found.is_whole);
        assert_eq!(pool.damaged_segments(), [id(1)]);
        // The column is read up to the piece with its bad block.
        let read: u64 = turns.done.iter().map(|work| work.read_bytes).sum();
        let (least, most) = (2 * rows(&written), 3 * rows(&written));
        assert!((least..most).contains(&(read / BLOCK_BYTES as u64)), "{read} bytes");
    }
}

#[test]
fn a_scrub_that_is_ended_after_any_piece_says_nothing_of_the_segment() {
    let (world, pool) = world(83, 4, 2, 1);
    damaged(&world, &pool);
    let scrub = |ends_after| {
        let mut turns = Pieces { ends_after, ..Pieces::of(64 << 10) };
        pool.verify_in_pieces(id(1), &mut turns).unwrap()
    };
    let pieces = (1..).find(|ends_after| scrub(*ends_after).is_some()).expect("it has an end");
    assert!(pieces > 10, "the work has many pieces");
    assert_eq!(scrub(usize::MAX).map(|found| found.is_whole), Some(false));
}
