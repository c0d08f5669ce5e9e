#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| urnic_fuzz::iwarp_stream::run(data));
