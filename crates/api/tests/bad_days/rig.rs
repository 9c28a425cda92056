//! Pools on image files and on simulated devices, and files that are recognised by their numbers.

use std::path::PathBuf;
use std::sync::Arc;

use tempfile::TempDir;
use warpfire::{Error, ErrorKind, Pool, Warpfire};
use warpfire_check::{CheckOptions, CheckReport, check};
use warpfire_env::{Device, FileDevice};
use warpfire_sim_env::{DeviceSpec, SimRandom, SimWorld};

/// Paths of image files in a temporary directory. The files do not exist yet.
pub struct Images {
    directory: TempDir,
    pub paths: Vec<PathBuf>,
}

impl Images {
    pub fn new(count: usize) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let paths = (0..count).map(|number| directory.path().join(format!("{number}.img"))).collect();
        Images { directory, paths }
    }

    /// A pool on all of them with `files` files in it, closed again.
    pub fn with_files(data: u16, parity: u8, files: u64) -> Self {
        let images = Images::new(usize::from(data) + usize::from(parity));
        let fs = Pool::options()
            .data(data)
            .parity(parity)
            .size_bytes(32 << 20)
            .create(&images.paths)
            .expect("new images make a pool");
        fill(&fs, 0..files);
        fs.close().expect("sound devices do not fail");
        images
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// All images except some.
    pub fn without(&self, away: &[usize]) -> Vec<PathBuf> {
        let here = self.paths.iter().enumerate().filter(|(number, _)| !away.contains(number));
        here.map(|(_, path)| path.clone()).collect()
    }

    /// The report of the independent check.
    pub fn checked(&self) -> CheckReport {
        let open = |path: &PathBuf| -> Arc<dyn Device> {
            Arc::new(FileDevice::open(path).expect("the images are there"))
        };
        checked(&self.paths.iter().map(open).collect::<Vec<_>>())
    }
}

/// The report of the independent check.
pub fn checked(devices: &[Arc<dyn Device>]) -> CheckReport {
    check(devices, &CheckOptions::default()).expect("the pool can be checked")
}

/// An open pool on `data + parity` simulated devices, without background threads.
pub fn simulated(seed: u64, data: u16, parity: u8) -> (SimWorld, Warpfire) {
    let count = usize::from(data) + usize::from(parity);
    let world = SimWorld::of(seed, count, &DeviceSpec::conventional("flash", 32 << 20));
    let options = Pool::options().data(data).parity(parity).background(false);
    let fs = options.create_on(world.devices()).expect("blank devices make a pool");
    (world, fs)
}

/// The content of a file, derived from its number: most are small, some have segments of their own.
pub fn content(number: u64) -> Vec<u8> {
    let random = SimRandom::new(number);
    let len = if number.is_multiple_of(3) { random.below(120_000) } else { random.below(3000) };
    (0..=len).map(|_| random.below(256).to_le_bytes()[0]).collect()
}

pub fn name(number: u64) -> String {
    format!("/{number:06}")
}

/// Makes files and syncs them.
pub fn fill(fs: &Warpfire, numbers: std::ops::Range<u64>) {
    for number in numbers {
        fs.write(name(number), content(number)).expect("there is room");
    }
    fs.sync().expect("sound devices do not fail");
}

/// How many files are whole. The others must fail as damaged.
///
/// # Panics
/// A file has wrong bytes.
pub fn whole(fs: &Warpfire, numbers: std::ops::Range<u64>) -> u64 {
    let mut whole = 0;
    for number in numbers {
        match fs.read(name(number)) {
            Ok(bytes) => {
                assert!(bytes == content(number), "file {number} came back with wrong bytes");
                whole += 1;
            }
            Err(error) => {
                refused::<()>(Err(error), ErrorKind::Damaged);
            }
        }
    }
    whole
}

/// Checks that a call fails with this kind of error, that the error has an errno, and that it says what to
/// do. Returns its text and hint.
pub fn refused<T>(outcome: Result<T, Error>, kind: ErrorKind) -> String {
    let error = outcome.err().expect("the call fails");
    assert_eq!(error.kind(), kind, "{error}");
    assert_ne!(error.errno(), 0);
    let hint = error.hint().unwrap_or_else(|| panic!("'{error}' does not say what to do"));
    format!("{error}; {hint}")
}
