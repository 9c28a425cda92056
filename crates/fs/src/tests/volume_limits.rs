//! Limits of volumes: which calls they refuse, to the byte, with many threads and across power cuts.

use std::sync::Arc;
use std::thread;

use rustix::io::Errno;
use warpfire_meta::{SnapshotStore, Storage, Store};
use warpfire_units::Seq;

use super::check::check;
use super::engine::{format, open};
use super::{TestFs, TestRandom, world, world_with};
use crate::acl::Caller;
use crate::{
    AllocMode, Fs, FsError, FsOptions, LIMIT_MAX, LimitChange, NewLimit, NewMode, NodeRef, Position,
    RenameMode, VolumeInfo,
};

const ROOT: Caller<'static> = Caller::ROOT;
fn mode() -> NewMode {
    NewMode::exact(0o755)
}

fn bytes(limit: u64) -> LimitChange {
    LimitChange { bytes: NewLimit::Max(limit), ..LimitChange::default() }
}

fn files(limit: u64) -> LimitChange {
    LimitChange { files: NewLimit::Max(limit), ..LimitChange::default() }
}

/// A volume behind the door `v` in the root.
fn volume<E: Storage + SnapshotStore>(fs: &Fs<E>, change: LimitChange) -> NodeRef {
    fs.create_volume(&fs.root(), b"v", (0, 0)).unwrap();
    fs.limit_volume(&fs.root(), b"v", change).unwrap();
    fs.lookup(&ROOT, &fs.root(), b"v").unwrap()
}

fn info<E: Storage>(fs: &Fs<E>) -> VolumeInfo {
    fs.volumes().unwrap().remove(0)
}

