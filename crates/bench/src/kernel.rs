//! Peers: filesystems of the kernel on a loop device over an image file in the same directory. They need
//! root.

use std::path::{Path, PathBuf};
use std::process::Command;

use warpfire::prefilled;
use warpfire_terminal::Failure;

use crate::directory::{Tree, drop_caches};
use crate::target::{Counters, TreeTarget};

/// The filesystems that this file can measure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// ext4. Its tables are initialised at once, not later in the background.
    Ext4,
    /// XFS with its defaults.
    Xfs,
    /// btrfs with its defaults.
    Btrfs,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Ext4 => "ext4",
            Kind::Xfs => "xfs",
            Kind::Btrfs => "btrfs",
        }
    }

    /// The command that makes it. The report shows its options.
    #[must_use]
    pub fn mkfs(self, files: u64, prewritten: bool) -> Vec<String> {
        let mut words: Vec<String> = match self {
            Kind::Ext4 => vec!["mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0"],
            Kind::Xfs => vec!["mkfs.xfs", "-q", "-f"],
            Kind::Btrfs => vec!["mkfs.btrfs", "-q", "-f"],
        }
        .into_iter()
        .map(str::to_owned)
        .collect();
        if self == Kind::Ext4 {
            // ext4 allocates inodes when it is made: enough for the files and some directories.
            words.extend(["-N".to_owned(), (files + files / 8 + 10_000).to_string()]);
        }
        if prewritten {
            // Otherwise mkfs discards the blocks of a prewritten image, and writes have to allocate them
            // again.
            let keep: &[&str] = match self {
                Kind::Ext4 => &["-E", "nodiscard"],
                Kind::Xfs | Kind::Btrfs => &["-K"],
            };
            words.extend(keep.iter().map(|&word| word.to_owned()));
        }
        words
    }

    /// The reason why it cannot be measured here; `None` if it can.
    #[must_use]
    pub fn unavailable(self) -> Option<String> {
        if !rustix::process::geteuid().is_root() {
            return Some("making and mounting it needs root".to_owned());
        }
        let program = &self.mkfs(0, false)[0];
        let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).output();
        if !found.is_ok_and(|output| output.status.success()) {
            return Some(format!("{program} is not installed"));
        }
        let known = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
        let is_known = known.lines().any(|line| line.split_whitespace().last() == Some(self.name()));
        let loads = || {
            Command::new("modprobe").args(["-q", self.name()]).status().is_ok_and(|status| status.success())
        };
        if is_known || loads() { None } else { Some("the kernel does not support it".to_owned()) }
    }
}

/// A mounted filesystem of the kernel.
pub struct Kernel {
    kind: Kind,
    image: PathBuf,
    tree: Tree,
    mountpoint: PathBuf,
    image_bytes: u64,
    files: u64,
    prewritten: bool,
    loop_device: Option<PathBuf>,
}

impl Kernel {
    /// A filesystem for `files` files in an image file of `image_bytes`, which is sparse or prewritten as the
    /// images of a pool are.
    pub fn new(
        kind: Kind,
        image: PathBuf,
        mountpoint: PathBuf,
        image_bytes: u64,
        files: u64,
        prewritten: bool,
    ) -> Self {
        let tree = Tree::new(mountpoint.clone());
        Kernel { kind, image, tree, mountpoint, image_bytes, files, prewritten, loop_device: None }
    }

    fn unmount(&mut self) -> Result<(), Failure> {
        if let Some(device) = self.loop_device.take() {
            run(&[Path::new("umount"), &self.mountpoint])?;
            run(&[Path::new("losetup"), Path::new("--detach"), &device])?;
        }
        Ok(())
    }

    fn mount(&mut self) -> Result<(), Failure> {
        let losetup = ["losetup", "--direct-io=on", "--find", "--show"].map(Path::new);
        let device = PathBuf::from(run(&[&losetup[..], &[&self.image]].concat())?.trim());
        // btrfs discards freed blocks by default, which would punch holes into a prewritten image.
        let mount = ["mount", "-o", "nodiscard", "-t", self.kind.name()].map(Path::new);
        if let Err(failure) = run(&[&mount[..], &[&device, &self.mountpoint]].concat()) {
            run(&[Path::new("losetup"), Path::new("--detach"), &device])?;
            return Err(failure);
        }
        self.loop_device = Some(device);
        Ok(())
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        if let Err(failure) = self.unmount() {
            failure.report();
        }
    }
}

impl TreeTarget for Kernel {
    fn name(&self) -> String {
        self.kind.name().to_owned()
    }

    fn fresh(&mut self) -> Result<(), Failure> {
        self.unmount()?;
        let failed = |error| Failure::local(&self.image, &error);
        if !self.prewritten {
            let image = std::fs::File::create(&self.image).map_err(failed)?;
            image.set_len(self.image_bytes).map_err(failed)?;
        } else if !self.image.exists() {
            prefilled(&self.image, self.image_bytes, |_| ()).map_err(failed)?;
        }
        let mkfs = self.kind.mkfs(self.files, self.prewritten);
        let mut words: Vec<&Path> = mkfs.iter().map(Path::new).collect();
        words.push(&self.image);
        run(&words)?;
        self.mount()
    }

    fn cold(&mut self) -> Result<(), Failure> {
        self.unmount()?;
        drop_caches()?;
        self.mount()
    }

    fn counters(&self) -> Option<Counters> {
        block_device_counters(self.loop_device.as_deref()?)
    }

    fn tree(&self) -> &Tree {
        &self.tree
    }
}

/// The counters of a block device from `/sys/block/NAME/stat`. The kernel's Documentation/block/stat.rst
/// numbers the fields.
fn block_device_counters(device: &Path) -> Option<Counters> {
    const SECTOR_BYTES: u64 = 512;
    let name = device.file_name()?.to_str()?;
    let text = std::fs::read_to_string(format!("/sys/block/{name}/stat")).ok()?;
    let fields: Vec<u64> = text.split_whitespace().filter_map(|field| field.parse().ok()).collect();
    let field = |at: usize| fields.get(at).copied().unwrap_or(0);
    Some(Counters {
        reads: field(0),
        read_bytes: field(2) * SECTOR_BYTES,
        writes: field(4),
        written_bytes: field(6) * SECTOR_BYTES,
        flushes: field(15),
    })
}

/// Runs a program and returns its output.
fn run(words: &[&Path]) -> Result<String, Failure> {
    let shown = words.iter().map(|word| word.display().to_string()).collect::<Vec<_>>().join(" ");
    let (program, arguments) = words.split_first().expect("a command line has a program");
    let output = Command::new(program)
        .args(arguments)
        .output()
        .map_err(|error| Failure::new(format_args!("cannot run '{shown}': {error}")))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(Failure::new(format_args!("'{shown}' failed: {}", said.trim())));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
