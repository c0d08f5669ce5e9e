#![no_main]

urnic_fuzz::target!(mpa_startup);