#[track_caller]
fn refused<T: std::fmt::Debug>(outcome: Result<T, FsError>, of: &str) {
    match outcome {
        Err(e @ FsError::VolumeFull(limit)) => {
            assert_eq!(limit, of);
            assert_eq!(e.errno(), Errno::DQUOT.raw_os_error());
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_adds_bytes_is_refused_at_the_limit_and_nothing_else() {
    let fs = world();
    let top = volume(&fs, bytes(100_000));
    let node = fs.create(&ROOT, &top, b"file", mode()).unwrap();
    fs.write(&ROOT, &node, Position::At(0), &[1; 60_000]).unwrap();
    fs.create_file(&ROOT, &top, b"small", mode(), &[2; 40_000]).unwrap();
    assert_eq!(info(&fs).file_bytes, 100_000);
    // Inline and by a slice, behind the end, and through every kind of call.
    for len in [1, 100, 50_000] {
        refused(fs.write(&ROOT, &node, Position::At(60_000), &vec![3; len]), "bytes");
        refused(fs.write(&ROOT, &node, Position::At(1 << 30), &vec![3; len]), "bytes");
        refused(fs.append(&ROOT, &node, &vec![3; len]), "bytes");
        refused(fs.create_file(&ROOT, &top, b"more", mode(), &vec![3; len]), "bytes");
    }
    refused(fs.copy_range(&ROOT, (&node, 0), (&node, 60_000), 5000), "bytes");
    refused(fs.fallocate(&ROOT, &node, AllocMode::Allocate, 60_000, 1), "bytes");
    refused(fs.fallocate(&ROOT, &node, AllocMode::KeepSize, 60_000, 1), "bytes");
    assert_eq!((info(&fs).file_bytes, info(&fs).inodes), (100_000, 3), "nothing of it has happened");
    // A hole has no bytes, and the old bytes can change.
    fs.truncate(&ROOT, &node, 1 << 40).unwrap();
    fs.truncate(&ROOT, &node, 60_000).unwrap();
    fs.write(&ROOT, &node, Position::At(100), &[4; 50_000]).unwrap();
    fs.create_file(&ROOT, &top, b"empty", mode(), b"").unwrap();
    fs.mkdir(&ROOT, &top, b"dir", mode()).unwrap();
    fs.link(&ROOT, &node, &top, b"also").unwrap();
    fs.rename(&ROOT, (&top, b"empty"), (&top, b"small"), RenameMode::Replace).unwrap();
    assert_eq!(info(&fs).file_bytes, 60_000);
    fs.fallocate(&ROOT, &node, AllocMode::KeepSize, 60_000, 40_000).unwrap();
    refused(fs.append(&ROOT, &fs.lookup(&ROOT, &top, b"small").unwrap(), b"x"), "bytes");
    // What a file has reserved, it can write.
    fs.write(&ROOT, &node, Position::At(60_000), &[5; 40_000]).unwrap();
    refused(fs.append(&ROOT, &node, b"x"), "bytes");
    // Beside the volume there is no limit.
    fs.create_file(&ROOT, &fs.root(), b"beside", mode(), &[6; 200_000]).unwrap();
    for name in [&b"file"[..], b"also", b"small"] {
        fs.unlink(&ROOT, &top, name).unwrap();
    }
    drop(node);
    fs.reap().unwrap();
    fs.create_file(&ROOT, &top, b"again", mode(), &[7; 100_000]).unwrap();
    fs.sync().unwrap();
    check(&**fs.engine(), "at the limit");
}

#[test]
fn what_adds_inodes_is_refused_at_the_limit_and_nothing_else() {
    let fs = world();
    let top = volume(&fs, files(3));
    let node = fs.create(&ROOT, &top, b"a", mode()).unwrap();
    let dir = fs.mkdir(&ROOT, &top, b"b", mode()).unwrap();
    refused(fs.create(&ROOT, &top, b"c", mode()), "files");
    refused(fs.create_file(&ROOT, &dir, b"c", mode(), b"bytes"), "files");
    refused(fs.mkdir(&ROOT, &dir, b"c", mode()), "files");
    refused(fs.symlink(&ROOT, &top, b"c", b"a"), "files");
    refused(fs.tmpfile(&ROOT, &top, mode()), "files");
    fs.link(&ROOT, &node, &dir, b"c").unwrap();
    fs.write(&ROOT, &node, Position::At(0), &[1; 100_000]).unwrap();
    fs.unlink(&ROOT, &top, b"a").unwrap();
    refused(fs.create(&ROOT, &top, b"d", mode()), "files");
    fs.unlink(&ROOT, &dir, b"c").unwrap();
    drop(node);
    fs.reap().unwrap();
    fs.symlink(&ROOT, &top, b"d", b"b").unwrap();
    refused(fs.create(&ROOT, &top, b"e", mode()), "files");
    fs.sync().unwrap();
    check(&**fs.engine(), "at the limit of files");
}

#[test]
fn a_limit_is_set_below_the_use_lifted_and_kept_by_an_opening() {
    let (engine, clock) = world_with();
    let fs = Fs::open(Arc::clone(&engine), clock.clone(), FsOptions::default()).unwrap();
    let top = volume(&fs, files(7));
    fs.create_file(&ROOT, &top, b"file", mode(), &[1; 1000]).unwrap();
    let set = |fs: &TestFs, change| fs.limit_volume(&fs.root(), b"v", change);
    let limits = set(&fs, bytes(10)).unwrap().limits;
    assert_eq!((limits.bytes, limits.files), (Some(10), Some(7)), "the other limit stays");
    refused(fs.create_file(&ROOT, &top, b"more", mode(), b"x"), "bytes");
    fs.truncate(&ROOT, &fs.lookup(&ROOT, &top, b"file").unwrap(), 500).unwrap();
    drop((top, fs));
    let fs = Fs::open(engine, clock, FsOptions::default()).unwrap();
    let top = fs.lookup(&ROOT, &fs.root(), b"v").unwrap();
    assert_eq!((info(&fs).limits, info(&fs).file_bytes), (limits, 500));
    refused(fs.create_file(&ROOT, &top, b"more", mode(), b"x"), "bytes");
    set(&fs, LimitChange { bytes: NewLimit::None, ..LimitChange::default() }).unwrap();
    fs.create_file(&ROOT, &top, b"more", mode(), &[1; 1000]).unwrap();
    assert!(matches!(set(&fs, bytes(LIMIT_MAX + 1)), Err(FsError::Invalid(_))));
    fs.mkdir(&ROOT, &fs.root(), b"dir", mode()).unwrap();
    assert!(matches!(fs.limit_volume(&fs.root(), b"dir", bytes(1)), Err(FsError::Invalid(_))));
    assert!(matches!(fs.limit_volume(&fs.root(), b"none", bytes(1)), Err(FsError::NotFound)));
    set(&fs, LimitChange { files: NewLimit::None, ..LimitChange::default() }).unwrap();
    drop(top);
    fs.delete_volume(&fs.root(), b"v", &mut |_| ()).unwrap();
}

#[test]
fn statfs_shows_what_a_limited_volume_has_and_may_still_take() {
    let fs = world();
    let change = LimitChange { bytes: NewLimit::Max(5000), files: NewLimit::Max(4) };
    let top = volume(&fs, change);
    fs.create_file(&ROOT, &top, b"file", mode(), &[1; 1200]).unwrap();
    let space = fs.statfs_of(top.ino()).unwrap();
    assert_eq!((space.total_bytes, space.free_bytes, space.available_bytes), (5000, 3800, 3800));
    assert_eq!((space.inodes, space.inodes_max, space.file_bytes), (2, Some(4), 1200));
    assert_eq!(fs.statfs_of(1).unwrap(), fs.statfs().unwrap());
    fs.limit_volume(&fs.root(), b"v", bytes(100)).unwrap();
    let space = fs.statfs_of(top.ino()).unwrap();
    assert_eq!((space.total_bytes, space.available_bytes), (1200, 0));
}

#[test]
fn a_transaction_that_would_exceed_a_limit_fails_as_a_whole() {
    let (engine, clock) = world_with();
    let fs = Arc::new(Fs::open(engine, clock, FsOptions::default()).unwrap());
    let top = volume(&fs, bytes(1000));
    fs.create_file(&ROOT, &top, b"old", mode(), &[1; 600]).unwrap();
    let begun = |first: usize, second: usize| {
        let tx = fs.begin().unwrap();
        let tx_fs = tx.files();
        let there = tx_fs.lookup(&ROOT, &tx_fs.root(), b"v").unwrap();
        tx_fs.create_file(&ROOT, &there, b"one", mode(), &vec![2; first]).unwrap();
        tx_fs.create_file(&ROOT, &there, b"two", mode(), &vec![3; second]).unwrap();
        tx_fs.create_file(&ROOT, &tx_fs.root(), b"beside", mode(), &[4; 5000]).unwrap();
        tx
    };
    refused(begun(400, 1).commit(), "bytes");
    assert!(fs.lookup(&ROOT, &top, b"one").is_err() && fs.lookup(&ROOT, &fs.root(), b"beside").is_err());
    assert_eq!(info(&fs).file_bytes, 600);
    begun(399, 1).commit().unwrap();
    assert_eq!(info(&fs).file_bytes, 1000);
    refused(fs.create_file(&ROOT, &top, b"more", mode(), b"x"), "bytes");
    // More than the limit on the way, and as many bytes at the end.
    let tx = fs.begin().unwrap();
    let tx_fs = tx.files();
    let there = tx_fs.lookup(&ROOT, &tx_fs.root(), b"v").unwrap();
    tx_fs.create_file(&ROOT, &there, b"new", mode(), &[5; 600]).unwrap();
    tx_fs.truncate(&ROOT, &tx_fs.lookup(&ROOT, &there, b"old").unwrap(), 0).unwrap();
    tx.commit().unwrap();
    fs.sync().unwrap();
    assert_eq!(info(&fs).file_bytes, 1000);
    check(&**fs.engine(), "after transactions at the limit");
}

/// Eight threads make files of falling sizes until not one byte fits, and some of them remove files and begin
/// anew. The files have as many bytes as the limit then: never one above, and no refusal while one would fit.
#[test]
fn eight_threads_fill_a_volume_to_the_byte() {
    for seed in 0..6 {
        let fs = open(format(), Fs::format);
        let limit = 200_000 + seed;
        let top = volume(&fs, bytes(limit));
        thread::scope(|scope| {
            for thread in 0..8 {
                let (fs, top) = (&fs, &top);
                scope.spawn(move || {
                    let mut draw = TestRandom(seed * 100 + thread);
                    let mut size = 3000 + draw.below(1000);
                    for n in 0_u64.. {
                        let name = format!("{thread}-{n}");
                        let content = vec![thread as u8; size as usize];
                        match fs.create_file(&ROOT, top, name.as_bytes(), mode(), &content) {
                            Ok(_) if draw.below(8) == 0 => fs.unlink(&ROOT, top, name.as_bytes()).unwrap(),
                            Ok(_) => {}
                            Err(FsError::VolumeFull("bytes")) if size == 1 => return,
                            Err(FsError::VolumeFull("bytes")) => size = size.div_ceil(2).min(size - 1),
                            Err(e) => panic!("{e}"),
                        }
                        let (limits, used) =
                            fs.limited_volumes.get(warpfire_format::fs::VolumeId(2)).unwrap();
                        assert!(used.bytes.cast_unsigned() <= limits.bytes.unwrap(), "seed {seed}");
                    }
                });
            }
        });
        // A thread that removed a file after the others had gone has left room.
        while fs
            .append(
                &ROOT,
                &fs.create(&ROOT, &top, b"rest", mode())
                    .or_else(|_| fs.lookup(&ROOT, &top, b"rest"))
                    .unwrap(),
                b"x",
            )
            .is_ok()
        {}
        let sizes = fs.readdir(&ROOT, &top, None, usize::MAX).unwrap().into_iter().map(|entry| {
            let node = fs.lookup(&ROOT, &top, &entry.name).unwrap();
            if node.is_dir() { 0 } else { fs.getattr(&node).size_bytes }
        });
        assert_eq!(sizes.sum::<u64>(), limit, "seed {seed}");
        assert_eq!(info(&fs).file_bytes, limit, "the sum in the store");
        fs.sync().unwrap();
        check(&**fs.engine(), &format!("seed {seed}"));
    }
}

#[test]
fn after_a_power_cut_the_use_is_exact_and_the_limit_holds_to_the_byte() {
    for seed in 0..30 {
        let mut draw = TestRandom(500 + seed);
        let mut fs = open(format(), Fs::format);
        const LIMIT: u64 = 30_000;
        drop(volume(&fs, bytes(LIMIT)));
        fs.sync().unwrap();
        for round in 0..4 {
            let what = format!("seed {seed} round {round}");
            let top = fs.lookup(&ROOT, &fs.root(), b"v").unwrap();
            for _ in 0..draw.below(40) {
                let name = [b'a' + draw.below(6) as u8];
                let len = draw.below(9000) as usize;
                let done = match draw.below(8) {
                    0 => fs.unlink(&ROOT, &top, &name),
                    1 => fs.sync(),
                    2 => fs.engine().flush().map_err(FsError::from),
                    3 => fs.engine().background_step().map(drop).map_err(FsError::from),
                    4 => fs.lookup(&ROOT, &top, &name).and_then(|node| fs.truncate(&ROOT, &node, len as u64)),
                    5 => fs.create_file(&ROOT, &top, &name, mode(), &vec![1; len]).map(drop),
                    _ => fs.lookup(&ROOT, &top, &name).and_then(|node| {
                        fs.write(&ROOT, &node, Position::At(draw.below(20_000)), &vec![2; len]).map(drop)
                    }),
                };
                assert!(
                    !matches!(done, Err(FsError::Damaged { .. } | FsError::Invalid(_))),
                    "{what}: {done:?}"
                );
            }
            drop(top);
            let recovered = fs.engine().log().crash_seeded(draw.next());
            fs = open(recovered, |_, _, _, _| Ok(()));
            check(&**fs.engine(), &what);
            let number = warpfire_format::fs::VolumeId(2);
            let (limits, used) = fs.limited_volumes.get(number).expect("the limit was synced");
            assert_eq!(limits.bytes, Some(LIMIT), "{what}");
            assert_eq!(used, crate::volume::VolumeUse::of(&fs.volume_sums(number, Seq::MAX).unwrap()));
            let left = LIMIT - used.bytes.cast_unsigned();
            let top = fs.lookup(&ROOT, &fs.root(), b"v").unwrap();
            refused(fs.create_file(&ROOT, &top, b"fill", mode(), &vec![3; left as usize + 1]), "bytes");
            fs.create_file(&ROOT, &top, b"fill", mode(), &vec![3; left as usize]).unwrap();
            fs.unlink(&ROOT, &top, b"fill").unwrap();
        }
    }
}
