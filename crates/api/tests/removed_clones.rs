//! Clones that are deleted: what they kept of their origins becomes free, and can be written again.

use std::ops::ControlFlow;
use std::thread::park_timeout;
use std::time::Duration;

use warpfire::{ErrorKind, Pool, Warpfire};
use warpfire_sim_env::{DeviceSpec, SimWorld};

const FILE_BYTES: usize = 60 << 20;

fn world() -> SimWorld {
    SimWorld::of(5, 1, &DeviceSpec::conventional("flash", 96 << 20))
}

/// Leaves a pool of which more than half was in a directory that had a clone. Neither is there any more.
fn clone_and_delete(pool: &Warpfire, source_first: bool) {
    pool.create_dir("/work").expect("there is room");
    pool.write("/work/file", vec![1; FILE_BYTES]).expect("there is room");
    pool.clone_directory("/work", "/try").expect("there is room");
    if source_first {
        pool.remove_dir_all("/work").expect("there is room");
    }
    pool.delete_volume("/try").expect("there is room");
    if !source_first {
        pool.remove_dir_all("/work").expect("there is room");
    }
    pool.sync().expect("there is room");
}

#[test]
fn the_space_of_a_deleted_clone_is_written_again() {
    for source_first in [false, true] {
        let world = world();
        let pool = Pool::options().zone_bytes(512 << 10).create_on(world.devices()).unwrap();
        for round in 0..3 {
            clone_and_delete(&pool, source_first);
            // The upkeep frees it.
            let write = || match pool.write("/again", vec![2; FILE_BYTES]) {
                Ok(_) => true,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
                    park_timeout(Duration::from_millis(100));
                    false
                }
            };
            assert!((0..100).any(|_| write()), "round {round}: no space after ten seconds");
            pool.remove_file("/again").unwrap();
        }
    }
}

/// As a command after the other does: each opens the pool and closes it.
#[test]
fn the_space_of_a_deleted_clone_is_written_again_by_another_session() {
    for source_first in [false, true] {
        let world = world();
        let options = Pool::options().zone_bytes(512 << 10);
        drop(options.create_on(world.devices()).unwrap());
        let act = |act: &dyn Fn(&Warpfire)| {
            let pool = options.open_on(world.devices()).unwrap();
            act(&pool);
            pool.sync().unwrap();
        };
        act(&|pool| pool.create_dir("/work").unwrap());
        act(&|pool| pool.write("/work/file", vec![1; FILE_BYTES]).map(drop).unwrap());
        act(&|pool| pool.clone_directory("/work", "/try").map(drop).unwrap());
        let remove_source = || act(&|pool| pool.remove_dir_all("/work").unwrap());
        if source_first {
            remove_source();
        }
        act(&|pool| pool.delete_volume("/try").map(drop).unwrap());
        if !source_first {
            remove_source();
        }
        act(&|pool| pool.write("/again", vec![2; FILE_BYTES]).map(drop).unwrap());
    }
}

#[test]
fn the_space_of_a_deleted_clone_is_written_again_without_threads() {
    let world = world();
    let options = Pool::options().zone_bytes(512 << 10).background(false);
    let pool = options.create_on(world.devices()).unwrap();
    clone_and_delete(&pool, false);
    pool.trim(|_| ControlFlow::Continue(())).unwrap();
    pool.write("/again", vec![2; FILE_BYTES]).unwrap();
    pool.remove_file("/again").unwrap();
    clone_and_delete(&pool, true);
    pool.sync().unwrap();
    drop(pool);
    let pool = options.open_on(world.devices()).unwrap();
    pool.write("/again", vec![2; FILE_BYTES]).unwrap();
}
