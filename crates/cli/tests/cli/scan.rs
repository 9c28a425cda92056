//! The search for pools, and pools by their name or number.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::process::Output;

use serde_json::Value;

use crate::fixture::{CommandResult, Fixture, bytes, documents};

/// The documents of a scan of all that is in the fixture.
fn scanned(fixture: &Fixture) -> Vec<Value> {
    documents(&fixture.run(["scan", "--json", "."]).succeeded())
}

/// Runs a command that finds pools in the fixture.
fn searching(fixture: &Fixture, words: &[&str]) -> CommandResult {
    let mut command = fixture.command(words);
    let ran: Output = command.env("WARPFIRE_DEVICES", fixture.path(".")).output().expect("it runs");
    CommandResult::from(ran)
}

/// Makes a pool of one device with a name.
fn named(fixture: &Fixture, image: &str, label: &str) -> String {
    let made = fixture.run(["mkfs", "--json", "--size", "32M", "--label", label, image]).succeeded();
    documents(&made)[0]["pool"].as_str().expect("an id").to_owned()
}

#[test]
fn a_scan_finds_the_devices_of_each_pool_wherever_they_are() {
    let fixture = Fixture::pool(4, 2, 1, 32);
    let other = named(&fixture, "other.img", "tank");
    fixture.local("pool/notes.txt", "no pool");
    fixture.local("deep/er/none", "not looked at");
    fs::create_dir(fixture.path("away")).expect("made");
    fs::rename(fixture.path("pool/2.img"), fixture.path("away/disk")).expect("moved");
    fs::remove_file(fixture.path("pool/3.img")).expect("removed");
    let pools = scanned(&fixture);
    assert_eq!(pools.len(), 2, "{pools:?}");
    let tank = pools.iter().find(|pool| pool["pool"] == *other).expect("the other pool");
    assert_eq!((&tank["label"], &tank["state"]), (&"tank".into(), &"whole".into()), "{tank}");
    let pool = pools.iter().find(|pool| pool["pool"] != *other).expect("the pool");
    assert_eq!((&pool["data"], &pool["parity"]), (&2.into(), &1.into()), "{pool}");
    assert_eq!(pool["size_bytes"], 128 << 20, "{pool}");
    assert_eq!(pool["state"], "degraded", "{pool}");
    assert_eq!(pool["devices"][2]["path"], "./away/disk", "{pool}");
    assert_eq!(
        (&pool["devices"][3]["path"], &pool["devices"][3]["state"]),
        (&Value::Null, &"missing".into())
    );
    // A device more is gone than parity covers.
    fs::remove_file(fixture.path("away/disk")).expect("removed");
    let pools = scanned(&fixture);
    let pool = pools.iter().find(|pool| pool["pool"] != *other).expect("the pool");
    assert_eq!(pool["state"], "refused", "{pool}");
    assert!(pool["reason"].as_str().expect("a reason").contains("parity covers 1"), "{pool}");
    let said = fixture.run(["scan", "."]).succeeded();
    assert!(said.contains("2 of 4 devices") && said.contains("cannot be opened: "), "{said}");
}

#[test]
fn a_scan_writes_nothing_and_takes_no_lock() {
    let fixture = Fixture::pool(2, 1, 1, 32);
    let image = fixture.path("pool/0.img");
    let before = fs::read(&image).expect("readable");
    let held = File::open(&image).expect("opened");
    rustix::fs::flock(&held, rustix::fs::FlockOperation::LockExclusive).expect("locked");
    assert_eq!(scanned(&fixture)[0]["state"], "whole");
    assert_eq!(fs::read(&image).expect("readable"), before);
}

