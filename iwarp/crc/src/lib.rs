//! CRC32C, copy and checksum kernels.
