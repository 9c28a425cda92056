//! Many threads on few names: every outcome is possible in some order of the calls, and all records agree at
//! the end.

use std::thread;
use warpfire_env::sync::atomic::{AtomicU64, Ordering};

use warpfire_meta::Storage;

use super::check::check;
use super::{TestRandom, world_with};
use crate::acl::Caller;
use crate::{Fs, FsError, FsOptions, NewMode, NodeRef, Position, RenameMode};

const ROOT: Caller<'static> = Caller::ROOT;

fn shuffle_names<E: Storage>(fs: &Fs<E>, seed: u64, steps: u64) {
    let mut draw = TestRandom(seed);
    let mut dirs: Vec<NodeRef> = vec![fs.root()];
    let mut held: Vec<NodeRef> = Vec::new();
    for _ in 0..steps {
        let pick = |draw: &mut TestRandom| [b'a' + draw.below(4) as u8];
        let name = pick(&mut draw);
        let other = pick(&mut draw);
        let dir = NodeRef::clone(&dirs[draw.below(dirs.len() as u64) as usize]);
        let to = NodeRef::clone(&dirs[draw.below(dirs.len() as u64) as usize]);
        let mode = NewMode::exact(0o755);
        let outcome = match draw.below(12) {
            0 | 1 => fs.create_file(&ROOT, &dir, &name, mode, b"x").map(|_| ()),
            2 => fs.create(&ROOT, &dir, &name, mode).map(|node| held.push(node)),
            3 => fs.mkdir(&ROOT, &dir, &name, mode).map(|node| dirs.push(node)),
            4 => fs.unlink(&ROOT, &dir, &name),
            5 => fs.rmdir(&ROOT, &dir, &name),
            6 => fs.rename(&ROOT, (&dir, &name), (&to, &other), RenameMode::Replace),
            7 => fs.rename(&ROOT, (&dir, &name), (&to, &other), RenameMode::Exchange),
            8 => fs.lookup(&ROOT, &dir, &name).and_then(|node| {
                if !node.is_dir() {
                    return fs.link(&ROOT, &node, &to, &other);
                }
                dirs.push(node);
                Ok(())
            }),
            9 => fs.lookup(&ROOT, &dir, &name).and_then(|node| {
                let done = fs.write(&ROOT, &node, Position::End, b"more").map(|_| ());
                held.push(node);
                done
            }),
            10 => fs.readdir(&ROOT, &dir, None, 100).map(|_| ()),
            _ => {
                held.clear();
                dirs.truncate(1 + draw.below(3) as usize);
                fs.reap()
            }
        };
        if let Err(FsError::Damaged { reason, .. }) = outcome {
            panic!("seed {seed}: {reason}");
        }
    }
}

#[test]
fn threads_that_shuffle_the_same_names_leave_a_sound_tree() {
    for seed in 0..8 {
        let (engine, clock) = world_with();
        let fs = Fs::open(engine.clone(), clock, FsOptions::default()).unwrap();
        thread::scope(|s| {
            for t in 0..4 {
                let fs = &fs;
                s.spawn(move || shuffle_names(fs, seed * 10 + t, 400));
            }
        });
        fs.sync().unwrap();
        check(&*engine, &format!("seed {seed}"));
    }
}

#[test]
fn threads_that_shuffle_names_over_the_engine_leave_a_sound_tree() {
    for seed in 0..4 {
        let fs = super::engine::open(super::engine::format(), Fs::format);
        thread::scope(|s| {
            for t in 0..4 {
                let fs = &fs;
                s.spawn(move || shuffle_names(fs, 1000 + seed * 10 + t, 400));
            }
        });
        fs.sync().unwrap();
        check(&**fs.engine(), &format!("seed {seed}"));
    }
}

