//! The loop, through the mount and through the library.

use std::fmt;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc::{Receiver, channel};

use warpfire::Pool;

use crate::files::{Files, FilesOverLibrary, FilesOverMount, read_tree, settle};
use crate::journal::{PartialWrites, RoundTally, WriterEvent, judge, write};
use crate::plan::WriterPlan;
use crate::record::{WriterTree, mix};
use crate::server::{MountProcess, warpfire};

const WRITERS: u32 = 4;
/// Most events before a kill: some seconds of writing.
const EVENTS_MAX: u64 = 3000;

/// Counts of all rounds.
#[derive(Default)]
pub struct RunTotal {
    kills: u64,
    tally: RoundTally,
}

impl fmt::Display for RunTotal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RunTotal { kills, tally: RoundTally { done, synced, syncs, kept } } = self;
        write!(
            f,
            "{kills} kills; {done} operations acknowledged, {synced} of them synced by {syncs} syncs, 0 of these lost; \
             {kept} of the {} others were there all the same; fsck clean after each kill",
            done - synced
        )
    }
}

impl RunTotal {
    fn add(&mut self, tally: RoundTally) {
        self.kills += 1;
        self.tally.done += tally.done;
        self.tally.synced += tally.synced;
        self.tally.syncs += tally.syncs;
        self.tally.kept += tally.kept;
    }
}

/// Runs `kills` rounds, alternately through the mount and through the library; without FUSE, all through the
/// library.
///
/// # Errors
/// The first loss or failure. The pools are kept then, and the text has their path.
pub fn run(seed: u64, kills: u64) -> Result<RunTotal, String> {
    let through_mount = if MountProcess::possible() {
        kills / 2
    } else {
        println!("no FUSE here: through the library only");
        0
    };
    let mut total = RunTotal::default();
    let directory = tempfile::Builder::new().prefix("warpfire-kill.").tempdir().map_err(|e| e.to_string())?;
    let ran = mounted(seed, through_mount, directory.path(), &mut total)
        .and_then(|()| with_library(seed, kills - through_mount, directory.path(), &mut total));
    match ran {
        Ok(()) => Ok(total),
        Err(what) => Err(format!("{what}\nthe pools are kept in {}", directory.keep().display())),
    }
}

/// The state before a round.
struct BeforeKill {
    plans: Vec<WriterPlan>,
    events: Vec<WriterEvent>,
}

/// Reads everything, and judges it if there was a round before.
fn look(
    files: &dyn Files,
    pieces: PartialWrites,
    before: Option<BeforeKill>,
    total: &mut RunTotal,
) -> Result<Vec<WriterTree>, String> {
    let trees = (0..WRITERS).map(|writer| read_tree(files, writer)).collect::<Result<Vec<_>, _>>()?;
    if let Some(BeforeKill { plans, events }) = before {
        let tally = judge(&plans, &events, &trees, pieces).map_err(|losses| losses.join("\n"))?;
        total.add(tally);
    }
    Ok(trees)
}

fn plans(seed: u64, round: u64, trees: Vec<WriterTree>) -> Vec<WriterPlan> {
    (0..).zip(trees).map(|(writer, tree)| WriterPlan::new(seed, round, writer, tree)).collect()
}

/// Receives events until it is time to kill; `None` if the writers ended earlier.
fn until_the_moment(seed: u64, round: u64, events: &Receiver<WriterEvent>) -> Option<Vec<WriterEvent>> {
    let count = 1 + mix(seed ^ mix(round)) % EVENTS_MAX;
    (0..count).map(|_| events.recv().ok()).collect()
}

fn make_pool(images: &[PathBuf], words: &[&str]) -> Result<(), String> {
    warpfire(&[&["mkfs"], words].concat(), images).map(drop)
}

fn mounted(seed: u64, kills: u64, directory: &Path, total: &mut RunTotal) -> Result<(), String> {
    let (pool, mnt) = (directory.join("pool"), directory.join("mnt"));
    std::fs::create_dir(&pool).and_then(|()| std::fs::create_dir(&mnt)).map_err(|e| e.to_string())?;
    let images: Vec<PathBuf> = (0..6).map(|number| pool.join(format!("{number}.img"))).collect();
    make_pool(&images, &["--size=96M", "--data=4", "--parity=2"])?;
    let mut before = None;
    for round in 0..=kills {
        let files = FilesOverMount(mnt.clone());
        let mut server = MountProcess::start(&pool, &mnt)?;
        if round == 0 {
            (0..WRITERS).try_for_each(|writer| settle(&files, writer)).map_err(|e| e.to_string())?;
            files.sync(".").map_err(|e| e.to_string())?;
        }
        let trees = look(&files, PartialWrites::Possible, before.take(), total)
            .map_err(|what| format!("mount, round {round}: {what}"))?;
        if round == kills {
            server.terminate()?;
        } else {
            before = Some(kill_mount(&mut server, &files, (seed, round), plans(seed, round, trees))?);
        }
        warpfire(&["fsck"], std::slice::from_ref(&pool))
            .map_err(|what| format!("mount, round {round}: {what}"))?;
    }
    Ok(())
}

