//! A bounded share of the binary's runs. A violation is printed with its seed and the command that replays
//! it.

use std::sync::Mutex;

use warpfire_sim::crash::{Budget, Judge, SmallWorkloads, Workload};
use warpfire_sim::life::{LifeTally, MendTally};
use warpfire_sim::op::Menu;
use warpfire_sim::run::{Limits, RunReport, run};
use warpfire_sim::session::Violation;
use warpfire_sim::stack::{MediaKind, Shape};
use warpfire_sim::{faults, life, rot, seeds, transfer};

fn limits(first: u64, cases: u64) -> Limits {
    Limits { first, cases, count_max: u64::MAX, seconds_max: 600, threads: 2, case_seconds_max: 300 }
}

fn demand_none(report: &RunReport, replay: &str) {
    for (seed, violation) in &report.violations {
        eprintln!("VIOLATION: {violation}");
        eprintln!(" replay: cargo run --release -p warpfire-sim -- {replay} {seed} --threads 1");
    }
    assert!(report.violations.is_empty(), "{} violations", report.violations.len());
}

fn judge_drawn(seed: u64, kind: Option<MediaKind>) -> Result<u64, Violation> {
    let workload = Workload::draw(Shape::of_crash(seed, kind), seed, Menu::TINY, 25)?;
    let mut judge = Judge::new(seed, Budget::DRAWN);
    judge.try_all(&workload, 700)?;
    assert!(judge.read >= judge.states / 20, "{} of {} states were read first", judge.read, judge.states);
    Ok(judge.states)
}

#[test]
fn every_crash_state_of_drawn_workloads_is_one_of_the_models() {
    demand_none(&run(limits(1, 6), |seed| judge_drawn(seed, None)), "crash --count 1 --seed");
}

#[test]
fn zoned_and_append_only_devices_see_no_overwrite_in_any_crash_state() {
    for kind in [MediaKind::Zoned, MediaKind::AppendOnly] {
        demand_none(&run(limits(100, 2), |seed| judge_drawn(seed, Some(kind))), "zoned --count 1 --seed");
    }
}

#[test]
fn every_fortieth_workload_of_one_and_two_operations() {
    let small = SmallWorkloads::make(Shape::TINY).expect("the namespace can be made");
    let cases = small.workloads() as u64 / 40;
    demand_none(&run(limits(0, cases), |nth| small.judge(nth * 40)), "small --seed");
}

#[test]
fn random_sessions_with_power_cuts_agree_with_the_model() {
    let report = run(limits(1, 20), |seed| {
        seeds::run(seed, seeds::SeedPlan::of(seed, None), 200, &mut |_| {}).map(|tally| tally.operations)
    });
    demand_none(&report, "replay --operations 200 --seed");
}

#[test]
fn devices_that_fail_at_the_nth_operation_lose_nothing_that_was_acknowledged() {
    demand_none(&run(limits(1, 150), faults::run), "faults --cases 1 --seed");
}

#[test]
fn devices_join_leave_fail_and_return_and_as_many_may_be_lost_as_the_pool_says() {
    let tally = Mutex::new(LifeTally::default());
    let report = run(limits(1, 300), |seed| {
        let life = life::run(seed)?;
        tally.lock().unwrap().add(&life);
        Ok(life.verbs)
    });
    demand_none(&report, "life --cases 1 --seed");
    let MendTally { judgements, cuts, losses, returns } = tally.into_inner().unwrap().in_mend;
    let met = [judgements, cuts, losses, returns];
    assert!(met.iter().all(|count| *count > 0), "each meets a column that is half mended: {met:?}");
}

#[test]
fn lost_and_rotten_devices_are_rebuilt_within_parity_and_reported_beyond() {
    demand_none(&run(limits(1, 30), rot::run), "rot --cases 1 --seed");
}

#[test]
fn eight_of_two_hundred_and_fifty_devices_may_be_lost_or_rotten() {
    demand_none(&run(limits(1, 1), |seed| rot::run_geometry(seed, rot::WIDEST, 8)), "rot --cases 1 --seed");
}

#[test]
fn a_receiver_that_loses_power_anywhere_shows_one_of_the_trees_and_goes_on() {
    demand_none(&run(limits(1, 3), transfer::run), "transfer --cases 1 --seed");
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let trace = |seed| {
        let mut operations = Vec::new();
        let plan = seeds::SeedPlan::of(seed, None);
        let tally = seeds::run(seed, plan, 100, &mut |op| operations.push(op.to_string()));
        (operations, tally.map_err(|v| v.0))
    };
    assert_eq!(trace(77), trace(77));
}
