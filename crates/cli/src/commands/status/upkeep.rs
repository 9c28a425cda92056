//! The work that is left until each segment has all its redundancy, as text and as JSON.

use serde::{Deserialize, Serialize};
use warpfire::Upkeep;
use warpfire_terminal::{Size, counted};

/// The work that is left until each segment has all its redundancy.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct UpkeepReport {
    /// Segments to rebuild, those that can lose the fewest devices first.
    pub at_risk: Vec<RiskReport>,
    /// Why some of them have to wait.
    pub blocked: Option<String>,
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

/// A lost device that may return.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct WaitReport {
    /// Its index in the pool.
    pub device: u16,
    /// Seconds until its content is rebuilt on the other devices.
    pub seconds: u64,
}

impl UpkeepReport {
    pub fn new(upkeep: &Upkeep) -> Self {
        let risk = |risk: &warpfire::SegmentsAtRisk| RiskReport {
            left: risk.left,
            segments: risk.segments,
            bytes: risk.bytes,
        };
        UpkeepReport {
            at_risk: upkeep.at_risk.iter().map(risk).collect(),
            blocked: upkeep.blocked.clone(),
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
        if let Some(blocked) = &self.blocked {
            text += &format!("upkeep        waits: {blocked}\n");
        }
        text
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
        };
        assert_eq!(
            report.in_words(),
            "upkeep        1 segment to rebuild that may lose no device: 1 MiB to write\n\
             upkeep        7 segments to rebuild that may lose 2 devices: 3 MiB to write\n\
             upkeep        device 4 is rebuilt on the others if it stays away for 590 s more\n\
             upkeep        waits: needs a free zone on a device other than a.img, b.img\n"
        );
        assert_eq!(UpkeepReport::default().in_words(), "");
    }
}
