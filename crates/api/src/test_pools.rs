//! Pools of tests that lose their devices.

use warpfire_sim_env::SimWorld;

use crate::{Pool, Warpfire};

/// The pool of these devices, without some of them.
pub(crate) fn open_without(world: &SimWorld, without: &[usize], context: &str) -> Warpfire {
    let devices = world.devices().into_iter().enumerate();
    let devices = devices.filter(|(n, _)| !without.contains(n)).map(|(_, device)| device).collect();
    let options = Pool::options().background(false).degraded(true);
    options.open_on(devices).unwrap_or_else(|e| panic!("{context}: {e}"))
}

/// Checks that the files `/0`, `/1` and so on have this content.
pub(crate) fn assert_files(fs: &Warpfire, files: usize, content: impl Fn(usize) -> Vec<u8>, context: &str) {
    for n in 0..files {
        let read = fs.read(format!("/{n}")).unwrap_or_else(|e| panic!("{context}: {n}: {e}"));
        assert!(read == content(n), "{context}: file {n} has other bytes");
    }
}
