//! The health of a pool: the verdict of `warpfire status`, and what to do.

use serde::{Deserialize, Serialize};
use warpfire::{Health, StateAge, Stats};
use warpfire_terminal::{counted, grouped, shown};

use crate::commands::pool::away_words;
use crate::output::{Rfc3339, moment};

/// What the pool remembers of errors and damage.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct HealthReport {
    /// `good`, `degraded` (devices are missing, have failed or are offline), `damaged` (within parity), or
    /// `lost`.
    pub verdict: String,
    /// The devices or files concerned, in words; empty if all is good.
    pub reason: String,
    /// What to do; empty if nothing.
    pub next: String,
    /// Files that have lost bytes, as far as they are known; at most 16.
    pub damaged_files: Vec<String>,
    /// Number of further ones.
    pub more_damaged_files: u64,
    /// Blocks reconstructed from parity since the pool was made.
    pub rebuilt_blocks: u64,
    /// Bad blocks met since the last scrub.
    pub bad_blocks_since_scrub: u64,
    /// The last scrub that ended.
    pub last_scrub: Option<LastScrubReport>,
}

/// The last scrub.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct LastScrubReport {
    /// Its end (RFC 3339).
    pub ended: Rfc3339,
    /// Segments in which something did not verify, or with less redundancy than the devices allowed.
    pub damaged_segments: u64,
    /// Segments among them that could not be repaired.
    pub unrepaired_segments: u64,
    /// Devices that were missing or had failed.
    pub lost_devices: u64,
}

impl HealthReport {
    /// The health of a pool.
    pub fn new(health: &Health, stats: &Stats) -> Self {
        let last_scrub = health.last_scrub.map(|scrub| LastScrubReport {
            ended: Rfc3339(scrub.ended),
            damaged_segments: scrub.damaged_segments,
            unrepaired_segments: scrub.unrepaired_segments,
            lost_devices: scrub.lost_devices,
        });
        let mut report = HealthReport {
            damaged_files: health.damaged_files.iter().map(|path| shown(path)).collect(),
            more_damaged_files: health.more_damaged_files,
            rebuilt_blocks: health.rebuilt_blocks,
            bad_blocks_since_scrub: health.bad_blocks_since,
            last_scrub,
            ..HealthReport::default()
        };
        let (verdict, reason, next) = report.judge(stats);
        (report.verdict, report.reason, report.next) = (verdict.to_owned(), reason, next.to_owned());
        report
    }

    fn judge(&self, stats: &Stats) -> (&'static str, String, &'static str) {
        let away: Vec<String> =
            stats.devices.iter().filter(|device| !device.is_present()).map(ToString::to_string).collect();
        let names = away.join(", ");
        let unrepaired = self.last_scrub.as_ref().map_or(0, |scrub| scrub.unrepaired_segments);
        let files = self.damaged_files.len() as u64 + self.more_damaged_files;
        if !away.is_empty() && stats.losses_left.is_none() {
            let reason = format!("more devices are missing or have failed than parity covers: {names}");
            ("lost", reason, "reconnect devices; 'warpfire fsck' names what cannot be read")
        } else if stats.state_age == StateAge::Older {
            let reason = "this is an older state of the pool: its devices hold data of a later session, whose \
                          roots are lost";
            (
                "lost",
                reason.to_owned(),
                "reconnect missing devices, or restore later changes from a backup; 'warpfire fsck' shows where",
            )
        } else if files > 0 {
            let mut reason =
                format!("{} lost bytes: {}", counted(files, "file", "files"), self.damaged_files.join(", "));
            if self.more_damaged_files > 0 {
                reason += &format!(" and {} more", grouped(self.more_damaged_files));
            }
            (
                "lost",
                reason,
                "restore or remove them, then 'warpfire scrub'; 'warpfire fsck' shows the ranges",
            )
        } else if !away.is_empty() {
            let how = away_words(stats.devices.iter().map(|device| device.state));
            let mut reason =
                format!("{} {how}: {names}", counted(away.len() as u64, "device is", "devices are"));
            if stats.state_age == StateAge::MayBeOlder {
                reason += "; they are enough to have gone on alone, so this may be an older state";
            }
            let next = match how {
                "offline" => "'warpfire device online' takes it back",
                _ => "reconnect missing devices, then 'warpfire scrub'",
            };
            ("degraded", reason, next)
        } else if self.bad_blocks_since_scrub > 0 || stats.damaged_segments > 0 {
            let reason = match self.bad_blocks_since_scrub {
                0 => format!(
                    "{} less redundancy than the devices allow",
                    counted(stats.damaged_segments as u64, "segment has", "segments have")
                ),
                bad => format!("{} met since the last scrub", counted(bad, "bad block", "bad blocks")),
            };
            ("damaged", reason, "'warpfire scrub' repairs what parity covers, and names the rest")
        } else if unrepaired > 0 {
            let reason =
                format!("the last scrub left {} damaged", counted(unrepaired, "segment", "segments"));
            ("damaged", reason, "free some space and run 'warpfire scrub' again")
        } else {
            ("good", String::new(), "")
        }
    }

    /// The exit code of `status --check`.
    pub fn exit_code(&self) -> u8 {
        match self.verdict.as_str() {
            "good" => 0,
            "lost" => super::EXIT_LOST,
            _ => 1,
        }
    }

    /// The verdict as the first lines of a status.
    pub fn in_words(&self) -> String {
        let mut text = match self.verdict.as_str() {
            "good" => "GOOD: all devices are present, and no damage is known\n".to_owned(),
            verdict => format!("{}: {}\nnext: {}\n", verdict.to_uppercase(), self.reason, self.next),
        };
        text += &match &self.last_scrub {
            None => "last scrub: never\n".to_owned(),
            Some(scrub) => format!(
                "last scrub: {}, {}, {} not repaired\n",
                moment(scrub.ended.0),
                counted(scrub.damaged_segments, "segment to repair", "segments to repair"),
                grouped(scrub.unrepaired_segments),
            ),
        };
        text
    }
}
