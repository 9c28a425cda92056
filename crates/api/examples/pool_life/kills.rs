//! Case 5: a process that changes the devices of a pool under load is killed again and again.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use warpfire::{AddDevice, Pool, PoolOptions, Warpfire};
use warpfire_check::{CheckOptions, check};
use warpfire_env::{Device, FileDevice};

use super::bench_pool::{
    FILE_MIB, MIB, Outcome, images, make, now_nanos, remove, seconds_since, show, verify,
};
use super::losses::write_beside;

const VERBS: [&str; 3] = ["add", "remove", "replace"];

/// Devices of the pool at first; the one that leaves, and the one that joins.
const DEVICES: u64 = 8;
const LEAVES: u16 = 3;
const JOINS: u16 = 8;

/// Kills of each verb.
const KILLS: u64 = 20;

fn new_image(directory: &Path) -> PathBuf {
    directory.join(format!("{JOINS}.img"))
}

fn open(directory: &Path) -> Outcome<Warpfire> {
    open_with(directory, &Pool::options())
}

fn open_with(directory: &Path, options: &PoolOptions) -> Outcome<Warpfire> {
    let all = images(directory, DEVICES + 1).into_iter().filter(|image| image.exists());
    Ok(options.open(all.collect::<Vec<_>>())?)
}

fn has(fs: &Warpfire, device: u16) -> bool {
    fs.stats().devices.iter().any(|d| d.index == device)
}

/// Whether the pool is as the verb leaves it.
fn is_done(fs: &Warpfire, verb: &str) -> bool {
    let (joins, leaves) = (verb != "remove", verb != "add");
    has(fs, JOINS) == joins && has(fs, LEAVES) != leaves
}

/// What the process does that is killed: `arguments` are the verb, the directory and the first number of its
/// files.
pub fn run_verb(arguments: &[String]) -> Outcome<()> {
    let [verb, directory, first] = arguments else { return Err("a verb, a directory and a number".into()) };
    let directory = PathBuf::from(directory);
    let fs = open(&directory)?;
    let (first, ended) = (first.parse()?, AtomicBool::new(false));
    std::thread::scope(|scope| -> Outcome<()> {
        scope.spawn(|| write_beside(&fs, first, 16, &ended));
        let (new, how) = (new_image(&directory), AddDevice::new().force(true));
        if !is_done(&fs, verb) {
            match verb.as_str() {
                "add" => _ = fs.add_device(&new, &how)?,
                "remove" => _ = fs.remove_device(LEAVES, |_| ControlFlow::Continue(()))?,
                _ => _ = fs.replace_device(LEAVES, &new, &how, |_| ControlFlow::Continue(()))?,
            }
        }
        ended.store(true, std::sync::atomic::Ordering::Relaxed);
        Ok(())
    })?;
    Ok(fs.close()?)
}

fn spawn(verb: &str, directory: &Path, first: u64) -> Outcome<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("--verb").arg(verb).arg(directory).arg(first.to_string());
    Ok(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?)
}

/// Removes a device of a pool that nobody uses, and counts the bytes that all devices read and write for it.
pub fn count_remove(directory: &Path, mib: u64) -> Outcome<()> {
    let all = images(directory, DEVICES);
    make(&Pool::options().data(4).parity(2).size_bytes((mib * MIB).max(128 * MIB)), &all, mib / FILE_MIB)?;
    let fs = Pool::options().open(&all)?;
    // With those of the device that has left.
    let counted = || fs.filesystem().engine().log().pool().counters().total;
    let (before, start_nanos) = (counted(), now_nanos());
    fs.remove_device(LEAVES, |_| ControlFlow::Continue(()))?;
    let seconds = seconds_since(start_nanos);
    let after = counted();
    let in_mib = |bytes: u64| bytes as f64 / MIB as f64;
    let (read, written) =
        (in_mib(after.read_bytes - before.read_bytes), in_mib(after.written_bytes - before.written_bytes));
    // Parity makes it half as much again, and each of the eight has an eighth.
    let column = mib as f64 * 1.5 / DEVICES as f64;
    println!(
        "5         remove of one of {DEVICES} with {mib} MiB: {seconds:.2} s, {read:.0} MiB read, {written:.0} MiB written \
         for columns of {column:.0} MiB"
    );
    verify(&fs, mib / FILE_MIB)?;
    fs.close()?;
    remove(&all);
    Ok(())
}

/// Runs each verb with kills, and then to its end.
pub fn verbs(directory: &Path, mib: u64) -> Outcome<()> {
    let files = mib / FILE_MIB;
    for verb in VERBS {
        let all = images(directory, DEVICES + 1);
        let fresh = || -> Outcome<()> {
            remove(&all);
            let options = Pool::options().data(4).parity(2).size_bytes((mib * MIB).max(128 * MIB));
            make(&options, &all[..usize::try_from(DEVICES)?], files)
        };
        fresh()?;
        let start_nanos = now_nanos();
        let is_sound = spawn(verb, directory, files)?.wait()?.success();
        let whole_seconds = seconds_since(start_nanos);
        if !is_sound {
            return Err(format!("{verb} fails without a kill").into());
        }
        fresh()?;
        let (mut kills, mut done, mut ends) = (0, 0, 0);
        while kills < KILLS {
            let mut child = spawn(verb, directory, files + 16 * (kills + 1))?;
            // Other moments of its work each time.
            let part = ((kills * 7) % KILLS + 1) as f64 / (KILLS + 1) as f64;
            std::thread::park_timeout(Duration::from_secs_f64(whole_seconds * part));
            child.kill()?;
            let has_ended = child.wait()?.success();
            let was_done = is_done(&open_with(directory, &Pool::options().read_only(true))?, verb);
            // An opening goes on with a removal by itself.
            let fs = open(directory)?;
            verify(&fs, files)?;
            let is_over = is_done(&fs, verb);
            fs.close()?;
            kills += u64::from(!has_ended);
            done += u64::from(!has_ended && was_done);
            ends += u64::from(!has_ended && is_over && !was_done);
            if is_over {
                fresh()?;
            }
        }
        if !spawn(verb, directory, files)?.wait()?.success() {
            return Err(format!("{verb} does not end after the kills").into());
        }
        let fs = open(directory)?;
        let is_as_wished = is_done(&fs, verb) && fs.stats().losses_left == Some(2);
        verify(&fs, files)?;
        fs.close()?;
        let devices: Vec<Arc<dyn Device>> = all
            .iter()
            .filter(|image| image.exists() && !(verb != "add" && image.ends_with(format!("{LEAVES}.img"))))
            .map(|image| Ok(Arc::new(FileDevice::open(image)?) as Arc<dyn Device>))
            .collect::<Outcome<_>>()?;
        let is_clean = check(&devices, &CheckOptions::default())?.is_clean();
        drop(devices);
        show(
            5,
            is_as_wished && is_clean,
            &format!(
                "{verb}: killed {kills} times within {whole_seconds:.2} s, {done} times when it was done; {ends} times the next \
                 opening ended it; every byte is there, fsck clean: {is_clean}"
            ),
        );
        remove(&all);
    }
    Ok(())
}
