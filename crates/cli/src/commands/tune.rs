//! `warpfire tune`: the shape of new data in a pool, what it wishes for older data, and the space that it
//! keeps free.
//!
//! The server of a mounted pool answers. A pool that is not mounted is opened: its wishes hold for later
//! mounts.

use std::ffi::OsString;

use serde::{Deserialize, Serialize};
use warpfire::{Pool, TunePlan, Tuning, Warpfire};
use warpfire_terminal::{Exit, Failure, Size, counted, is_json, print, print_json};

use super::mount::control::wire::{Answer, Request};
use super::mount::control::{ServerConnection, foreign_answer};
use super::pool;
use crate::location::PoolName;

const EXAMPLES: &str = "\
Examples:
  warpfire tune /mnt                               the shape of new data
  warpfire tune /mnt --data 8 --parity 3           new data from now on
  warpfire tune /mnt --data 8 --parity 3 --convert older data too, by and by
  warpfire tune /mnt --parity 3 --convert --dry-run
  warpfire tune /mnt --spare-space 1               keep a device's space free

New data has the new shape at once. With --convert upkeep rewrites older data, after all work for lost and \
damaged columns; 'warpfire upkeep' shows how far it is, pauses it and limits its rate. The same command without \
--convert ends that. 'warpfire status' says how many devices may be lost for how much of the data. The space that \
--spare-space keeps free is for the data of devices that are lost: it counts as used until then, and is refused where \
the pool is too full for it.";

// Arguments of `warpfire tune`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Devices or image files separated by commas, a directory of *.img files, or a directory of the mounted
    /// pool.
    #[arg(value_name = "POOL")]
    pool: OsString,

    /// Devices of a stripe that hold data.
    #[arg(long, value_name = "K")]
    data: Option<u16>,

    /// Devices of a stripe that hold parity: so many may be lost.
    #[arg(long, value_name = "M")]
    parity: Option<u8>,

    /// Rewrite older data in this shape.
    #[arg(long)]
    convert: bool,

    /// Keep the space of so many devices free, for the data of lost devices.
    #[arg(long, value_name = "N")]
    spare_space: Option<u16>,

    /// Show the plan, and change nothing.
    #[arg(long)]
    dry_run: bool,
}

/// A change of the shape, as the server of a mounted pool is asked. A field that is `None` stays as it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TuneOrder {
    data: Option<u16>,
    parity: Option<u8>,
    convert: Option<bool>,
    spare_space: Option<u16>,
    is_dry_run: bool,
}

/// The shape of a pool after a change, or with `--dry-run` as it would be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TunedPool {
    /// Devices of a stripe of new data that hold data.
    pub data: u16,
    /// Devices of a stripe of new data that hold parity.
    pub parity: u8,
    /// Whether older data is rewritten in this shape.
    pub convert: bool,
    /// The space of so many devices is kept free, for the data of lost devices.
    pub spare_space: u16,
    /// Segments that have another shape.
    pub segments: u64,
    /// Bytes of files and tables in them.
    pub live_bytes: u64,
    /// Bytes that are written to devices to rewrite them; 0 if they stay as they are.
    pub written_bytes: u64,
    /// Bytes of files and tables that the pool holds if all of them have this shape.
    pub capacity_bytes: u64,
    /// About the bytes that can be written to files then.
    pub available_bytes: u64,
}

/// Changes the shape of an open pool, or plans that.
///
/// # Errors
/// The devices or their room do not allow it; the pool takes no changes.
pub fn tune_in(pool: &Warpfire, order: TuneOrder) -> Result<TunedPool, Failure> {
    let mut tuning = pool.tuning();
    tuning.data = order.data.unwrap_or(tuning.data);
    tuning.parity = order.parity.unwrap_or(tuning.parity);
    tuning.convert = order.convert.unwrap_or(tuning.convert);
    tuning.spare_space = order.spare_space.unwrap_or(tuning.spare_space);
    let plan = if order.is_dry_run { pool.plan_tune(&tuning) } else { pool.tune(&tuning) };
    // The pool is open: it refuses this shape.
    let plan = plan.map_err(|error| Failure::pool(&error).exit_code(Exit::Failed as u8))?;
    Ok(TunedPool::new(&tuning, &plan))
}

