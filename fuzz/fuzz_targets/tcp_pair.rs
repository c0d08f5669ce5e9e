#![no_main]

urnic_fuzz::target!(tcp_pair);
