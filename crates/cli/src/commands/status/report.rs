//! The output of `warpfire status`, as text and as JSON.

use super::drive::DriveReport;
use super::errors::{self, ErrorReport};
use super::health::HealthReport;
use super::upkeep::UpkeepReport;
use serde::{Deserialize, Serialize};
use warpfire::{DataGuarantee, DeviceState, SpaceInfo, StateAge, Stats, Warpfire};
use warpfire_terminal::{Columns, Size, counted, grouped, quoted};

/// The status of a pool.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct StatusReport {
    /// The id of the pool.
    pub pool: String,
    /// Its name; empty if it has none.
    #[serde(default)]
    pub label: String,
    /// The directory that it is mounted on.
    pub mounted_at: Option<String>,
    /// Whether its server has it open for reading only.
    #[serde(default)]
    pub read_only: bool,
    /// Data devices of a stripe.
    pub data: u16,
    /// Parity devices of a stripe.
    pub parity: u8,
    /// Whether older data is rewritten in this shape.
    #[serde(default)]
    pub converts: bool,
    /// The space of so many devices is kept free, for the data of lost devices.
    #[serde(default)]
    pub spare_space: u16,
    /// How much of the data may lose how many devices, the fewest first.
    #[serde(default)]
    pub guarantees: Vec<GuaranteeReport>,
    /// Bytes of a zone.
    pub zone_bytes: u64,
    /// `whole`, `degraded` if devices are missing or have failed, or `lost` if they are more than parity
    /// covers.
    pub state: String,
    /// `newest`; `older` if the devices hold data of a later session than that of every readable root, so
    /// that later changes are lost; `may_be_older` if the missing devices are enough to have gone on alone.
    #[serde(default)]
    pub state_age: String,
    /// How many more devices may be lost: the least over all data. `null` if data can be lost already.
    #[serde(default)]
    pub losses_left: Option<u8>,
    /// The verdict, and what the pool remembers.
    #[serde(default)]
    pub health: HealthReport,
    /// All devices, missing ones too.
    pub devices: Vec<DeviceReport>,
    /// Use of the space, without parity and headers.
    pub space: SpaceReport,
    /// Bytes written since the pool was opened.
    pub written: WrittenReport,
    /// Memory for metadata that was read.
    #[serde(default)]
    pub cache: CacheReport,
    /// The work that is left until each segment has all its redundancy.
    #[serde(default)]
    pub upkeep: UpkeepReport,
    /// Blocks that reads have rebuilt from parity since the pool was opened.
    pub rebuilt_blocks: u64,
    /// Segments with less redundancy than the present devices allow.
    pub damaged_segments: usize,
    /// Ended transactions since the pool was opened.
    pub transactions: TransactionCounts,
    /// The last requests on the mount that have met damage, since the pool was mounted.
    #[serde(default)]
    pub errors: Vec<ErrorReport>,
}

/// Data that may lose equally many devices.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct GuaranteeReport {
    /// How many more devices may be lost; `null` if it has lost more than parity covers.
    pub losses_left: Option<u8>,
    /// Bytes of files and tables.
    pub bytes: u64,
}

/// Ended transactions since the pool was opened.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct TransactionCounts {
    /// Committed transactions.
    pub commits: u64,
    /// Commits that replayed their calls, because data that they had read had changed.
    pub replays: u64,
    /// Commits refused because a replayed call had another answer.
    pub conflicts: u64,
}

