//! Full pools and damaged records.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use warpfire_format::fs::{DeviceErrors, HealthRecord, REGION_BYTES, region_key};
use warpfire_meta::{Admit, Batch, Direction, KeyRange, MapStore, ScanPage, Store};

use super::check::check;
use super::{TestRandom, Ticking, world_with};
use crate::acl::{Caller, Perm};
use crate::{
    AllocMode, FileKind, Fs, FsError, FsOptions, FsSchema, NewMode, Position, RenameMode, SetAttr, XattrMode,
};

const ROOT: Caller<'static> = Caller::ROOT;

#[test]
fn a_full_pool_says_so_and_deleting_makes_room() {
    let clock = Arc::new(Ticking::default());
    let engine = Arc::new(MapStore::with_capacity(FsSchema, 400_000));
    Fs::format(&*engine, &*clock, 0, 0).unwrap();
    let fs = Fs::open(engine.clone(), clock, FsOptions::default()).unwrap();
    let root = fs.root();
    let mut made = 0;
    let full = loop {
        let name = format!("f{made}");
        let size = if made == 0 { 40_000 } else { 3_000 };
        match fs.create_file(&ROOT, &root, name.as_bytes(), NewMode::exact(0o644), &vec![1; size]) {
            Ok(_) => made += 1,
            Err(e) => break e,
        }
    };
    assert!(matches!(full, FsError::NoSpace), "{full}");
    let node = fs.lookup(&ROOT, &root, b"f0").unwrap();
    let before = fs.getattr(&node);
    assert!(matches!(fs.write(&ROOT, &node, Position::End, &[2; 30_000]), Err(FsError::NoSpace)));
    assert!(matches!(fs.write(&ROOT, &node, Position::End, &[2; 300_000]), Err(FsError::NoSpace)));
    assert!(matches!(fs.fallocate(&ROOT, &node, AllocMode::Allocate, 0, 1 << 40), Err(FsError::NoSpace)));
    assert_eq!(fs.getattr(&node), before, "calls that failed have changed nothing");
    fs.fallocate(&ROOT, &node, AllocMode::PunchHole, 0, 100).unwrap();
    fs.truncate(&ROOT, &node, 10).unwrap();
    drop(node);
    for n in 0..made {
        fs.unlink(&ROOT, &root, format!("f{n}").as_bytes()).unwrap();
    }
    while engine.background_step().unwrap() {}
    fs.create_file(&ROOT, &root, b"again", NewMode::exact(0o644), &[1; 50_000]).unwrap();
    fs.sync().unwrap();
    check(&*engine, "after the flood");
}

/// Makes every call on everything in a directory. Any result is right; a panic is not.
fn try_everything(fs: &super::TestFs, draw: &mut TestRandom) {
    let mut todo = vec![fs.root()];
    let mut seen = 0;
    while let Some(dir) = todo.pop() {
        seen += 1;
        if seen > 50 {
            return;
        }
        let Ok(entries) = fs.readdir(&ROOT, &dir, None, 100) else { continue };
        if draw.below(8) == 0 {
            let _ = fs.remove_files(&ROOT, &dir, None);
        }
        for entry in entries {
            let Ok(node) = fs.lookup(&ROOT, &dir, &entry.name) else { continue };
            if fs.getattr(&node).size_bytes < 16 << 20 {
                let _ = fs.read_file(&ROOT, &dir, &entry.name);
            }
            let _ = fs.access(&ROOT, &node, Perm::ALL);
            let _ = fs.getattr(&node);
            let _ = fs.readlink(&node);
            let _ = fs.listxattr(&ROOT, &node);
            let _ = fs.getxattr(&ROOT, &node, b"user.a");
            let _ = fs.setxattr(&ROOT, &node, b"user.b", b"x", XattrMode::Either);
            let mut buf = vec![0; 5000];
            let at = draw.below(3 << 20);
            let _ = fs.read(&node, at, &mut buf);
            for mode in [AllocMode::PunchHole, AllocMode::Insert, AllocMode::Collapse] {
                let _ = fs.fallocate(&ROOT, &node, mode, draw.below(3 << 20), 1 + draw.below(5000));
            }
            let _ = fs.write(&ROOT, &node, Position::At(at), b"bytes");
            let _ = fs.copy_range(&ROOT, (&node, 0), (&node, 4 << 20), 5000);
            let _ = fs.truncate(&ROOT, &node, draw.below(100_000));
            let _ = fs.setattr(&ROOT, &node, &SetAttr { mode: Some(0o600), ..SetAttr::default() });
            let _ = fs.link(&ROOT, &node, &dir, b"linked");
            let _ = fs.rename(&ROOT, (&dir, &entry.name), (&fs.root(), b"moved"), RenameMode::Replace);
            let _ = fs.unlink(&ROOT, &dir, &entry.name);
            let _ = fs.rmdir(&ROOT, &dir, &entry.name);
            if node.kind() == FileKind::Directory {
                todo.push(node);
            }
        }
    }
    let _ = fs.statfs();
    let _ = fs.sync();
}