fn kill_mount(
    server: &mut MountProcess,
    files: &FilesOverMount,
    (seed, round): (u64, u64),
    plans: Vec<WriterPlan>,
) -> Result<BeforeKill, String> {
    let (sender, events) = channel();
    let early = |error| format!("mount, round {round}: a writer failed while the server lived: {error}");
    let events = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..)
            .zip(plans.clone())
            .map(|(writer, plan)| {
                let sender = sender.clone();
                let report = move |event| {
                    sender.send(event).expect("the events are received until all writers are done")
                };
                scope.spawn(move || write(files, writer, plan, &report))
            })
            .collect();
        drop(sender);
        let before_kill = until_the_moment(seed, round, &events);
        let failed = writers.iter().any(|writer| writer.is_finished());
        server.kill();
        server.detach()?;
        let mut errors = writers.into_iter().map(|writer| writer.join().expect("a writer does not panic"));
        match before_kill {
            Some(before_kill) if !failed => Ok(before_kill.into_iter().chain(events.iter()).collect()),
            _ => Err(early(errors.next().expect("there are writers"))),
        }
    })?;
    Ok(BeforeKill { plans, events })
}

fn with_library(seed: u64, kills: u64, directory: &Path, total: &mut RunTotal) -> Result<(), String> {
    let image = directory.join("library.img");
    make_pool(std::slice::from_ref(&image), &["--size=256M"])?;
    let mut before = None;
    for round in 0..=kills {
        let failed = |what: String| format!("library, round {round}: {what}");
        let files =
            FilesOverLibrary(Pool::options().open([&image]).map_err(|error| failed(error.to_string()))?);
        if round == 0 {
            (0..WRITERS).try_for_each(|writer| settle(&files, writer)).map_err(|e| e.to_string())?;
        }
        let trees = look(&files, PartialWrites::Never, before.take(), total).map_err(failed)?;
        files.0.close().map_err(|error| failed(error.to_string()))?;
        if round < kills {
            let plans = plans(seed, round, trees);
            let events = kill_library(seed, round, &image).map_err(failed)?;
            before = Some(BeforeKill { plans, events });
        }
        warpfire(&["fsck"], std::slice::from_ref(&image)).map_err(failed)?;
    }
    Ok(())
}

/// Starts this program as a writer, kills it, and returns the events that it had reported.
fn kill_library(seed: u64, round: u64, image: &Path) -> Result<Vec<WriterEvent>, String> {
    let mut process = Command::new(std::env::current_exe().map_err(|e| e.to_string())?)
        .arg("--library")
        .arg(image)
        .args(["--seed", &seed.to_string(), "--round", &round.to_string()])
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| error.to_string())?;
    let mut stdout = BufReader::new(process.stdout.take().expect("it was started with a pipe"));
    let (sender, events) = channel();
    // Reads to the end, also the last events before the kill. A truncated line is not an event.
    let reader = std::thread::spawn(move || {
        let mut line = String::new();
        while matches!(stdout.read_line(&mut line), Ok(bytes) if bytes > 0) {
            if let Some(event) = WriterEvent::parse(&line) {
                let _ = sender.send(event);
            }
            line.clear();
        }
    });
    let before_kill = until_the_moment(seed, round, &events);
    process.kill().map_err(|error| error.to_string())?;
    process.wait().map_err(|error| error.to_string())?;
    reader.join().expect("the reader of the pipe does not panic");
    let before_kill = before_kill.ok_or("the writers failed before they were killed")?;
    Ok(before_kill.into_iter().chain(events.iter()).collect())
}

/// The program that is killed: it writes through the library and reports events on stdout, until a write
/// fails.
pub fn write_through_library(image: &Path, seed: u64, round: u64) -> ExitCode {
    let pool = Pool::options().open([image]).expect("the pool opens");
    let files = FilesOverLibrary(pool);
    let trees = (0..WRITERS).map(|writer| read_tree(&files, writer).expect("the files were judged before"));
    let plans = plans(seed, round, trees.collect());
    std::thread::scope(|scope| {
        for (writer, plan) in (0..).zip(plans) {
            let files = &files;
            scope.spawn(move || {
                // One write for each line: lines of several threads do not mix, and none is buffered in this
                // process.
                let report = |event: WriterEvent| {
                    std::io::stdout()
                        .lock()
                        .write_all(event.line().as_bytes())
                        .expect("the parent reads the pipe");
                };
                let error = write(files, writer, plan, &report);
                eprintln!("writer {writer}: {error}");
                std::process::exit(1);
            });
        }
    });
    ExitCode::FAILURE
}
