#![no_main]

urnic_fuzz::target!(ip_frames);
