//! Records that decode and make no sense: each kind is found, and only that kind.

use warpfire_check::{Code, Report};
use warpfire_format::fs::{
    Attrs, Content, CounterId, Dentry, Extent, ExtentMap, FileKind, Inode, Key, REGION_BYTES, Stamp, SuperId,
    Superblock, VolumeId, encode_counter, encode_region, flag,
};
use warpfire_meta::{Admit, Batch, Store};
use warpfire_simdev::SimWorld;
use warpfire_units::{SegmentId, SlicePtr};

use crate::rig::{SHAPES, checked, make, world};

const V: VolumeId = VolumeId::FIRST;
const ROOT: u64 = 1;

fn attrs(kind: FileKind, links: u32) -> Attrs {
    let zero = Stamp::default();
    Attrs {
        kind,
        permissions: 0o644,
        uid: 0,
        gid: 0,
        links,
        size_bytes: 0,
        allocated_bytes: 0,
        rdev: 0,
        btime: zero,
        mtime: zero,
        ctime: zero,
        atime: zero,
        flags: 0,
    }
}

/// A batch in the making.
struct Forger(Batch);

impl Forger {
    fn inode(&mut self, key: Key<'_>, ino: u64, attrs: Attrs, content: Content<'_>) -> &mut Self {
        let mut value = Vec::new();
        Inode { ino, attrs, content }.encode(&mut value);
        self.0.put(&key.encode(), &value);
        self
    }

    fn reference(&mut self, dir: u64, name: &[u8], kind: FileKind, ino: u64) -> &mut Self {
        let mut value = Vec::new();
        Dentry::encode_reference(&mut value, kind, ino);
        self.0.put(&Key::Dentry(V, dir, name).encode(), &value);
        self
    }

