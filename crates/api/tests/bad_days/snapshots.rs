//! Snapshots of which the records are damaged.

use warpfire::{ErrorKind, Pool};
use warpfire_sim_env::{DeviceSpec, SimWorld};

const BLOCK_BYTES: usize = 4096;
/// Zones 0 and 1, of 1 MiB each, hold roots.
const FIRST_SEGMENT_AT: u64 = 2 << 20;

#[test]
fn damaged_records_of_snapshots_leave_the_files_readable() {
    let world = SimWorld::of(3, 1, &DeviceSpec::conventional("flash", 32 << 20));
    let options = || Pool::options().data(1).parity(0).background(false);
    let fs = options().create_on(world.devices()).expect("a blank device makes a pool");
    // Enough names that the records of snapshots have blocks of their own.
    for number in 0..600 {
        fs.create_snapshot(format!("snapshot-{number:03}-{}", "long".repeat(10))).expect("there is room");
        fs.write(format!("/file-{number}"), number.to_string()).expect("there is room");
    }
    fs.close().expect("a sound device does not fail");
    let sims = world.sims();
    let is_used = |at: &u64| sims[0].peek(*at, BLOCK_BYTES).iter().any(|byte| *byte != 0);
    let (mut refused, mut whole) = (0, 0);
    for at in (FIRST_SEGMENT_AT..32 << 20).step_by(BLOCK_BYTES).filter(is_used) {
        let hurt = world.fork();
        hurt.sims()[0].poke(at, &[0xA5; BLOCK_BYTES]);
        let Err(error) = options().open_on(hurt.devices()) else { continue };
        if !error.to_string().contains("the records of the snapshots cannot be read") {
            continue;
        }
        refused += 1;
        assert_eq!(error.kind(), ErrorKind::Damaged);
        assert!(error.hint().is_some_and(|hint| hint.contains("mount --read-only")), "{error:?}");
        // The block may be an index of all records, or hold those of files too.
        let Ok(reader) = options().read_only(true).open_on(hurt.devices()) else { continue };
        let read = (0..600).filter(|number| {
            reader.read(format!("/file-{number}")).is_ok_and(|bytes| bytes == number.to_string().as_bytes())
        });
        whole += usize::from(read.count() == 600);
        let listed = reader.snapshots().map_err(|error| error.kind());
        assert!(listed == Err(ErrorKind::Damaged), "a list that lacks some is no list: {listed:?}");
    }
    assert!(refused > 2 && whole > 2, "{refused} blocks of records, {whole} with nothing else");
}