/// One device.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct DeviceReport {
    /// Its index in the pool.
    pub index: u16,
    /// Its id.
    pub uuid: String,
    /// Its path, unless it is missing.
    pub name: Option<String>,
    /// `present`, `slow` (it does not answer, and reads go round it), `leaving` (its data moves to other
    /// devices), `spare` (it takes the place of a device that stays lost), `missing`, `failed`, `gone` or
    /// `offline` (not used until it is taken online).
    pub state: String,
    /// The path of an old copy of it that was named instead of it, and is not used.
    #[serde(default)]
    pub old_copy: Option<String>,
    /// Bytes that the pool uses of it.
    pub size_bytes: u64,
    /// Bytes of its free zones.
    pub free_bytes: u64,
    /// Bytes of its zones that it could not reset. They are out of use until it can.
    pub retired_bytes: u64,
    /// Bytes that no stripe can use, because too few other devices are as large.
    #[serde(default)]
    pub stranded_bytes: u64,
    /// Reads. This and the counters below begin at 0 when the pool is opened.
    pub reads: u64,
    pub read_bytes: u64,
    pub writes: u64,
    pub written_bytes: u64,
    pub flushes: u64,
    pub errors: u64,
    /// Operations that the pool stopped waiting for.
    pub late: u64,
    pub checksum_errors: u64,
    /// Errors, and blocks with a wrong checksum, since the pool was made.
    #[serde(default)]
    pub errors_ever: u64,
    #[serde(default)]
    pub bad_blocks_ever: u64,
    /// Bytes written to it since it joined the pool. Of a session that ended in a crash, what followed its
    /// last checkpoint is not counted.
    #[serde(default)]
    pub written_bytes_ever: u64,
    /// Zones of it that were reset, counted in the same way. On a drive without zones a reset is a discard.
    #[serde(default)]
    pub resets_ever: u64,
    /// What its drive says about its own health: an NVMe drive to root, others where smartctl is installed.
    #[serde(default)]
    pub drive: Option<DriveReport>,
}

/// Use of the space of a pool.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct SpaceReport {
    /// The capacity.
    pub total_bytes: u64,
    /// Bytes that files, tables and open transactions need. The bytes of removed files do not count.
    #[serde(default)]
    pub used_bytes: u64,
    /// Bytes that can be written: the others without the reserve.
    #[serde(default)]
    pub available_bytes: u64,
    /// Files, directories and links.
    #[serde(default)]
    pub files: u64,
    /// Bytes with a reference.
    pub live_bytes: u64,
    /// Bytes that copies would take besides, if they shared none: at least, as far as they were counted.
    #[serde(default)]
    pub shared_bytes: u64,
    /// Written bytes without a reference that are not cleaned yet.
    pub garbage_bytes: u64,
    /// Bytes that are not written.
    pub free_bytes: u64,
    /// The part of the free bytes that is reserved for deletion and cleaning.
    pub reserve_bytes: u64,
    /// Devices that would make the stranded bytes of all devices usable; `null` if there are no such bytes.
    #[serde(default)]
    pub more_devices: Option<MoreDevices>,
}

/// Devices that would make stranded bytes usable.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MoreDevices {
    /// Their number.
    pub count: u64,
    /// Bytes of each.
    pub size_bytes: u64,
}

/// Bytes written since the pool was opened.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct WrittenReport {
    /// Payload bytes: without parity, headers and padding.
    pub payload_bytes: u64,
    /// Bytes written to devices.
    pub device_bytes: u64,
    /// Device bytes for each payload byte; `null` before the first write.
    pub amplification: Option<f64>,
    /// Stripes written.
    pub stripes: u64,
    /// The part of the payload that reads wrote to defragment files.
    pub defragmented_bytes: u64,
}

/// Memory for metadata that was read.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct CacheReport {
    /// Bytes in use.
    pub used_bytes: u64,
    /// Most bytes that the cache may take now.
    pub limit_bytes: u64,
}

impl StatusReport {
    /// The report of a pool.
    #[must_use]
    pub fn new(pool: &Warpfire, mounted_at: Option<String>) -> Self {
        let (stats, health) = (pool.stats(), pool.health());
        let mut report = StatusReport::of(&stats, pool.space().ok(), mounted_at);
        report.health = HealthReport::new(&health, &stats);
        let (tuning, guarantees) = (pool.tuning(), pool.guarantees().into_iter());
        (report.converts, report.spare_space) = (tuning.convert, tuning.spare_space);
        let guarantee = |g: DataGuarantee| GuaranteeReport { losses_left: g.losses_left, bytes: g.bytes };
        report.guarantees = guarantees.map(guarantee).collect();
        report.upkeep = UpkeepReport::new(&pool.upkeep(), &pool.upkeep_wishes(), pool.scrub_round());
        for device in &mut report.devices {
            let Some(known) = health.devices.get(usize::from(device.index)) else { continue };
            (device.errors_ever, device.bad_blocks_ever) = (known.errors, known.bad_blocks);
        }
        report
    }

