//! Shared fixture kit of the integration tests.

pub mod files;
pub mod fleet;
pub mod link;
pub mod ports;
pub mod program;
pub mod proxy;
pub mod redis;
pub mod s3;
pub mod slow;
pub mod tunnel;
