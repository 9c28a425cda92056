#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| warpfire_fuzz::run("stream", data));
