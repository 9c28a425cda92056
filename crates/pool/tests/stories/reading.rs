//! Reading, with all columns and with lost ones.

use proptest::prelude::*;
use warpfire_env::AlignedBuf;
use warpfire_pool::{Pool, PoolError};
use warpfire_sim_env::SimWorld;
use warpfire_units::BLOCK_BYTES;

use crate::rig::{
    WrittenSegment, assert_reads, block_at, id, open_with, pattern, read, world, write_segment,
};

#[test]
fn a_segment_reads_as_written_after_reopening() {
    let (world, pool) = world(1, 6, 4, 2);
    let written = write_segment(&pool, id(1), &[1, 4096, 70_000, usize::MAX, usize::MAX]);
    assert_reads(&pool, &written);
    let again = open_with(world.devices(), &[&written]);
    assert_reads(&again, &written);
    assert_eq!(again.counters().rebuilt_blocks, 0);
    assert_eq!(again.damaged_segments(), []);
}

/// Background work makes way for programs by this count.
#[test]
fn operations_that_programs_wait_for_are_counted_and_those_of_background_work_are_not() {
    let (_world, pool) = world(1, 3, 2, 1);
    let written = write_segment(&pool, id(1), &[30_000]);
    let before = pool.program_ops();
    assert!(before > 0, "writes count");
    assert_reads(&pool, &written);
    let read = pool.program_ops();
    assert!(read > before, "reads count");
    {
        let _background = warpfire_env::begin_background_work();
        assert_reads(&pool, &written);
        _ = write_segment(&pool, id(2), &[30_000]);
    }
    assert_eq!(pool.program_ops(), read);
}

#[test]
fn a_small_read_costs_two_reads_at_first_and_one_from_then_on() {
    let (world, pool) = world(2, 6, 4, 2);
    let written = write_segment(&pool, id(1), &[100_000]);
    let pool = open_with(world.devices(), &[&written]);
    let slice = written.slice(5000, 100);
    for (already, after) in [(0, 2), (2, 3), (3, 4)] {
        assert_eq!(pool.counters().total.reads, already);
        assert_eq!(read(&pool, slice).unwrap(), written.expected(slice));
        assert_eq!(pool.counters().total.reads, after);
    }
    assert_eq!(pool.counters().total.read_bytes, 4 * BLOCK_BYTES as u64, "only the needed block is read");
}

#[test]
fn a_whole_stripe_is_one_read_for_each_data_column() {
    let (_world, pool) = world(3, 6, 4, 2);
    let written = write_segment(&pool, id(1), &[usize::MAX]);
    let before = pool.counters().total.reads;
    assert_reads(&pool, &written);
    assert_eq!(pool.counters().total.reads - before, 4, "writing cached the CRC tables");
}

#[test]
fn many_slices_are_read_together_and_into_unaligned_memory() {
    let (_world, pool) = world(4, 5, 3, 1);
    let written = write_segment(&pool, id(1), &[50_000, 9000]);
    let slices = [written.slice(1, 9000), written.slice(40_000, 4096), written.slice(0, 50_000)];
    let mut memory = vec![0; 70_000];
    let (a, rest) = memory[3..].split_at_mut(9000);
    let (b, rest) = rest.split_at_mut(4096);
    let mut reads = [(slices[0], a), (slices[1], b), (slices[2], &mut rest[..50_000])];
    pool.read_many(&mut reads).unwrap();
    for (slice, got) in reads {
        assert!(*got == *written.expected(slice), "{slice}");
    }
}

/// Reads these parts of a segment with one call, and compares. Returns the number of device reads.
///
/// No part is read into memory aligned to a block: a device fills whole blocks of such memory itself, and the
/// rest of the part takes one more read. An allocator returns aligned memory now and then.
fn read_parts(pool: &Pool, written: &WrittenSegment, parts: &[(u64, usize)]) -> u64 {
    let before = pool.counters().total.reads;
    let mut memory: Vec<AlignedBuf> =
        parts.iter().map(|(_, len)| AlignedBuf::zeroed((len + 1).next_multiple_of(BLOCK_BYTES))).collect();
    let slices: Vec<_> = parts.iter().map(|(at, len)| written.slice(*at, *len)).collect();
    let buffers = memory.iter_mut().zip(parts).map(|(memory, (_, len))| &mut memory[1..=*len]);
    let mut reads: Vec<_> = slices.iter().copied().zip(buffers).collect();
    pool.read_many(&mut reads).unwrap();
    for (slice, got) in reads {
        assert!(*got == *written.expected(slice), "{slice}");
    }
    pool.counters().total.reads - before
}

