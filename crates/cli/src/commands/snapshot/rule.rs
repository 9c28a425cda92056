//! `warpfire snapshot rule` and `warpfire snapshot tick`: the rules by which snapshots are made and deleted.
//!
//! The server of a mounted pool applies the rules of its pool once a minute. `tick` applies them now,
//! mounted or not.

use std::ffi::{OsStr, OsString};
use std::num::NonZeroU64;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use serde::{Deserialize, Serialize};
use warpfire::{
    AppliedRules, ErrorKind, Pool, SnapshotPeriod, SnapshotReason, SnapshotRule, Timestamp, Warpfire,
};
use warpfire_env::{Clock, SystemClock};
use warpfire_terminal::{
    Columns, Failure, is_json, note, path_bytes, path_text, print, print_json, quoted, shown,
};

use super::{SnapshotOutput, WireSnapshot, report_deleted, report_made, with_pool};
use crate::commands::mount::control::wire::{Answer, Request};
use crate::commands::mount::control::{ServerConnection, foreign_answer};
use crate::commands::pool;
use crate::location::PoolName;
use crate::output::{Rfc3339, moment};

const EXAMPLES: &str = "\
Examples:
  warpfire snapshot rule add pool hourly --every 1h --keep 24h,30d,12m
                                          one for each of the last 24 hours,
                                          30 days and 12 months
  warpfire snapshot rule list pool
  warpfire snapshot rule explain pool     why each snapshot stays, and how long
  warpfire snapshot rule simulate --every 1h --keep 24h,30d 400d
                                          what there would be after 400 days
  warpfire snapshot rule remove pool hourly
  warpfire snapshot tick pool             apply the rules of a pool that is not
                                          mounted, as from cron";

// Arguments of `warpfire snapshot rule`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    command: RuleCommand,
}

#[derive(clap::Subcommand, Debug)]
#[command(defer = true)]
enum RuleCommand {
    /// Add a rule, or change the one of that name.
    Add(AddArgs),
    /// Show the rules of a pool.
    List(PoolArgs),
    /// Remove rules. The snapshots that they made stay.
    Remove(RemoveArgs),
    /// Show the snapshots that rules made, and why each stays.
    Explain(PoolArgs),
    /// Show the snapshots that a rule would keep after some time.
    Simulate(SimulateArgs),
}

#[derive(clap::Args, Debug)]
struct RuleArgs {
    /// The time from one snapshot to the next: 15m, 1h, 1d, 2w.
    #[arg(long, value_name = "TIME", value_parser = parse_interval)]
    every: NonZeroU64,

    /// Keep the oldest snapshot of each of the last quarters of an hour, hours, days, weeks, months and
    /// years that have some: 8q,24h,30d,4w,12m,5y [default: keep all].
    #[arg(long, value_name = "COUNTS", value_delimiter = ',', value_parser = parse_keep)]
    keep: Vec<(SnapshotPeriod, u32)>,

    /// Delete snapshots that are older, whatever --keep says.
    #[arg(long, value_name = "TIME", value_parser = parse_interval)]
    expire: Option<NonZeroU64>,

    /// While less of the pool is free, delete the oldest snapshot at each look: 10%.
    #[arg(long, value_name = "PERCENT", value_parser = parse_percent)]
    min_free: Option<u16>,

    /// Make no snapshot if nothing has changed since the newest one.
    #[arg(long)]
    if_changed: bool,
}

#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
struct AddArgs {
    /// Devices or image files separated by commas, a directory of *.img files, or a directory of the mounted
    /// pool.
    #[arg(value_name = "POOL")]
    pool: OsString,

    /// The name of the rule: at most 200 bytes. The names of its snapshots begin with it.
    #[arg(value_name = "RULE")]
    name: OsString,

    #[command(flatten)]
    rule: RuleArgs,
}

#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
struct PoolArgs {
    /// Devices or image files separated by commas, a directory of *.img files, or a directory of the mounted
    /// pool [default: $WARPFIRE_POOL].
    #[arg(value_name = "POOL", default_value = "", hide_default_value = true)]
    pool: OsString,
}

#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
struct RemoveArgs {
    /// Devices or image files separated by commas, a directory of *.img files, or a directory of the mounted
    /// pool.
    #[arg(value_name = "POOL")]
    pool: OsString,

    /// The rules.
    #[arg(value_name = "RULE", required = true)]
    names: Vec<OsString>,
}

#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
struct SimulateArgs {
    #[command(flatten)]
    rule: RuleArgs,