    fn region(&mut self, ino: u64, index: u64, extent: Extent<'_>) -> &mut Self {
        let mut value = Vec::new();
        encode_region(&mut value, &[extent].into_iter().collect::<ExtentMap<'_>>(), false);
        self.0.put(&Key::Region(V, ino, index).encode(), &value);
        self
    }

    fn counters(&mut self, inodes: i64, bytes: i64) -> &mut Self {
        for (id, add) in [(CounterId::Inodes, inodes), (CounterId::Bytes, bytes)] {
            let mut value = Vec::new();
            encode_counter(&mut value, add);
            self.0.merge(&Key::Counter(V, id).encode(), &value);
        }
        self
    }
}

/// What a check finds after `forge` has been at an empty filesystem.
fn forged(forge: impl FnOnce(&mut Forger)) -> Report {
    let shape = SHAPES[0];
    let world: SimWorld = world(shape, 1);
    let fs = make(&world, shape);
    let mut forger = Forger(Batch::new());
    let mut superblock = Vec::new();
    Superblock { next_ino: 100 }.encode(&mut superblock);
    forger.0.put(&Key::Super(SuperId::Superblock).encode(), &superblock);
    forge(&mut forger);
    let seq = fs.engine().commit(&forger.0, None, Admit::User).expect("a forged batch is a batch");
    fs.engine().sync(seq).expect("sound devices do not fail");
    drop(fs);
    checked(&world.devices())
}

fn codes(report: &Report) -> Vec<Code> {
    let mut codes: Vec<Code> = report.findings.iter().map(|f| f.code).collect();
    codes.sort_unstable();
    codes.dedup();
    codes
}

fn file() -> Attrs {
    Attrs { flags: flag::SPARSE, ..attrs(FileKind::Regular, 1) }
}

#[test]
fn what_makes_sense_has_no_finding() {
    let report = forged(|f| {
        let big = Attrs { size_bytes: 2_000_000, allocated_bytes: 10, ..file() };
        f.inode(Key::Dentry(V, ROOT, b"big"), 10, big, Content::Regions)
            .region(10, 1, Extent::bytes(0, b"0123456789"))
            .inode(Key::Inode(V, 11), 11, attrs(FileKind::Fifo, 2), Content::None)
            .reference(ROOT, b"a", FileKind::Fifo, 11)
            .reference(ROOT, b"b", FileKind::Fifo, 11)
            .counters(2, 10);
    });
    assert_eq!(codes(&report), [], "{:?}", report.findings);
    assert_eq!((report.totals.files, report.totals.special_files, report.totals.names), (1, 1, 3));
}

#[test]
fn each_contradiction_is_found_and_no_other() {
    let dir = |links| attrs(FileKind::Directory, links);
    let fifo = |links| attrs(FileKind::Fifo, links);
    type Forge<'a> = (&'a str, Code, Box<dyn Fn(&mut Forger) + 'a>);
    let far = SlicePtr { segment: SegmentId::new(900).unwrap(), offset_bytes: 0, len_bytes: 5 };
    let cases: Vec<Forge<'_>> = vec![
        (
            "a number that no one reserved",
            Code::InoUnreserved,
            Box::new(|f| {
                f.inode(Key::Dentry(V, ROOT, b"x"), 100, fifo(1), Content::None).counters(1, 0);
            }),
        ),
        (
            "a number used twice",
            Code::InoTwice,
            Box::new(|f| {
                f.inode(Key::Dentry(V, ROOT, b"x"), 10, fifo(1), Content::None)
                    .inode(Key::Dentry(V, ROOT, b"y"), 10, fifo(1), Content::None)
                    .counters(2, 0);
            }),
        ),
        (
            "a name in no directory",
            Code::NameWithoutDirectory,
            Box::new(|f| {
                f.inode(Key::Dentry(V, 50, b"x"), 10, fifo(1), Content::None).counters(1, 0);
            }),
        ),
        (
            "a name that leads nowhere",
            Code::NameWithoutInode,
            Box::new(|f| _ = f.reference(ROOT, b"x", FileKind::Regular, 10)),
        ),
        (
            "a name of another kind",
            Code::NameKind,
            Box::new(|f| {
                f.inode(Key::Inode(V, 10), 10, fifo(1), Content::None)
                    .reference(ROOT, b"x", FileKind::Socket, 10)
                    .counters(1, 0);
            }),
        ),
        (
            "more links than names",
            Code::Links,
            Box::new(|f| {
                f.inode(Key::Inode(V, 10), 10, fifo(2), Content::None)
                    .reference(ROOT, b"x", FileKind::Fifo, 10)
                    .counters(1, 0);
            }),
        ),
        (
            "a directory that says another name",
            Code::DirectoryPlace,
            Box::new(|f| {
                f.inode(Key::Inode(V, ROOT), ROOT, dir(3), Content::Directory(ROOT, b""))
                    .inode(Key::Inode(V, 10), 10, dir(2), Content::Directory(ROOT, b"other"))
                    .reference(ROOT, b"x", FileKind::Directory, 10)
                    .counters(1, 0);
            }),
        ),
        (
            "a root without its directories in its links",
            Code::Links,
            Box::new(|f| {
                f.inode(Key::Inode(V, 10), 10, dir(2), Content::Directory(ROOT, b"x"))
                    .reference(ROOT, b"x", FileKind::Directory, 10)
                    .counters(1, 0);
            }),
        ),
        (
            "two directories, each in the other",
            Code::Unreachable,
            Box::new(|f| {
                f.inode(Key::Inode(V, 10), 10, dir(3), Content::Directory(11, b"x"))
                    .inode(Key::Inode(V, 11), 11, dir(3), Content::Directory(10, b"y"))
                    .reference(11, b"x", FileKind::Directory, 10)
                    .reference(10, b"y", FileKind::Directory, 11)
                    .counters(2, 0);
            }),
        ),
        (
            "an orphan with links",
            Code::Orphan,
            Box::new(|f| {
                f.inode(Key::Orphan(V, 10), 10, fifo(1), Content::None);
            }),
        ),
        (
            "a region past the end",
            Code::PastEnd,
            Box::new(|f| {
                let a = Attrs { size_bytes: 100_000, allocated_bytes: 5, ..file() };
                f.inode(Key::Dentry(V, ROOT, b"x"), 10, a, Content::Regions)
                    .region(10, 0, Extent::bytes(99_996, b"12345"))
                    .counters(1, 5);
            }),
        ),
        (
            "a region at the end of all numbers",
            Code::PastEnd,
            Box::new(|f| {
                let a = Attrs { size_bytes: u64::MAX, allocated_bytes: 1, ..file() };
                f.inode(Key::Dentry(V, ROOT, b"x"), 10, a, Content::Regions)
                    .region(10, u64::MAX, Extent::bytes(REGION_BYTES - 1, b"1"))
                    .counters(1, 1);
            }),
        ),
        (
            "bytes that are not there",
            Code::Allocated,
            Box::new(|f| {
                let a = Attrs { size_bytes: 100_000, allocated_bytes: 6, ..file() };
                f.inode(Key::Dentry(V, ROOT, b"x"), 10, a, Content::Regions)
                    .region(10, 0, Extent::bytes(0, b"12345"))
                    .counters(1, 6);
            }),
        ),
        (
            "a region of a pipe",
            Code::RegionWithoutFile,
            Box::new(|f| {
                f.inode(Key::Dentry(V, ROOT, b"x"), 10, fifo(1), Content::None)
                    .region(10, 0, Extent::bytes(0, b"12345"))
                    .counters(1, 0);
            }),
        ),
        (
            "an attribute of nothing",
            Code::XattrWithoutInode,
            Box::new(|f| f.0.put(&Key::Xattr(V, 10, b"user.a").encode(), b"\x01v")),
        ),
        (
            "an attribute that the inode does not know of",
            Code::XattrWithoutInode,
            Box::new(|f| f.0.put(&Key::Xattr(V, ROOT, b"user.a").encode(), b"\x01v")),
        ),
        (
            "holes without a flag",
            Code::Allocated,
            Box::new(|f| {
                let a = Attrs { size_bytes: 100_000, ..attrs(FileKind::Regular, 1) };
                f.inode(Key::Dentry(V, ROOT, b"x"), 10, a, Content::Regions).counters(1, 0);
            }),
        ),
        (
            "a flag for an attribute that is not there",
            Code::AttributeFlags,
            Box::new(|f| {
                let a = Attrs { flags: flag::XATTRS | flag::ACL, ..fifo(1) };
                f.inode(Key::Dentry(V, ROOT, b"x"), 10, a, Content::None).counters(1, 0);
            }),
        ),
        (
            "a list of rights that does not decode",
            Code::Acl,
            Box::new(|f| {
                let a = Attrs { flags: flag::XATTRS | flag::ACL, ..fifo(1) };
                f.inode(Key::Dentry(V, ROOT, b"x"), 10, a, Content::None).counters(1, 0);
                f.0.put(&Key::Xattr(V, 10, b"system.posix_acl_access").encode(), b"\x01\x02\0\0\0");
            }),
        ),
        ("a sum that is not the sum", Code::Counter, Box::new(|f| _ = f.counters(1, 0))),
        (
            "a slice of no segment",
            Code::SliceOutside,
            Box::new(|f| {
                let a = Attrs { size_bytes: 100_000, allocated_bytes: 5, ..file() };
                f.inode(Key::Dentry(V, ROOT, b"x"), 10, a, Content::Regions)
                    .region(10, 0, Extent::slice(0, far))
                    .counters(1, 5);
            }),
        ),
        (
            "a volume without a record",
            Code::Superblock,
            Box::new(|f| f.0.delete(&Key::Super(SuperId::Volume(V)).encode())),
        ),
    ];
    for (case, code, forge) in cases {
        let report = forged(|f| forge(f));
        let found = codes(&report);
        assert!(found.contains(&code) && report.errors > 0, "{case}: {:?}", report.findings);
        let consequences: &[Code] = match case {
            "a volume without a record" | "two directories, each in the other" => {
                &[Code::DirectoryPlace, Code::Unreachable, Code::Links]
            }
            "a number used twice" | "an orphan with links" => &[Code::Counter],
            _ => &[],
        };
        let others: Vec<&Code> = found.iter().filter(|c| **c != code && !consequences.contains(c)).collect();
        assert!(others.is_empty(), "{case}: also {others:?}: {:?}", report.findings);
    }
}
