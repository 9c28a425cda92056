//! Puts one record into a pool that contradicts the others, with right checksums: a named pipe that no
//! counter counts. A check has to find it. The pool must not be in use.
//!
//! `cargo run --release -p warpfire-check --example forge_record -- IMAGE...`

use std::error::Error;
use std::path::Path;
use std::sync::Arc;

use warpfire_env::{Device, FileDevice, SystemRandom};
use warpfire_format::fs::{Attrs, FileKind, Inode, InodeContent, InodeTime, Key, VolumeId};
use warpfire_fs::FsSchema;
use warpfire_log::Log;
use warpfire_meta::{Admit, Batch, Engine, EngineOptions, Store};
use warpfire_pool::Pool;

const ROOT: u64 = 1;
/// A number that no file of a pool has: they count up from 1.
const FORGED: u64 = 1 << 40;

fn main() -> Result<(), Box<dyn Error>> {
    let images: Vec<String> = std::env::args().skip(1).collect();
    let open = |image: &String| -> Result<Arc<dyn Device>, Box<dyn Error>> {
        Ok(Arc::new(FileDevice::open(Path::new(image))?))
    };
    let devices = images.iter().map(open).collect::<Result<_, _>>()?;
    let (pool, root) = Pool::open(devices, &SystemRandom)?;
    let (log, recovered) = Log::open(pool, &root)?;
    let engine = Engine::open(log, recovered, FsSchema, EngineOptions::default())?;
    let time = InodeTime::default();
    let attrs = Attrs {
        kind: FileKind::Fifo,
        permissions: 0o644,
        uid: 0,
        gid: 0,
        links: 1,
        size_bytes: 0,
        allocated_bytes: 0,
        reserved_bytes: 0,
        rdev: 0,
        btime: time,
        mtime: time,
        ctime: time,
        atime: time,
        flags: 0,
    };
    let mut value = Vec::new();
    Inode { ino: FORGED, attrs, content: InodeContent::None }.encode(&mut value);
    let mut batch = Batch::new();
    batch.put(&Key::Dentry(VolumeId::FIRST, ROOT, b"forged").encode(), &value);
    let seq = engine.commit(&batch, None, Admit::User)?;
    engine.sync(seq)?;
    println!("/forged has the number {FORGED}, and no counter counts it");
    Ok(())
}