    /// How long the rule is applied: 30d, 400d.
    #[arg(value_name = "TIME", value_parser = parse_interval)]
    time: NonZeroU64,
}

// Arguments of `warpfire snapshot tick`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct TickArgs {
    /// Devices or image files separated by commas, a directory of *.img files, or a directory of the mounted
    /// pool.
    #[arg(value_name = "POOL")]
    pool: OsString,

    /// Delete also after the clock has jumped by more than a day: it is right.
    #[arg(long)]
    trust_clock: bool,
}

const UNITS: [(char, u64); 5] = [('s', 1), ('m', 60), ('h', 3600), ('d', 86_400), ('w', 7 * 86_400)];

fn parse_interval(text: &str) -> Result<NonZeroU64, String> {
    let seconds = UNITS.iter().find_map(|(unit, seconds)| {
        let number: u64 = text.strip_suffix(*unit)?.parse().ok()?;
        NonZeroU64::new(number.checked_mul(*seconds)?)
    });
    seconds.ok_or_else(|| "use a number and a unit, as in 15m, 1h, 30d or 2w".to_owned())
}

/// The time in the largest unit that divides it.
fn interval(seconds: NonZeroU64) -> String {
    let fits = |(_, unit): &&(char, u64)| seconds.get().is_multiple_of(*unit);
    let (letter, unit) = UNITS.iter().rev().find(fits).unwrap_or(&UNITS[0]);
    format!("{}{letter}", seconds.get() / unit)
}

const PERIODS: [(char, &str, SnapshotPeriod); 6] = [
    ('q', "quarter", SnapshotPeriod::Quarter),
    ('h', "hour", SnapshotPeriod::Hour),
    ('d', "day", SnapshotPeriod::Day),
    ('w', "week", SnapshotPeriod::Week),
    ('m', "month", SnapshotPeriod::Month),
    ('y', "year", SnapshotPeriod::Year),
];

fn parse_keep(text: &str) -> Result<(SnapshotPeriod, u32), String> {
    let found = PERIODS.iter().find_map(|(letter, _, period)| {
        let count: u32 = text.strip_suffix(*letter)?.parse().ok()?;
        (count > 0).then_some((*period, count))
    });
    found.ok_or_else(|| "use counts with q, h, d, w, m or y, as in 24h,30d,12m".to_owned())
}

fn parse_percent(text: &str) -> Result<u16, String> {
    let number = text.strip_suffix('%').and_then(|number| number.parse::<u16>().ok());
    let percent = number.filter(|percent| (1..100).contains(percent));
    percent.map(|percent| percent * 10).ok_or_else(|| "use a share of the pool, as in 10%".to_owned())
}

impl RuleArgs {
    fn rule(&self) -> SnapshotRule {
        SnapshotRule {
            every_seconds: self.every,
            keep: self.keep.clone(),
            expire_seconds: self.expire,
            free_permille: self.min_free.unwrap_or(0),
            only_after_change: self.if_changed,
        }
    }
}

/// A rule between a client and a server.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct WireRule {
    name: Vec<u8>,
    every_seconds: NonZeroU64,
    /// Counts with the letter of their period.
    keep: Vec<(char, u32)>,
    expire_seconds: Option<NonZeroU64>,
    free_permille: u16,
    only_after_change: bool,
}

/// Work on the rules of a pool.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RuleOrder {
    /// Store a rule.
    Set(WireRule),
    /// List all.
    List,
    /// Remove one.
    Remove {
        /// Its name.
        name: Vec<u8>,
    },
    /// List their snapshots.
    Explain,
    /// Apply all.
    Apply {
        /// Whether deletions believe the clock.
        trusts_clock: bool,
    },
}

/// A snapshot of a rule between a client and a server.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct WireExplained {
    pub(super) snapshot: WireSnapshot,
    /// Why it stays; `None`: its rule deletes it at the next look.
    pub(super) reason: Option<String>,
    /// The second since 1970 until which it stays at least.
    pub(super) until_seconds: Option<i64>,
}

/// The result of work on rules.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RuleAnswer {
    /// The rule is stored or removed.
    Changed,
    /// The rules.
    Rules(Vec<WireRule>),
    /// Snapshots, and why each stays.
    Explained(Vec<WireExplained>),
    /// What applying them has changed.
    Applied {
        /// Snapshots that were made.
        made: Vec<WireSnapshot>,
        /// Snapshots that were deleted.
        deleted: Vec<WireSnapshot>,
        /// Rules that doubt the clock.
        doubting: Vec<Vec<u8>>,
        /// Rules that failed to make a snapshot, and why.
        failed: Vec<(Vec<u8>, String)>,
    },
}

