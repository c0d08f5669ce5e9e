#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| urnic_fuzz::mpa_startup::run(data));
