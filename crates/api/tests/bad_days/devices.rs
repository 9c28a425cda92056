//! The wrong devices, on real image files: the pool opens degraded, or refuses with a sentence that helps.

use std::fs::OpenOptions;
use std::path::PathBuf;

use warpfire::{ErrorKind, Pool, Warpfire};

use crate::rig::{Images, refused, whole};

const FILES: u64 = 30;

fn open(paths: &[PathBuf]) -> warpfire::Result<Warpfire> {
    Pool::options().open(paths)
}

fn cut_to(path: &PathBuf, bytes: u64) {
    OpenOptions::new().write(true).open(path).and_then(|file| file.set_len(bytes)).expect("it is shortened");
}

#[test]
fn devices_in_any_order_make_the_pool() {
    let images = Images::with_files(2, 1, FILES);
    let paths: Vec<_> = images.paths.iter().rev().cloned().collect();
    assert_eq!(whole(&open(&paths).expect("order does not matter"), 0..FILES), FILES);
}

#[test]
fn as_many_missing_as_parity_covers_opens_and_counts_them() {
    let images = Images::with_files(4, 2, FILES);
    let fs = open(&images.without(&[0, 5])).expect("two may be missing");
    assert_eq!(fs.stats().lost_devices(), 2);
    assert_eq!(whole(&fs, 0..FILES), FILES);
}

#[test]
fn one_more_missing_is_refused_and_each_is_named() {
    let images = Images::with_files(4, 2, FILES);
    let said = refused(open(&images.without(&[0, 2, 5])), ErrorKind::NotAPool);
    assert!(said.contains("3 devices are missing and parity covers 2"), "{said}");
    for device in ["device 0", "device 2", "device 5"] {
        assert!(said.contains(device), "{said}");
    }
}

#[test]
fn a_device_that_does_not_exist_is_named() {
    let images = Images::with_files(1, 1, FILES);
    let error = open(&[images.paths[0].clone(), images.path("nowhere.img")]).expect_err("no such file");
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.to_string().contains("nowhere.img"), "{error}");
}

#[test]
fn a_device_of_another_pool_is_named() {
    let (images, others) = (Images::with_files(1, 1, FILES), Images::with_files(1, 0, 1));
    let said = refused(open(&[images.paths[0].clone(), others.paths[0].clone()]), ErrorKind::NotAPool);
    assert!(said.contains("belongs to pool") && said.contains("of one pool only"), "{said}");
}

#[test]
fn a_device_and_its_copy_are_named() {
    let images = Images::with_files(1, 1, FILES);
    let copy = images.path("copy.img");
    std::fs::copy(&images.paths[0], &copy).expect("it is copied");
    let said = refused(open(&[images.paths[0].clone(), copy]), ErrorKind::NotAPool);
    assert!(said.contains("copy.img") && said.contains("0.img"), "{said}");
}

#[test]
fn a_device_named_twice_is_refused() {
    let images = Images::with_files(1, 0, FILES);
    let first = images.paths[0].clone();
    let said = refused(open(&[first.clone(), first.clone()]), ErrorKind::InvalidInput);
    assert!(said.contains("0.img is named twice"), "{said}");
    let link = images.path("link.img");
    std::fs::hard_link(&first, &link).expect("it is linked");
    let said = refused(open(&[first, link]), ErrorKind::InvalidInput);
    assert!(said.contains("link.img are the same device"), "{said}");
    let new = images.path("new.img");
    let detour = images.path(".").join("new.img");
    refused(Pool::options().create(&[new.clone(), detour]), ErrorKind::InvalidInput);
    assert!(!new.exists(), "nothing is made");
    assert_eq!(whole(&open(&images.paths).expect("the pool is as it was"), 0..FILES), FILES);
}

#[test]
fn an_open_pool_is_not_opened_again() {
    let images = Images::with_files(1, 0, FILES);
    let first = open(&images.paths).expect("it is whole");
    let said = refused(open(&images.paths), ErrorKind::InUse);
    assert!(said.contains("in use"), "{said}");
    assert_eq!(whole(&first, 0..FILES), FILES);
}

