//! Files as devices: opening, locking, sizes and space.

use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;

use tempfile::TempDir;
use warpfire_env::{AlignedBuf, Device, DeviceError, FileDevice, OpenError};
use warpfire_units::BLOCK_BYTES;

fn place() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("the test has a directory for temporary files");
    let path = dir.path().join("flash.img");
    (dir, path)
}

fn kind(outcome: Result<FileDevice, OpenError>) -> ErrorKind {
    match outcome {
        Err(OpenError::System { source, .. }) => source.kind(),
        other => panic!("{other:?} is not a system error"),
    }
}

#[test]
fn a_second_opener_is_refused_until_the_first_is_gone() {
    let (_dir, path) = place();
    let first = FileDevice::create(&path, 1 << 20).unwrap();
    assert!(FileDevice::is_in_use(&path));
    let refused = FileDevice::open(&path).unwrap_err();
    assert!(matches!(&refused, OpenError::InUse { path: named } if *named == path), "{refused}");
    assert_eq!(refused.to_string(), format!("{}: in use by another process", path.display()));
    drop(first);
    assert!(!FileDevice::is_in_use(&path));
    FileDevice::open(&path).unwrap();
}

#[test]
fn readers_share_a_device_and_never_with_a_writer() {
    let (_dir, path) = place();
    FileDevice::create(&path, 1 << 20).unwrap().write(0, &[7; BLOCK_BYTES]).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o400)).unwrap();
    let readers: Vec<_> = (0..16).map(|_| FileDevice::open_for_reading(&path).unwrap()).collect();
    let mut block = AlignedBuf::zeroed(BLOCK_BYTES);
    for reader in &readers {
        reader.read(0, &mut block).unwrap();
        assert!(block.iter().all(|byte| *byte == 7));
        reader.write(0, &block).unwrap_err();
        // A regular file refuses a hole in it, too.
        reader.discard(0, BLOCK_BYTES as u64).unwrap_err();
    }
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    let refused = FileDevice::open(&path).unwrap_err();
    assert!(matches!(&refused, OpenError::InUseByReaders { path: named } if *named == path), "{refused}");
    drop(readers);
    let _writer = FileDevice::open(&path).unwrap();
    let refused = FileDevice::open_for_reading(&path).unwrap_err();
    assert!(matches!(&refused, OpenError::InUse { path: named } if *named == path), "{refused}");
}

/// The bug: a mount right after its server was killed failed because the pool was in use. The kernel closes
/// the files of a killed process's ring a little after its parent learns of the end.
#[test]
fn an_open_waits_for_a_file_that_is_released_soon() {
    let (_dir, path) = place();
    let owner = FileDevice::create(&path, 1 << 20).unwrap();
    let dropper = std::thread::spawn(move || {
        std::thread::park_timeout(std::time::Duration::from_millis(100));
        drop(owner);
    });
    FileDevice::open(&path).unwrap();
    dropper.join().unwrap();
}

#[test]
fn a_new_file_has_its_size_and_takes_no_space() {
    let (_dir, path) = place();
    let device = FileDevice::create(&path, (1 << 30) + 4095).unwrap();
    assert_eq!(device.info().size_bytes, 1 << 30);
    assert_eq!(device.info().zones, None);
    let meta = path.metadata().unwrap();
    assert_eq!(meta.len(), 1 << 30);
    assert!(meta.blocks() * 512 < 1 << 20, "a new file is sparse");
}

#[test]
fn a_files_tail_below_a_block_is_not_part_of_the_device() {
    let (_dir, path) = place();
    std::fs::write(&path, vec![7; 3 * 4096 + 100]).unwrap();
    let device = FileDevice::open(&path).unwrap();
    assert_eq!(device.info().size_bytes, 3 * 4096);
    let mut block = AlignedBuf::zeroed(4096);
    device.read(2 * 4096, &mut block).unwrap();
    assert!(block.iter().all(|&b| b == 7));
}

#[test]
fn a_path_that_cannot_be_a_device_is_refused_by_name() {
    let (dir, path) = place();
    assert_eq!(kind(FileDevice::open(&path)), ErrorKind::NotFound);
    std::fs::write(&path, [1; 100]).unwrap();
    assert_eq!(kind(FileDevice::create(&path, 1 << 20)), ErrorKind::AlreadyExists);
    assert!(matches!(FileDevice::open(&path), Err(OpenError::TooSmall { .. })));
    assert!(matches!(FileDevice::create(&dir.path().join("new"), 4095), Err(OpenError::TooSmall { .. })));
    assert!(!dir.path().join("new").exists());
    assert!(matches!(FileDevice::open(dir.path()), Err(OpenError::NotADevice { .. })));
    assert!(matches!(FileDevice::open("/dev/null".as_ref()), Err(OpenError::NotADevice { .. })));
}

#[test]
fn a_discard_frees_the_space_and_a_reset_does_not() {
    let (_dir, path) = place();
    let device = FileDevice::create(&path, 16 << 20).unwrap();
    device.write(0, &AlignedBuf::zeroed(8 << 20)).unwrap();
    device.flush().unwrap();
    let full = path.metadata().unwrap().blocks();
    device.reset_zone(0, 8 << 20).unwrap();
    assert_eq!(path.metadata().unwrap().blocks(), full, "a reset keeps the space");
    device.discard(0, 8 << 20).unwrap();
    assert_eq!(path.metadata().unwrap().len(), 16 << 20);
    assert!(path.metadata().unwrap().blocks() < full / 2);
}

#[test]
fn a_read_of_a_truncated_file_is_an_error_not_zeros() {
    let (_dir, path) = place();
    let device = FileDevice::create(&path, 4 << 20).unwrap();
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(1 << 20).unwrap();
    let mut buf = AlignedBuf::zeroed(8192);
    let outcome = device.read((1 << 20) - 4096, &mut buf);
    assert!(matches!(outcome, Err(DeviceError::Io { op: "read", .. })), "{outcome:?}");
}
