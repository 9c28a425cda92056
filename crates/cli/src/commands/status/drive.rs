//! What the drives of a pool say about their own health: NVMe drives by the kernel, others by smartctl where
//! it is installed. Without either nothing is said; that is no error.

use std::path::Path;
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};
use warpfire_env::DriveHealth;
use warpfire_terminal::{Size, counted};

/// What a drive says about its own health.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DriveReport {
    /// `nvme`, or `smartctl`.
    pub source: String,
    /// Whether the drive says that it is failing.
    pub failing: bool,
    /// The share of its life that is used, in hundredths; it may exceed 100.
    pub worn_percent: Option<u8>,
    /// Its temperature in degrees Celsius.
    pub celsius: Option<i16>,
    /// Bytes that were written to it in its life.
    pub written_bytes: Option<u64>,
    /// Errors of the medium that it could not correct.
    pub media_errors: Option<u64>,
}

/// The part of the answer of `smartctl --json` that is read.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Smartctl {
    smart_status: Option<SmartStatus>,
    temperature: Option<Temperature>,
    ata_smart_attributes: SmartAttributes,
    logical_block_size: Option<u64>,
}

#[derive(Deserialize)]
struct SmartStatus {
    passed: bool,
}

#[derive(Deserialize)]
struct Temperature {
    current: i16,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct SmartAttributes {
    table: Vec<Attribute>,
}

#[derive(Deserialize)]
struct Attribute {
    id: u16,
    value: u8,
    raw: Raw,
}

#[derive(Deserialize)]
struct Raw {
    value: u64,
}

/// Attributes of ATA drives: wear that is left (Samsung, Micron, Intel), written blocks, and errors that
/// could not be corrected.
const WEAR_LEFT: [u16; 3] = [177, 202, 233];
const WRITTEN_BLOCKS: u16 = 241;
const UNCORRECTED: [u16; 2] = [187, 198];

impl DriveReport {
    /// Asks the drive of a device; `None` for an image file, or if nobody knows.
    pub fn of_device(device: &Path) -> Option<DriveReport> {
        use std::os::unix::fs::FileTypeExt;
        let path = std::fs::canonicalize(device).ok()?;
        if !std::fs::metadata(&path).ok()?.file_type().is_block_device() {
            return None;
        }
        DriveHealth::of_nvme(&path).map(|health| DriveReport::new("nvme", &health)).or_else(|| asked(&path))
    }

    fn new(source: &str, health: &DriveHealth) -> DriveReport {
        DriveReport {
            source: source.to_owned(),
            failing: health.is_failing,
            worn_percent: health.worn_percent,
            celsius: health.celsius,
            written_bytes: health.written_bytes,
            media_errors: health.media_errors,
        }
    }

    /// The health in an answer of `smartctl --json`; `None` if it is none, or says nothing.
    fn of_smartctl(answer: &[u8]) -> Option<DriveReport> {
        let said: Smartctl = serde_json::from_slice(answer).ok()?;
        let status = said.smart_status?;
        let table = &said.ata_smart_attributes.table;
        let of = |ids: &[u16]| table.iter().find(|attribute| ids.contains(&attribute.id));
        let block_bytes = said.logical_block_size.unwrap_or(512);
        Some(DriveReport {
            source: "smartctl".to_owned(),
            failing: !status.passed,
            worn_percent: of(&WEAR_LEFT).map(|left| 100u8.saturating_sub(left.value)),
            celsius: said.temperature.map(|temperature| temperature.current),
            written_bytes: of(&[WRITTEN_BLOCKS]).map(|blocks| blocks.raw.value.saturating_mul(block_bytes)),
            media_errors: of(&UNCORRECTED).map(|errors| errors.raw.value),
        })
    }

    /// The health in words.
    pub fn in_words(&self) -> String {
        let mut words = Vec::new();
        if self.failing {
            words.push("says that it is FAILING".to_owned());
        }
        words.extend(self.worn_percent.map(|percent| format!("{percent} % worn")));
        words.extend(self.celsius.map(|celsius| format!("{celsius} °C")));
        words.extend(self.written_bytes.map(|bytes| format!("{} written in its life", Size(bytes))));
        let errors = self.media_errors.filter(|errors| *errors > 0);
        words.extend(errors.map(|errors| counted(errors, "error of its medium", "errors of its medium")));
        format!("{} ({})", words.join(", "), self.source)
    }
}

/// Asks smartctl, if it is installed. It does not wake a drive that sleeps.
fn asked(path: &Path) -> Option<DriveReport> {
    let mut smartctl = Command::new("smartctl");
    smartctl.args(["--json", "--nocheck=standby", "--info", "--health", "--attributes"]).arg(path);
    let said = smartctl.stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    DriveReport::of_smartctl(&said.stdout)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An answer of smartctl 7.3 for a SATA drive, shortened.
    const SATA: &str = r#"{"json_format_version":[1,0],"smartctl":{"version":[7,3],"exit_status":0},
        "device":{"name":"/dev/sda","type":"sat","protocol":"ATA"},"logical_block_size":512,
        "smart_status":{"passed":true},"temperature":{"current":33},"ata_smart_attributes":{"revision":1,"table":[
        {"id":5,"name":"Reallocated_Sector_Ct","value":100,"worst":100,"raw":{"value":0,"string":"0"}},
        {"id":177,"name":"Wear_Leveling_Count","value":94,"worst":94,"raw":{"value":71,"string":"71"}},
        {"id":187,"name":"Reported_Uncorrect","value":100,"worst":100,"raw":{"value":2,"string":"2"}},
        {"id":241,"name":"Total_LBAs_Written","value":99,"worst":99,"raw":{"value":80530636800,"string":"80530636800"}}]}}"#;

    #[test]
    fn an_answer_of_smartctl_tells_wear_temperature_bytes_and_errors() {
        let report = DriveReport::of_smartctl(SATA.as_bytes()).expect("an answer");
        assert_eq!((report.worn_percent, report.celsius, report.media_errors), (Some(6), Some(33), Some(2)));
        assert_eq!(report.written_bytes, Some(80_530_636_800 * 512));
        assert_eq!(
            report.in_words(),
            "6 % worn, 33 °C, 37.5 TiB written in its life, 2 errors of its medium (smartctl)"
        );
        let failing = DriveReport::of_smartctl(br#"{"smart_status":{"passed":false}}"#).expect("an answer");
        assert_eq!(failing.in_words(), "says that it is FAILING (smartctl)");
    }

    #[test]
    fn other_answers_say_nothing() {
        for other in ["", "[]", "{}", "smartctl: command not found", r#"{"smart_status":7}"#] {
            assert_eq!(DriveReport::of_smartctl(other.as_bytes()), None, "{other}");
        }
        assert_eq!(DriveReport::of_device(Path::new("/dev/null")), None);
        assert_eq!(DriveReport::of_device(Path::new("/nowhere")), None);
    }
}
