//! The processes that are killed: the real `warpfire mount`, and a program that uses the library.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Runs `warpfire` to its end.
///
/// # Errors
/// Its output, if it did not end with 0.
pub fn warpfire(words: &[&str], pool: &[PathBuf]) -> Result<String, String> {
    let output = Command::new(env!("CARGO_BIN_EXE_warpfire"))
        .args(words)
        .args(pool)
        .output()
        .map_err(|error| format!("warpfire cannot be run: {error}"))?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(said);
    }
    Err(format!("warpfire {words:?}: {}\n{said}{}", output.status, String::from_utf8_lossy(&output.stderr)))
}

/// A serving `warpfire mount --foreground`.
pub struct MountProcess {
    process: Child,
    directory: PathBuf,
}

impl MountProcess {
    /// Whether this process may mount.
    pub fn possible() -> bool {
        let fuse = std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").is_ok();
        let root = rustix::process::geteuid().is_root();
        fuse && (root || Command::new("fusermount3").arg("-V").output().is_ok())
    }

    /// Mounts and waits until it serves.
    ///
    /// # Errors
    /// The server ended instead.
    pub fn start(pool: &Path, directory: &Path) -> Result<MountProcess, String> {
        let mut process = Command::new(env!("CARGO_BIN_EXE_warpfire"))
            .args(["mount", "--foreground", "--sync-interval", "1"])
            .args([pool, directory])
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("warpfire cannot be run: {error}"))?;
        let mut line = String::new();
        let stdout = process.stdout.take().expect("it was started with a pipe");
        match BufReader::new(stdout).read_line(&mut line) {
            Ok(bytes) if bytes > 0 => Ok(MountProcess { process, directory: directory.to_owned() }),
            _ => Err(format!("warpfire mount: {:?}", process.wait())),
        }
    }

    /// Kills it with SIGKILL. Its mount stays, dead, until [`detach`](Server::detach).
    pub fn kill(&mut self) {
        self.process.kill().expect("our own process can be killed");
        self.process.wait().expect("a killed process ends");
    }

    /// Detaches the dead mount.
    ///
    /// # Errors
    /// The system's error.
    pub fn detach(&self) -> Result<(), String> {
        let root = rustix::process::geteuid().is_root();
        let (program, words): (&str, &[&str]) =
            if root { ("umount", &["-l"]) } else { ("fusermount3", &["-u", "-z"]) };
        match Command::new(program).args(words).arg(&self.directory).output() {
            Ok(output) if output.status.success() => Ok(()),
            other => Err(format!("{program} {}: {other:?}", self.directory.display())),
        }
    }

    /// Ends it with SIGTERM, at which it unmounts.
    ///
    /// # Errors
    /// It did not end with 0.
    pub fn terminate(&mut self) -> Result<(), String> {
        let pid = rustix::process::Pid::from_child(&self.process);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).map_err(|e| e.to_string())?;
        match self.process.wait() {
            Ok(status) if status.success() => Ok(()),
            other => Err(format!("warpfire mount ended with {other:?}")),
        }
    }
}

impl Drop for MountProcess {
    fn drop(&mut self) {
        if matches!(self.process.try_wait(), Ok(None)) {
            self.kill();
            let _ = self.detach();
        }
    }
}
