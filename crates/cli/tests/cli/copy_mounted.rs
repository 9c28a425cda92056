//! `cp` with the files of a mounted pool.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::process::{Command, Stdio};

use warpfire_test_needs::{Need, skip};

use crate::fixture::{CommandResult, Fixture, bytes, tree};
use crate::mounted::{MountedFixture, can_mount, server_of};

const BLOCK: usize = 4096;

/// A tree with holes, links, modes and times.
fn make_tree(fixture: &Fixture, name: &str) {
    fixture.local(&format!("{name}/short"), "short");
    fixture.local(&format!("{name}/below/long"), bytes(1, 3 << 20));
    fixture.local(&format!("{name}/empty"), "");
    let sparse = fs::File::create(fixture.path(&format!("{name}/sparse"))).expect("made");
    sparse.write_all_at(b"data", 1 << 20).expect("written");
    sparse.set_len(5 << 20).expect("set");
    symlink("below/long", fixture.path(&format!("{name}/link"))).expect("made");
    fs::hard_link(fixture.path(&format!("{name}/short")), fixture.path(&format!("{name}/below/again")))
        .expect("linked");
    let mode = PermissionsExt::from_mode(0o640);
    fs::set_permissions(fixture.path(&format!("{name}/short")), mode).expect("set");
}

/// The names in the root of the mounted pool, hidden ones too.
fn names(fixture: &Fixture) -> Vec<String> {
    let entries = fs::read_dir(fixture.path("mnt")).expect("listed");
    let name = |entry: fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
    let mut names: Vec<String> = entries.map(|entry| name(entry.expect("listed"))).collect();
    names.sort();
    names
}

fn without_times(found: Vec<(std::path::PathBuf, String, Vec<u8>)>) -> Vec<(std::path::PathBuf, Vec<u8>)> {
    found.into_iter().map(|(path, _, content)| (path, content)).collect()
}

#[test]
fn a_tree_goes_into_a_mounted_pool_within_it_and_out_of_it_as_it_is() {
    if !can_mount() {
        return;
    }
    let MountedFixture(fixture) = &MountedFixture::new();
    make_tree(fixture, "tree");
    let expected = tree(&fixture.path("tree"));
    fixture.run(["cp", "-a", "tree", "pool:/"]).succeeded();
    assert_eq!(tree(&fixture.path("mnt/tree")), expected);
    fixture.run(["cp", "-a", "pool:/tree", "mnt:/again"]).succeeded();
    assert_eq!(tree(&fixture.path("mnt/again")), expected);
    fixture.run(["cp", "-a", "mnt:/again", "back"]).succeeded();
    assert_eq!(tree(&fixture.path("back")), expected);
    let sparse = fs::metadata(fixture.path("back/sparse")).expect("there");
    assert!(sparse.blocks() * 512 < sparse.len(), "the holes stay holes");
    // Files are replaced, and stay when an option says so.
    fixture.local("new", "new");
    let said = fixture.run(["cp", "-n", "new", "pool:/tree/short"]);
    assert!(said.stderr.contains("1 left"), "{}", said.stderr);
    assert_eq!(fixture.run(["cp", "pool:/tree/short", "-"]).succeeded(), "short");
    fixture.run(["cp", "new", "pool:/tree/short"]).succeeded();
    assert_eq!(fs::read(fixture.path("mnt/tree/short")).expect("there"), b"new");
    let planned = fixture.run(["cp", "-r", "--dry-run", "--exclude=below", "pool:/tree", "pool:/plan"]);
    let planned = planned.succeeded();
    assert!(planned.contains("/tree/sparse -> /plan/sparse") && !planned.contains("long"), "{planned}");
    assert!(!fixture.path("mnt/plan").exists());
    let piped = fixture.command(["cp", "-", "pool:/piped"]).stdin(Stdio::null()).output().expect("it runs");
    CommandResult::from(piped).succeeded();
    assert_eq!(fs::read(fixture.path("mnt/piped")).expect("there"), b"");
    // No hidden name is left.
    assert_eq!(names(fixture), ["again", "piped", "tree"]);
}

#[test]
fn a_copy_within_a_mounted_pool_copies_pointers() {
    if !can_mount() {
        return;
    }
    let MountedFixture(fixture) = &MountedFixture::new();
    let content = bytes(2, 40 << 20);
    fixture.local("big", &content);
    fixture.run(["cp", "big", "pool:/"]).succeeded();
    // The data of eight copies has no room in the pool.
    for number in 0..8 {
        fixture.run(["cp", "pool:/big", &format!("pool:/{number}")]).succeeded();
    }
    assert!(fs::read(fixture.path("mnt/7")).expect("there") == content);
    let said = fixture.run(["cp", "pool:/big", "mnt:/big"]).failed(1);
    assert!(said.contains("is the file itself"), "{said}");
}

