//! What a list of snapshots says that their deletion frees, against what it frees.
//!
//! `WARPFIRE_DELETION_ORDERS=n` deletes the snapshots of `n` pools, each in another order.

use warpfire::{OpenOptions, Pool, Warpfire};
use warpfire_meta::Store;
use warpfire_sim_env::{DeviceSpec, SimWorld, mix};

const FILE_BYTES_MAX: u64 = 300_000;

/// Numbers from a seed.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 += 1;
        mix(self.0)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

struct World {
    rng: Rng,
    fs: Warpfire,
    clones: u32,
}

impl World {
    fn path(&mut self) -> String {
        let dir = if self.clones > 0 && self.rng.below(4) == 0 {
            format!("/clone-{}", self.rng.below(self.clones.into()))
        } else {
            "/dir".to_owned()
        };
        format!("{dir}/file-{}", self.rng.below(12))
    }

    fn bytes(&mut self, most: u64) -> Vec<u8> {
        let len = 1 + self.rng.below(most);
        (0..len.div_ceil(8)).flat_map(|_| self.rng.next().to_le_bytes()).collect()
    }

    /// One change of the files. Some do nothing: the file is not there.
    fn change(&mut self) {
        let path = self.path();
        let open = |fs: &Warpfire, path: &str| OpenOptions::new().read(true).write(true).open(fs, path);
        match self.rng.below(12) {
            0..4 => {
                let bytes = self.bytes(FILE_BYTES_MAX);
                self.fs.write(&path, bytes).expect("there is room");
            }
            4 => {
                let bytes = self.bytes(2000);
                self.fs.write(&path, bytes).expect("there is room");
            }
            5..8 => {
                let (bytes, at) = (self.bytes(40_000), self.rng.below(FILE_BYTES_MAX));
                if let Ok(file) = open(&self.fs, &path) {
                    file.write_all_at(&bytes, at).expect("there is room");
                }
            }
            8 => drop(self.fs.remove_file(&path)),
            9 => {
                let (to, from) = (self.path(), self.rng.below(1000));
                if to == path {
                    return;
                }
                if let (Ok(source), Ok(target)) = (open(&self.fs, &path), open(&self.fs, &to)) {
                    target.copy_range_from(&source, from, 100_000, from).expect("there is room");
                }
            }
            10 => {
                if let Ok(file) = open(&self.fs, &path) {
                    file.set_len(self.rng.below(FILE_BYTES_MAX)).expect("there is room");
                }
            }
            _ if self.clones < 3 => {
                self.fs.clone_directory("/dir", format!("/clone-{}", self.clones)).expect("there is room");
                self.clones += 1;
            }
            _ => self.fs.rename(&path, "/dir/moved").unwrap_or(()),
        }
    }

    /// The bytes of slices that something needs, when all has been compacted.
    fn data_bytes(&self) -> u64 {
        let engine = self.fs.filesystem().engine();
        while engine.background_step().expect("a sound device does not fail") {}
        engine.compact().expect("a sound device does not fail");
        engine.reclaim_all().expect("a sound device does not fail");
        engine.count_live().expect("a sound device does not fail");
        let tables: u64 = engine.runs().iter().chain(&engine.past_runs()).map(|(_, bytes)| bytes).sum();
        self.fs.stats().space.live_bytes - tables
    }
}

#[test]
fn every_deletion_frees_what_the_list_said() {
    let orders = std::env::var("WARPFIRE_DELETION_ORDERS").map_or(10, |n| n.parse().expect("a number"));
    let (mut freed_all, mut deleted) = (0, 0);
    for seed in 0..orders {
        let devices = SimWorld::of(seed, 1, &DeviceSpec::conventional("flash", 256 << 20));
        let options = Pool::options().data(1).parity(0).background(false);
        let fs = options.create_on(devices.devices()).expect("a blank device makes a pool");
        fs.create_dir("/dir").expect("made");
        let mut world = World { rng: Rng(seed << 32), fs, clones: 0 };
        for snapshot in 0..8 {
            (0..world.rng.below(20)).for_each(|_| world.change());
            world.fs.create_snapshot(format!("{snapshot}")).expect("there is room");
        }
        (0..world.rng.below(20)).for_each(|_| world.change());
        let mut before = world.data_bytes();
        loop {
            let (names, space) = (world.fs.snapshots().expect("listed"), world.fs.snapshot_space());
            let space = space.expect("counted");
            let Some(newest) = space.last() else { break };
            let all_bytes = newest.with_older_bytes;
            assert_eq!(world.fs.bytes_freed_without(|_| true).expect("counted"), all_bytes);
            let gone = world.rng.below(names.len() as u64) as usize;
            // One of them, or it and all that are older.
            let first = if world.rng.below(4) == 0 { 0 } else { gone };
            let promised = if first == gone { space[gone].alone_bytes } else { space[gone].with_older_bytes };
            for snapshot in &names[first..=gone] {
                world.fs.delete_snapshot(&snapshot.name).expect("it is there");
            }
            let after = world.data_bytes();
            let freed = before - after;
            assert!(
                freed.abs_diff(promised) * 100 <= promised,
                "seed {seed}: {freed} bytes are free, and {promised} were promised"
            );
            (before, freed_all, deleted) = (after, freed_all + freed, deleted + 1);
        }
    }
    println!("{orders} orders, {deleted} deletions, {freed_all} bytes");
    assert!(freed_all > orders * 500_000, "snapshots held {freed_all} bytes");
}