    /// The report of these figures; `files` is `None` if the pool cannot say what its files need.
    fn of(stats: &Stats, files: Option<SpaceInfo>, mounted_at: Option<String>) -> Self {
        let lost = stats.lost_devices();
        let state = match lost {
            0 => "whole",
            _ if stats.losses_left.is_some() => "degraded",
            _ => "lost",
        };
        let device_bytes = stats.counters().written_bytes;
        let payload_bytes = stats.payload_bytes;
        let amplification = (payload_bytes > 0).then(|| device_bytes as f64 / payload_bytes as f64);
        let space = stats.space;
        StatusReport {
            pool: stats.pool.clone(),
            label: stats.label.clone(),
            mounted_at,
            read_only: false,
            data: stats.data,
            parity: stats.parity,
            converts: false,
            spare_space: 0,
            guarantees: Vec::new(),
            zone_bytes: stats.zone_bytes,
            state: state.to_owned(),
            state_age: age_word(stats.state_age).to_owned(),
            losses_left: stats.losses_left,
            health: HealthReport::default(),
            devices: stats.devices.iter().map(DeviceReport::new).collect(),
            space: SpaceReport {
                total_bytes: space.total_bytes,
                used_bytes: files.map_or(space.live_bytes, |files| files.total_bytes - files.free_bytes),
                available_bytes: files.map_or(0, |files| files.available_bytes),
                files: files.map_or(0, |files| files.inodes),
                live_bytes: space.live_bytes,
                shared_bytes: space.shared_bytes,
                garbage_bytes: space.garbage_bytes,
                free_bytes: space.free_bytes,
                reserve_bytes: space.reserve_bytes,
                more_devices: (stats.more_devices)
                    .map(|(count, size_bytes)| MoreDevices { count, size_bytes }),
            },
            written: WrittenReport {
                payload_bytes,
                device_bytes,
                amplification,
                stripes: stats.stripes,
                defragmented_bytes: stats.defragmented.bytes,
            },
            cache: CacheReport { used_bytes: stats.cache.used_bytes, limit_bytes: stats.cache.limit_bytes },
            upkeep: UpkeepReport::default(),
            rebuilt_blocks: stats.rebuilt_blocks,
            damaged_segments: stats.damaged_segments,
            transactions: TransactionCounts {
                commits: stats.transactions.commits,
                replays: stats.transactions.replays,
                conflicts: stats.transactions.conflicts,
            },
            errors: Vec::new(),
        }
    }

    /// Whether the state is the newest, as far as its devices say.
    #[must_use]
    pub fn age(&self) -> StateAge {
        let all = [StateAge::MayBeOlder, StateAge::Older];
        all.into_iter().find(|age| age_word(*age) == self.state_age).unwrap_or_default()
    }

