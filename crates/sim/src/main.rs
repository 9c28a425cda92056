//! Runs the whole stack under simulated devices. `warpfire-sim --help` lists the runs.
//!
//! Exit code 0: no violation. 1: at least one; each is printed with the command that replays it.

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use clap::{Args, Parser, Subcommand, ValueEnum};
use warpfire_sim::crash::{self, Budget, Judge, Workload};
use warpfire_sim::life::{LifeTally, MendTally};
use warpfire_sim::op::Menu;
use warpfire_sim::run::{Limits, RunReport, run};
use warpfire_sim::session::Violation;
use warpfire_sim::stack::{MediaKind, Shape};
use warpfire_sim::{faults, life, rot, seeds, transfer};

/// Runs the whole stack under simulated devices, against models.
#[derive(Parser)]
#[command(name = "sim", max_term_width = 110)]
struct Sim {
    #[command(subcommand)]
    command: SimCommand,
}

#[derive(Subcommand)]
enum SimCommand {
    /// Reopens crash states of drawn workloads: a cut at every boundary of the devices' writes and flushes
    Crash(Crash),
    /// Tries every prefix of every workload of one and of two operations on a small namespace
    Small(Common),
    /// Random sessions with power cuts, on devices of all kinds and geometries
    Seeds(Seeds),
    /// Runs one seed of `seeds` and prints its operations
    Replay(Seeds),
    /// Devices that fail at the Nth operation
    Faults(Many),
    /// Devices that join, leave, fail and return
    Life(Many),
    /// Devices that are lost or rotten between two opens
    Rot(Many),
    /// Streams between two pools: crash states of the receiver, with streams that are cut, and resumed
    Transfer(Many),
    /// `seeds` and `crash` on zoned and on append-only devices
    Zoned(Crash),
}

#[derive(Args, Clone)]
struct Common {
    /// First seed
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Stop beginning new cases after so many minutes
    #[arg(long, default_value_t = 600)]
    minutes: u64,
    /// A case that takes longer hangs: the run ends with its seed
    #[arg(long, default_value_t = 900)]
    case_seconds: u64,
    /// Threads; each case runs on one
    #[arg(long, default_value_t = 2)]
    threads: usize,
}

#[derive(Args, Clone)]
struct Crash {
    #[command(flatten)]
    common: Common,
    /// Crash states to reopen
    #[arg(long, default_value_t = 100_000)]
    states: u64,
    /// Workloads to draw at most
    #[arg(long, default_value_t = u64::MAX)]
    count: u64,
    /// Operations in a workload
    #[arg(long, default_value_t = 25)]
    operations: usize,
    /// Open one state of so many for reading before it is opened for writing; 1 opens each
    #[arg(long, default_value_t = Budget::DRAWN.one_read_in, value_parser = clap::value_parser!(u64).range(1..))]
    one_read_in: u64,
}

#[derive(Args, Clone)]
struct Seeds {
    #[command(flatten)]
    common: Common,
    /// Sessions
    #[arg(long, default_value_t = 2000)]
    count: u64,
    /// Operations in a session
    #[arg(long, default_value_t = 600)]
    operations: u64,
    /// Kind of the devices; drawn if left out
    #[arg(long)]
    kind: Option<KindName>,
}

#[derive(Args, Clone)]
struct Many {
    #[command(flatten)]
    common: Common,
    /// Cases
    #[arg(long, default_value_t = 10_000)]
    cases: u64,
}

#[derive(Clone, Copy, ValueEnum)]
enum KindName {
    Conventional,
    AppendOnly,
    Zoned,
}

impl From<KindName> for MediaKind {
    fn from(name: KindName) -> MediaKind {
        match name {
            KindName::Conventional => MediaKind::Conventional,
            KindName::AppendOnly => MediaKind::AppendOnly,
            KindName::Zoned => MediaKind::Zoned,
        }
    }
}

impl Common {
    fn limits(&self, cases: u64) -> Limits {
        Limits {
            first: self.seed,
            cases,
            count_max: u64::MAX,
            seconds_max: self.minutes.saturating_mul(60),
            threads: self.threads,
            case_seconds_max: self.case_seconds,
        }
    }
}

