//! The device contract, on every kind of device, simulated and real.

use std::sync::Arc;

use warpfire_env::{Device, FileDevice, MemDevice};
use warpfire_sim_env::contract::{CONTRACT_SIZE_BYTES_MIN, check_device};
use warpfire_sim_env::{DeviceSpec, SimWorld};

fn blank(spec: &DeviceSpec) -> Arc<dyn Device> {
    SimWorld::of(1, 1, spec).devices().remove(0)
}

#[test]
fn a_conventional_device_keeps_the_contract() {
    check_device(&|| blank(&DeviceSpec::conventional("sim", CONTRACT_SIZE_BYTES_MIN)));
}

#[test]
fn an_append_only_device_keeps_the_contract() {
    check_device(&|| blank(&DeviceSpec::append_only("sim", CONTRACT_SIZE_BYTES_MIN)));
}

#[test]
fn a_zoned_device_keeps_the_contract() {
    check_device(&|| blank(&DeviceSpec::zoned("sim", 4 << 20, 1 << 20)));
}

#[test]
fn a_file_keeps_the_contract() {
    let dir = tempfile::tempdir().expect("the test has a directory for temporary files");
    let count = std::cell::Cell::new(0);
    check_device(&|| {
        count.set(count.get() + 1);
        let path = dir.path().join(count.get().to_string());
        Arc::new(FileDevice::create(&path, CONTRACT_SIZE_BYTES_MIN).expect("a new file can be made"))
    });
}

#[test]
fn memory_keeps_the_contract() {
    check_device(&|| Arc::new(MemDevice::new("memory", CONTRACT_SIZE_BYTES_MIN)));
}