#[test]
fn racing_appends_all_land_whole_and_in_each_writers_order() {
    let (engine, clock) = world_with();
    let fs = Fs::open(engine, clock, FsOptions::default()).unwrap();
    let node = fs.create(&ROOT, &fs.root(), b"log", NewMode::exact(0o644)).unwrap();
    thread::scope(|s| {
        for t in 0..4u64 {
            let fs = &fs;
            let node = &node;
            s.spawn(move || {
                for i in 0..500u64 {
                    let record = [t.to_le_bytes(), i.to_le_bytes()].concat();
                    fs.write(&ROOT, node, Position::End, &record).unwrap();
                }
            });
        }
    });
    let mut bytes = vec![0; 4 * 500 * 16];
    assert_eq!(fs.read(&node, 0, &mut bytes).unwrap(), bytes.len());
    let mut next = [0u64; 4];
    for record in bytes.chunks(16) {
        let (t, i) = record.split_at(8);
        let t = u64::from_le_bytes(t.try_into().unwrap()) as usize;
        assert_eq!(u64::from_le_bytes(i.try_into().unwrap()), next[t]);
        next[t] += 1;
    }
    assert_eq!(next, [500; 4]);
}

#[test]
fn only_one_of_many_makes_a_name() {
    let (engine, clock) = world_with();
    let fs = Fs::open(engine, clock, FsOptions::default()).unwrap();
    let made = AtomicU64::new(0);
    thread::scope(|s| {
        for _ in 0..4 {
            s.spawn(|| {
                for i in 0..200u32 {
                    let name = i.to_string();
                    if fs.create(&ROOT, &fs.root(), name.as_bytes(), NewMode::exact(0o644)).is_ok() {
                        made.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    assert_eq!(made.into_inner(), 200);
}

/// The sums of inodes and bytes were once counted beside the commits. A sync between a commit and its count,
/// and a power cut then, left wrong sums on flash.
#[test]
fn a_power_cut_among_threads_leaves_sums_that_agree() {
    for seed in 0..3 {
        let fs = super::engine::open(super::engine::format(), Fs::format);
        let running = AtomicU64::new(3);
        thread::scope(|s| {
            for t in 0..3 {
                let fs = &fs;
                let running = &running;
                s.spawn(move || {
                    shuffle_names(fs, seed * 10 + t, 1500);
                    running.fetch_sub(1, Ordering::Relaxed);
                });
            }
            let mut cuts = 0;
            while running.load(Ordering::Relaxed) > 0 {
                fs.sync().unwrap();
                let after = super::engine::open(fs.engine().log().crash(), |_, _, _, _| Ok(()));
                after.sync().unwrap();
                check(&**after.engine(), &format!("seed {seed} cut {cuts}"));
                cuts += 1;
            }
        });
    }
}

/// `unlink` once waited for the state of the directory while it held the file's. `rename` takes both by
/// inode number, so the two waited for each other.
#[test]
fn a_name_is_removed_while_another_name_of_its_file_moves() {
    let (engine, clock) = world_with();
    let fs = Fs::open(engine, clock, FsOptions::default()).unwrap();
    let root = fs.root();
    let file = fs.create(&ROOT, &root, b"a", NewMode::exact(0o644)).unwrap();
    thread::scope(|s| {
        s.spawn(|| {
            for _ in 0..200 {
                fs.rename(&ROOT, (&root, b"a"), (&root, b"b"), RenameMode::Replace).unwrap();
                fs.rename(&ROOT, (&root, b"b"), (&root, b"a"), RenameMode::Replace).unwrap();
            }
        });
        for _ in 0..200 {
            fs.link(&ROOT, &file, &root, b"other").unwrap();
            fs.unlink(&ROOT, &root, b"other").unwrap();
        }
    });
}

/// `version` once took the state of the file a second time, for the path. A writer that came between the two
/// waited for the first, and the second waited for the writer.
#[test]
fn a_version_is_taken_while_the_file_is_written() {
    let (engine, clock) = world_with();
    let fs = Fs::open(engine, clock, FsOptions::default()).unwrap();
    let file = fs.create(&ROOT, &fs.root(), b"a", NewMode::exact(0o644)).unwrap();
    thread::scope(|s| {
        s.spawn(|| {
            for _ in 0..400 {
                fs.write(&ROOT, &file, Position::At(0), b"x").unwrap();
            }
        });
        for _ in 0..400 {
            fs.version(&file).unwrap();
        }
    });
}
