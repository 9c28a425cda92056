//! Names of files inside a pool on the command line: `POOL:/path`.
//!
//! `POOL` is one or more devices or image files, separated by commas. A directory stands for all `*.img`
//! files in it. An empty `POOL` (`:/path`) is the pool that the environment variable `WARPFIRE_POOL` names.
//!
//! The form of an argument alone decides, and not the files that exist: the first `:/` ends the pool, and
//! `POOL:` is its root. Anything after `local:` is a local path, whatever it holds. A pool in a file of that
//! name is `./local:/path`.

use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use warpfire::device_label;
use warpfire_terminal::{Failure, shown};

/// The environment variable that names the pool of locations beginning with `:/`.
pub const POOL_VARIABLE: &str = "WARPFIRE_POOL";

/// The beginning of an argument that is a local path even if it holds `:/`.
const LOCAL_PREFIX: &[u8] = b"local:";

/// The devices of a pool, as the command line names them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PoolName(OsString);

/// A path inside a pool.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Location {
    /// The pool.
    pub pool: PoolName,
    /// The path inside it; begins with `/`.
    pub path: PathBuf,
}

/// A path on the command line: inside a pool or local.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PathArgument {
    /// A file inside a pool.
    Pool(Location),
    /// A local file.
    Local(PathBuf),
}

impl PoolName {
    /// The pool with this name.
    #[must_use]
    pub fn new(name: impl Into<OsString>) -> Self {
        PoolName(name.into())
    }

    /// The devices and image files in order, with the images of a directory in its place.
    ///
    /// # Errors
    /// An empty name without `WARPFIRE_POOL`; a directory that cannot be read or has no image.
    pub fn devices(&self) -> Result<Vec<PathBuf>, Failure> {
        let name = if self.0.is_empty() {
            std::env::var_os(POOL_VARIABLE).filter(|name| !name.is_empty()).ok_or_else(|| {
                Failure::usage("no pool is named")
                    .hint(format_args!("name its devices, or set {POOL_VARIABLE}"))
            })?
        } else {
            self.0.clone()
        };
        let mut devices = Vec::new();
        for part in name.as_bytes().split(|&byte| byte == b',').filter(|part| !part.is_empty()) {
            let path = PathBuf::from(OsStr::from_bytes(part));
            if path.is_dir() {
                devices.extend(images_in(&path)?);
            } else {
                devices.push(path);
            }
        }
        let is_there = |device: &PathBuf| {
            device.symlink_metadata().map_or_else(|error| error.kind() != ErrorKind::NotFound, |_| true)
        };
        match devices.iter().find(|device| !is_there(device)) {
            None => Ok(devices),
            Some(absent) => {
                let absent = Failure::unreadable(format_args!("{}: no such image or device", shown(absent)));
                Err(if devices.iter().any(is_there) {
                    absent.hint("check the path; if the device is lost and parity covers it, leave it out")
                } else {
                    absent.hint(pools_nearby())
                })
            }
        }
    }

    /// Whether a device of that name holds part of a pool. Without a name there is none.
    #[must_use]
    pub fn is_pool(&self) -> bool {
        let devices = if self.0.is_empty() { Vec::new() } else { self.devices().unwrap_or_default() };
        devices.iter().any(|device| matches!(device_label(device), Ok(Some(_))))
    }
}

/// Names that a message lists.
const NAMES_MAX: usize = 5;

/// What to try instead of a pool that does not exist: the pools in the current directory.
fn pools_nearby() -> String {
    let entries = std::fs::read_dir(".").into_iter().flatten().flatten();
    let is_pool = |path: &PathBuf| path.extension() == Some(OsStr::new("img")) || images_in(path).is_ok();
    let found = entries.map(|entry| PathBuf::from(entry.file_name())).filter(is_pool);
    let mut names: Vec<String> = found.map(|path| shown(&path)).collect();
    names.sort();
    let rest = if names.len() > NAMES_MAX { ", ..." } else { "" };
    names.truncate(NAMES_MAX);
    match names.as_slice() {
        [] => "check the path".to_owned(),
        names => format!("check the path; in this directory are {}{rest}", names.join(", ")),
    }
}

fn images_in(directory: &Path) -> Result<Vec<PathBuf>, Failure> {
    let entries = std::fs::read_dir(directory).map_err(|error| Failure::local(directory, &error))?;
    let mut images = Vec::new();
    for entry in entries {
        let path = entry.map_err(|error| Failure::local(directory, &error))?.path();
        if path.extension() == Some(OsStr::new("img")) {
            images.push(path);
        }
    }
    images.sort();
    if images.is_empty() {
        return Err(Failure::new(format_args!("the directory {} has no *.img file", directory.display()))
            .hint("name the devices of the pool, separated by commas"));
    }
    Ok(images)
}