    /// The report as text.
    #[must_use]
    pub fn in_words(&self) -> String {
        let mut text = self.health.in_words();
        let name =
            if self.label.is_empty() { String::new() } else { format!("{}, ", quoted(self.label.as_ref())) };
        text += &format!("pool {name}{}, {}\n", self.pool, self.redundancy());
        if let Some(at) = &self.mounted_at {
            text += &format!("mounted at {at}\n");
        }
        text += "\n";
        text += &self.device_columns().to_string();
        for (device, copy) in self.devices.iter().filter_map(|d| Some((d, d.old_copy.as_ref()?))) {
            text += &format!("{copy} is not used: it is an old copy of device {}\n", device.index);
        }
        let space = &self.space;
        text += &format!(
            "\nspace         {} in total: {} used, {} available; {}\n",
            Size(space.total_bytes),
            Size(space.used_bytes),
            Size(space.available_bytes),
            counted(space.files, "file", "files"),
        );
        text += &format!(
            "              {} live, {} garbage, {} free (of which {} in reserve)\n",
            Size(space.live_bytes),
            Size(space.garbage_bytes),
            Size(space.free_bytes),
            Size(space.reserve_bytes),
        );
        if space.shared_bytes > 0 {
            text += &format!("              {} saved by sharing, at least\n", Size(space.shared_bytes));
        }
        let retired_bytes: u64 = self.devices.iter().map(|device| device.retired_bytes).sum();
        if retired_bytes > 0 {
            text += &format!(
                "out of use    {} in zones that their devices could not reset\n",
                Size(retired_bytes)
            );
        }
        text += &self.drives();
        text += &self.stranded();
        let written = &self.written;
        text += &format!(
            "written       {} to devices for {} of payload{}, since the pool was opened\n",
            Size(written.device_bytes),
            Size(written.payload_bytes),
            written.amplification.map(|times| format!(" (×{times:.2})")).unwrap_or_default(),
        );
        if self.mounted_at.is_some() {
            text += &format!(
                "cache         {} of metadata in memory, at most {}\n",
                Size(self.cache.used_bytes),
                Size(self.cache.limit_bytes),
            );
        }
        if written.defragmented_bytes > 0 {
            text += &format!(
                "defragmented  {} of files in small pieces, when they were read\n",
                Size(written.defragmented_bytes),
            );
        }
        if self.rebuilt_blocks > 0 || self.damaged_segments > 0 {
            text += &format!(
                "damage        {} blocks rebuilt for reads since the pool was opened, {} segments with less redundancy\n",
                grouped(self.rebuilt_blocks),
                self.damaged_segments,
            );
        }
        text += &self.guarantees_in_words();
        text += &self.upkeep.in_words();
        let TransactionCounts { commits, replays, conflicts } = self.transactions;
        if commits > 0 || conflicts > 0 {
            text += &format!(
                "transactions  {} committed, {} ended in a conflict, {} replayed, since the pool was opened\n",
                grouped(commits),
                grouped(conflicts),
                grouped(replays),
            );
        }
        text += &errors::in_words(&self.errors);
        text
    }

    /// The report with what the drives say. They are asked by this process, and not by the server of the
    /// pool: one that hangs keeps nobody else waiting.
    #[must_use]
    pub fn with_drives(mut self) -> Self {
        for device in &mut self.devices {
            device.drive = device.name.as_ref().and_then(|name| DriveReport::of_device(name.as_ref()));
        }
        self
    }

    /// A line for each drive that says something.
    fn drives(&self) -> String {
        let line = |device: &DeviceReport| {
            let drive = device.drive.as_ref()?;
            Some(format!("drive         {}: {}\n", device.label(), drive.in_words()))
        };
        self.devices.iter().filter_map(line).collect()
    }

    /// A line for each device with bytes that no stripe can use, and what would make them usable. Less than
    /// a hundredth of a device is not worth a line.
    fn stranded(&self) -> String {
        let is_worth_a_line = |device: &&DeviceReport| device.stranded_bytes > device.size_bytes / 100;
        let lines = self.devices.iter().filter(is_worth_a_line).map(|device| {
            let bytes = Size(device.stranded_bytes);
            format!("unusable      {bytes} of {}: too few other devices are as large\n", device.label())
        });
        let mut lines: String = lines.collect();
        if let (false, Some(more)) = (lines.is_empty(), self.space.more_devices) {
            let devices = counted(more.count, "more device", "more devices");
            lines += &format!("              {devices} of {} would make it usable\n", Size(more.size_bytes));
        }
        lines
    }

    /// How many devices may be lost for which part of the data, where that differs.
    fn guarantees_in_words(&self) -> String {
        let mut text = String::new();
        let all_bytes: u64 = self.guarantees.iter().map(|guarantee| guarantee.bytes).sum();
        if self.guarantees.len() > 1 {
            let part = |guarantee: &GuaranteeReport| {
                let percent = u128::from(guarantee.bytes) * 100 / u128::from(all_bytes.max(1));
                let may_be_lost = match guarantee.losses_left {
                    None => "damaged".to_owned(),
                    Some(left) => format!("{left} may be lost"),
                };
                format!("{may_be_lost}: {} ({percent} %)", Size(guarantee.bytes))
            };
            let parts: Vec<String> = self.guarantees.iter().rev().map(part).collect();
            text += &format!("redundancy    {}\n", parts.join("; "));
        }
        if self.spare_space > 0 {
            let devices = counted(self.spare_space.into(), "device", "devices");
            text += &format!("kept free     the space of {devices}, for the data of lost ones\n");
        }
        text
    }

