#![no_main]

urnic_fuzz::target!(config_file);