#[test]
fn a_device_node_in_a_mounted_pool_is_replaced_as_any_file() {
    if !can_mount() {
        return;
    }
    let MountedFixture(fixture) = &MountedFixture::new();
    let made = Command::new("mknod").arg(fixture.path("mnt/null")).args(["c", "1", "3"]).status();
    if !made.is_ok_and(|ended| ended.success()) {
        return skip(Need::Root, "a device node cannot be made");
    }
    fixture.local("file", "file");
    fixture.run(["cp", "file", "pool:/null"]).succeeded();
    assert_eq!(fs::read(fixture.path("mnt/null")).expect("a file"), b"file");
}

#[test]
fn local_paths_in_a_mounted_pool_are_copied_as_they_are_named() {
    if !can_mount() {
        return;
    }
    let MountedFixture(fixture) = &MountedFixture::new();
    make_tree(fixture, "tree");
    let expected = tree(&fixture.path("tree"));
    for (from, to) in [("tree", "mnt/in"), ("mnt/in", "mnt/again"), ("mnt/again", "out")] {
        fixture.run(["cp", "-a", from, to]).succeeded();
        assert_eq!(tree(&fixture.path(to)), expected, "{from} to {to}");
    }
    let said = fixture.run(["cp", "mnt/in/short", "mnt/in/short"]).failed(1);
    assert!(said.contains("is the file itself"), "{said}");
    let said = fixture.run(["cp", "-r", "mnt/in", "mnt/in/below"]).failed(1);
    assert!(said.contains("cannot be copied into itself"), "{said}");
    // Outside of pools cp is the system's.
    let said = fixture.run(["cp", "mnt/in/short", "tree/short", "out"]).failed(2);
    assert!(said.contains("neither source nor destination is inside a pool"), "{said}");
}

#[test]
fn a_directory_of_a_mounted_pool_is_not_copied_into_itself() {
    if !can_mount() {
        return;
    }
    let MountedFixture(fixture) = &MountedFixture::new();
    make_tree(fixture, "mnt/tree");
    symlink("/tree", fixture.path("mnt/alias")).expect("made");
    for (from, to) in [
        ("pool:/tree", "pool:/tree/below"),
        ("pool:/tree", "mnt:/tree/below"),
        ("pool:/tree", "pool:/alias/below"),
        ("mnt/tree", "pool:/tree"),
    ] {
        let said = fixture.run(["cp", "-r", from, to]).failed(1);
        assert!(said.contains("cannot be copied into itself"), "{said}");
    }
}

#[test]
fn an_atomic_copy_into_a_mounted_pool_is_whole_or_absent() {
    if !can_mount() {
        return;
    }
    let MountedFixture(fixture) = &MountedFixture::new();
    make_tree(fixture, "tree");
    fixture.local("large", bytes(3, 200 << 20));
    let said = fixture.run(["cp", "-r", "--atomic", "tree", "large", "pool:/"]).failed(1);
    assert!(said.contains("nothing was copied"), "{said}");
    let said = fixture.run(["cp", "-r", "--atomic", "tree", "absent", "pool:/"]).failed(1);
    assert!(said.contains("absent") && said.contains("nothing was copied"), "{said}");
    assert!(names(fixture).is_empty());
    fixture.run(["cp", "-r", "--atomic", "tree", "pool:/"]).succeeded();
    fixture.run(["cp", "-r", "--atomic", "pool:/tree", "mnt:/tree/short", "pool:/tree/below"]).failed(1);
    fixture.run(["cp", "-r", "--atomic", "pool:/tree", "pool:/again"]).succeeded();
    let expected = without_times(tree(&fixture.path("tree")));
    assert_eq!(without_times(tree(&fixture.path("mnt/tree"))), expected);
    assert_eq!(without_times(tree(&fixture.path("mnt/again"))), expected);
}

#[test]
fn one_of_two_pools_of_a_copy_may_be_mounted() {
    if !can_mount() {
        return;
    }
    let MountedFixture(fixture) = &MountedFixture::new();
    fixture.run(["mkfs", "--size=64M", "other.img"]).succeeded();
    make_tree(fixture, "tree");
    fixture.run(["cp", "-r", "tree", "pool:/"]).succeeded();
    fixture.run(["cp", "-r", "pool:/tree", "other.img:/"]).succeeded();
    fixture.run(["cp", "-r", "other.img:/tree", "pool:/back"]).succeeded();
    assert_eq!(tree(&fixture.path("mnt/back")), tree(&fixture.path("tree")));
}

