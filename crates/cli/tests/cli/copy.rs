//! Copies into a pool, listings, and copies out again, with the real binary.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use warpfire_test_needs::{Need, skip};

use crate::fixture::{Fixture, bytes, documents, tree};

/// A tree with everything that a copy has to keep.
fn make_tree(fixture: &Fixture) {
    for number in 0..40 {
        fixture.local(&format!("tree/many/{number}.txt"), format!("file {number}\n"));
    }
    fixture.local("tree/empty", "");
    fixture.local("tree/block", bytes(1, 4096));
    fixture.local("tree/odd", bytes(2, 70_001));
    fixture.local("tree/large", bytes(3, 9 << 20));
    let tool = fixture.local("tree/bin/tool", "#!/bin/sh\n");
    std::fs::set_permissions(tool, PermissionsExt::from_mode(0o755)).expect("a mode is set");
    symlink("bin/tool", fixture.path("tree/link")).expect("a link is made");
    std::fs::hard_link(fixture.path("tree/odd"), fixture.path("tree/odd-again"))
        .expect("a hard link is made");
    std::fs::create_dir(fixture.path("tree/nothing")).expect("a directory is made");
}

fn round_trip(devices: usize, data: usize, parity: usize) {
    let fixture = Fixture::pool(devices, data, parity, 64);
    make_tree(&fixture);
    fixture.run(["cp", "-r", "tree", "pool:/"]).succeeded();
    fixture.run(["cp", "-r", "pool:/tree", "back"]).succeeded();
    assert_eq!(tree(&fixture.path("tree")), tree(&fixture.path("back")));
}

#[test]
fn a_tree_comes_back_as_it_went_into_one_file() {
    round_trip(1, 1, 0);
}

#[test]
fn a_tree_comes_back_as_it_went_into_six_devices() {
    round_trip(6, 4, 2);
}

/// Blocks that are allocated, as stat(2) counts them.
fn allocated_bytes(path: &Path) -> u64 {
    path.metadata().expect("it is there").blocks() * 512
}

#[test]
fn holes_stay_holes_both_ways() {
    let fixture = Fixture::pool(1, 1, 0, 32);
    let sparse = File::create(fixture.path("sparse")).expect("a local file is made");
    sparse.write_all_at(&bytes(1, 5000), 3 << 30).expect("written");
    sparse.write_all_at(b"near", 10).expect("written");
    sparse.set_len(5 << 30).expect("set");
    drop(sparse);
    let said = fixture.run(["cp", "sparse", "pool:/"]);
    assert!(said.stderr.contains("KiB in"), "far less than 5 GiB was copied: {}", said.stderr);
    said.succeeded();
    fixture.run(["cp", "pool:/sparse", "pool:/again"]).succeeded();
    fixture.run(["cp", "pool:/again", "back"]).succeeded();
    let back = File::open(fixture.path("back")).expect("copied out");
    assert_eq!(back.metadata().expect("it is there").len(), 5 << 30);
    assert!(allocated_bytes(&fixture.path("back")) <= allocated_bytes(&fixture.path("sparse")) + (64 << 10));
    let mut read = vec![0; 5000];
    back.read_exact_at(&mut read, 3 << 30).expect("read");
    assert!(read == bytes(1, 5000));
    back.read_exact_at(&mut read[..4], 10).expect("read");
    assert_eq!(&read[..4], b"near");
}

#[test]
fn a_copy_inside_a_pool_keeps_what_a_copy_out_keeps() {
    let fixture = Fixture::pool(1, 1, 0, 64);
    make_tree(&fixture);
    fixture.run(["cp", "-r", "tree", "pool:/"]).succeeded();
    fixture.run(["cp", "-r", "pool:/tree", "pool:/twin"]).succeeded();
    fixture.run(["cp", "-r", "pool:/twin", "back"]).succeeded();
    assert_eq!(tree(&fixture.path("tree")), tree(&fixture.path("back")));
}

