//! Sans-IO MPA, DDP and RDMAP.
