//! Sorts records of one size by their keys, by moving pointers and by copying:
//! `sort [--mb 64] [--record-kb 100] [--image FILE] [--host DIRECTORY]`.
//!
//! By pointers, only keys are read, and the sorted file consists of slices of the other one. By copying, each
//! record is read and written once, in the order of the keys; no sort that copies can do with less. With
//! `--host` the program also sorts by copying there. It prints the time of each way, its sync included, and
//! the bytes written to the devices. IMAGE is overwritten; without it the pool is in memory.

mod measure;
mod storage;

use measure::{ExampleResult, Flags, measured};
use storage::{Storage, StoredFile, make};
use warpfire::Slice;

const USAGE: &str = "usage: sort [--mb MEGABYTES] [--record-kb KILOBYTES] [--image FILE] [--host DIRECTORY]";
const KEY_BYTES: usize = 8;
/// Multiplying by an odd number scatters keys.
const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
/// Space per byte of a record: for the records, for their copy, and for the log until it is cleaned.
const ROOM: u64 = 4;

/// Records in a file, one after the other.
#[derive(Clone, Copy)]
struct RecordSet {
    count: u64,
    bytes: usize,
}

impl RecordSet {
    fn at(self, number: u64) -> u64 {
        number * self.bytes as u64
    }

    /// The record with this number.
    fn record(self, number: u64) -> Vec<u8> {
        let key = number.wrapping_mul(ODD);
        let mut record = vec![key as u8; self.bytes];
        record[..KEY_BYTES].copy_from_slice(&key.to_be_bytes());
        record
    }

    fn fill(self, file: &StoredFile) -> ExampleResult<()> {
        (0..self.count).try_for_each(|number| file.write(&self.record(number), self.at(number)))?;
        file.settle()
    }

    /// The numbers of the records in the order of their keys.
    fn order(self, file: &StoredFile) -> ExampleResult<Vec<u64>> {
        let key = |number| {
            let mut key = [0; KEY_BYTES];
            file.read(&mut key, self.at(number))?;
            Ok((key, number))
        };
        let mut keys = (0..self.count).map(key).collect::<ExampleResult<Vec<_>>>()?;
        keys.sort_unstable();
        Ok(keys.into_iter().map(|(_, number)| number).collect())
    }

    fn sort_by_copying(self, from: &StoredFile, to: &StoredFile) -> ExampleResult<()> {
        let mut record = vec![0; self.bytes];
        for (place, number) in (0..).zip(self.order(from)?) {
            from.read(&mut record, self.at(number))?;
            to.write(&record, self.at(place))?;
        }
        to.settle()
    }

    fn check(self, sorted: &StoredFile) -> ExampleResult<()> {
        let mut last = [0; KEY_BYTES];
        let mut record = vec![0; self.bytes];
        for place in 0..self.count {
            sorted.read(&mut record, self.at(place))?;
            let (key, rest) = record.split_first_chunk::<KEY_BYTES>().ok_or("a record has a key")?;
            if *key < last || rest.iter().any(|byte| *byte != key[KEY_BYTES - 1]) {
                return Err(format!("record {place} is out of order").into());
            }
            last = *key;
        }
        Ok(())
    }
}

fn main() -> ExampleResult<()> {
    let flags = Flags::parse(&["mb", "record-kb"], USAGE)?;
    let (total, kilobytes) = (flags.number("mb", 64)? * 1_000_000, flags.number("record-kb", 100)?);
    let records = RecordSet { count: total / (kilobytes * 1000), bytes: usize::try_from(kilobytes * 1000)? };
    let pool = flags.pool(ROOM * total)?;

    let (from, to) = (make(&pool, "records")?, make(&pool, "by-pointers")?);
    records.fill(&StoredFile::Pool(from.clone()))?;
    let by_pointers = measured(Some(&pool), "sort by pointers", || {
        let order = records.order(&StoredFile::Pool(from.clone()))?;
        let slice = |number: u64| from.yank(records.at(number)..records.at(number + 1));
        let sorted = Slice::join(&order.into_iter().map(slice).collect::<Result<Vec<_>, _>>()?)?;
        to.replace(&sorted)?;
        Ok(to.sync_all()?)
    })?;
    records.check(&StoredFile::Pool(to))?;

    for place in Storage::all(&pool, flags.path("host")) {
        let from = match &place {
            Storage::Pool(_) => StoredFile::Pool(from.clone()),
            Storage::Host(_) => place.make("records")?,
        };
        if matches!(place, Storage::Host(_)) {
            records.fill(&from)?;
        }
        let to = place.make("by-copying")?;
        let what = format!("sort by copying, in {}", place.name());
        let by_copying = measured(place.pool(), &what, || records.sort_by_copying(&from, &to))?;
        records.check(&to)?;
        println!("{:34} {:9.1} times as long", "", by_copying / by_pointers);
        place.remove("by-copying")?;
        place.remove("records")?;
    }
    Ok(())
}
