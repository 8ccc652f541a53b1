//! Shared fixture kit of the integration tests.

pub mod program;
pub mod redis;
pub mod s3;
