//! A sync of records writes the bytes that they need, and no others.

mod rig;

use rig::{Client, SHAPES, Shape, content, open, shape};
use warpfire_log::{Log, LogStore, Stream};
use warpfire_sim_env::Cut;
use warpfire_units::SlicePtr;

const BLOCK_BYTES: u64 = 4096;
/// Bytes of each copy of a short group: its records fit beside the header of the stripe.
const SHORT_GROUP_BYTES: u64 = BLOCK_BYTES;

fn written_bytes(log: &Log) -> u64 {
    log.pool().counters().total.written_bytes
}

/// Appends to every stream some bytes that no record names.
fn fill_buffers(log: &Log) -> Vec<SlicePtr> {
    let streams = [Stream::Small, Stream::Large, Stream::Table, Stream::Cold];
    let append = |(key, stream)| log.append(stream, &content(key, 5000)).expect("there is room")[0];
    (1..).zip(streams).map(append).collect()
}

fn copies(shape: Shape) -> u64 {
    u64::from(shape.parity) + 1
}

fn read(log: &Log, slice: SlicePtr) -> Option<Vec<u8>> {
    let mut bytes = vec![0; slice.len_bytes as usize];
    log.read(slice, &mut bytes).ok().map(|()| bytes)
}

#[test]
fn a_record_that_names_nothing_costs_one_block_on_each_copy_of_the_log() {
    for shape in SHAPES {
        let log = shape.create(&shape.world(1)).unwrap();
        fill_buffers(&log);
        // The first sync also names the segments that were opened.
        for n in 0..20 {
            let before = written_bytes(&log);
            log.log_named(&[n; 100]).unwrap();
            log.sync_records().unwrap();
            let written = written_bytes(&log) - before;
            assert_eq!(written, copies(shape) * SHORT_GROUP_BYTES, "{shape:?}, sync {n}");
        }
        let before = written_bytes(&log);
        log.sync_records().unwrap();
        assert_eq!(written_bytes(&log), before, "{shape:?}: nothing is new");
        log.sync().unwrap();
        assert!(written_bytes(&log) > before, "{shape:?}: a sync of everything writes the buffers");
    }
}

#[test]
fn a_record_brings_the_slices_that_it_names_and_leaves_others_in_memory() {
    for shape in SHAPES {
        for named in 0..4 {
            let world = shape.world(1);
            let log = shape.create(&world).unwrap();
            let slices = fill_buffers(&log);
            log.need(slices[named]);
            log.log_named(b"it names one").unwrap();
            let before = written_bytes(&log);
            log.sync_records().unwrap();
            let written = written_bytes(&log) - before;
            let columns = u64::from(shape.data) + u64::from(shape.parity);
            let rows = 5000u64.div_ceil(BLOCK_BYTES * u64::from(shape.data));
            let bulk = columns * (1 + rows) * BLOCK_BYTES;
            assert_eq!(written, copies(shape) * SHORT_GROUP_BYTES + bulk, "{shape:?}, slice {named}");
            // Needed again when it is on the devices: nothing is left to write.
            log.need(slices[named]);
            let before = written_bytes(&log);
            log.log_named(b"once more").unwrap();
            log.sync_records().unwrap();
            assert_eq!(written_bytes(&log) - before, copies(shape) * SHORT_GROUP_BYTES, "{shape:?}");
            let (after, _) = open(&world.cut(&Cut::LoseAll)).unwrap();
            for (n, slice) in slices.iter().enumerate() {
                let expected = (n == named).then(|| content(n as u64 + 1, 5000));
                assert_eq!(read(&after, *slice), expected, "{shape:?}, slice {n} of a record with {named}");
            }
        }
    }
}

#[test]
fn a_slice_that_is_needed_while_its_segment_closes_is_written() {
    let shape = shape(2, 1, 3);
    let world = shape.world(1);
    let mut client = Client::new(shape.create(&world).unwrap());
    let segment_bytes = usize::try_from(client.log.segment_bytes()).unwrap();
    for _ in 0..5 {
        client.add(Stream::Large, segment_bytes / 2 + 5000, 0).unwrap();
        client.add(Stream::Table, 3000, 0).unwrap();
        client.sync_records().unwrap();
        let opened = open(&world.cut(&Cut::LoseAll)).unwrap();
        Client::recovered(opened, &client.history, client.acked, "after a sync");
    }
}

#[test]
fn a_sync_of_records_takes_all_appends_along_if_a_waiting_record_needs_them() {
    for shape in SHAPES {
        let world = shape.world(1);
        let log = shape.create(&world).unwrap();
        let slices = fill_buffers(&log);
        log.log(b"an edit").unwrap();
        log.log_named(b"a commit").unwrap();
        log.sync_records().unwrap();
        // All of it is durable, so this sync has nothing to do.
        let before = written_bytes(&log);
        log.sync().unwrap();
        assert_eq!(written_bytes(&log), before, "{shape:?}");
        let (after, recovered) = open(&world.cut(&Cut::LoseAll)).unwrap();
        assert_eq!(recovered.records.count(), 2);
        assert!(slices.iter().all(|slice| read(&after, *slice).is_some()), "{shape:?}");
    }
}