#[test]
fn small_slices_side_by_side_cost_one_device_read_in_any_order() {
    let (_world, pool) = world(6, 3, 2, 1);
    let written = write_segment(&pool, id(1), &[usize::MAX]);
    let block = BLOCK_BYTES as u64;
    let side_by_side = [(20_000, 10_000), (100, 9900), (10_000, 10_000), (30_001, 7), (120, 40)];
    assert_eq!(read_parts(&pool, &written, &side_by_side), 1);
    let two_blocks_between = [(0, 4096), (3 * block, 4096)];
    assert_eq!(read_parts(&pool, &written, &two_blocks_between), 1);
    let three_blocks_between = [(0, 4096), (4 * block, 4096)];
    assert_eq!(read_parts(&pool, &written, &three_blocks_between), 2);
    let long_ones = [(0, 70_000), (70_000, 70_000)];
    assert_eq!(read_parts(&pool, &written, &long_ones), 2, "a long piece is read for itself");
}

/// The device refuses the read of both slices together, as it does if one of their blocks is bad.
#[test]
fn a_block_that_cannot_be_read_harms_no_slice_beside_it() {
    let (world, pool) = world(7, 1, 1, 0);
    let written = write_segment(&pool, id(1), &[usize::MAX]);
    let parts = [(0, 4096), (2 * BLOCK_BYTES as u64, 4096)];
    assert_eq!(read_parts(&pool, &written, &parts), 1);
    let op = warpfire_sim_env::OpClass::Read;
    world.sims()[0].inject(warpfire_sim_env::Fault::Fail { op, after: 0, lasting: false });
    assert_eq!(read_parts(&pool, &written, &parts), 3, "together, then one by one");
    assert_eq!(pool.damaged_segments(), []);
}

#[test]
fn rot_under_slices_that_are_read_together_is_reconstructed_for_each() {
    let (world, pool) = world(8, 3, 2, 1);
    let written = write_segment(&pool, id(1), &[usize::MAX]);
    for row in [1, 3, 4] {
        let (device, at) = block_at(&written, 0, 0, Some(row));
        world.sims()[device].rot(at, 5);
    }
    let pool = open_with(world.devices(), &[&written]);
    read_parts(&pool, &written, &[(8192, 5000), (3000, 5000), (13_500, 4096), (17_600, 10)]);
    assert_eq!(pool.counters().rebuilt_blocks, 5, "row 3 is in two slices, and so is row 4");
    assert_eq!(pool.damaged_segments(), [id(1)]);
}

#[test]
fn a_pointer_outside_the_written_payload_is_refused() {
    let (_world, pool) = world(5, 3, 2, 1);
    let written = write_segment(&pool, id(1), &[10]);
    let end = written.payload.len() as u64;
    for (at, len) in [(end, 1), (end - 1, 2), (u64::MAX, 1), (1 << 40, 4096)] {
        let slice = written.slice(at, len);
        assert_eq!(read(&pool, slice), Err(PoolError::BadSlice(slice)));
    }
    let mut gone = written.slice(0, 1);
    gone.segment = id(9);
    assert_eq!(read(&pool, gone), Err(PoolError::UnknownSegment(id(9))));
}

/// Every subset of `n` elements with at most `most` members, as a bit mask.
fn subsets(n: usize, most: u32) -> impl Iterator<Item = u32> {
    (0u32..1 << n).filter(move |mask| mask.count_ones() <= most)
}

fn has(mask: u32, n: usize) -> bool {
    mask >> n & 1 == 1
}

#[test]
fn every_loss_of_up_to_m_devices_reads_back_and_one_more_is_an_error() {
    for (k, m) in [(1, 0), (1, 1), (1, 2), (2, 1), (3, 2), (4, 2), (2, 3)] {
        let width = usize::from(k) + usize::from(m);
        let (world, pool) = world(10, width, k, m);
        let written = write_segment(&pool, id(1), &[1, 50_000, usize::MAX]);
        drop(pool);
        for lost in subsets(width, u32::from(m) + 1) {
            let rotten = world.fork();
            for column in (0..width).filter(|c| has(lost, *c)) {
                let (device, _) = block_at(&written, 0, column, None);
                rot_zone(&rotten, &written, device, column);
            }
            let pool = open_with(rotten.devices(), &[&written]);
            if lost.count_ones() <= u32::from(m) {
                assert_reads(&pool, &written);
            } else {
                assert_never_wrong(&pool, &written);
            }
        }
    }
}

/// Flips one bit in every block of one column.
fn rot_zone(world: &SimWorld, written: &WrittenSegment, device: usize, column: usize) {
    let blocks = written.descriptor.zone_blocks_used();
    let (_, start) = block_at(written, 0, column, None);
    for block in 0..blocks {
        world.sims()[device].rot(start + block * BLOCK_BYTES as u64, (block * 37 % 32768) as usize);
    }
}

