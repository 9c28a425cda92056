//! Header blocks that verify and are not the shard's: of another epoch, or of a stripe with other rows.

use warpfire_format::stripe::StripeHeader;
use warpfire_sim_env::SimWorld;
use warpfire_units::BLOCK_BYTES;

use crate::rig::{WrittenSegment, assert_reads, block_at, id, open_with, world, write_segment};
use warpfire_pool::{Suspects, Vacated};

/// Changes fields of the header of one shard, and keeps its checksums.
fn forge(world: &SimWorld, written: &WrittenSegment, column: usize, change: impl Fn(&mut StripeHeader)) {
    let (device, at) = block_at(written, 1, column, None);
    let block = world.sims()[device].peek(at, BLOCK_BYTES);
    let found = StripeHeader::decode(&block).expect("it succeeds in this test");
    let mut header = found.header;
    change(&mut header);
    let crcs: Vec<u32> = found.crcs().chain([7; 8]).take(usize::from(header.rows)).collect();
    let mut forged = vec![0; BLOCK_BYTES];
    header.encode(&mut forged, &crcs);
    world.sims()[device].poke(at, &forged);
}

fn newer_epoch(header: &mut StripeHeader) {
    header.identity.epoch += 1;
}

fn more_rows(header: &mut StripeHeader) {
    header.rows += 1;
    // A row of two data columns more, and not a whole one.
    header.payload_bytes += 2 * 4096 - 9;
    header.sequence += 5;
}

#[test]
fn a_header_of_another_epoch_or_with_other_rows_is_not_taken_for_the_right_one() {
    for change in [newer_epoch, more_rows] {
        let (world, pool) = world(70, 3, 2, 1);
        let written = write_segment(&pool, id(1), &[8192, 30_000, 8192]);
        forge(&world, &written, 0, change);
        let pool = open_with(world.devices(), &[&written]);
        assert_reads(&pool, &written);
        let counters = pool.counters();
        assert_eq!(counters.total.identity_errors, 1);
        assert!(counters.rebuilt_blocks > 0, "the column was reconstructed");
    }
}

#[test]
fn a_resilvered_column_never_takes_its_header_from_a_forged_one() {
    let (world, pool) = world(71, 3, 2, 1);
    let written = write_segment(&pool, id(1), &[8192, 30_000, 8192]);
    forge(&world, &written, 0, more_rows);
    let fields = |columns: &[_], column: usize| {
        let of = WrittenSegment {
            descriptor: warpfire_pool::SegmentDescriptor {
                columns: columns.to_vec().into(),
                ..written.descriptor.clone()
            },
            payload: Vec::new(),
            stripes: Vec::new(),
        };
        let (device, at) = block_at(&of, 1, column, None);
        let block = world.sims()[device].peek(at, BLOCK_BYTES);
        let header = StripeHeader::decode(&block).unwrap().header;
        (header.sequence, header.rows, header.payload_bytes)
    };
    let sound = fields(&written.descriptor.columns, 2);
    let pool = open_with(world.devices(), &[&written]);
    let resilvered = pool.resilver(id(1), Suspects::Unverified, &Vacated::default()).unwrap();
    assert_ne!(resilvered.descriptor.columns[0], written.descriptor.columns[0]);
    assert_eq!(fields(&resilvered.descriptor.columns, 0), sound);
    pool.free_old_zones(resilvered.old_zones);
    assert!(pool.verify(id(1)).unwrap().is_whole);
}
