//! The checks of the fuzz targets. `crates/format/tests/decoders.rs` runs them on a stable toolchain.

pub mod decoders;

/// Runs the decoder with this name.
///
/// # Panics
/// If there is no such decoder, or if it finds a fault.
pub fn run(name: &str, data: &[u8]) {
    let decoder = decoders::DECODERS.iter().find(|d| d.name == name);
    (decoder.expect("fuzz targets are named after decoders").run)(data);
}