/// Each slice reads as written or is an error. Returns the number of errors.
fn assert_never_wrong(pool: &Pool, written: &WrittenSegment) -> usize {
    let mut errors = 0;
    for slice in written.slices() {
        match read(pool, slice) {
            Ok(got) => assert!(got == written.expected(slice), "{slice}: wrong bytes"),
            Err(PoolError::Unreadable { .. }) => errors += 1,
            Err(other) => panic!("{slice}: {other}"),
        }
    }
    errors
}

#[test]
fn beyond_parity_every_data_loss_is_reported() {
    let (world, pool) = world(11, 4, 2, 2);
    let written = write_segment(&pool, id(1), &[usize::MAX]);
    for lost in [0b0111, 0b1011, 0b1101, 0b1110] {
        let rotten = world.fork();
        for column in (0..4).filter(|c| has(lost, *c)) {
            rot_zone(&rotten, &written, block_at(&written, 0, column, None).0, column);
        }
        let pool = open_with(rotten.devices(), &[&written]);
        assert_eq!(assert_never_wrong(&pool, &written), 1, "columns {lost:04b} lost");
        assert_eq!(pool.damaged_segments(), [id(1)]);
    }
}

#[test]
fn rot_in_different_rows_of_more_columns_than_parity_is_still_reconstructed() {
    let (world, pool) = world(12, 4, 3, 1);
    let written = write_segment(&pool, id(1), &[usize::MAX]);
    for column in 0..4u16 {
        let (device, at) = block_at(&written, 0, usize::from(column), Some(column * 2));
        world.sims()[device].rot(at, 77);
    }
    let pool = open_with(world.devices(), &[&written]);
    assert_reads(&pool, &written);
    assert_eq!(pool.counters().rebuilt_blocks, 3, "one block on each data column");
    assert_eq!(pool.damaged_segments(), [id(1)]);
}

/// The read takes the end of one column and the beginning of the next. It failed, because the rows from the
/// first to the last lost one had to be readable.
#[test]
fn a_row_beyond_parity_between_rows_that_are_read_does_not_fail_the_read() {
    let (world, pool) = world(15, 3, 2, 1);
    let written = write_segment(&pool, id(1), &[8 * BLOCK_BYTES]);
    for (column, row) in [(0, 1), (1, 1), (2, 1), (0, 3), (1, 0)] {
        let (device, at) = block_at(&written, 0, column, Some(row));
        world.sims()[device].rot(at, 77);
    }
    let pool = open_with(world.devices(), &[&written]);
    let slice = written.slice(2 * BLOCK_BYTES as u64, 3 * BLOCK_BYTES);
    assert_eq!(read(&pool, slice).unwrap(), written.expected(slice));
    assert_eq!(pool.counters().rebuilt_blocks, 2, "row 3 of column 0 and row 0 of column 1");
    let lost = written.slice(BLOCK_BYTES as u64, 1);
    assert!(matches!(read(&pool, lost), Err(PoolError::Unreadable { .. })));
}

#[test]
fn without_parity_a_bad_read_is_tried_once_more() {
    let (world, pool) = world(13, 1, 1, 0);
    let written = write_segment(&pool, id(1), &[8192]);
    let sim = &world.sims()[0];
    sim.inject(warpfire_sim_env::Fault::Fail {
        op: warpfire_sim_env::OpClass::Read,
        after: 0,
        lasting: false,
    });
    assert_reads(&pool, &written);
    let (_, at) = block_at(&written, 0, 0, Some(1));
    sim.rot(at, 0);
    assert!(matches!(read(&pool, written.slice(4096, 1)), Err(PoolError::Unreadable { .. })));
    assert_eq!(read(&pool, written.slice(0, 4096)).unwrap(), written.expected(written.slice(0, 4096)));
}