/// The access control list that lets user 1234 read a file of mode 640, as the kernel returns it.
fn list() -> Vec<u8> {
    let nobody = u32::MAX;
    // Tag, permissions, and the id of a named user: user, user 1234, group, mask, others.
    let entries = [(1u16, 6u16, nobody), (2, 4, 1234), (4, 4, nobody), (16, 4, nobody), (32, 0, nobody)];
    let mut list = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, number) in entries {
        list.extend(tag.to_le_bytes());
        list.extend(permissions.to_le_bytes());
        list.extend(number.to_le_bytes());
    }
    list
}

#[test]
fn an_archive_keeps_attributes_and_access_control_lists() {
    let fixture = Fixture::pool(1, 1, 0, 64);
    make_tree(&fixture);
    let set = |name: &str, attribute: &str, value: &[u8]| {
        rustix::fs::setxattr(fixture.path(name), attribute, value, rustix::fs::XattrFlags::empty())
    };
    // Some filesystems for temporary files have no extended attributes.
    if set("tree/block", "user.colour", b"green") == Err(rustix::io::Errno::OPNOTSUPP) {
        return skip(Need::Attributes, "the directory for temporary files has no extended attributes");
    }
    set("tree/bin", "user.directory", b"").expect("set");
    set("tree/large", "user.long", &bytes(9, 3000)).expect("set");
    set("tree/odd", "system.posix_acl_access", &list()).expect("set");
    set("tree/many", "system.posix_acl_default", &list()).expect("set");
    std::fs::set_permissions(fixture.path("tree/block"), PermissionsExt::from_mode(0o444)).expect("set");
    fixture.run(["cp", "-a", "tree", "pool:/"]).succeeded();
    fixture.run(["cp", "-a", "pool:/tree", "pool:/twin"]).succeeded();
    fixture.run(["cp", "-a", "pool:/twin", "back"]).succeeded();
    assert_eq!(tree(&fixture.path("tree")), tree(&fixture.path("back")));
    let get = |name: &str, attribute: &str| {
        let mut value = vec![0; 65536];
        let len = rustix::fs::getxattr(fixture.path(name), attribute, &mut value[..]).expect(name);
        value.truncate(len);
        value
    };
    assert_eq!(get("back/block", "user.colour"), b"green");
    assert_eq!(get("back/bin", "user.directory"), b"");
    assert!(get("back/large", "user.long") == bytes(9, 3000));
    assert_eq!(get("back/odd", "system.posix_acl_access"), list());
    assert_eq!(get("back/odd-again", "system.posix_acl_access"), list());
    assert_eq!(get("back/many", "system.posix_acl_default"), list());
    fixture.run(["cp", "-r", "pool:/tree", "plain"]).succeeded();
    let mut value = [0; 16];
    let lost = rustix::fs::getxattr(fixture.path("plain/block"), "user.colour", &mut value[..]);
    assert_eq!(lost, Err(rustix::io::Errno::NODATA), "only --archive keeps them");
}

#[test]
fn any_two_devices_of_a_4_plus_2_pool_may_be_away() {
    let fixture = Fixture::pool(6, 4, 2, 64);
    make_tree(&fixture);
    fixture.run(["cp", "-r", "tree", "pool:/"]).succeeded();
    for away in ["pool/1.img", "pool/4.img"] {
        std::fs::rename(fixture.path(away), fixture.path(&format!("{away}.away")))
            .expect("a device is taken away");
    }
    let ran = fixture.run(["cp", "-r", "pool:/tree", "back"]);
    assert!(ran.stderr.contains("degraded"), "{}", ran.stderr);
    ran.succeeded();
    assert_eq!(tree(&fixture.path("tree")), tree(&fixture.path("back")));
}

