//! The report, in columns or as JSON.

use serde::Serialize;
use warpfire_terminal::{Columns, Size, duration, grouped, per_second};

use crate::target::Counters;
use crate::workload::{Measure, Shape};

/// The whole report of one benchmark.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The command line.
    pub command: String,
    /// The machine that it ran on.
    pub machine: Machine,
    /// The name of the workload.
    pub workload: &'static str,
    /// Its size and shape.
    pub shape: Shape,
    /// Runs of each target. The rows show medians over them.
    pub runs: u64,
    /// Whether the image files were filled with zeros before the runs; otherwise they are sparse.
    pub prewritten: bool,
    /// One row for each target and phase.
    pub rows: Vec<Row>,
    /// Targets that could not be measured.
    pub skipped: Vec<Skipped>,
}

/// The machine of a benchmark.
#[derive(Debug, Serialize)]
pub struct Machine {
    cpu: String,
    cores: usize,
    memory_bytes: u64,
    kernel: String,
}

/// A target that could not be measured.
#[derive(Debug, Serialize)]
pub struct Skipped {
    /// Its name.
    pub target: String,
    /// Why it could not be measured.
    pub reason: String,
}

/// One phase on one target, over all runs.
#[derive(Debug, Serialize)]
pub struct Row {
    target: String,
    phase: &'static str,
    ops: u64,
    bytes: u64,
    /// Wall time of a run, the final sync included: median, minimum and maximum.
    nanos: u64,
    nanos_min: u64,
    nanos_max: u64,
    /// Wall time per operation, in microseconds. All threads count together.
    us_per_op: f64,
    /// Processor time per operation, in microseconds, of all threads of the library.
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu_us_per_op: Option<f64>,
    /// Median and 99th percentile of single operations over all runs, if they were timed.
    #[serde(skip_serializing_if = "Option::is_none")]
    latency_nanos_p50: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    latency_nanos_p99: Option<u64>,
    /// Counters of the run with the median time.
    devices: Option<Counters>,
    /// Bytes written to devices, parity included, per byte of the operations.
    #[serde(skip_serializing_if = "Option::is_none")]
    write_amplification: Option<f64>,
    peak_bytes: Option<u64>,
    stored_bytes: Option<u64>,
}

impl Machine {
    /// This machine.
    #[must_use]
    pub fn this() -> Self {
        let read = |path| std::fs::read_to_string(path).unwrap_or_default();
        let value_of = |text: &str, key: &str| {
            let line = text.lines().find(|line| line.starts_with(key)).unwrap_or_default();
            line.split_once(':').map(|(_, value)| value.trim().to_owned()).unwrap_or_default()
        };
        let memory = value_of(&read("/proc/meminfo"), "MemTotal");
        let memory_kib: u64 = memory.trim_end_matches("kB").trim().parse().unwrap_or(0);
        Machine {
            cpu: value_of(&read("/proc/cpuinfo"), "model name"),
            cores: std::thread::available_parallelism().map_or(1, Into::into),
            memory_bytes: memory_kib * 1024,
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
        }
    }
}

impl Row {
    /// The row for one phase of several runs on one target.
    ///
    /// # Panics
    /// `runs` is empty.
    #[must_use]
    pub fn of_runs(target: String, mut runs: Vec<Measure>) -> Self {
        runs.sort_by_key(|run| run.nanos);
        let mut latencies: Vec<u64> =
            runs.iter().flat_map(|run| run.latencies_nanos.iter().copied()).collect();
        latencies.sort_unstable();
        let (first, last) = (runs.first().expect("at least one run"), runs.last().expect("at least one run"));
        let median = &runs[(runs.len() - 1) / 2];
        Row {
            target,
            phase: median.phase,
            ops: median.ops,
            bytes: median.bytes,
            nanos: median.nanos,
            nanos_min: first.nanos,
            nanos_max: last.nanos,
            us_per_op: median.nanos as f64 / 1e3 / median.ops.max(1) as f64,
            cpu_us_per_op: median.cpu_nanos.map(|nanos| nanos as f64 / 1e3 / median.ops.max(1) as f64),
            latency_nanos_p50: percentile(&latencies, 50),
            latency_nanos_p99: percentile(&latencies, 99),
            devices: median.devices,
            write_amplification: median
                .devices
                .filter(|devices| devices.written_bytes > 0 && median.bytes > 0)
                .map(|devices| devices.written_bytes as f64 / median.bytes as f64),
            stored_bytes: median.stored_bytes,
            peak_bytes: runs.iter().filter_map(|run| run.peak_bytes).max(),
        }
    }

