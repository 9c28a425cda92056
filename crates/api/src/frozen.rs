//! A frozen state: what the devices hold at one moment, for an independent reader beside everything else.

use std::sync::Arc;

use warpfire_env::Device;
use warpfire_pool::FrozenState;

use crate::{Result, Warpfire};

impl Warpfire {
    /// Makes all changes durable, and freezes the state that the devices hold then. `load` gets the devices
    /// that can be read. All writes to the pool wait until it returns, so it reads roots and logs, and no
    /// more. After that everything goes on, and what this state names stays as it is on the devices until the
    /// returned value is dropped. The space that is freed until then is not used again. When the pool needs
    /// it, the state is given up: a reader that has ended asks [`FrozenState::is_given_up`].
    ///
    /// # Errors
    /// As [`sync`](Warpfire::sync).
    pub fn freeze<T>(&self, load: impl FnOnce(&[Arc<dyn Device>]) -> T) -> Result<(FrozenState, T)> {
        let pool = &self.shared.open_pool;
        if !pool.is_read_only() {
            self.sync()?;
        }
        Ok(pool.freeze(load))
    }
}
