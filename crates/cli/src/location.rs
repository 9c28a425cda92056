//! Names of files inside a pool on the command line: `POOL:/path`.
//!
//! `POOL` is one or more devices or image files, separated by commas. A directory stands for all `*.img`
//! files in it. An empty `POOL` (`:/path`) is the pool that the environment variable `WARPFIRE_POOL` names.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use warpfire_terminal::Failure;

/// The environment variable that names the pool of locations beginning with `:/`.
pub const POOL_VARIABLE: &str = "WARPFIRE_POOL";

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
        Ok(devices)
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
    /// Parses an argument: it is inside a pool if it contains `:/`.
    #[must_use]
    pub fn parse(argument: &OsStr) -> PathArgument {
        let bytes = argument.as_bytes();
        match bytes.windows(2).position(|pair| pair == b":/") {
            None => PathArgument::Local(PathBuf::from(argument)),
            Some(colon) => {
                let (pool, path) = bytes.split_at(colon);
                PathArgument::Pool(Location {
                    pool: PoolName(OsString::from_vec(pool.to_vec())),
                    path: PathBuf::from(OsString::from_vec(path[1..].to_vec())),
                })
            }
        }
    }
}

impl Location {
    /// A location from an argument that must name a file inside a pool.
    ///
    /// # Errors
    /// The argument has no `:/`.
    pub fn parse(argument: &OsStr) -> Result<Location, Failure> {
        match PathArgument::parse(argument) {
            PathArgument::Pool(location) => Ok(location),
            PathArgument::Local(path) => {
                Err(Failure::usage(format_args!("'{}' is not the name of a file in a pool", path.display()))
                    .hint(format_args!("write '{}:/path'", path.display())))
            }
        }
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