#[test]
fn a_damaged_file_of_a_mounted_pool_is_refused_and_salvaged() {
    if !can_mount() {
        return;
    }
    let fixture = Fixture::pool(1, 1, 0, 64);
    let content = bytes(4, (5 << 20) + 100);
    fixture.local("big", &content);
    fixture.run(["cp", "big", "pool:/"]).succeeded();
    let image = fs::read(fixture.path("pool/0.img")).expect("read");
    let file = fs::OpenOptions::new().write(true).open(fixture.path("pool/0.img")).expect("opened");
    let ranges = [(0, 2), (255, 257), (700, 701), (702, 703), (1279, 1280)];
    let mut expected = content.clone();
    for (start, end) in ranges {
        for block in start..end {
            let wanted = &content[block * BLOCK..(block + 1) * BLOCK];
            let at = image.chunks(BLOCK).position(|found| found == wanted).expect("the block is there");
            file.write_all_at(&[0xee; BLOCK], (at * BLOCK) as u64).expect("damaged");
            expected[block * BLOCK..(block + 1) * BLOCK].fill(0);
        }
    }
    fs::create_dir(fixture.path("mnt")).expect("a new directory");
    fixture.run(["mount", "pool", "mnt"]).succeeded();
    let MountedFixture(fixture) = &MountedFixture(fixture);
    let said = fixture.run(["cp", "pool:/big", "back"]).failed(1);
    assert!(said.contains("/big: input/output error") && said.contains("--salvage"), "{said}");
    assert!(!fixture.path("back").exists());
    let ran = fixture.run(["--json", "cp", "--salvage", "pool:/big", "back"]);
    let report: serde_json::Value = serde_json::from_str(&ran.stdout).expect("JSON");
    let said = ran.failed(1);
    let missing = report["damaged"][0]["missing"].as_array().expect("a list");
    let found: Vec<_> = missing.iter().map(|range| (range["start"].clone(), range["end"].clone())).collect();
    let lost = ranges.map(|(start, end)| ((start * BLOCK).into(), (end * BLOCK).into()));
    assert_eq!(found, lost, "{said}");
    assert!(fs::read(fixture.path("back")).expect("copied") == expected, "the rest is there");
}

#[test]
fn no_link_of_a_mounted_pool_leads_a_copy_out_of_it() {
    if !can_mount() {
        return;
    }
    let MountedFixture(fixture) = &MountedFixture::new();
    fs::create_dir(fixture.path("outside")).expect("made");
    fixture.local("outside/secret", "outside");
    fixture.local("inside", "inside");
    symlink(fixture.path("outside"), fixture.path("mnt/absolute")).expect("made");
    symlink("../outside", fixture.path("mnt/relative")).expect("made");
    for name in ["absolute", "relative"] {
        fixture.run(["cp", &format!("pool:/{name}/secret"), "back"]).failed(1);
        fixture.run(["cp", "inside", &format!("pool:/{name}/new")]).failed(1);
        // The link itself is copied, and replaced.
        fixture.run(["cp", &format!("pool:/{name}"), "pool:/copy"]).succeeded();
        let copied = fs::read_link(fixture.path("mnt/copy")).expect("a link");
        assert_eq!(copied, fs::read_link(fixture.path(&format!("mnt/{name}"))).expect("a link"));
        fixture.run(["cp", "inside", &format!("pool:/{name}")]).succeeded();
        assert_eq!(fs::read(fixture.path(&format!("mnt/{name}"))).expect("a file"), b"inside");
    }
    assert!(!fixture.path("back").exists());
    assert_eq!(fixture.run(["cp", "outside/secret", "-"]).code, 2);
    assert_eq!(tree(&fixture.path("outside")).len(), 1);
    // Another filesystem over a directory of the pool is no part of it.
    fs::create_dir_all(fixture.path("mnt/dir/over")).expect("made");
    let over = fixture.path("mnt/dir/over");
    let mounted = Command::new("mount").args(["-t", "tmpfs", "none"]).arg(&over).status();
    if !mounted.is_ok_and(|ended| ended.success()) {
        return skip(Need::Root, "a second filesystem cannot be mounted");
    }
    fs::write(over.join("foreign"), b"").expect("written");
    let out = fixture.run(["cp", "-r", "pool:/dir", "out"]);
    let into = fixture.run(["cp", "inside", "pool:/dir/over/"]);
    let is_new = over.join("inside").exists();
    Command::new("umount").arg(&over).status().expect("umount runs");
    assert!(out.code == 1 && out.stderr.contains("another filesystem"), "{}", out.stderr);
    assert!(!fixture.path("out/over/foreign").exists());
    assert!(into.code == 1 && into.stderr.contains("another filesystem") && !is_new, "{}", into.stderr);
}

#[test]
fn a_dead_server_ends_a_copy_with_one_sentence() {
    if !can_mount() {
        return;
    }
    let MountedFixture(fixture) = &MountedFixture::new();
    make_tree(fixture, "tree");
    fixture.run(["cp", "-r", "tree", "pool:/"]).succeeded();
    let server = server_of(&fixture.path("pool/0.img"));
    assert!(Command::new("kill").args(["-9", &server.to_string()]).status().expect("kill runs").success());
    for (from, to) in [("mnt:/tree", "back"), ("tree", "mnt:/new")] {
        let said = fixture.run(["cp", "-r", from, to]).failed(3);
        assert!(said.contains("is not running; run 'warpfire umount"), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}
