//! Bad input and failures: each ends with a sentence and an exit code, never with a panic or with lost data.

use std::io::{Seek, SeekFrom, Write};
use std::process::Stdio;

use crate::fixture::{Fixture, bytes};

#[test]
fn wrong_words_are_refused_with_code_2() {
    let fixture = Fixture::empty();
    fixture.run(["frobnicate"]).failed(2);
    fixture.run(["ls"]).failed(2);
    fixture.run(["mkfs", "--size", "many", "a.img"]).failed(2);
    fixture.run(["mkfs", "--size", "64M", "--data", "4", "--parity", "2", "a.img"]).failed(2);
    let said = fixture.run(["rm", "-r", "a.img"]).failed(2);
    assert!(said.contains("a.img:/path"), "{said}");
    assert!(!fixture.path("a.img").exists());
}

#[test]
fn a_device_that_does_not_exist_is_named() {
    let fixture = Fixture::empty();
    let said = fixture.run(["ls", "nowhere.img:/"]).failed(3);
    assert!(said.starts_with("warpfire: ") && said.contains("nowhere.img"), "{said}");
    let said = fixture.run(["mkfs", "--size", "32M", "nowhere/a.img"]).failed(3);
    assert!(said.contains("make the directory first"), "{said}");
    let said = fixture.run(["fsck"]).failed(8);
    assert!(said.contains("no pool is named; name its devices"), "{said}");
}

#[test]
fn a_foreign_image_is_not_opened_and_not_overwritten() {
    let fixture = Fixture::empty();
    let mut image = vec![0; 32 << 20];
    image[0x438..0x43a].copy_from_slice(b"\x53\xef");
    let path = fixture.local("a.img", &image);
    fixture.run(["ls", "a.img:/"]).failed(3);
    let said = fixture.run(["mkfs", "a.img"]).failed(1);
    assert!(said.contains("ext4") && said.contains("--force"), "{said}");
    assert_eq!(std::fs::read(&path).expect("still there"), image);
    fixture.run(["mkfs", "--force", "a.img"]).failed(2);
    fixture.run(["mkfs", "--force", "--yes", "a.img"]).succeeded();
    assert_eq!(fixture.run(["ls", "a.img:/"]).succeeded(), "");
}

#[test]
fn a_pool_is_not_overwritten_by_mistake() {
    let fixture = Fixture::pool(1, 1, 0, 32);
    fixture.run(["mkdir", "pool:/kept"]).succeeded();
    let said = fixture.run(["mkfs", "--yes", "pool/0.img"]).failed(1);
    assert!(said.contains("a Warpfire pool"), "{said}");
    assert_eq!(fixture.run(["ls", "pool:/"]).succeeded(), "kept\n");
}

#[test]
fn one_device_too_few_is_an_error_that_says_so() {
    let fixture = Fixture::pool(3, 2, 1, 32);
    for away in ["pool/0.img", "pool/2.img"] {
        std::fs::rename(fixture.path(away), fixture.path(&format!("{away}.away")))
            .expect("a device is taken away");
    }
    let said = fixture.run(["ls", "pool:/"]).failed(3);
    assert!(said.contains("missing"), "{said}");
}

#[test]
fn a_device_of_another_pool_is_refused() {
    let fixture = Fixture::pool(2, 1, 1, 32);
    fixture.run(["mkfs", "--size", "32M", "other.img"]).succeeded();
    let said = fixture.run(["ls", "pool/0.img,other.img:/"]).failed(3);
    assert!(said.contains("belongs to"), "{said}");
}

#[test]
fn a_device_that_was_overwritten_is_one_that_is_missing() {
    let fixture = Fixture::pool(6, 4, 2, 64);
    fixture.local("odd", bytes(2, 3 << 20));
    fixture.run(["cp", "odd", "pool:/"]).succeeded();
    for damaged in ["pool/1.img", "pool/4.img"] {
        let mut file = std::fs::OpenOptions::new().write(true).open(fixture.path(damaged)).expect("opened");
        for at in (0..32u64).map(|mib| mib << 20) {
            file.seek(SeekFrom::Start(at)).expect("inside");
            file.write_all(&bytes(at, 1 << 19)).expect("overwritten");
        }
    }
    fixture.run(["cp", "pool:/odd", "back"]).succeeded();
    assert_eq!(std::fs::read(fixture.path("back")).expect("copied out"), bytes(2, 3 << 20));
}

#[test]
fn a_device_that_is_named_twice_is_refused_whatever_the_command() {
    let fixture = Fixture::pool(2, 1, 1, 32);
    for arguments in [["ls", "pool/1.img,pool/./1.img:/"], ["status", "pool/1.img,pool/1.img"]] {
        let said = fixture.run(arguments).failed(3);
        assert!(said.contains("pool/1.img is named twice; name each device once"), "{said}");
    }
    fixture.run(["fsck", "pool/0.img,pool/0.img"]).failed(8);
    let ran = fixture.run(["mkfs", "--size", "32M", "new.img", "new.img"]);
    assert!(ran.code == 2 && ran.stdout.is_empty(), "{}{}", ran.stdout, ran.stderr);
    assert!(!fixture.path("new.img").exists(), "nothing is made");
}