    fn cells(&self) -> Vec<String> {
        let absent = || "–".to_owned();
        let nanos = |value: Option<u64>| value.map_or_else(absent, duration);
        let device = |of: fn(Counters) -> String| self.devices.map_or_else(absent, of);
        vec![
            format!("{} {}", self.target, self.phase),
            format!("{:.3}", self.us_per_op),
            self.cpu_us_per_op.map_or_else(absent, |micros| format!("{micros:.3}")),
            format!("{:.2}", self.nanos as f64 / 1e9),
            format!("{:.2}–{:.2}", self.nanos_min as f64 / 1e9, self.nanos_max as f64 / 1e9),
            grouped(per_second(self.ops, self.nanos)),
            Size(per_second(self.bytes, self.nanos)).to_string(),
            nanos(self.latency_nanos_p50),
            nanos(self.latency_nanos_p99),
            self.peak_bytes.map_or_else(absent, |bytes| Size(bytes).to_string()),
            self.stored_bytes.map_or_else(absent, |bytes| Size(bytes).to_string()),
            device(|devices| grouped(devices.reads)),
            device(|devices| grouped(devices.writes)),
            device(|devices| Size(devices.written_bytes).to_string()),
            self.write_amplification.map_or_else(absent, |times| format!("×{times:.2}")),
            device(|devices| grouped(devices.flushes)),
        ]
    }
}

fn percentile(sorted: &[u64], percent: usize) -> Option<u64> {
    sorted.get(sorted.len().saturating_sub(1) * percent / 100).copied()
}

const HEADINGS: [&str; 16] = [
    "target",
    "µs/op",
    "cpu µs/op",
    "s",
    "min–max",
    "op/s",
    "bytes/s",
    "p50",
    "p99",
    "peak mem",
    "stored",
    "dev reads",
    "dev writes",
    "written",
    "for a byte",
    "flushes",
];

impl Report {
    /// The report as text.
    #[must_use]
    pub fn in_words(&self) -> String {
        let Machine { cpu, cores, memory_bytes, kernel } = &self.machine;
        let mut text = format!(
            "{}\n{cores} × {cpu}, {}, Linux {kernel}; medians of {} {}; image files {}\n\n",
            self.command,
            Size(*memory_bytes),
            self.runs,
            if self.runs == 1 { "run" } else { "runs" },
            if self.prewritten { "prewritten" } else { "sparse" },
        );
        let mut table = Columns::new(&HEADINGS);
        for row in &self.rows {
            table.row(row.cells());
        }
        text += &table.to_string();
        for Skipped { target, reason } in &self.skipped {
            text += &format!("{target}: skipped, {reason}\n");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(nanos: u64) -> Measure {
        let latencies_nanos = vec![nanos; 3];
        Measure {
            phase: "create",
            ops: 10,
            bytes: 1000,
            nanos,
            cpu_nanos: None,
            latencies_nanos,
            devices: None,
            peak_bytes: Some(nanos),
            stored_bytes: None,
        }
    }

    #[test]
    fn a_row_is_the_median_run_with_its_spread() {
        let row = Row::of_runs("library".to_owned(), vec![run(30), run(10), run(20)]);
        assert_eq!((row.nanos, row.nanos_min, row.nanos_max), (20, 10, 30));
        assert_eq!(row.latency_nanos_p50, Some(20));
        assert_eq!(row.peak_bytes, Some(30));
    }

    #[test]
    fn without_timed_operations_there_is_no_percentile() {
        assert_eq!(percentile(&[], 99), None);
        assert_eq!(percentile(&[7], 99), Some(7));
    }
}
