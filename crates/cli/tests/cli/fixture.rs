//! Pools on image files in a temporary directory, and the real binary run on them.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

/// A directory with a pool in it and whatever a test adds.
pub struct Fixture {
    directory: TempDir,
}

/// The result of a run of the binary.
pub struct CommandResult {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Fixture {
    /// An empty directory.
    pub fn empty() -> Self {
        Fixture { directory: tempfile::tempdir().expect("a temporary directory") }
    }

    /// A pool on `devices` new image files of `device_mib` MiB each.
    pub fn pool(devices: usize, data: usize, parity: usize, device_mib: usize) -> Self {
        let fixture = Fixture::empty();
        std::fs::create_dir(fixture.path("pool")).expect("a new directory");
        let mut words: Vec<String> = vec!["mkfs".into(), format!("--size={device_mib}M")];
        words.extend([format!("--data={data}"), format!("--parity={parity}")]);
        words.extend((0..devices).map(|number| format!("pool/{number}.img")));
        fixture.run(words).succeeded();
        fixture
    }

    /// A path in the directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Writes a local file.
    pub fn local(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().expect("inside the directory")).expect("a directory is made");
        std::fs::write(&path, bytes).expect("a local file is written");
        path
    }

    /// The binary, ready to run in the directory.
    pub fn command<S: AsRef<std::ffi::OsStr>>(&self, words: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_warpfire"));
        command.args(words).current_dir(self.directory.path()).env_remove("WARPFIRE_POOL");
        command
    }

    /// Runs the binary in the directory.
    pub fn run<S: AsRef<std::ffi::OsStr>>(&self, words: impl IntoIterator<Item = S>) -> CommandResult {
        CommandResult::from(self.command(words).output().expect("the binary runs"))
    }
}

impl From<Output> for CommandResult {
    fn from(output: Output) -> Self {
        CommandResult {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

impl CommandResult {
    /// Checks that the run succeeded, and returns its output.
    pub fn succeeded(self) -> String {
        assert_eq!(self.code, 0, "it failed: {}{}", self.stdout, self.stderr);
        self.stdout
    }

    /// Checks that the run failed with this code, and returns its error output.
    pub fn failed(self, code: i32) -> String {
        assert_eq!(self.code, code, "it ended with {}: {}{}", self.code, self.stdout, self.stderr);
        let said = self.stderr.clone();
        assert!(!said.contains("panicked"), "{said}");
        said
    }
}

/// The documents of an output with `--json`: one on each line, each with its version.
pub fn documents(said: &str) -> Vec<serde_json::Value> {
    let parse = |line| serde_json::from_str::<serde_json::Value>(line).expect("each line is a document");
    let found: Vec<_> = said.lines().map(parse).collect();
    assert!(found.iter().all(|document| document["version"] == 1), "{said}");
    found
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

/// Everything below a directory: relative path, type and bytes or target.
pub fn tree(directory: &Path) -> Vec<(PathBuf, String, Vec<u8>)> {
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::MetadataExt;
    let mut found = Vec::new();
    let mut directories = vec![directory.to_path_buf()];
    while let Some(next) = directories.pop() {
        for entry in std::fs::read_dir(&next).expect("a directory is read") {
            let path = entry.expect("an entry is read").path();
            let metadata = path.symlink_metadata().expect("an entry has metadata");
            let content = if metadata.is_symlink() {
                path.read_link().expect("a link is read").as_os_str().as_bytes().to_vec()
            } else if metadata.is_dir() {
                directories.push(path.clone());
                Vec::new()
            } else {
                std::fs::read(&path).expect("a file is read")
            };
            let about = format!("{:o} {} {}", metadata.mode(), metadata.nlink(), metadata.mtime());
            let inside = path.strip_prefix(directory).expect("found below the directory").to_path_buf();
            found.push((inside, about, content));
        }
    }
    found.sort();
    found
}
