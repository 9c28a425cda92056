//! Targets that the kernel serves from a directory: a pool mounted by a server process, an empty server, and
//! a directory that the user names.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::mount::UnmountFlags;
use serde::Deserialize;
use warpfire_terminal::{Failure, Size};

use crate::backing::PoolSpec;
use crate::directory::{Tree, drop_caches};
use crate::target::{Counters, TreeTarget};

/// The path of the product command, which the build puts beside this program.
///
/// # Errors
/// The path of this program is unknown.
pub fn program() -> Result<PathBuf, Failure> {
    let here = std::env::current_exe()
        .map_err(|error| Failure::new(format_args!("cannot find the program that mounts: {error}")))?;
    Ok(here.with_file_name("warpfire"))
}

/// Starts a server that prints a line once it has mounted. Whether it has: if not, it has printed the reason
/// to the stderr that both processes share.
fn start(command: &mut Command) -> std::io::Result<(Child, bool)> {
    let mut server = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let stdout = server.stdout.take().expect("the server is started with a pipe");
    let is_mounted = BufReader::new(stdout).read_line(&mut String::new()).is_ok_and(|bytes| bytes > 0);
    Ok((server, is_mounted))
}

/// How a pool is mounted.
#[derive(Clone, Copy, Debug)]
pub struct MountOptions {
    /// For all users, and not for its own user only.
    pub allow_other: bool,
    /// Without a hold of idle processors.
    pub let_halt: bool,
    /// Memory for metadata; `None` for the default.
    pub cache: Option<Size>,
}

/// A mounted pool on new image files.
pub struct Mounted {
    program: PathBuf,
    spec: PoolSpec,
    mountpoint: PathBuf,
    options: MountOptions,
    tree: Tree,
    server: Option<Child>,
}

impl Mounted {
    /// A pool that `program`, the product command, will mount on `mountpoint`.
    pub fn new(program: PathBuf, spec: PoolSpec, mountpoint: PathBuf, options: MountOptions) -> Self {
        let tree = Tree::new(mountpoint.clone());
        Mounted { program, spec, mountpoint, options, tree, server: None }
    }

    fn not_started(&self, error: &std::io::Error) -> Failure {
        Failure::local(&self.program, error)
            .hint("'cargo build --release -p warpfire-cli' builds it; --warpfire names another")
    }

    fn mount(&mut self) -> Result<(), Failure> {
        let mut command = Command::new(&self.program);
        command
            .args(["mount", "--foreground"])
            .args(self.options.allow_other.then_some("--allow-other"))
            .args(self.options.let_halt.then_some("--let-halt"))
            .args(self.options.cache.map(|Size(bytes)| format!("--cache={bytes}")))
            .arg(self.spec.directory())
            .arg(&self.mountpoint);
        let (server, is_mounted) = start(&mut command).map_err(|error| self.not_started(&error))?;
        // One that has not mounted is waited for by `unmount`.
        self.server = Some(server);
        is_mounted.then_some(()).ok_or_else(Failure::silent)
    }

    fn unmount(&mut self) -> Result<(), Failure> {
        let Some(mut server) = self.server.take() else { return Ok(()) };
        let unmounted = Command::new(&self.program).arg("umount").arg(&self.mountpoint).status();
        let is_unmounted = unmounted.as_ref().is_ok_and(ExitStatus::success);
        if !is_unmounted {
            // The server has not mounted or no longer serves the mount. One that still runs would keep the
            // pool open.
            server.kill().map_err(|error| Failure::new(format_args!("cannot stop the server: {error}")))?;
        }
        let ended = server
            .wait()
            .map_err(|error| Failure::new(format_args!("cannot wait for the server: {error}")))?;
        if !unmounted.map_err(|error| self.not_started(&error))?.success() {
            return Err(Failure::silent());
        }
        if ended.success() {
            Ok(())
        } else {
            Err(Failure::new(format_args!("the server ended with {ended}")))
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Err(failure) = self.unmount() {
            failure.report();
        }
    }
}

impl TreeTarget for Mounted {
    fn name(&self) -> String {
        if self.options.allow_other { "mount-shared" } else { "mount" }.to_owned()
    }

