//! Many threads on few names: every outcome is possible in some order of the calls, and all records agree at
//! the end.

use std::thread;
use std::time::Duration;
use warpfire_env::sync::atomic::{AtomicU64, Ordering};

use warpfire_format::fs::{KeyBuf, dentry_key, inode_key};
use warpfire_meta::Storage;

use super::check::check;
use super::{TestRandom, world_with};
use crate::acl::Caller;
use crate::{Fs, FsError, FsOptions, NewMode, NodeRef, Position, RenameMode, SetAttr};

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
        let outcome = match draw.below(13) {
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
            11 => fs.remove_files(&ROOT, &dir, None).map(|_| ()),
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

/// A rename finds its file before it has the locks. Under them the name may lead to another file.
#[test]
fn a_rename_moves_the_file_that_the_name_leads_to_under_its_locks() {
    for round in 0..4 {
        let (engine, clock) = world_with();
        let fs = Fs::open(engine.clone(), clock, FsOptions::default()).unwrap();
        let dir = |name| fs.mkdir(&ROOT, &fs.root(), name, NewMode::exact(0o755)).unwrap();
        let (from, to) = (dir(b"from"), dir(b"to"));
        let make = |bytes: &[u8]| fs.create_file(&ROOT, &from, b"x", NewMode::exact(0o644), bytes).unwrap();
        make(b"old");
        thread::scope(|s| {
            let closed = to.children.write();
            let renames = s.spawn(|| fs.rename(&ROOT, (&from, b"x"), (&to, b"y"), RenameMode::Replace));
            // Long enough that it mostly has found the file, and waits for the directory.
            thread::park_timeout(Duration::from_millis(20));
            let replaced = s.spawn(|| {
                fs.unlink(&ROOT, &from, b"x").unwrap();
                make(b"new");
            });
            replaced.join().unwrap();
            drop(closed);
            renames.join().unwrap().unwrap();
        });
        assert_eq!(fs.read_file(&ROOT, &to, b"y").unwrap(), b"new", "round {round}");
        assert!(matches!(fs.lookup(&ROOT, &from, b"x"), Err(FsError::NotFound)), "round {round}");
        fs.sync().unwrap();
        check(&*engine, &format!("round {round}"));
    }
}

/// A lookup makes no node of a record that it read before a change, because the record's counter has moved.
#[test]
fn every_call_that_changes_a_record_moves_its_counter() {
    let (engine, clock) = world_with();
    let fs = Fs::open(engine, clock, FsOptions::default()).unwrap();
    let root = fs.root();
    let mode = NewMode::exact(0o755);
    let name = |dir: &NodeRef, name: &[u8]| dentry_key(fs.volume, dir.ino(), name);
    let moves = |what: &str, keys: &[KeyBuf], call: &dyn Fn() -> Result<(), FsError>| {
        let before: Vec<u64> = keys.iter().map(|key| fs.version_counters.at(key)).collect();
        call().unwrap_or_else(|e| panic!("{what}: {e}"));
        for (n, (key, before)) in keys.iter().zip(before).enumerate() {
            assert_ne!(fs.version_counters.at(key), before, "{what}: key {n}");
        }
    };
    let rename = |from: (&NodeRef, &[u8]), to: (&NodeRef, &[u8]), mode| fs.rename(&ROOT, from, to, mode);
    let replace = RenameMode::Replace;
    for file in [b"a", b"b", b"c", b"d"] {
        fs.create_file(&ROOT, &root, file, mode, b"some bytes").unwrap();
    }
    let (one, two) =
        (fs.mkdir(&ROOT, &root, b"1", mode).unwrap(), fs.mkdir(&ROOT, &root, b"2", mode).unwrap());
    let inner = fs.mkdir(&ROOT, &one, b"inner", mode).unwrap();
    let of_dir = |dir: &NodeRef| inode_key(fs.volume, dir.ino());
    moves("rename", &[name(&root, b"a"), name(&one, b"x")], &|| rename((&root, b"a"), (&one, b"x"), replace));
    moves("replace", &[name(&one, b"x"), name(&root, b"b")], &|| {
        rename((&one, b"x"), (&root, b"b"), replace)
    });
    moves("exchange", &[name(&root, b"b"), name(&root, b"c")], &|| {
        rename((&root, b"b"), (&root, b"c"), RenameMode::Exchange)
    });
    let keys = [name(&one, b"inner"), name(&two, b"inner"), of_dir(&inner), of_dir(&one), of_dir(&two)];
    moves("move a directory", &keys, &|| rename((&one, b"inner"), (&two, b"inner"), replace));
    let file = fs.lookup(&ROOT, &root, b"d").unwrap();
    moves("write", &[name(&root, b"d")], &|| fs.write(&ROOT, &file, Position::At(2), b"x").map(drop));
    moves("truncate", &[name(&root, b"d")], &|| fs.truncate(&ROOT, &file, 3));
    let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    moves("set attributes", &[name(&root, b"d")], &|| fs.setattr(&ROOT, &file, &set).map(drop));
    moves("link", &[name(&root, b"d")], &|| fs.link(&ROOT, &file, &root, b"e").map(drop));
    moves("unlink one of two", &[name(&root, b"d"), of_dir(&file)], &|| fs.unlink(&ROOT, &root, b"d"));
    moves("unlink", &[name(&root, b"c")], &|| fs.unlink(&ROOT, &root, b"c"));
    moves("rmdir", &[name(&two, b"inner"), of_dir(&inner)], &|| fs.rmdir(&ROOT, &two, b"inner"));
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
