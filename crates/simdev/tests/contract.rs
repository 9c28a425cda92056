//! The device contract, on every kind of simulated device.

use std::sync::Arc;

use warpfire_env::Device;
use warpfire_simdev::contract::{CONTRACT_SIZE_BYTES_MIN, check_device};
use warpfire_simdev::{DeviceSpec, SimWorld};

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