impl PathArgument {
    /// Parses an argument: it is inside a pool if it contains `:/` or ends with `:`, unless it begins with
    /// `local:`.
    #[must_use]
    pub fn parse(argument: &OsStr) -> PathArgument {
        let bytes = argument.as_bytes();
        if let Some(local) = bytes.strip_prefix(LOCAL_PREFIX) {
            return PathArgument::Local(PathBuf::from(OsStr::from_bytes(local)));
        }
        let colon = bytes.windows(2).position(|pair| pair == b":/");
        let Some(colon) = colon.or_else(|| bytes.ends_with(b":").then(|| bytes.len() - 1)) else {
            return PathArgument::Local(PathBuf::from(argument));
        };
        let (pool, path) = (&bytes[..colon], &bytes[colon + 1..]);
        let path = if path.is_empty() { b"/" } else { path };
        PathArgument::Pool(Location {
            pool: PoolName(OsString::from_vec(pool.to_vec())),
            path: PathBuf::from(OsString::from_vec(path.to_vec())),
        })
    }
}

impl Location {
    /// A location from an argument that must name a file inside a pool.
    ///
    /// # Errors
    /// The argument is a local path.
    pub fn parse(argument: &OsStr) -> Result<Location, Failure> {
        match PathArgument::parse(argument) {
            PathArgument::Pool(location) => Ok(location),
            PathArgument::Local(path) => {
                Err(Failure::usage(format_args!("'{}' is not the name of a file in a pool", shown(&path)))
                    .hint(format_args!("write '{}:/path'", shown(&path))))
            }
        }
    }

    /// As [`parse`](Location::parse), for commands that only read: there the name of a pool alone is its
    /// root.
    ///
    /// # Errors
    /// The argument begins with `local:`.
    pub fn parse_or_root(argument: &OsStr) -> Result<Location, Failure> {
        match PathArgument::parse(argument) {
            PathArgument::Local(_) if !argument.as_bytes().starts_with(LOCAL_PREFIX) => {
                Ok(Location { pool: PoolName::new(argument), path: PathBuf::from("/") })
            }
            _ => Location::parse(argument),
        }
    }

    /// Locations from the arguments of a command.
    ///
    /// # Errors
    /// As `parse` for the first argument that it refuses.
    pub fn parse_all(
        arguments: &[OsString],
        parse: impl Fn(&OsStr) -> Result<Location, Failure>,
    ) -> Result<Vec<Location>, Failure> {
        arguments.iter().map(|argument| parse(argument)).collect()
    }

    /// A file of the same pool as it is named on the command line.
    #[must_use]
    pub fn named(&self, path: &Path) -> OsString {
        let mut name = self.pool.0.clone();
        name.push(":");
        name.push(path);
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(argument: &str) -> (String, String) {
        let location = Location::parse(OsStr::new(argument)).expect(argument);
        (location.pool.0.to_string_lossy().into_owned(), location.path.display().to_string())
    }

    #[test]
    fn the_first_colon_before_a_slash_ends_the_pool() {
        assert_eq!(pool("a.img:/x"), ("a.img".into(), "/x".into()));
        assert_eq!(pool("/p/a.img,/p/b.img:/x:/y"), ("/p/a.img,/p/b.img".into(), "/x:/y".into()));
        assert_eq!(pool(":/x"), (String::new(), "/x".into()));
    }

    #[test]
    fn a_path_without_a_colon_before_a_slash_is_local() {
        for local in ["a.img", "a:b", "/x/y:z", "."] {
            assert_eq!(PathArgument::parse(OsStr::new(local)), PathArgument::Local(local.into()));
        }
    }

    #[test]
    fn a_path_after_local_is_local_whatever_it_holds() {
        for local in ["./odd/d:/e", "d:", "local:/e", "/a"] {
            let argument = format!("local:{local}");
            assert_eq!(PathArgument::parse(OsStr::new(&argument)), PathArgument::Local(local.into()));
            Location::parse_or_root(OsStr::new(&argument)).expect_err("it is local");
        }
        assert_eq!(pool("./local:/x"), ("./local".into(), "/x".into()));
    }

    #[test]
    fn a_pool_with_a_colon_or_for_reading_alone_is_its_root() {
        assert_eq!(pool("p:"), ("p".into(), "/".into()));
        assert_eq!(pool(":"), (String::new(), "/".into()));
        let root = Location::parse_or_root(OsStr::new("a.img,b.img")).expect("a pool");
        assert_eq!(root, Location::parse(OsStr::new("a.img,b.img:/")).expect("its root"));
        assert_eq!(root.named(Path::new("/x")), "a.img,b.img:/x");
    }

    #[test]
    fn a_local_path_where_a_pool_is_needed_is_refused_with_the_right_form() {
        let failure = Location::parse(OsStr::new("a.img")).expect_err("no colon");
        assert!(failure.to_string().contains("a.img"));
    }

    #[test]
    fn a_directory_stands_for_its_images_in_order() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        for name in ["b.img", "a.img", "notes.txt"] {
            std::fs::write(directory.path().join(name), b"").expect("writable");
        }
        let devices = PoolName::new(directory.path()).devices().expect("two images");
        assert_eq!(devices, [directory.path().join("a.img"), directory.path().join("b.img")]);
    }
}