#[test]
fn a_zone_that_is_no_power_of_two_is_refused_before_the_plan() {
    let fixture = Fixture::empty();
    let ran = fixture.run(["mkfs", "--zone", "3M", "new.img"]);
    assert!(ran.code == 2 && ran.stdout.is_empty(), "{}{}", ran.stdout, ran.stderr);
    assert!(ran.stderr.contains("3 MiB is not a power of two; choose"), "{}", ran.stderr);
}

#[test]
fn a_process_cannot_write_a_pool_that_another_one_reads() {
    let fixture = Fixture::pool(1, 1, 0, 64);
    fixture.local("large", bytes(1, 4 << 20));
    fixture.run(["cp", "large", "pool:/"]).succeeded();
    // The first process has the pool open and blocks on its output, which is longer than the pipe's buffer.
    let mut first = fixture.command(["cat", "pool:/large"]).stdout(Stdio::piped()).spawn().expect("it runs");
    let mut stdout = first.stdout.take().expect("piped");
    let mut begun = [0; 1];
    std::io::Read::read_exact(&mut stdout, &mut begun).expect("it prints");
    let said = fixture.run(["rm", "pool:/large"]).failed(3);
    assert!(said.contains("open for reading in another process"), "{said}");
    // Both only read.
    assert_eq!(fixture.run(["ls", "pool:/"]).succeeded(), "large\n");
    drop(stdout);
    first.wait().expect("it ends");
    fixture.run(["rm", "pool:/large"]).succeeded();
}

#[test]
fn a_full_pool_says_so_keeps_what_it_has_and_takes_more_after_a_removal() {
    let fixture = Fixture::pool(1, 1, 0, 32);
    fixture.local("first", bytes(1, 4 << 20));
    fixture.local("second", bytes(2, 40 << 20));
    fixture.local("third", bytes(3, 2 << 20));
    fixture.run(["cp", "first", "pool:/"]).succeeded();
    let said = fixture.run(["cp", "second", "pool:/"]).failed(1);
    assert!(said.contains("no space left in the pool; remove files"), "{said}");
    fixture.run(["rm", "-f", "pool:/second"]).succeeded();
    fixture.run(["cp", "third", "pool:/"]).succeeded();
    for (name, seed, len) in [("first", 1, 4 << 20), ("third", 3, 2 << 20)] {
        fixture.run(["cp", &format!("pool:/{name}"), "back"]).succeeded();
        assert_eq!(std::fs::read(fixture.path("back")).expect("copied out"), bytes(seed, len), "{name}");
    }
}

#[test]
fn a_missing_source_is_reported_and_the_rest_is_copied() {
    let fixture = Fixture::pool(1, 1, 0, 32);
    fixture.local("there", "yes");
    let said = fixture.run(["cp", "absent", "there", "pool:/"]).failed(1);
    assert!(said.contains("absent"), "{said}");
    assert_eq!(fixture.run(["cat", "pool:/there"]).succeeded(), "yes");
}

#[test]
fn names_and_paths_that_are_too_long_are_refused() {
    let fixture = Fixture::pool(1, 1, 0, 32);
    let said = fixture.run(["mkdir", &format!("pool:/{}", "n".repeat(256))]).failed(1);
    assert!(said.contains("too long"), "{said}");
    fixture.run(["mkdir", &format!("pool:/{}", "n".repeat(255))]).succeeded();
    let long = "/d".repeat(2049);
    let said = fixture.run(["mkdir", &format!("pool:{long}")]).failed(1);
    assert!(said.contains("too long"), "{said}");
}

#[test]
fn a_pool_that_is_too_small_is_refused_with_the_least_size_which_works() {
    let fixture = Fixture::empty();
    let said = fixture.run(["mkfs", "--size", "15M", "a.img"]).failed(2);
    assert!(said.contains("a.img is too small") && said.contains("use --size 16M or more"), "{said}");
    let said = fixture.run(["mkfs", "--size", "100M", "--zone", "16M", "a.img"]).failed(2);
    assert!(said.contains("16 zones of 16 MiB take 256 MiB"), "{said}");
    fixture.local("tiny.img", vec![0; 1 << 20]);
    let said = fixture.run(["mkfs", "tiny.img"]).failed(2);
    assert!(said.contains("has 1 MiB") && said.contains("choose a larger device"), "{said}");
    assert!(!fixture.path("a.img").exists(), "mkfs removes what it made");
    for (devices, geometry) in [(1, "1+0"), (2, "1+1"), (3, "2+1"), (6, "4+2")] {
        let directory = fixture.path(geometry);
        std::fs::create_dir(&directory).expect("a directory is made");
        let images = (0..devices).map(|number| format!("{geometry}/{number}.img"));
        fixture.run(["mkfs".into(), "--size=16M".into()].into_iter().chain(images)).succeeded();
        fixture.local("file", vec![7; 1 << 20]);
        fixture.run(["cp", "file", &format!("{geometry}:/")]).succeeded();
        fixture.run(["rm", &format!("{geometry}:/file")]).succeeded();
        fixture.run(["fsck", geometry]).succeeded();
    }
}
