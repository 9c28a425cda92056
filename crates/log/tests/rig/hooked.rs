//! A device that does something before its next read or write, in the middle of a call of the log.

use std::sync::{Arc, Mutex};

use warpfire_env::{Device, DeviceError, DeviceInfo, ZoneReport};

type Action = Box<dyn FnOnce() + Send>;

/// A device with actions that wait for its next read and its next write.
pub struct Hooked {
    inner: Arc<dyn Device>,
    before_read: Mutex<Option<Action>>,
    before_write: Mutex<Option<Action>>,
}

impl Hooked {
    pub fn new(inner: Arc<dyn Device>) -> Arc<Self> {
        Arc::new(Hooked { inner, before_read: Mutex::default(), before_write: Mutex::default() })
    }

    pub fn before_read(&self, action: impl FnOnce() + Send + 'static) {
        *self.before_read.lock().expect("no action panics") = Some(Box::new(action));
    }

    pub fn before_write(&self, action: impl FnOnce() + Send + 'static) {
        *self.before_write.lock().expect("no action panics") = Some(Box::new(action));
    }

    /// Whether no action waits.
    pub fn is_done(&self) -> bool {
        [&self.before_read, &self.before_write].iter().all(|a| a.lock().expect("no action panics").is_none())
    }
}

fn act(action: &Mutex<Option<Action>>) {
    let action = action.lock().expect("no action panics").take();
    if let Some(action) = action {
        action();
    }
}

impl Device for Hooked {
    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }
    fn read(&self, offset_bytes: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        act(&self.before_read);
        self.inner.read(offset_bytes, buf)
    }
    fn write(&self, offset_bytes: u64, buf: &[u8]) -> Result<(), DeviceError> {
        act(&self.before_write);
        self.inner.write(offset_bytes, buf)
    }
    fn flush(&self) -> Result<(), DeviceError> {
        self.inner.flush()
    }
    fn discard(&self, offset_bytes: u64, len_bytes: u64) -> Result<(), DeviceError> {
        self.inner.discard(offset_bytes, len_bytes)
    }
    fn reset_zone(&self, offset_bytes: u64, len_bytes: u64) -> Result<(), DeviceError> {
        self.inner.reset_zone(offset_bytes, len_bytes)
    }
    fn zone_report(&self, offset_bytes: u64) -> Result<Option<ZoneReport>, DeviceError> {
        self.inner.zone_report(offset_bytes)
    }
}