#[test]
fn a_shard_of_another_stripe_segment_or_column_is_not_taken_for_the_right_one() {
    let (world, pool) = world(14, 3, 2, 1);
    let first = write_segment(&pool, id(1), &[8192, 8192, 8192]);
    let second = write_segment(&pool, id(2), &[8192, 8192, 8192]);
    let shard_bytes = 2 * BLOCK_BYTES;
    let sources = [block_at(&first, 0, 0, None), block_at(&second, 1, 0, None), block_at(&first, 1, 1, None)];
    for (device, at) in sources {
        let swapped = world.fork();
        let shard = swapped.sims()[device].peek(at, shard_bytes);
        let (victim, to) = block_at(&first, 1, 0, None);
        swapped.sims()[victim].poke(to, &shard);
        let pool = open_with(swapped.devices(), &[&first, &second]);
        assert_reads(&pool, &first);
        let counters = pool.counters();
        assert_eq!((counters.total.identity_errors, counters.rebuilt_blocks), (1, 1));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn random_stripes_read_back_in_random_pieces_with_random_rot(
        (k, m, spare) in (1u16..6, 0u8..4, 0usize..3),
        lengths in prop::collection::vec(prop_oneof![1usize..9000, 1usize..400_000], 1..8),
        cuts in prop::collection::vec((0.0f64..1.0, 1usize..60_000, 0usize..4096), 12),
        rot in prop::collection::vec((0.0f64..1.0, 0usize..32_768), 0..12),
        seed in 0u64..1000,
    ) {
        let (world, pool) = world(seed, usize::from(k) + usize::from(m) + spare, k, m);
        let written = write_segment(&pool, id(1), &lengths);
        // Rot hits at most m columns, so every read must succeed.
        let (rotten, _) = written.descriptor.columns.split_at(usize::from(m));
        for (n, (place, bit)) in rot.into_iter().enumerate() {
            let Some((device, zone)) = rotten.get(n % rotten.len().max(1)) else { break };
            let block = (place * written.descriptor.zone_blocks_used() as f64) as u64;
            let at = u64::from(zone.0) * crate::rig::ZONE_BYTES + block * BLOCK_BYTES as u64;
            world.sims()[usize::from(device.0)].rot(at, bit);
        }
        let pieces = cuts.into_iter().map(|(place, len, misalign)| {
            let at = (place * written.payload.len() as f64) as usize;
            let len = len.min(written.payload.len() - at);
            (written.slice(at as u64, len), AlignedBuf::zeroed(misalign + len), misalign)
        });
        let mut pieces: Vec<_> = pieces.collect();
        // One by one, and then all together, also those that overlap.
        for at_once in [1, 12] {
            let pool = open_with(world.devices(), &[&written]);
            for group in pieces.chunks_mut(at_once) {
                group.iter_mut().for_each(|(_, memory, _)| memory.fill(0));
                let reads = group.iter_mut().map(|(slice, memory, misalign)| {
                    (*slice, &mut memory[*misalign..*misalign + slice.len_bytes as usize])
                });
                let mut reads: Vec<_> = reads.collect();
                pool.read_many(&mut reads).unwrap();
                for (slice, got) in reads {
                    prop_assert!(*got == *written.expected(slice), "{}", slice);
                }
            }
        }
    }
}

#[test]
fn payload_in_a_buffer_can_be_read_before_it_is_written() {
    let (_world, pool) = world(15, 4, 3, 1);
    let mut writer = pool.allocate(id(1), warpfire_pool::SegmentStream::Large).unwrap();
    let mut buf = writer.buffer();
    let bytes = pattern(1, 150_001);
    for part in bytes.chunks(7777) {
        assert_eq!(buf.append(part), part.len());
    }
    let reads_right = |buf: &warpfire_pool::StripeBuf| {
        for at in [0, 4095, 4096, 100_000] {
            let mut out = vec![0; 50_001];
            buf.read(at, &mut out);
            assert!(out == bytes[at..at + 50_001]);
        }
    };
    reads_right(&buf);
    let stripe = writer.prepare(&mut buf, 1);
    reads_right(&buf);
    warpfire_pool::PreparedStripe::submit(&[(&stripe, &buf)]).unwrap();
    writer.begin(&mut buf);
    assert!(buf.is_empty());
}

/// Reads take the checksums of a stripe from memory. Its headers rot all the same.
#[test]
fn a_verification_reads_the_headers_of_stripes_that_were_read_before() {
    let (world, pool) = world(47, 3, 2, 1);
    let written = write_segment(&pool, id(1), &[100_000, 50_000]);
    assert_reads(&pool, &written);
    assert!(pool.verify(id(1)).unwrap().is_whole);
    let (device, at) = block_at(&written, 1, 0, None);
    world.sims()[device].poke(at, &[7; BLOCK_BYTES]);
    assert_reads(&pool, &written);
    assert!(!pool.verify(id(1)).unwrap().is_whole);
    assert_eq!(pool.damaged_segments(), [id(1)]);
}

#[test]
fn a_buffer_takes_as_much_as_its_stripe_holds() {
    let (_world, pool) = world(48, 3, 2, 1);
    let writer = pool.allocate(id(1), warpfire_pool::SegmentStream::Large).unwrap();
    let (mut buf, capacity) = (writer.buffer(), writer.next_stripe_capacity());
    assert_eq!((buf.len(), buf.remaining()), (0, capacity));
    assert_eq!(buf.append(&pattern(1, 1000)), 1000);
    assert_eq!((buf.len(), buf.remaining()), (1000, capacity - 1000));
    assert_eq!(buf.append(&pattern(2, capacity)), capacity - 1000);
    assert_eq!((buf.len(), buf.remaining()), (capacity, 0));
}