impl WireRule {
    fn of(name: &OsStr, rule: &SnapshotRule) -> WireRule {
        let letter =
            |period| PERIODS.iter().find(|(_, _, of)| *of == period).map_or('q', |(letter, ..)| *letter);
        WireRule {
            name: name.as_bytes().to_vec(),
            every_seconds: rule.every_seconds,
            keep: rule.keep.iter().map(|(period, count)| (letter(*period), *count)).collect(),
            expire_seconds: rule.expire_seconds,
            free_permille: rule.free_permille,
            only_after_change: rule.only_after_change,
        }
    }

    fn rule(&self) -> SnapshotRule {
        let period = |letter| PERIODS.iter().find(|(of, ..)| *of == letter).map(|(_, _, period)| *period);
        SnapshotRule {
            every_seconds: self.every_seconds,
            keep: self.keep.iter().filter_map(|(letter, count)| Some((period(*letter)?, *count))).collect(),
            expire_seconds: self.expire_seconds,
            free_permille: self.free_permille,
            only_after_change: self.only_after_change,
        }
    }

    fn name(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.name))
    }

    fn keep(&self) -> String {
        if self.keep.is_empty() {
            return "all".to_owned();
        }
        let counts = self.keep.iter().map(|(letter, count)| format!("{count}{letter}"));
        counts.collect::<Vec<_>>().join(",")
    }

    fn document(&self) -> RuleOutput {
        RuleOutput {
            name: path_text(self.name()),
            name_bytes: path_bytes(self.name()),
            every_seconds: self.every_seconds.get(),
            keep: self.keep(),
            expire_seconds: self.expire_seconds.map(NonZeroU64::get),
            min_free_percent: self.free_permille / 10,
            if_changed: self.only_after_change,
        }
    }
}

/// A rule, as JSON.
#[derive(Debug, Serialize)]
pub struct RuleOutput {
    /// Its name.
    name: String,
    /// The name in base64, if it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    name_bytes: Option<String>,
    /// Seconds from one snapshot to the next.
    every_seconds: u64,
    /// The snapshots that stay, as `--keep` takes them, or `all`.
    keep: String,
    /// Seconds after which a snapshot goes.
    #[serde(skip_serializing_if = "Option::is_none")]
    expire_seconds: Option<u64>,
    /// The share of the pool that is to be free, in percent; 0 for no such wish.
    min_free_percent: u16,
    /// Whether a snapshot is made only after a change.
    if_changed: bool,
}

/// A snapshot of a rule, as JSON.
#[derive(Debug, Serialize)]
pub struct ExplainedOutput {
    /// The snapshot.
    #[serde(flatten)]
    snapshot: SnapshotOutput,
    /// Why it stays. Without it, the rule deletes the snapshot at its next look.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// The moment at which the rule deletes it at the earliest, if it makes a snapshot in each period until
    /// then.
    #[serde(skip_serializing_if = "Option::is_none")]
    kept_until: Option<Rfc3339>,
}

/// A moment of a simulated snapshot, as JSON.
#[derive(Debug, Serialize)]
pub struct SimulatedOutput {
    /// When it would be made.
    made: Rfc3339,
}

/// A reason in words.
fn reason_text(reason: SnapshotReason) -> String {
    match reason {
        SnapshotReason::Held => "held".to_owned(),
        SnapshotReason::Newest => "the newest".to_owned(),
        SnapshotReason::All => "the rule keeps all".to_owned(),
        SnapshotReason::Period { period, newer, kept } => {
            let word = PERIODS.iter().find(|(_, _, of)| *of == period).map_or("period", |(_, word, _)| word);
            format!("{word} {} of {kept}", newer + 1)
        }
        _ => "kept".to_owned(),
    }
}