/// The pointers of one region are lost. The regions beside it are whole.
#[test]
fn what_cannot_be_read_of_a_file_is_listed_and_nothing_else() {
    let (engine, clock) = world_with();
    let fs = Fs::open(Arc::clone(&engine), clock.clone(), FsOptions::default()).unwrap();
    let node = fs.create(&ROOT, &fs.root(), b"file", NewMode::exact(0o644)).unwrap();
    let region = u64::from(REGION_BYTES);
    for index in 0..4 {
        fs.write(&ROOT, &node, Position::At(index * region), &vec![index as u8; REGION_BYTES as usize])
            .unwrap();
    }
    assert_eq!(fs.unreadable(&node, 0..4 * region).unwrap(), []);
    let mut batch = Batch::new();
    batch.put(&region_key(fs.volume, node.ino(), 2), b"no region");
    drop((node, fs));
    engine.commit(&batch, None, Admit::User).unwrap();

    let fs = Fs::open(engine, clock, FsOptions::default()).unwrap();
    let node = fs.lookup(&ROOT, &fs.root(), b"file").unwrap();
    let lost = 2 * region..3 * region;
    assert_eq!(fs.unreadable(&node, 0..4 * region).unwrap(), std::slice::from_ref(&lost));
    let begun = lost.start..lost.start + 7;
    assert_eq!(fs.unreadable(&node, 5..begun.end).unwrap(), std::slice::from_ref(&begun));
    assert_eq!(fs.unreadable(&node, lost.end..4 * region).unwrap(), []);
    // Ranges may end anywhere behind the end of the file.
    assert_eq!(fs.unreadable(&node, u64::MAX - 9..u64::MAX).unwrap(), []);
    assert_eq!(fs.unreadable(&node, 0..u64::MAX).unwrap(), std::slice::from_ref(&lost));
}

#[test]
fn damaged_records_are_errors_and_never_panics() {
    for seed in 0..400 {
        let mut draw = TestRandom(seed);
        let (engine, clock) = world_with();
        let fs = Fs::open(engine.clone(), clock.clone(), FsOptions::default()).unwrap();
        let root = fs.root();
        let mode = NewMode::exact(0o755);
        let d = fs.mkdir(&ROOT, &root, b"d", mode).unwrap();
        let e = fs.mkdir(&ROOT, &d, b"e", mode).unwrap();
        fs.create_file(&ROOT, &root, b"small", mode, b"bytes").unwrap();
        fs.create_file(&ROOT, &d, b"large", mode, &vec![3; 2 << 20]).unwrap();
        let node = fs.create(&ROOT, &e, b"sparse", mode).unwrap();
        fs.write(&ROOT, &node, Position::At(2 << 20), b"far out").unwrap();
        fs.setxattr(&ROOT, &node, b"user.a", b"1", XattrMode::Either).unwrap();
        fs.link(&ROOT, &node, &root, b"twice").unwrap();
        fs.symlink(&ROOT, &e, b"link", b"../small").unwrap();
        fs.sync().unwrap();
        drop((root, d, e, node, fs));
        damage(&engine, &mut draw);
        let tried = catch_unwind(AssertUnwindSafe(|| {
            if let Ok(fs) = Fs::open(engine.clone(), clock, FsOptions::default()) {
                try_everything(&fs, &mut draw);
            }
        }));
        assert!(tried.is_ok(), "seed {seed} panicked");
    }
}

/// Changes one byte of one or two values, or copies one record's value to another key.
fn damage(engine: &super::Engine, draw: &mut TestRandom) {
    let mut page = ScanPage::default();
    let snapshot = engine.snapshot();
    let range = KeyRange { start: &[0], end: None };
    engine.scan(range, engine.seq(&snapshot), Direction::Forward, 1000, 1 << 20, &mut page).unwrap();
    let all: Vec<_> = page.iter().map(|e| (e.key.to_vec(), e.value.to_vec())).collect();
    let mut batch = Batch::new();
    for _ in 0..=draw.below(2) {
        let (key, mut value) = all[draw.below(all.len() as u64) as usize].clone();
        let at = draw.below(value.len() as u64) as usize;
        match draw.below(4) {
            0 => value.truncate(at),
            1 => value[at] ^= 1 << draw.below(8),
            2 => value[at] = draw.next() as u8,
            _ => value = all[draw.below(all.len() as u64) as usize].1.clone(),
        }
        batch.put(&key, &value);
    }
    // A value that no longer decodes may be refused here already.
    let _ = engine.commit(&batch, None, Admit::User);
}

#[test]
fn the_health_record_is_there_after_a_restart() {
    let (engine, clock) = world_with();
    let open = || Fs::open(engine.clone(), clock.clone(), FsOptions::default()).unwrap();
    let fs = open();
    assert_eq!(fs.health().unwrap(), HealthRecord::default());
    let errors = DeviceErrors { errors: 3, bad_blocks: 4 };
    let health = HealthRecord {
        rebuilt_blocks: 5,
        devices: vec![DeviceErrors::default(), errors],
        damaged_files: vec![b"/lost".to_vec()],
        ..HealthRecord::default()
    };
    fs.put_health(&health).unwrap();
    assert_eq!(fs.health().unwrap(), health);
    fs.sync().unwrap();
    drop(fs);
    assert_eq!(open().health().unwrap(), health);
}
