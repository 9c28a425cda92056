//! What the fuzz targets run. `crates/format/tests/decoders.rs` runs the same on a stable toolchain.

pub mod decoders;

/// Runs the decoder of a name.
///
/// # Panics
/// If there is none of that name, and if the decoder does.
pub fn run(name: &str, data: &[u8]) {
    let decoder = decoders::DECODERS.iter().find(|d| d.name == name);
    (decoder.expect("fuzz targets are named after decoders").run)(data);
}
