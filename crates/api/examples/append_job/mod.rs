//! The job of the examples that append to one file: units that name their appender and number.

use std::error::Error;

/// Many appenders append units to one file, each its own units in order.
#[derive(Clone, Copy)]
pub struct AppendJob {
    pub appenders: u64,
    /// Units of each appender.
    pub appends: u64,
    pub unit_bytes: usize,
}

impl AppendJob {
    pub fn unit(self, appender: u64, number: u64) -> Vec<u8> {
        let mut unit = vec![(appender ^ number) as u8; self.unit_bytes];
        unit[..8].copy_from_slice(&appender.to_le_bytes());
        unit[8..16].copy_from_slice(&number.to_le_bytes());
        unit
    }

    pub fn bytes(self) -> u64 {
        self.appenders * self.appends * self.unit_bytes as u64
    }

    /// Checks that every unit is there once and whole, and that the units of each appender are in their
    /// order.
    pub fn check(
        self,
        mut read: impl FnMut(&mut [u8]) -> Result<(), Box<dyn Error>>,
    ) -> Result<(), Box<dyn Error>> {
        let mut next = vec![0; usize::try_from(self.appenders)?];
        let mut unit = vec![0; self.unit_bytes];
        for place in 0..self.appenders * self.appends {
            read(&mut unit)?;
            let (appender, rest) =
                unit.split_first_chunk::<8>().ok_or("a unit is shorter than its numbers")?;
            let (number, _) = rest.split_first_chunk::<8>().ok_or("a unit is shorter than its numbers")?;
            let (appender, number) = (u64::from_le_bytes(*appender), u64::from_le_bytes(*number));
            let expected = next.get_mut(usize::try_from(appender)?).ok_or("a unit names no appender")?;
            if number != *expected || unit != self.unit(appender, number) {
                return Err(
                    format!("unit {place} is torn, doubled, or not the next of appender {appender}").into()
                );
            }
            *expected += 1;
        }
        Ok(())
    }

    /// Prints the rate of all appenders beside that of one writer, from the seconds of each.
    pub fn report(self, many: f64, one: f64) {
        let rate = |seconds: f64| self.bytes() as f64 / 1e6 / seconds;
        println!(
            "{} units of {} appenders: each once, whole, in order",
            self.appenders * self.appends,
            self.appenders
        );
        println!("{:.0} MB/s together, {:.0} MB/s alone: {:.0} %", rate(many), rate(one), 100.0 * one / many);
    }
}
