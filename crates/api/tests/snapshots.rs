//! The cost of a diff of snapshots, counted on the device.

use warpfire::Pool;
use warpfire_sim_env::{DeviceSpec, SimWorld};

#[test]
fn a_diff_reads_what_has_changed_and_not_what_there_is() {
    const FILES: u32 = 300_000;
    let world = SimWorld::of(5, 1, &DeviceSpec::conventional("flash", 256 << 20));
    let options = || Pool::options().data(1).parity(0).background(false);
    let fs = options().create_on(world.devices()).expect("a blank device makes a pool");
    fs.create_dir("/dir").expect("made");
    let dir = fs.dir("/dir").expect("it is there");
    for number in 0..FILES {
        dir.write(format!("file-{number:06}"), number.to_le_bytes()).expect("there is room");
    }
    drop(dir);
    fs.create_snapshot("then").expect("there is room");
    fs.close().expect("a sound device does not fail");

    let fs = options().open_on(world.devices()).expect("it opens");
    // Neighbours: a cold look-up elsewhere reads one more index.
    for number in 150_000..150_005 {
        fs.write(format!("/dir/file-{number:06}"), b"changed").expect("there is room");
    }
    fs.remove_file("/dir/file-150005").expect("it is there");
    fs.close().expect("a sound device does not fail");

    let read_bytes = |work: &dyn Fn(&warpfire::Warpfire) -> usize| {
        let fs = options().read_only(true).open_on(world.devices()).expect("it opens");
        let before = world.sims()[0].counters().read_bytes;
        (work(&fs), world.sims()[0].counters().read_bytes - before)
    };
    let (names, all_bytes) = read_bytes(&|fs| fs.read_dir("/dir").expect("listed").count());
    assert_eq!(names, FILES as usize - 1);
    let (changes, diff_bytes) = read_bytes(&|fs| fs.diff_snapshots("then", None).expect("compared").count());
    // Six files, and the time of their directory.
    assert_eq!(changes, 7);
    assert!(diff_bytes * 10 <= all_bytes, "{diff_bytes} bytes of {all_bytes} were read");
}