#[test]
fn names_and_numbers_stand_for_the_devices_of_a_pool() {
    let fixture = Fixture::pool(3, 2, 1, 32);
    fixture.run(["label", "pool", "my photos"]).succeeded();
    fixture.local("a", "kept");
    let pool = scanned(&fixture)[0]["pool"].as_str().expect("an id").to_owned();
    searching(&fixture, &["cp", "a", "LABEL=my photos:/"]).succeeded();
    let by_number = format!("uuid={}", pool.to_uppercase());
    assert_eq!(fixture.run(["cat", "--search", "pool", &format!("{by_number}:/a")]).succeeded(), "kept");
    let said = fixture.run(["fsck", "--search", ".", "label=my photos"]).succeeded();
    assert!(!said.is_empty());
    let status = documents(&searching(&fixture, &["status", "--json", &by_number]).succeeded());
    assert_eq!(status[0]["label"], "my photos");
    let said = fixture.run(["status", "LABEL=my photos"]).failed(3);
    assert!(said.contains("no pool with the name 'my photos' was found"), "{said}");
    // A file of that name is named by its directory.
    fs::rename(fixture.path("pool/0.img"), fixture.path("LABEL=x")).expect("renamed");
    fixture.run(["status", "./LABEL=x,pool/1.img,pool/2.img"]).succeeded();
}

#[test]
fn two_pools_of_one_name_are_refused_with_both_numbers() {
    let fixture = Fixture::empty();
    let (first, second) = (named(&fixture, "a.img", "tank"), named(&fixture, "b.img", "tank"));
    let said = searching(&fixture, &["ls", "LABEL=tank:/"]).failed(3);
    assert!(said.contains("2 pools have the name tank"), "{said}");
    assert!(said.contains(&first) && said.contains(&second), "{said}");
    searching(&fixture, &["ls", &format!("UUID={second}:/")]).succeeded();
}

#[test]
fn the_newest_root_says_the_name_even_if_an_older_device_is_found_first() {
    let fixture = Fixture::pool(2, 1, 1, 32);
    let old = fs::read(fixture.path("pool/0.img")).expect("readable");
    fixture.run(["label", "pool", "new"]).succeeded();
    fs::write(fixture.path("pool/0.img"), old).expect("written");
    assert_eq!(scanned(&fixture)[0]["label"], "new");
    searching(&fixture, &["status", "LABEL=new"]).succeeded();
}

#[test]
fn a_second_copy_of_a_device_is_named_and_refused() {
    let fixture = Fixture::pool(2, 1, 1, 32);
    fixture.run(["label", "pool", "tank"]).succeeded();
    fs::copy(fixture.path("pool/1.img"), fixture.path("copy.img")).expect("copied");
    let pools = scanned(&fixture);
    assert_eq!((pools.len(), &pools[0]["state"]), (1, &"refused".into()), "{pools:?}");
    assert_eq!(pools[0]["strangers"].as_array().map(Vec::len), Some(1), "{pools:?}");
    let said = searching(&fixture, &["status", "LABEL=tank"]).failed(3);
    assert!(said.contains("are both device 1"), "{said}");
}

#[test]
fn hostile_files_are_passed_over() {
    let fixture = Fixture::pool(1, 1, 0, 32);
    // Damaged copies of the front of a device: every answer is an answer, none is a panic.
    let image = fs::read(fixture.path("pool/0.img")).expect("readable");
    let noise = bytes(7, 4096);
    for (number, flip) in noise.chunks(2).take(64).enumerate() {
        let mut front = image[..4 << 20].to_vec();
        let at = usize::from(flip[0]) * 3 + usize::from(flip[1]) % 3;
        front[at] ^= flip[1] | 1;
        // A header with a checksum that verifies, and fields that need not.
        let crc = crc32c(&front[4..4096]);
        front[..4].copy_from_slice(&crc.to_le_bytes());
        fixture.local(&format!("bad/{number}.img"), front);
    }
    fixture.local("bad/noise.img", bytes(8, 1 << 20));
    fixture.local("bad/empty", "");
    let fifo = fixture.path("bad/fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0)
        .expect("a pipe");
    let long = File::create(fixture.path("bad/long.img")).expect("made");
    long.set_len(1 << 40).expect("sparse");
    long.write_all_at(&image[..4096], 0).expect("written");
    let ran = fixture.run(["scan", "--json", "bad", "bad/fifo"]);
    let said = ran.stderr.clone();
    documents(&ran.succeeded());
    assert!(!said.contains("panicked"), "{said}");
    assert!(said.contains("bad/fifo was not searched"), "{said}");
}

/// CRC32C, bit by bit.
fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0u32, |crc, byte| {
        (0..8).fold(
            crc ^ u32::from(*byte),
            |crc, _| {
                if crc & 1 == 1 { (crc >> 1) ^ 0x82f6_3b78 } else { crc >> 1 }
            },
        )
    })
}
