//! Measurements: perftest-like operations, link floors, reports.
