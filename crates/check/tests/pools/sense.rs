//! Records that decode and contradict each other: the check reports each contradiction, and no other.

use warpfire_check::{CheckReport, FindingCode};
use warpfire_format::fs::{
    Attrs, CounterId, Dentry, Extent, ExtentMap, FileKind, FilesystemRecord, Inode, InodeContent, InodeTime,
    Key, PoolRecordId, REGION_BYTES, VolumeId, encode_counter, encode_region, flag,
};
use warpfire_meta::{Admit, Batch, Store};
use warpfire_sim_env::SimWorld;
use warpfire_units::{SegmentId, SlicePtr};

use crate::rig::{SHAPES, checked, make, world};

const V: VolumeId = VolumeId::FIRST;
const ROOT: u64 = 1;

fn attrs(kind: FileKind, links: u32) -> Attrs {
    let zero = InodeTime::default();
    Attrs {
        kind,
        permissions: 0o644,
        uid: 0,
        gid: 0,
        links,
        size_bytes: 0,
        allocated_bytes: 0,
        reserved_bytes: 0,
        rdev: 0,
        btime: zero,
        mtime: zero,
        ctime: zero,
        atime: zero,
        flags: 0,
    }
}

/// Builds a batch of forged records.
struct Forger(Batch);

impl Forger {
    fn inode(&mut self, key: Key<'_>, ino: u64, attrs: Attrs, content: InodeContent<'_>) -> &mut Self {
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

/// The report of a check after `forge` has changed an empty filesystem.
fn forged(forge: impl FnOnce(&mut Forger)) -> CheckReport {
    let shape = SHAPES[0];
    let world: SimWorld = world(shape, 1);
    let fs = make(&world, shape);
    let mut forger = Forger(Batch::new());
    let mut filesystem_record = Vec::new();
    FilesystemRecord::of_one_volume(100).encode(&mut filesystem_record);
    forger.0.put(&Key::Pool(PoolRecordId::Filesystem).encode(), &filesystem_record);
    forge(&mut forger);
    let seq = fs.engine().commit(&forger.0, None, Admit::User).expect("a forged batch is a batch");
    fs.engine().sync(seq).expect("sound devices do not fail");
    drop(fs);
    checked(&world.devices())
}

fn codes(report: &CheckReport) -> Vec<FindingCode> {
    let mut codes: Vec<FindingCode> = report.findings.iter().map(|f| f.code).collect();
    codes.sort_unstable();
    codes.dedup();
    codes
}

fn file() -> Attrs {
    Attrs { flags: flag::SPARSE, ..attrs(FileKind::Regular, 1) }
}

#[test]
fn consistent_records_have_no_finding() {
    let report = forged(|f| {
        let big = Attrs { size_bytes: 2_000_000, allocated_bytes: 10, ..file() };
        f.inode(Key::Dentry(V, ROOT, b"big"), 10, big, InodeContent::Regions)
            .region(10, 1, Extent::bytes(0, b"0123456789"))
            .inode(Key::Inode(V, 11), 11, attrs(FileKind::Fifo, 2), InodeContent::None)
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
    type Forge<'a> = (&'a str, FindingCode, Box<dyn Fn(&mut Forger) + 'a>);
    let far = SlicePtr { segment: SegmentId::new(900).unwrap(), offset_bytes: 0, len_bytes: 5 };
    let cases: Vec<Forge<'_>> = vec![
        (
            "a number that is not reserved",
            FindingCode::InoUnreserved,
            Box::new(|f| {
                f.inode(Key::Dentry(V, ROOT, b"x"), 100, fifo(1), InodeContent::None).counters(1, 0);
            }),
        ),
        (
            "a number used twice",
            FindingCode::InoTwice,
            Box::new(|f| {
                f.inode(Key::Dentry(V, ROOT, b"x"), 10, fifo(1), InodeContent::None)
                    .inode(Key::Dentry(V, ROOT, b"y"), 10, fifo(1), InodeContent::None)
                    .counters(2, 0);
            }),
        ),
        (
            "a name in no directory",
            FindingCode::NameWithoutDirectory,
            Box::new(|f| {
                f.inode(Key::Dentry(V, 50, b"x"), 10, fifo(1), InodeContent::None).counters(1, 0);
            }),
        ),
        (
            "a name that refers to no inode",
            FindingCode::NameWithoutInode,
            Box::new(|f| _ = f.reference(ROOT, b"x", FileKind::Regular, 10)),
        ),
        (
            "a name of another kind",
            FindingCode::NameKind,
            Box::new(|f| {
                f.inode(Key::Inode(V, 10), 10, fifo(1), InodeContent::None)
                    .reference(ROOT, b"x", FileKind::Socket, 10)
                    .counters(1, 0);
            }),
        ),
        (
            "more links than names",
            FindingCode::Links,
            Box::new(|f| {
                f.inode(Key::Inode(V, 10), 10, fifo(2), InodeContent::None)
                    .reference(ROOT, b"x", FileKind::Fifo, 10)
                    .counters(1, 0);
            }),
        ),
        (
            "a directory that says another name",
            FindingCode::DirectoryPlace,
            Box::new(|f| {
                f.inode(Key::Inode(V, ROOT), ROOT, dir(3), InodeContent::Directory(ROOT, b""))
                    .inode(Key::Inode(V, 10), 10, dir(2), InodeContent::Directory(ROOT, b"other"))
                    .reference(ROOT, b"x", FileKind::Directory, 10)
                    .counters(1, 0);
            }),
        ),
        (
            "a root without its directories in its links",
            FindingCode::Links,
            Box::new(|f| {
                f.inode(Key::Inode(V, 10), 10, dir(2), InodeContent::Directory(ROOT, b"x"))
                    .reference(ROOT, b"x", FileKind::Directory, 10)
                    .counters(1, 0);
            }),
        ),
        (
            "two directories, each in the other",
            FindingCode::Unreachable,
            Box::new(|f| {
                f.inode(Key::Inode(V, 10), 10, dir(3), InodeContent::Directory(11, b"x"))
                    .inode(Key::Inode(V, 11), 11, dir(3), InodeContent::Directory(10, b"y"))
                    .reference(11, b"x", FileKind::Directory, 10)
                    .reference(10, b"y", FileKind::Directory, 11)
                    .counters(2, 0);
            }),
        ),
        (
            "an orphan with links",
            FindingCode::Orphan,
            Box::new(|f| {
                f.inode(Key::Orphan(V, 10), 10, fifo(1), InodeContent::None);
            }),
        ),
        (
            "a region past the end",
            FindingCode::PastEnd,
            Box::new(|f| {
                let a = Attrs { size_bytes: 100_000, allocated_bytes: 5, ..file() };
                f.inode(Key::Dentry(V, ROOT, b"x"), 10, a, InodeContent::Regions)
                    .region(10, 0, Extent::bytes(99_996, b"12345"))
                    .counters(1, 5);
            }),
        ),
        (
            "a region at the end of all numbers",
            FindingCode::PastEnd,
            Box::new(|f| {
                let a = Attrs { size_bytes: u64::MAX, allocated_bytes: 1, ..file() };
                f.inode(Key::Dentry(V, ROOT, b"x"), 10, a, InodeContent::Regions)
                    .region(10, u64::MAX, Extent::bytes(REGION_BYTES - 1, b"1"))
                    .counters(1, 1);
            }),
        ),
        (
            "more allocated bytes than extents have",
            FindingCode::Allocated,
            Box::new(|f| {
                let a = Attrs { size_bytes: 100_000, allocated_bytes: 6, ..file() };
                f.inode(Key::Dentry(V, ROOT, b"x"), 10, a, InodeContent::Regions)
                    .region(10, 0, Extent::bytes(0, b"12345"))
                    .counters(1, 6);
            }),
        ),
        (
            "a region of a pipe",
            FindingCode::RegionWithoutFile,
            Box::new(|f| {
                f.inode(Key::Dentry(V, ROOT, b"x"), 10, fifo(1), InodeContent::None)
                    .region(10, 0, Extent::bytes(0, b"12345"))
                    .counters(1, 0);
            }),
        ),
        (
            "an attribute of nothing",
            FindingCode::XattrWithoutInode,
            Box::new(|f| f.0.put(&Key::Xattr(V, 10, b"user.a").encode(), b"\x01v")),
        ),
        (
            "an attribute without a flag in its inode",
            FindingCode::XattrWithoutInode,
            Box::new(|f| f.0.put(&Key::Xattr(V, ROOT, b"user.a").encode(), b"\x01v")),
        ),
        (
            "holes without a flag",
            FindingCode::Allocated,
            Box::new(|f| {
                let a = Attrs { size_bytes: 100_000, ..attrs(FileKind::Regular, 1) };
                f.inode(Key::Dentry(V, ROOT, b"x"), 10, a, InodeContent::Regions).counters(1, 0);
            }),
        ),
        (
            "a flag for an attribute that does not exist",
            FindingCode::AttributeFlags,
            Box::new(|f| {
                let a = Attrs { flags: flag::XATTRS | flag::ACL, ..fifo(1) };
                f.inode(Key::Dentry(V, ROOT, b"x"), 10, a, InodeContent::None).counters(1, 0);
            }),
        ),
        (
            "a list of rights that does not decode",
            FindingCode::Acl,
            Box::new(|f| {
                let a = Attrs { flags: flag::XATTRS | flag::ACL, ..fifo(1) };
                f.inode(Key::Dentry(V, ROOT, b"x"), 10, a, InodeContent::None).counters(1, 0);
                f.0.put(&Key::Xattr(V, 10, b"system.posix_acl_access").encode(), b"\x01\x02\0\0\0");
            }),
        ),
        ("a counter that differs from the sum", FindingCode::Counter, Box::new(|f| _ = f.counters(1, 0))),
        (
            "a slice of no segment",
            FindingCode::SliceOutside,
            Box::new(|f| {
                let a = Attrs { size_bytes: 100_000, allocated_bytes: 5, ..file() };
                f.inode(Key::Dentry(V, ROOT, b"x"), 10, a, InodeContent::Regions)
                    .region(10, 0, Extent::slice(0, far))
                    .counters(1, 5);
            }),
        ),
        (
            "a volume without a record",
            FindingCode::PoolRecords,
            Box::new(|f| f.0.delete(&Key::Pool(PoolRecordId::Volume(V)).encode())),
        ),
    ];
    for (case, code, forge) in cases {
        let report = forged(|f| forge(f));
        let found = codes(&report);
        assert!(found.contains(&code) && report.errors > 0, "{case}: {:?}", report.findings);
        let consequences: &[FindingCode] = match case {
            "a volume without a record" | "two directories, each in the other" => {
                &[FindingCode::DirectoryPlace, FindingCode::Unreachable, FindingCode::Links]
            }
            "a number used twice" | "an orphan with links" => &[FindingCode::Counter],
            _ => &[],
        };
        let others: Vec<&FindingCode> =
            found.iter().filter(|c| **c != code && !consequences.contains(c)).collect();
        assert!(others.is_empty(), "{case}: also {others:?}: {:?}", report.findings);
    }
}
