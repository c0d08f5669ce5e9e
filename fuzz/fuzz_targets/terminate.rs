#![no_main]

urnic_fuzz::target!(terminate);
