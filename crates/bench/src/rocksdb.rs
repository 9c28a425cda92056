//! RocksDB as a peer of the metadata engine. A separate program (`benches/peers/rocksdb`) runs the same load;
//! Warpfire is not linked with RocksDB.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use warpfire_terminal::Failure;

use crate::names::Order;
use crate::target::Counters;
use crate::workload::{Measure, Shape};

/// The script that builds the program.
const BUILD: &str = "benches/peers/rocksdb/build.sh";

/// The program, its version, and the directory for its database.
pub struct Rocksdb {
    program: PathBuf,
    version: String,
    directory: PathBuf,
}

impl Rocksdb {
    /// The peer, with a database inside `directory`.
    ///
    /// # Errors
    /// The reason why it cannot be measured.
    pub fn find(program: &Path, directory: PathBuf) -> Result<Self, String> {
        let answer = Command::new(program).arg("--version").output();
        let answer = answer.map_err(|error| format!("{}: {error}; {BUILD} builds it", program.display()))?;
        let version = String::from_utf8_lossy(&answer.stdout).trim().to_owned();
        if !answer.status.success() || version.is_empty() {
            return Err(format!("{} does not print its version; {BUILD} builds it", program.display()));
        }
        Ok(Rocksdb { program: program.to_owned(), version, directory })
    }

    /// Its name in the report: RocksDB with its version, and whether the library checks its assertions.
    #[must_use]
    pub fn name(&self) -> String {
        format!("rocksdb {}", self.version)
    }

    /// Runs the load once on a new database with a cache of so many bytes.
    pub fn measure(&self, shape: &Shape, batch: u64, cache_bytes: u64) -> Result<Vec<Measure>, Failure> {
        let database = self.directory.join("database");
        if database.exists() {
            std::fs::remove_dir_all(&database).map_err(|error| Failure::local(&database, &error))?;
        }
        let order = if shape.order == Order::InOrder { "in-order" } else { "random" };
        let numbers = [shape.count, shape.size_bytes, batch, shape.threads].map(|n| n.to_string());
        let ran = Command::new(&self.program)
            .arg(&database)
            .args(numbers)
            .arg(order)
            .arg(cache_bytes.to_string())
            .stderr(Stdio::inherit())
            .output()
            .map_err(|error| Failure::local(&self.program, &error))?;
        if !ran.status.success() {
            return Err(Failure::new(format_args!("{} failed: {}", self.program.display(), ran.status)));
        }
        let lines = String::from_utf8_lossy(&ran.stdout);
        let phases: Option<Vec<Measure>> = lines.lines().map(|line| parse(line, shape)).collect();
        phases.ok_or_else(|| Failure::new(format_args!("{} says: {lines}", self.program.display())))
    }
}

/// Parses a line of the program: `phase operations wall_nanos cpu_nanos written_bytes peak_bytes
/// stored_bytes`.
fn parse(line: &str, shape: &Shape) -> Option<Measure> {
    let (word, numbers) = line.split_once(' ')?;
    let phase = ["insert", "get", "scan"].into_iter().find(|phase| *phase == word)?;
    let numbers: Result<Vec<u64>, _> = numbers.split(' ').map(str::parse).collect();
    let numbers: [u64; 6] = numbers.ok()?.try_into().ok()?;
    let [ops, nanos, cpu_nanos, written_bytes, peak_bytes, stored_bytes] = numbers;
    Some(Measure {
        phase,
        ops,
        bytes: ops * (crate::load::KEY_BYTES as u64 + shape.size_bytes),
        nanos,
        cpu_nanos: Some(cpu_nanos),
        latencies_nanos: Vec::new(),
        devices: Some(Counters { written_bytes, ..Counters::default() }),
        peak_bytes: Some(peak_bytes),
        stored_bytes: Some(stored_bytes),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape() -> Shape {
        Shape { count: 10, size_bytes: 100, large_bytes: 0, threads: 1, dirs: 1, order: Order::InOrder }
    }

    #[test]
    fn a_line_is_a_phase() {
        let measure = parse("get 10 2000 1500 4096 65536 1000", &shape()).expect("a line of the program");
        assert_eq!((measure.phase, measure.ops, measure.nanos, measure.bytes), ("get", 10, 2000, 1240));
        assert_eq!(measure.cpu_nanos, Some(1500));
        for wrong in ["", "get", "get 1 2 3 4 5", "get 1 2 3 4 5 x", "sing 1 2 3 4 5 6"] {
            assert!(parse(wrong, &shape()).is_none(), "{wrong}");
        }
    }

    #[test]
    fn a_peer_that_is_not_there_says_how_to_get_it() {
        let reason = Rocksdb::find(Path::new("/nowhere/rocksdb-load"), PathBuf::new()).err();
        assert!(reason.is_some_and(|reason| reason.contains(BUILD)));
    }
}