#[test]
fn a_foreign_image_is_no_pool_and_stays_as_it_is() {
    let images = Images::new(1);
    let bytes: Vec<u8> = (0..4 << 20).map(|at: u32| at.to_le_bytes()[1] ^ 0x5a).collect();
    std::fs::write(&images.paths[0], &bytes).expect("it is written");
    let said = refused(open(&images.paths), ErrorKind::NotAPool);
    assert!(said.contains("no pool found") && said.contains("mkfs"), "{said}");
    let said = refused(Pool::options().create(&images.paths), ErrorKind::AlreadyExists);
    assert!(said.contains("0.img"), "{said}");
    assert_eq!(std::fs::read(&images.paths[0]).expect("still there"), bytes);
}

#[test]
fn an_empty_image_is_no_device() {
    let images = Images::with_files(1, 1, FILES);
    cut_to(&images.paths[1], 0);
    let said = refused(open(&images.paths), ErrorKind::InvalidInput);
    assert!(said.contains("1.img") && said.contains("leave it out"), "{said}");
    let said = refused(open(&images.without(&[1])), ErrorKind::NotAPool);
    assert!(said.contains("may hold a newer state") && said.contains("device 1"), "{said}");
    let half = Pool::options().degraded(true).open(images.without(&[1])).expect("one may be missing");
    assert_eq!(whole(&half, 0..FILES), FILES);
    half.close().expect("it is closed");
    assert_eq!(whole(&open(&images.without(&[1])).expect("it is asked once"), 0..FILES), FILES);
}

#[test]
fn an_image_that_was_cut_short_is_named_and_can_be_left_out() {
    for bytes in [16 << 20, (32 << 20) - 4096, 4096, 5000] {
        let images = Images::with_files(2, 1, FILES);
        cut_to(&images.paths[1], bytes);
        match open(&images.paths) {
            // So short that it has no root: the pool counts the device as missing.
            Ok(fs) => assert_eq!(whole(&fs, 0..FILES), FILES, "{bytes}"),
            Err(error) => {
                let said = refused::<()>(Err(error), ErrorKind::NotAPool);
                assert!(said.contains("1.img") && said.contains("leave it out"), "{bytes}: {said}");
            }
        }
        assert_eq!(whole(&open(&images.without(&[1])).expect("one may be missing"), 0..FILES), FILES);
    }
}

#[test]
fn an_image_without_roots_counts_as_missing() {
    let images = Images::with_files(2, 1, FILES);
    let file = OpenOptions::new().write(true).open(&images.paths[2]).expect("opened");
    std::os::unix::fs::FileExt::write_all_at(&file, &vec![0xa5; 4 << 20], 0).expect("overwritten");
    let fs = open(&images.paths).expect("one may be lost");
    assert_eq!(fs.stats().lost_devices(), 1);
    assert_eq!(whole(&fs, 0..FILES), FILES);
}

#[test]
fn a_pool_without_any_root_is_no_pool() {
    let images = Images::with_files(1, 1, FILES);
    for path in &images.paths {
        let file = OpenOptions::new().write(true).open(path).expect("opened");
        std::os::unix::fs::FileExt::write_all_at(&file, &vec![0xa5; 4 << 20], 0).expect("overwritten");
    }
    refused(open(&images.paths), ErrorKind::NotAPool);
}

#[test]
fn an_impossible_geometry_is_refused_and_leaves_no_image() {
    for (data, parity, count) in [(0, 1, 1), (1, 9, 10), (4, 2, 5)] {
        let images = Images::new(count);
        let options = Pool::options().data(data).parity(parity).size_bytes(32 << 20);
        let error = options.create(&images.paths).expect_err("no such geometry");
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        assert!(images.paths.iter().all(|path| !path.exists()));
    }
    let images = Images::new(1);
    let error = Pool::options().size_bytes(1 << 20).create(&images.paths).expect_err("too small");
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    assert!(!images.paths[0].exists());
}
