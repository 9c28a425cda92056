//! The device bytes of an fsync of a short file while a long one is written beside it.

use warpfire::{OpenOptions, Pool};

const PIECE_BYTES: usize = 1 << 20;
const PIECES: u64 = 48;

/// Bytes on the devices after a long file was written in pieces, with an fsync of a short file after each
/// piece or after none.
fn written_bytes(data: u16, parity: u8, with_fsyncs: bool) -> u64 {
    let options = Pool::options().data(data).parity(parity).size_bytes(256 << 20).background(false);
    let pool = options.in_memory().expect("memory makes a pool");
    let new = |path: &str| {
        let file = OpenOptions::new().read(true).write(true).create(true).open(&pool, path);
        file.expect("a new file")
    };
    let (long, short) = (new("/long"), new("/short"));
    short.write_all_at(&[0; 100], 0).expect("there is room");
    pool.sync().expect("nothing fails");
    let written = || pool.stats().devices.iter().map(|device| device.counters.written_bytes).sum::<u64>();
    let before = written();
    for n in 0..PIECES {
        // Pieces that no stripe ends with: a sync finds part of one in memory.
        let piece = vec![n as u8; PIECE_BYTES - 20 * 4096];
        long.write_all_at(&piece, n * PIECE_BYTES as u64).expect("there is room");
        if with_fsyncs {
            short.write_all_at(&[n as u8; 100], 0).expect("there is room");
            short.sync_all().expect("nothing fails");
        }
    }
    pool.sync().expect("nothing fails");
    written() - before
}

/// A short group of the commit log takes one block on each copy. The commits of the long file that became
/// durable with it end in a stripe that is not full: the rest of it begins with one more header.
#[test]
fn an_fsync_beside_a_stream_costs_two_blocks_on_each_copy() {
    for (data, parity) in [(1, 0), (1, 1), (1, 2), (4, 2)] {
        let own = (written_bytes(data, parity, true) - written_bytes(data, parity, false)) / PIECES;
        println!("{data}+{parity}: {own} bytes of device writes for each fsync");
        let copies = 1 + u64::from(parity);
        // Wider stripes have more headers, and end on a row of all data columns.
        let wider = u64::from(data - 1) * 2 * 4096 + u64::from(data > 1) * copies * 4096;
        assert!(own <= copies * (8 << 10) + wider, "{data}+{parity}: {own} bytes");
    }
}
