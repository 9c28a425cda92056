//! The work that is left until each segment has all its redundancy, as text and as JSON.

use std::num::NonZeroU64;

use serde::{Deserialize, Serialize};
use warpfire::{ScrubRound, ScrubSchedule, Upkeep, UpkeepReason, UpkeepWishes, UpkeepWork};
use warpfire_terminal::{Size, counted, duration};

use crate::output::{Rfc3339, moment};

const SECOND_NANOS: u64 = 1_000_000_000;

/// The work that is left until each segment has all its redundancy.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct UpkeepReport {
    /// Segments to rebuild, those that can lose the fewest devices first.
    pub at_risk: Vec<RiskReport>,
    /// The same segments by reason: `risk` (a column is lost), `rot` (a block does not verify), `leave` (a
    /// column is on a device that leaves the pool or shrinks) or `shape` (it is converted).
    #[serde(default)]
    pub work: Vec<WorkReport>,
    /// Why some of them have to wait.
    pub blocked: Option<String>,
    /// Whether upkeep is paused.
    #[serde(default)]
    pub paused: bool,
    /// The wish for the most bytes to read and write in a second; `null` for as fast as is good for others.
    #[serde(default)]
    pub rate_limit_bytes: Option<u64>,
    /// Bytes written since there was nothing to do.
    #[serde(default)]
    pub done_bytes: u64,
    /// Bytes that are left to write.
    #[serde(default)]
    pub left_bytes: u64,
    /// The share that is done, while something is left.
    #[serde(default)]
    pub percent: Option<u8>,
    /// Bytes written in a second, over the last minute.
    #[serde(default)]
    pub rate_bytes: u64,
    /// Seconds until nothing is left, at that rate.
    #[serde(default)]
    pub seconds_left: Option<u64>,
    /// When the pool is scrubbed while it is mounted.
    #[serde(default)]
    pub schedule: Option<ScheduleReport>,
    /// The last scrub by schedule.
    #[serde(default)]
    pub scrub: Option<RoundReport>,
    /// Lost devices whose content is not rebuilt on the others yet.
    pub waits_for: Vec<WaitReport>,
}

/// Segments to rebuild that can lose equally many devices.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct RiskReport {
    /// Number of devices that each of them may still lose.
    pub left: usize,
    /// Their number.
    pub segments: u64,
    /// Bytes to write.
    pub bytes: u64,
}

/// The work of one reason.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct WorkReport {
    /// The reason.
    pub reason: String,
    /// Number of segments.
    pub segments: u64,
    /// Bytes to write.
    pub bytes: u64,
}

/// A schedule of scrubs.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ScheduleReport {
    /// Seconds from the beginning of one scrub to the next.
    pub every_seconds: u64,
    /// The times of day between which it reads; `null` for all day.
    pub window: Option<String>,
    /// Most bytes to read in a second; `null` without a limit.
    pub rate_bytes: Option<u64>,
}

/// How far a scrub by schedule is.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct RoundReport {
    /// Its beginning, in UTC.
    pub began: Rfc3339,
    /// Segments that it has verified.
    pub segments: u64,
    /// Damaged segments among them.
    pub damaged_segments: u64,
    /// Whether it has verified all.
    pub ended: bool,
}

/// A lost device that may return.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct WaitReport {
    /// Its index in the pool.
    pub device: u16,
    /// Seconds until its content is rebuilt on the other devices.
    pub seconds: u64,
}

impl UpkeepReport {
    pub fn new(upkeep: &Upkeep, wishes: &UpkeepWishes, round: Option<ScrubRound>) -> Self {
        let risk = |risk: &warpfire::SegmentsAtRisk| RiskReport {
            left: risk.left,
            segments: risk.segments,
            bytes: risk.bytes,
        };
        UpkeepReport {
            at_risk: upkeep.at_risk.iter().map(risk).collect(),
            work: upkeep.work.iter().map(WorkReport::new).collect(),
            blocked: upkeep.blocked.clone(),
            paused: upkeep.is_paused,
            rate_limit_bytes: wishes.rate_bytes.map(NonZeroU64::get),
            done_bytes: upkeep.done_bytes,
            left_bytes: upkeep.left_bytes,
            percent: upkeep.percent,
            rate_bytes: upkeep.rate_bytes,
            seconds_left: upkeep.time_left.map(|left| left.as_secs()),
            schedule: wishes.scrub.as_ref().map(ScheduleReport::new),
            scrub: round.map(|round| RoundReport {
                began: Rfc3339(round.began),
                segments: round.segments,
                damaged_segments: round.damaged_segments,
                ended: round.has_ended,
            }),
            waits_for: (upkeep.waits_for.iter())
                .map(|(device, left)| WaitReport { device: *device, seconds: left.as_secs() })
                .collect(),
        }
    }

    /// The lines of the status; none if there is nothing to do.
    pub fn in_words(&self) -> String {
        let mut text = String::new();
        for RiskReport { left, segments, bytes } in &self.at_risk {
            let may_lose = match left {
                0 => "no device".to_owned(),
                left => counted(*left as u64, "device", "devices"),
            };
            text += &format!(
                "upkeep        {} to rebuild that may lose {may_lose}: {} to write\n",
                counted(*segments, "segment", "segments"),
                Size(*bytes),
            );
        }
        for WaitReport { device, seconds } in &self.waits_for {
            text += &format!(
                "upkeep        device {device} is rebuilt on the others if it stays away for {seconds} s more\n"
            );
        }
        if let Some(percent) = self.percent {
            text += &format!("upkeep        {percent} % done{}\n", self.speed());
        }
        if self.paused {
            text += "upkeep        is paused; 'warpfire upkeep POOL resume' lets it go on\n";
        }
        if let Some(blocked) = &self.blocked {
            text += &format!("upkeep        waits: {blocked}\n");
        }
        text
    }

