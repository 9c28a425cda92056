//! Files rearranged by ioctls, from a program in C that knows only `include/warpfire.h`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::world::{World, c_program};

#[test]
fn a_program_in_c_rearranges_files() {
    let Some(world) = World::new() else { return };
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = c_program("slicing", directory.path()) else { return };
    let ran = Command::new(program).arg("story").arg(world.path()).status().unwrap();
    assert!(ran.success());
    // The program has gone; what it did is there.
    assert_eq!(fs::read(world.at("copy")).unwrap(), b"\0TWOtwo ");
    assert!(!world.at("text").exists());
}

#[test]
fn who_may_not_read_or_write_a_file_can_not_rearrange_it_though_it_is_open() {
    let Some(world) = World::shared() else { return };
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = c_program("slicing", directory.path()) else { return };
    fs::set_permissions(world.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(world.at("secret"), b"secret").unwrap();
    fs::set_permissions(world.at("secret"), fs::Permissions::from_mode(0o600)).unwrap();
    let ran = std::os::unix::process::CommandExt::uid(&mut Command::new(program), 1234)
        .args(["refused", "it is open"])
        .current_dir("/")
        .stdin(fs::File::open(world.at("secret")).unwrap())
        .status()
        .unwrap();
    assert!(ran.success());
    assert_eq!(fs::read(world.at("secret")).unwrap(), b"secret");
}
