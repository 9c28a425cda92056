//! Pools on image files in a temporary folder, and the real binary run on them.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

/// A folder with a pool in it and whatever a test adds.
pub struct Fixture {
    folder: TempDir,
}

/// What a run of the binary gave.
pub struct Ran {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Fixture {
    /// An empty folder.
    pub fn empty() -> Self {
        Fixture { folder: tempfile::tempdir().expect("a temporary folder") }
    }

    /// A pool on `devices` new image files of so many MiB.
    pub fn pool(devices: usize, data: usize, parity: usize, device_mib: usize) -> Self {
        let fixture = Fixture::empty();
        std::fs::create_dir(fixture.path("pool")).expect("a new folder");
        let mut words: Vec<String> = vec!["mkfs".into(), format!("--size={device_mib}M")];
        words.extend([format!("--data={data}"), format!("--parity={parity}")]);
        words.extend((0..devices).map(|number| format!("pool/{number}.img")));
        fixture.run(words).succeeded();
        fixture
    }

    /// A path in the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a local file.
    pub fn local(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().expect("inside the folder")).expect("a folder is made");
        std::fs::write(&path, bytes).expect("a local file is written");
        path
    }

    /// The binary, about to be run in the folder.
    pub fn command<S: AsRef<std::ffi::OsStr>>(&self, words: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_warpfire"));
        command.args(words).current_dir(self.folder.path()).env_remove("WARPFIRE_POOL");
        command
    }

    /// Runs the binary in the folder.
    pub fn run<S: AsRef<std::ffi::OsStr>>(&self, words: impl IntoIterator<Item = S>) -> Ran {
        Ran::from(self.command(words).output().expect("the binary runs"))
    }
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        Ran {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

impl Ran {
    /// The run was a success; gives what it printed.
    pub fn succeeded(self) -> String {
        assert_eq!(self.code, 0, "it failed: {}{}", self.stdout, self.stderr);
        self.stdout
    }

    /// The run failed with this code; gives what it said.
    pub fn failed(self, code: i32) -> String {
        assert_eq!(self.code, code, "it ended with {}: {}{}", self.code, self.stdout, self.stderr);
        let said = self.stderr.clone();
        assert!(!said.contains("panicked"), "{said}");
        said
    }
}

/// Bytes that are different for each seed.
pub fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    })
    .take(len)
    .collect()
}

/// Everything below a folder: relative path, type and bytes or target.
pub fn tree(folder: &Path) -> Vec<(PathBuf, String, Vec<u8>)> {
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::MetadataExt;
    let mut found = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(&next).expect("a folder is read") {
            let path = entry.expect("an entry is read").path();
            let metadata = path.symlink_metadata().expect("an entry has metadata");
            let content = if metadata.is_symlink() {
                path.read_link().expect("a link is read").as_os_str().as_bytes().to_vec()
            } else if metadata.is_dir() {
                folders.push(path.clone());
                Vec::new()
            } else {
                std::fs::read(&path).expect("a file is read")
            };
            let about = format!("{:o} {} {}", metadata.mode(), metadata.nlink(), metadata.mtime());
            let inside = path.strip_prefix(folder).expect("found below the folder").to_path_buf();
            found.push((inside, about, content));
        }
    }
    found.sort();
    found
}
