//! The checks of the fuzz targets, on a stable toolchain and for a bounded time. Each decoder runs on
//! arbitrary bytes and on damaged encodings. The list of decoders is the list of the fuzz targets.

#[path = "../../../fuzz/src/decoders.rs"]
mod decoders;

use std::path::PathBuf;

use decoders::{DECODERS, Decoder};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

/// Cases for each decoder and test.
const CASES: u32 = 3000;

/// One change of a byte string. Positions are taken modulo its length.
#[derive(Clone, Debug)]
enum Damage {
    Set(usize, u8),
    Flip(usize, u8),
    Truncate(usize),
    Append(Vec<u8>),
    Splice(usize, Vec<u8>),
    Drop(usize, usize),
}

fn damage() -> impl Strategy<Value = Damage> {
    let some_bytes = || prop::collection::vec(any::<u8>(), 1..9);
    prop_oneof![
        4 => (any::<usize>(), prop_oneof![Just(0), Just(1), Just(0x7f), Just(0xff), any::<u8>()])
            .prop_map(|(at, byte)| Damage::Set(at, byte)),
        4 => (any::<usize>(), 0..8u8).prop_map(|(at, bit)| Damage::Flip(at, bit)),
        1 => any::<usize>().prop_map(Damage::Truncate),
        1 => some_bytes().prop_map(Damage::Append),
        2 => (any::<usize>(), some_bytes()).prop_map(|(at, bytes)| Damage::Splice(at, bytes)),
        1 => (any::<usize>(), 1..9usize).prop_map(|(at, len)| Damage::Drop(at, len)),
    ]
}

fn apply(bytes: &mut Vec<u8>, damage: &Damage) {
    let len = bytes.len().max(1);
    match damage {
        Damage::Set(at, byte) => bytes.get_mut(at % len).into_iter().for_each(|b| *b = *byte),
        Damage::Flip(at, bit) => bytes.get_mut(at % len).into_iter().for_each(|b| *b ^= 1 << bit),
        Damage::Truncate(at) => bytes.truncate(at % len),
        Damage::Append(more) => bytes.extend_from_slice(more),
        Damage::Splice(at, more) => drop(bytes.splice(at % len..at % len, more.iter().copied())),
        Damage::Drop(at, count) => {
            let start = (at % len).min(bytes.len());
            let end = (start + count).min(bytes.len());
            bytes.drain(start..end);
        }
    }
}

fn hold(decoder: &Decoder, bytes: &impl Strategy<Value = Vec<u8>>) {
    let mut runner = TestRunner::new(Config { cases: CASES, failure_persistence: None, ..Config::default() });
    let held = runner.run(bytes, |bytes| {
        (decoder.run)(&bytes);
        Ok(())
    });
    held.unwrap_or_else(|e| panic!("decoder {}: {e}", decoder.name));
}

#[test]
fn no_decoder_panics_on_arbitrary_bytes() {
    for decoder in DECODERS {
        hold(decoder, &prop::collection::vec(any::<u8>(), 0..600));
    }
}

#[test]
fn no_decoder_panics_on_damaged_bytes_and_decoded_structures_have_one_encoding() {
    for decoder in DECODERS {
        let damaged = (prop::sample::select((decoder.valid)()), prop::collection::vec(damage(), 1..5));
        let damaged = damaged.prop_map(|(mut bytes, all)| {
            all.iter().for_each(|damage| apply(&mut bytes, damage));
            bytes
        });
        hold(decoder, &damaged);
    }
}

/// With the environment variable `WARPFIRE_WRITE_SEEDS` the test writes the files.
#[test]
fn the_seeds_of_the_fuzz_targets_are_current_encodings() {
    let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds");
    let write = std::env::var_os("WARPFIRE_WRITE_SEEDS").is_some();
    for decoder in DECODERS {
        let directory = directory.join(decoder.name);
        for (n, bytes) in (decoder.valid)().iter().enumerate() {
            (decoder.run)(bytes);
            let file = directory.join(format!("{n}"));
            if write {
                std::fs::create_dir_all(&directory).expect("the directory of seeds can be made");
                std::fs::write(&file, bytes).expect("a seed can be written");
            }
            let stored = std::fs::read(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
            assert!(stored == *bytes, "{} differs from the current encoding", file.display());
        }
    }
}