    fn redundancy(&self) -> String {
        let is_away = |device: &&DeviceReport| {
            !matches!(device.state.as_str(), "present" | "slow" | "leaving" | "spare")
        };
        let away = self.devices.iter().filter(is_away).count();
        let offline = self.devices.iter().filter(|device| device.state == "offline").count();
        let how = match offline {
            0 => "missing or failed",
            offline if offline == away => "offline",
            _ => "missing, failed or offline",
        };
        let plural = if self.devices.len() == 1 { "" } else { "s" };
        let made_of = format!(
            "{} data and {} parity over {} device{plural}",
            self.data,
            self.parity,
            self.devices.len()
        );
        match self.state.as_str() {
            "whole" => format!("{made_of}, whole"),
            "degraded" => {
                let left = self.losses_left.unwrap_or_default();
                format!("{made_of}, DEGRADED: {away} {how}, {left} more may be lost")
            }
            _ => format!("{made_of}, LOST: {away} {how}, more than parity covers"),
        }
    }

    /// A table of the devices.
    pub fn device_columns(&self) -> Columns {
        let mut columns = Columns::new(&[
            "device",
            "state",
            "size",
            "free",
            "reads",
            "read",
            "writes",
            "written",
            "flushes",
            "written ever",
            "resets ever",
            "errors ever",
            "bad blocks ever",
        ]);
        for device in &self.devices {
            columns.row([
                device.label(),
                device.state.clone(),
                Size(device.size_bytes).to_string(),
                Size(device.free_bytes).to_string(),
                grouped(device.reads),
                Size(device.read_bytes).to_string(),
                grouped(device.writes),
                Size(device.written_bytes).to_string(),
                grouped(device.flushes),
                Size(device.written_bytes_ever).to_string(),
                grouped(device.resets_ever),
                grouped(device.errors_ever),
                grouped(device.bad_blocks_ever),
            ]);
        }
        columns
    }
}

impl DeviceReport {
    /// Its path, or its index while it is missing.
    fn label(&self) -> String {
        self.name.clone().unwrap_or_else(|| format!("(device {})", self.index))
    }

    fn new(device: &warpfire::DeviceStats) -> Self {
        let counters = &device.counters;
        DeviceReport {
            index: device.index,
            uuid: device.uuid.clone(),
            name: device.name.clone(),
            state: state_word(device).to_owned(),
            old_copy: device.old_copy.clone(),
            size_bytes: device.size_bytes,
            free_bytes: device.free_bytes,
            retired_bytes: device.retired_bytes,
            stranded_bytes: device.stranded_bytes,
            reads: counters.reads,
            read_bytes: counters.read_bytes,
            writes: counters.writes,
            written_bytes: counters.written_bytes,
            flushes: counters.flushes,
            errors: counters.errors,
            late: counters.late,
            checksum_errors: counters.checksum_errors,
            errors_ever: 0,
            bad_blocks_ever: 0,
            written_bytes_ever: device.life.written_bytes,
            resets_ever: device.life.resets,
            drive: None,
        }
    }
}

fn age_word(age: StateAge) -> &'static str {
    match age {
        StateAge::Newest => "newest",
        StateAge::MayBeOlder => "may_be_older",
        StateAge::Older => "older",
    }
}

fn state_word(device: &warpfire::DeviceStats) -> &'static str {
    match device.state {
        DeviceState::Present if device.is_slow => "slow",
        DeviceState::Present if device.is_leaving => "leaving",
        DeviceState::Present if device.is_spare => "spare",
        DeviceState::Present => "present",
        DeviceState::Missing => "missing",
        DeviceState::Failed => "failed",
        DeviceState::Gone => "gone",
        DeviceState::Offline => "offline",
    }
}
