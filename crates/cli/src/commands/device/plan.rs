//! What a change of the devices would move, and what would be free after it: asked of the server of a mounted
//! pool, or of the pool itself.

use serde::{Deserialize, Serialize};
use warpfire::{DeviceChange, Warpfire};
use warpfire_terminal::{Failure, Size};

use crate::commands::mount::control::wire::{Answer, Request};
use crate::commands::mount::control::{ServerConnection, foreign_answer};
use crate::commands::pool;
use crate::location::PoolName;

/// A change of the devices, as the server of a mounted pool is asked.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeOrder {
    /// Devices of these sizes join.
    Add { sizes_bytes: Vec<u64> },
    /// A device leaves.
    Remove { index: u16 },
    /// A device leaves, and one of this size joins.
    Replace { index: u16, size_bytes: u64 },
}

/// What the change would do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PlannedDevices {
    /// Bytes that are written to move data.
    pub moved_bytes: u64,
    /// Bytes that can be written to files after it.
    pub available_bytes: u64,
    /// Bytes that the other devices have too few.
    pub missing_bytes: u64,
}

impl PlannedDevices {
    /// The room that is free after it, or missing for it.
    pub fn room_in_words(&self) -> String {
        match self.missing_bytes {
            0 => format!("about {} will be free for files", Size(self.available_bytes)),
            missing => format!("the other devices have about {} too little room for it", Size(missing)),
        }
    }
}

/// Plans a change of the devices of an open pool.
///
/// # Errors
/// The pool has no such device.
pub fn plan_in(pool: &Warpfire, order: ChangeOrder) -> Result<PlannedDevices, Failure> {
    let change = match order {
        ChangeOrder::Add { sizes_bytes } => DeviceChange::Add { sizes_bytes },
        ChangeOrder::Remove { index } => DeviceChange::Remove { index },
        ChangeOrder::Replace { index, size_bytes } => DeviceChange::Replace { index, size_bytes },
    };
    let plan = pool.plan_devices(&change).map_err(|error| Failure::pool(&error))?;
    Ok(PlannedDevices {
        moved_bytes: plan.written_bytes(),
        available_bytes: plan.available_bytes,
        missing_bytes: plan.missing_bytes,
    })
}

/// Plans a change of the devices of a pool, mounted or not.
pub fn planned(name: &PoolName, order: ChangeOrder) -> Result<PlannedDevices, Failure> {
    let Some(server) = ServerConnection::of_pool(name)? else {
        return plan_in(&pool::open_for_reading(name)?, order);
    };
    match server.ask(Request::PlanDevices(order), |_| ())? {
        Answer::DevicesPlanned(planned) => Ok(planned),
        _ => Err(foreign_answer()),
    }
}
