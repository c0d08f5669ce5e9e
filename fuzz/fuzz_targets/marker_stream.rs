#![no_main]

urnic_fuzz::target!(marker_stream);