/// Carries out an order on an open pool.
///
/// # Errors
/// The rule is impossible, or there is none of that name; the pool is full, damaged or takes no changes.
pub fn rule_in(pool: &Warpfire, order: &RuleOrder) -> Result<RuleAnswer, Failure> {
    let failed = |error: warpfire::Error| Failure::pool(&error);
    let now = SystemClock.now();
    Ok(match order {
        RuleOrder::Set(rule) => {
            pool.set_snapshot_rule(rule.name(), &rule.rule(), now).map_err(|error| match error.kind() {
                ErrorKind::InvalidInput => Failure::usage(error.to_string()),
                _ => failed(error),
            })?;
            RuleAnswer::Changed
        }
        RuleOrder::List => {
            let rules = pool.snapshot_rules().map_err(failed)?;
            RuleAnswer::Rules(rules.iter().map(|(name, rule)| WireRule::of(name, rule)).collect())
        }
        RuleOrder::Remove { name } => {
            let name = OsStr::from_bytes(name);
            pool.remove_snapshot_rule(name).map_err(|error| match error.kind() {
                ErrorKind::NotFound => Failure::new(format_args!("the pool has no rule {}", quoted(name)))
                    .hint("'warpfire snapshot rule list' shows them"),
                _ => failed(error),
            })?;
            RuleAnswer::Changed
        }
        RuleOrder::Explain => {
            let explained = pool.explain_snapshot_rules(now).map_err(failed)?.into_iter();
            let wire = |one: warpfire::ExplainedSnapshot| WireExplained {
                snapshot: one.snapshot.into(),
                reason: one.reason.map(reason_text),
                until_seconds: one.until.map(|until| until.seconds),
            };
            RuleAnswer::Explained(explained.map(wire).collect())
        }
        RuleOrder::Apply { trusts_clock } => {
            let AppliedRules { made, deleted, doubting, failed: not_made, .. } =
                pool.apply_snapshot_rules(now, *trusts_clock).map_err(failed)?;
            RuleAnswer::Applied {
                made: made.into_iter().map(WireSnapshot::from).collect(),
                deleted: deleted.into_iter().map(WireSnapshot::from).collect(),
                doubting: doubting.into_iter().map(OsString::into_vec).collect(),
                failed: not_made
                    .into_iter()
                    .map(|(rule, error)| (rule.into_vec(), error.to_string()))
                    .collect(),
            }
        }
    })
}

/// Has the server of the pool carry out an order, or opens the pool for it.
fn carry_out(pool: &PoolName, order: RuleOrder) -> Result<RuleAnswer, Failure> {
    if let Some(server) = ServerConnection::of_pool(pool)? {
        return match server.ask(Request::SnapshotRule(order), |_| ())? {
            Answer::SnapshotRules(answer) => Ok(answer),
            _ => Err(foreign_answer()),
        };
    }
    match order {
        RuleOrder::List | RuleOrder::Explain => {
            rule_in(&pool::open_as(&Pool::options().read_only(true), pool)?, &order)
        }
        _ => with_pool(pool, |pool| rule_in(pool, &order)),
    }
}

/// Runs `warpfire snapshot rule`.
pub fn run(args: &Args) -> Result<(), Failure> {
    match &args.command {
        RuleCommand::Add(args) => add(args),
        RuleCommand::List(args) => list(&PoolName::new(&args.pool)),
        RuleCommand::Remove(args) => remove(args),
        RuleCommand::Explain(args) => explain(&PoolName::new(&args.pool)),
        RuleCommand::Simulate(args) => simulate(args),
    }
}

fn add(args: &AddArgs) -> Result<(), Failure> {
    let rule = WireRule::of(&args.name, &args.rule.rule());
    carry_out(&PoolName::new(&args.pool), RuleOrder::Set(rule.clone()))?;
    if is_json() {
        return print_json(&rule.document());
    }
    let (name, every) = (quoted(&args.name), interval(rule.every_seconds));
    print(format!("rule {name}: a snapshot every {every}, kept: {}\n", rule.keep()))
}

fn list(pool: &PoolName) -> Result<(), Failure> {
    let RuleAnswer::Rules(rules) = carry_out(pool, RuleOrder::List)? else { return Err(foreign_answer()) };
    if is_json() {
        return rules.iter().try_for_each(|rule| print_json(&rule.document()));
    }
    if rules.is_empty() {
        return print("the pool has no rules for snapshots\n");
    }
    let mut columns = Columns::new(&["rule", "every", "keep", "expire", "min free", "if changed"]);
    for rule in &rules {
        columns.row([
            shown(rule.name()),
            interval(rule.every_seconds),
            rule.keep(),
            rule.expire_seconds.map_or_else(|| "–".to_owned(), interval),
            if rule.free_permille == 0 { "–".to_owned() } else { format!("{}%", rule.free_permille / 10) },
            if rule.only_after_change { "yes" } else { "no" }.to_owned(),
        ]);
    }
    print(columns.to_string())
}