    fn fresh(&mut self) -> Result<(), Failure> {
        self.unmount()?;
        let images = self.spec.fresh_images()?;
        self.spec.options().create(&images)?.close()?;
        self.mount()
    }

    fn cold(&mut self) -> Result<(), Failure> {
        self.unmount()?;
        self.mount()
    }

    fn counters(&self) -> Option<Counters> {
        let output = Command::new(&self.program).args(["status", "--json"]).arg(&self.mountpoint).output();
        let status: Status = serde_json::from_slice(&output.ok()?.stdout).ok()?;
        Some(status.devices.into_iter().sum())
    }

    fn server(&self) -> Option<u32> {
        self.server.as_ref().map(Child::id)
    }

    fn tree(&self) -> &Tree {
        &self.tree
    }
}

/// The part of the answer of `warpfire status` that is read here.
#[derive(Deserialize)]
struct Status {
    devices: Vec<Counters>,
}

/// The program of the empty server, which the build puts beside this program.
pub const EMPTY_SERVER: &str = "warpfire-empty-server";

/// A mounted server without a filesystem: it answers that files can be made, and keeps nothing.
pub struct Empty {
    program: PathBuf,
    mountpoint: PathBuf,
    allow_other: bool,
    tree: Tree,
    server: Option<Child>,
}

impl Empty {
    /// A server that will be mounted on `mountpoint`, for its own user only or with `--allow-other`.
    pub fn new(mountpoint: PathBuf, allow_other: bool) -> Result<Self, Failure> {
        let program = program()?.with_file_name(EMPTY_SERVER);
        Ok(Empty { program, tree: Tree::new(mountpoint.clone()), mountpoint, allow_other, server: None })
    }

    fn unmount(&mut self) -> Result<(), Failure> {
        let Some(mut server) = self.server.take() else { return Ok(()) };
        let failed = |error: std::io::Error| Failure::local(&self.mountpoint, &error);
        if let Err(error) = rustix::mount::unmount(&self.mountpoint, UnmountFlags::empty()) {
            server.kill().map_err(failed)?;
            return Err(failed(error.into()));
        }
        server.wait().map(drop).map_err(failed)
    }
}

impl Drop for Empty {
    fn drop(&mut self) {
        if let Err(failure) = self.unmount() {
            failure.report();
        }
    }
}

impl TreeTarget for Empty {
    fn name(&self) -> String {
        if self.allow_other { "empty-shared" } else { "empty" }.to_owned()
    }

    fn fresh(&mut self) -> Result<(), Failure> {
        self.unmount()?;
        let mut command = Command::new(&self.program);
        command.arg(&self.mountpoint).args(self.allow_other.then_some("--allow-other"));
        let started = start(&mut command).map_err(|error| {
            Failure::local(&self.program, &error).hint("'cargo build --release -p warpfire-bench' builds it")
        });
        match started? {
            (server, true) => {
                self.server = Some(server);
                Ok(())
            }
            (mut server, false) => server
                .wait()
                .map_or_else(|error| Err(Failure::local(&self.program, &error)), |_| Err(Failure::silent())),
        }
    }

    fn cold(&mut self) -> Result<(), Failure> {
        Ok(())
    }

    fn server(&self) -> Option<u32> {
        self.server.as_ref().map(Child::id)
    }

    fn tree(&self) -> &Tree {
        &self.tree
    }
}

/// A directory that the user names, on any filesystem.
pub struct Named {
    directory: PathBuf,
    tree: Tree,
}

impl Named {
    /// Measures inside a new directory in `inside`.
    pub fn new(inside: &std::path::Path) -> Result<Self, Failure> {
        let directory = inside.join(format!("warpfire-bench-{}", std::process::id()));
        std::fs::create_dir_all(&directory).map_err(|error| Failure::local(&directory, &error))?;
        Ok(Named { tree: Tree::new(directory.clone()), directory })
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.directory) {
            Failure::local(&self.directory, &error).report();
        }
    }
}

impl TreeTarget for Named {
    fn name(&self) -> String {
        self.directory.parent().unwrap_or(&self.directory).display().to_string()
    }

    fn fresh(&mut self) -> Result<(), Failure> {
        self.tree.clear()
    }

    fn cold(&mut self) -> Result<(), Failure> {
        drop_caches()
    }

    fn tree(&self) -> &Tree {
        &self.tree
    }
}