fn main() -> ExitCode {
    let clean = match Sim::parse().command {
        SimCommand::Crash(args) => run_crash(&args, None),
        SimCommand::Small(common) => run_small(&common),
        SimCommand::Seeds(args) => run_seeds(&args, args.kind.map(MediaKind::from)),
        SimCommand::Replay(args) => replay(&args),
        SimCommand::Faults(many) => {
            let report = run(many.common.limits(many.cases), faults::run);
            print_report("faults", "cases", &report, "faults --cases 1 --seed")
        }
        SimCommand::Life(many) => {
            let tally = Mutex::new(LifeTally::default());
            let report = run(many.common.limits(many.cases), |seed| {
                let life = life::run(seed)?;
                tally.lock().unwrap_or_else(PoisonError::into_inner).add(&life);
                Ok(life.verbs)
            });
            let MendTally { judgements, cuts, losses, returns } =
                tally.into_inner().unwrap_or_else(PoisonError::into_inner).in_mend;
            println!(
                "life: a column was half mended at {judgements} comparisons, {cuts} power cuts, {losses} \
                 losses of a device and {returns} returns"
            );
            print_report("life", "verbs", &report, "life --cases 1 --seed")
        }
        // The widest geometry takes far longer, so it gets one case in a thousand.
        SimCommand::Rot(many) => {
            let report = run(many.common.limits(many.cases), rot::run);
            let widest = run(many.common.limits(many.cases.div_ceil(1000)), |seed| {
                rot::run_geometry(seed, rot::WIDEST, 12)
            });
            print_report("rot", "cases", &report, "rot --cases 1 --seed")
                & print_report("rot 242+8", "cases", &widest, "rot --cases 1 --seed")
        }
        SimCommand::Transfer(many) => {
            let report = run(many.common.limits(many.cases), transfer::run);
            print_report("transfer", "states", &report, "transfer --cases 1 --seed")
        }
        SimCommand::Zoned(args) => {
            [MediaKind::Zoned, MediaKind::AppendOnly].into_iter().fold(true, |clean, kind| {
                let args = Crash { states: args.states / 2, ..args.clone() };
                let seeds = Seeds { common: args.common.clone(), count: 200, operations: 600, kind: None };
                clean & run_crash(&args, Some(kind)) & run_seeds(&seeds, Some(kind))
            })
        }
    };
    if clean { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Prints the result of a run. `true` if there was no violation.
fn print_report(title: &str, unit: &str, report: &RunReport, replay: &str) -> bool {
    let RunReport { cases, counted, seconds, violations } = report;
    println!("{title}: {cases} cases, {counted} {unit} in {seconds:.1} s, {:.0} a second", report.rate());
    for (seed, violation) in violations {
        println!("VIOLATION with seed {seed}: {violation}");
        println!(" replay: cargo run --release -p warpfire-sim -- {replay} {seed} --threads 1");
    }
    if violations.is_empty() {
        println!("{title}: zero violations");
    }
    violations.is_empty()
}

fn run_crash(args: &Crash, kind: Option<MediaKind>) -> bool {
    let limits = Limits { count_max: args.states, ..args.common.limits(args.count) };
    let budget = Budget { one_read_in: args.one_read_in, ..Budget::DRAWN };
    let (read, without_roots) = (AtomicU64::new(0), AtomicU64::new(0));
    let report = run(limits, |seed| {
        let shape = Shape::of_crash(seed, kind);
        let judged = || -> Result<u64, Violation> {
            let workload = Workload::draw(shape, seed, Menu::TINY, args.operations)?;
            let mut judge = Judge::new(seed, budget);
            judge.try_all(&workload, u64::MAX)?;
            read.fetch_add(judge.read, Ordering::Relaxed);
            without_roots.fetch_add(judge.without_roots, Ordering::Relaxed);
            Ok(judge.states)
        };
        judged().map_err(|v| Violation(format!("{v}\n {shape}")))
    });
    let title = kind.map_or_else(|| "crash".to_owned(), |kind| format!("crash on {kind:?} devices"));
    let (operations, one_read_in) = (args.operations, args.one_read_in);
    let replay = format!("crash --count 1 --operations {operations} --one-read-in {one_read_in} --seed");
    let (read, without_roots) = (read.into_inner(), without_roots.into_inner());
    println!(
        "{title}: {read} states were opened for reading first, and {without_roots} of them without roots"
    );
    print_report(&title, "states", &report, &replay)
}

fn run_small(common: &Common) -> bool {
    let small = match crash::SmallWorkloads::make(Shape::TINY) {
        Ok(small) => small,
        Err(v) => {
            println!("VIOLATION while the namespace is made: {v}");
            return false;
        }
    };
    let cases = small.workloads() as u64;
    let report = run(Limits { first: common.seed - 1, ..common.limits(cases) }, |nth| small.judge(nth));
    print_report("small", "states", &report, "small --seed")
}

fn run_seeds(args: &Seeds, kind: Option<MediaKind>) -> bool {
    let report = run(args.common.limits(args.count), |seed| {
        let plan = seeds::SeedPlan::of(seed, kind);
        let tally = seeds::run(seed, plan, args.operations, &mut |_| {})
            .map_err(|v| Violation(format!("{v}\n {}", plan.shape)))?;
        Ok(tally.operations)
    });
    let title = kind.map_or_else(|| "seeds".to_owned(), |kind| format!("seeds on {kind:?} devices"));
    print_report(&title, "operations", &report, &format!("replay --operations {} --seed", args.operations))
}

fn replay(args: &Seeds) -> bool {
    let seed = args.common.seed;
    let plan = seeds::SeedPlan::of(seed, args.kind.map(MediaKind::from));
    println!("seed {seed}: {}", plan.shape);
    match seeds::run(seed, plan, args.operations, &mut |op| println!(" {op}")) {
        Ok(tally) => println!("{tally:?}: zero violations"),
        Err(v) => {
            println!("VIOLATION with seed {seed}: {v}");
            return false;
        }
    }
    true
}
