//! A full pool says so, keeps its files, removes files, and then takes new ones.

use warpfire::{ErrorKind, Pool, Warpfire};

use crate::rig::{Images, content, name, refused, whole};

/// Writes files until one does not fit. Returns how many fit.
fn fill_up(fs: &Warpfire, from: u64) -> u64 {
    for number in from.. {
        if let Err(error) = fs.write(name(number), content(number)) {
            let said = refused::<()>(Err(error), ErrorKind::NoSpace);
            assert!(said.contains("remove"), "{said}");
            // A write that failed may leave an empty file, as on any filesystem.
            let _ = fs.remove_file(name(number));
            return number;
        }
    }
    unreachable!("every pool is full at last")
}

fn full_and_empty_again(data: u16, parity: u8) {
    let images = Images::new(usize::from(data) + usize::from(parity));
    let fs = Pool::options()
        .data(data)
        .parity(parity)
        .size_bytes(16 << 20)
        .create(&images.paths)
        .expect("new images make a pool");
    let mut made = fill_up(&fs, 0);
    for round in 0..3 {
        // Every full pool can still be synced, closed, opened and read.
        fs.sync().expect("a full pool can be synced");
        assert_eq!(whole(&fs, 0..made), made, "round {round}");
        for number in 0..made {
            fs.remove_file(name(number))
                .unwrap_or_else(|error| panic!("round {round}, file {number}: {error}"));
        }
        fs.sync().expect("removals can be synced");
        let before = made;
        made = fill_up(&fs, 0);
        // Space is freed by whole segments, and a pool this small has about a dozen.
        assert!(made * 5 >= before * 4, "round {round}: {made} files fit where {before} did");
    }
    assert_eq!(whole(&fs, 0..made), made);
    fs.close().expect("a full pool can be closed");
    let fs = Pool::options().open(&images.paths).expect("a full pool can be opened");
    assert_eq!(whole(&fs, 0..made), made);
    fs.close().expect("and closed");
    let report = images.checked();
    assert!(report.is_clean(), "{:?}", report.findings);
}

#[test]
fn a_full_pool_on_one_image() {
    full_and_empty_again(1, 0);
}

#[test]
fn a_full_pool_on_six_images() {
    full_and_empty_again(4, 2);
}

#[test]
fn threads_that_fill_a_pool_together_all_get_no_space() {
    let images = Images::new(1);
    let fs = Pool::options().size_bytes(24 << 20).create(&images.paths).expect("a new image makes a pool");
    let made: Vec<(u64, u64)> = std::thread::scope(|scope| {
        let fs = &fs;
        let fillers =
            [0, 1_000_000, 2_000_000, 3_000_000].map(|from| scope.spawn(move || (from, fill_up(fs, from))));
        fillers.into_iter().map(|filler| filler.join().expect("no panic")).collect()
    });
    fs.sync().expect("a full pool can be synced");
    for (from, to) in made {
        assert_eq!(whole(&fs, from..to), to - from);
        (from..to).for_each(|number| fs.remove_file(name(number)).expect("removing works"));
    }
    fs.write("/after", vec![9; 1 << 20]).expect("there is room again");
    fs.close().expect("nothing is wrong");
    assert!(images.checked().is_clean());
}
