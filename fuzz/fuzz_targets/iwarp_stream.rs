#![no_main]

urnic_fuzz::target!(iwarp_stream);
