//! Integration tests: one binary.

mod storage;