#[test]
fn ls_lists_names_in_order_and_long_lines_show_modes() {
    let fixture = Fixture::pool(1, 1, 0, 32);
    make_tree(&fixture);
    fixture.run(["cp", "-r", "tree", "pool:/"]).succeeded();
    assert_eq!(fixture.run(["ls", "pool:/"]).succeeded(), "tree\n");
    let names = fixture.run(["ls", "pool:/tree"]).succeeded();
    assert_eq!(
        names.lines().collect::<Vec<_>>(),
        ["bin", "block", "empty", "large", "link", "many", "nothing", "odd", "odd-again"]
    );
    let long = fixture.run(["ls", "-l", "pool:/tree/bin"]).succeeded();
    assert!(long.starts_with("-rwxr-xr-x   1 "), "{long}");
    let long = fixture.run(["ls", "-l", "pool:/tree"]).succeeded();
    assert!(long.contains("link -> bin/tool"), "{long}");
    let entries = documents(&fixture.run(["ls", "--json", "pool:/tree"]).succeeded());
    assert_eq!(entries[1]["name"], "block");
    assert_eq!(entries[1]["size_bytes"], 4096);
}

#[test]
fn cat_prints_files_one_after_the_other() {
    let fixture = Fixture::pool(1, 1, 0, 32);
    fixture.local("a", "one\n");
    fixture.local("b", "two\n");
    fixture.run(["cp", "a", "b", "pool:/"]).succeeded();
    assert_eq!(fixture.run(["cat", "pool:/a", "pool:/b"]).succeeded(), "one\ntwo\n");
}

#[test]
fn stat_shows_size_links_and_times() {
    let fixture = Fixture::pool(1, 1, 0, 32);
    fixture.local("a", bytes(1, 12_345));
    fixture.run(["cp", "a", "pool:/"]).succeeded();
    let said = fixture.run(["stat", "pool:/a"]).succeeded();
    assert!(said.contains("12345 bytes") && said.contains("1 link"), "{said}");
    let entries = documents(&fixture.run(["stat", "--json", "pool:/a"]).succeeded());
    assert_eq!(entries[0]["size_bytes"], 12_345);
    assert_eq!(entries[0]["type"], "file");
}

#[test]
fn mkdir_and_rm_make_and_remove() {
    let fixture = Fixture::pool(1, 1, 0, 32);
    fixture.run(["mkdir", "pool:/a/b"]).failed(1);
    fixture.run(["mkdir", "-p", "pool:/a/b"]).succeeded();
    fixture.run(["mkdir", "pool:/a"]).failed(1);
    assert_eq!(fixture.run(["ls", "pool:/a"]).succeeded(), "b\n");
    let said = fixture.run(["rm", "pool:/a"]).failed(1);
    assert!(said.contains("-r"), "{said}");
    fixture.run(["rm", "-r", "pool:/a"]).succeeded();
    assert_eq!(fixture.run(["ls", "pool:/"]).succeeded(), "");
    fixture.run(["rm", "pool:/a"]).failed(1);
    fixture.run(["rm", "-f", "pool:/a"]).succeeded();
}

#[test]
fn a_copy_inside_a_pool_reads_the_same_and_moves_no_data() {
    let fixture = Fixture::pool(1, 1, 0, 64);
    fixture.local("large", bytes(5, 24 << 20));
    fixture.run(["cp", "large", "pool:/"]).succeeded();
    for copy in ["pool:/b", "pool:/c", "pool:/d", "pool:/e"] {
        fixture.run(["cp", "pool:/large", copy]).succeeded();
    }
    fixture.run(["cp", "pool:/e", "back"]).succeeded();
    assert_eq!(std::fs::read(fixture.path("back")).expect("copied out"), bytes(5, 24 << 20));
}

#[test]
fn the_pool_can_be_named_by_the_environment() {
    let fixture = Fixture::pool(1, 1, 0, 32);
    let mut command = fixture.command(["ls", ":/"]);
    let output = command.env("WARPFIRE_POOL", "pool").output().expect("the binary runs");
    assert!(output.status.success());
}