    /// The rate and the time that is left, if they are known.
    fn speed(&self) -> String {
        let left = self.seconds_left.map(|left| duration(left.saturating_mul(SECOND_NANOS)));
        match (self.rate_bytes, left) {
            (0, _) => String::new(),
            (rate, None) => format!(", {}/s", Size(rate)),
            (rate, Some(left)) => format!(", {}/s, {left} left", Size(rate)),
        }
    }

    /// The answer of `warpfire upkeep`.
    pub fn in_full(&self) -> String {
        let mut text = self.in_words();
        if text.is_empty() {
            text += "upkeep        has nothing to do\n";
        }
        for WorkReport { reason, segments, bytes } in &self.work {
            let segments = counted(*segments, "segment", "segments");
            text += &format!("{reason:<13} {segments}, {} to write\n", Size(*bytes));
        }
        let rate = self.rate_limit_bytes.map_or("auto".to_owned(), |rate| format!("{}/s", Size(rate)));
        text += &format!("rate          {rate}\n");
        text + &self.schedule_in_words()
    }

    /// The schedule of scrubs, and the last scrub by it.
    pub fn schedule_in_words(&self) -> String {
        let mut text = match &self.schedule {
            None => "scrub         by no schedule\n".to_owned(),
            Some(ScheduleReport { every_seconds, window, rate_bytes }) => format!(
                "scrub         every {}{}{}\n",
                interval(*every_seconds),
                window.as_ref().map(|window| format!(", {window}")).unwrap_or_default(),
                rate_bytes.map(|rate| format!(", {}/s", Size(rate))).unwrap_or_default(),
            ),
        };
        if let Some(RoundReport { began, segments, damaged_segments, ended }) = &self.scrub {
            let is_running = if *ended { "has ended" } else { "is running" };
            text += &format!(
                "              the scrub of {} {is_running}: {} verified, {damaged_segments} damaged\n",
                moment(began.0),
                counted(*segments, "segment", "segments"),
            );
        }
        text
    }
}

impl WorkReport {
    fn new(work: &UpkeepWork) -> WorkReport {
        let reason = match work.reason {
            UpkeepReason::Risk => "risk",
            UpkeepReason::Rot => "rot",
            UpkeepReason::Leave => "leave",
            UpkeepReason::Shape => "shape",
        };
        WorkReport { reason: reason.to_owned(), segments: work.segments, bytes: work.bytes }
    }
}

impl ScheduleReport {
    fn new(schedule: &ScrubSchedule) -> ScheduleReport {
        let (opens, closes) = schedule.window;
        let time = |minute: u16| format!("{:02}:{:02}", minute / 60, minute % 60);
        ScheduleReport {
            every_seconds: schedule.every_seconds.get(),
            window: (opens != closes).then(|| format!("{}-{}", time(opens), time(closes))),
            rate_bytes: schedule.rate_bytes.map(NonZeroU64::get),
        }
    }
}

/// An interval in its largest whole unit.
fn interval(seconds: u64) -> String {
    let units = [(86400, "day", "days"), (3600, "hour", "hours"), (60, "minute", "minutes")];
    let unit = units.iter().find(|(unit, ..)| seconds.is_multiple_of(*unit));
    match unit {
        Some((unit, one, many)) => counted(seconds / unit, one, many),
        None => counted(seconds, "second", "seconds"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_work_has_a_line() {
        let report = UpkeepReport {
            at_risk: vec![
                RiskReport { left: 0, segments: 1, bytes: 1 << 20 },
                RiskReport { left: 2, segments: 7, bytes: 3 << 20 },
            ],
            blocked: Some("needs a free zone on a device other than a.img, b.img".to_owned()),
            waits_for: vec![WaitReport { device: 4, seconds: 590 }],
            percent: Some(25),
            rate_bytes: 2 << 20,
            seconds_left: Some(200),
            paused: true,
            ..UpkeepReport::default()
        };
        assert_eq!(
            report.in_words(),
            "upkeep        1 segment to rebuild that may lose no device: 1 MiB to write\n\
             upkeep        7 segments to rebuild that may lose 2 devices: 3 MiB to write\n\
             upkeep        device 4 is rebuilt on the others if it stays away for 590 s more\n\
             upkeep        25 % done, 2 MiB/s, 3 min 20 s left\n\
             upkeep        is paused; 'warpfire upkeep POOL resume' lets it go on\n\
             upkeep        waits: needs a free zone on a device other than a.img, b.img\n"
        );
        assert_eq!(UpkeepReport::default().in_words(), "");
        let began = warpfire::Timestamp { seconds: 1_795_226_400, nanos: 0 };
        let scheduled = UpkeepReport {
            work: vec![WorkReport { reason: "risk".to_owned(), segments: 2, bytes: 1 << 20 }],
            rate_limit_bytes: Some(200 << 20),
            schedule: Some(ScheduleReport {
                every_seconds: 30 * 86400,
                window: Some("01:00-06:00".to_owned()),
                rate_bytes: Some(50 << 20),
            }),
            scrub: Some(RoundReport {
                began: Rfc3339(began),
                segments: 7,
                damaged_segments: 1,
                ended: false,
            }),
            ..UpkeepReport::default()
        };
        assert_eq!(
            scheduled.in_full(),
            format!(
                "upkeep        has nothing to do\n\
                 risk          2 segments, 1 MiB to write\n\
                 rate          200 MiB/s\n\
                 scrub         every 30 days, 01:00-06:00, 50 MiB/s\n              \
                 the scrub of {} is running: 7 segments verified, 1 damaged\n",
                moment(began),
            )
        );
    }
}