/// Shows or changes the shape of a pool.
pub fn run(args: &Args) -> Result<(), Failure> {
    let name = PoolName::new(&args.pool);
    let names_shape = args.data.is_some() || args.parity.is_some() || args.convert;
    let order = TuneOrder {
        data: args.data,
        parity: args.parity,
        convert: names_shape.then_some(args.convert),
        spare_space: args.spare_space,
        is_dry_run: true,
    };
    let changes = names_shape || args.spare_space.is_some();
    let planned = ask(&name, order)?;
    if !is_json() {
        print(planned.in_words())?;
    }
    if args.dry_run || !changes {
        return if is_json() { print_json(&planned) } else { Ok(()) };
    }
    let tuned = ask(&name, TuneOrder { is_dry_run: false, ..order })?;
    if is_json() { print_json(&tuned) } else { Ok(()) }
}

/// Has the pool tuned, mounted or not.
fn ask(name: &PoolName, order: TuneOrder) -> Result<TunedPool, Failure> {
    if let Some(server) = ServerConnection::of_pool(name)? {
        return match server.ask(Request::Tune(order), |_| ())? {
            Answer::Tuned(tuned) => Ok(tuned),
            _ => Err(foreign_answer()),
        };
    }
    let opened = pool::open_as(&Pool::options().read_only(order.is_dry_run), name)?;
    let tuned = tune_in(&opened, order)?;
    opened.close().map_err(|error| Failure::pool(&error))?;
    Ok(tuned)
}

impl TunedPool {
    fn new(tuning: &Tuning, plan: &TunePlan) -> TunedPool {
        TunedPool {
            data: tuning.data,
            parity: tuning.parity,
            convert: tuning.convert,
            spare_space: tuning.spare_space,
            segments: plan.segments,
            live_bytes: plan.live_bytes,
            written_bytes: plan.written_bytes,
            capacity_bytes: plan.capacity_bytes,
            available_bytes: plan.available_bytes,
        }
    }

    fn in_words(&self) -> String {
        let lost = counted(self.parity.into(), "device", "devices");
        let mut text = format!("new data      {} + {}: {lost} may be lost\n", self.data, self.parity);
        if self.segments > 0 {
            let (segments, live) = (counted(self.segments, "segment", "segments"), Size(self.live_bytes));
            text += &match self.convert {
                true => format!(
                    "older data    {segments} with {live}: rewritten, {} to write\n",
                    Size(self.written_bytes)
                ),
                false => format!("older data    {segments} with {live}: stays as it is\n"),
            };
        }
        let (capacity, available) = (Size(self.capacity_bytes), Size(self.available_bytes));
        text += &format!(
            "space         {capacity} if all data has this shape, about {available} available then\n"
        );
        if self.spare_space > 0 {
            let devices = counted(self.spare_space.into(), "device", "devices");
            text += &format!("kept free     the space of {devices}\n");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_says_what_is_rewritten() {
        let plan = TunedPool {
            data: 8,
            parity: 3,
            convert: true,
            spare_space: 1,
            segments: 2,
            live_bytes: 8 << 20,
            written_bytes: 11 << 20,
            capacity_bytes: 1 << 30,
            available_bytes: 1 << 29,
        };
        assert_eq!(
            plan.in_words(),
            "new data      8 + 3: 3 devices may be lost\n\
             older data    2 segments with 8 MiB: rewritten, 11 MiB to write\n\
             space         1 GiB if all data has this shape, about 512 MiB available then\n\
             kept free     the space of 1 device\n"
        );
        let stays = TunedPool { convert: false, spare_space: 0, ..plan }.in_words();
        assert!(stays.contains("stays as it is") && !stays.contains("kept free"), "{stays}");
    }
}
