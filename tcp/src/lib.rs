//! Sans-IO TCP/IP stack of one core.