fn remove(args: &RemoveArgs) -> Result<(), Failure> {
    for name in &args.names {
        carry_out(&PoolName::new(&args.pool), RuleOrder::Remove { name: name.as_bytes().to_vec() })?;
        if !is_json() {
            print(format!("rule {} is removed; its snapshots stay\n", quoted(name)))?;
        }
    }
    Ok(())
}

/// The snapshots of the rules of a pool, mounted or not.
pub(super) fn explained(pool: &PoolName) -> Result<Vec<WireExplained>, Failure> {
    match carry_out(pool, RuleOrder::Explain)? {
        RuleAnswer::Explained(explained) => Ok(explained),
        _ => Err(foreign_answer()),
    }
}

impl WireExplained {
    fn until(&self) -> Option<Timestamp> {
        self.until_seconds.map(|seconds| Timestamp { seconds, nanos: 0 })
    }
}

/// The cell of a moment until which a snapshot stays.
pub(super) fn shown_until(seconds: Option<i64>) -> String {
    seconds.map_or_else(|| "–".to_owned(), |seconds| moment(Timestamp { seconds, nanos: 0 }))
}

fn explain(pool: &PoolName) -> Result<(), Failure> {
    let explained = explained(pool)?;
    if is_json() {
        return explained.into_iter().try_for_each(|one| {
            let kept_until = one.until().map(Rfc3339);
            print_json(&ExplainedOutput { snapshot: one.snapshot.document(), reason: one.reason, kept_until })
        });
    }
    if explained.is_empty() {
        return print("no rule has made a snapshot\n");
    }
    let mut columns = Columns::new(&["name", "made", "stays because", "until"]);
    for WireExplained { snapshot, reason, until_seconds } in explained {
        let reason = reason.unwrap_or_else(|| "goes at the next look".to_owned());
        columns.row([shown(snapshot.name()), moment(snapshot.made()), reason, shown_until(until_seconds)]);
    }
    print(columns.to_string())
}

fn simulate(args: &SimulateArgs) -> Result<(), Failure> {
    let simulated = args.rule.rule().simulate(SystemClock.now(), args.time.get());
    let simulated: Vec<Timestamp> = simulated.map_err(|error| Failure::usage(error.to_string()))?;
    if is_json() {
        return simulated.iter().try_for_each(|made| print_json(&SimulatedOutput { made: Rfc3339(*made) }));
    }
    let lines: String = simulated.iter().map(|made| format!("{}\n", moment(*made))).collect();
    print(lines)
}

/// Runs `warpfire snapshot tick`.
pub fn tick(args: &TickArgs) -> Result<(), Failure> {
    let order = RuleOrder::Apply { trusts_clock: args.trust_clock };
    let RuleAnswer::Applied { made, deleted, doubting, failed } =
        carry_out(&PoolName::new(&args.pool), order)?
    else {
        return Err(foreign_answer());
    };
    made.iter().try_for_each(report_made)?;
    deleted.iter().try_for_each(|snapshot| report_deleted(snapshot, "is deleted"))?;
    for name in doubting {
        note(format_args!(
            "the clock has jumped by more than a day, so the rule {} deletes nothing for a day; '--trust-clock' \
             says that the clock is right",
            quoted(OsStr::from_bytes(&name))
        ));
    }
    match failed.first() {
        None => Ok(()),
        Some((rule, reason)) => Err(Failure::new(format_args!(
            "the rule {} made no snapshot: {reason}",
            quoted(OsStr::from_bytes(rule))
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_and_counts_are_parsed_and_shown() {
        for text in ["15m", "1h", "36h", "1d", "90s", "2w"] {
            assert_eq!(interval(parse_interval(text).expect("an interval")), text);
        }
        assert_eq!(interval(parse_interval("24h").expect("an interval")), "1d");
        for text in ["", "1", "0h", "h", "-1h", "1.5h", "99999999999999999999w"] {
            assert!(parse_interval(text).is_err(), "{text}");
        }
        assert_eq!(parse_keep("24h"), Ok((SnapshotPeriod::Hour, 24)));
        for text in ["0h", "24", "h", "3x", ""] {
            assert!(parse_keep(text).is_err(), "{text}");
        }
        assert_eq!(parse_percent("10%"), Ok(100));
        for text in ["10", "0%", "100%", "x%"] {
            assert!(parse_percent(text).is_err(), "{text}");
        }
    }
}
