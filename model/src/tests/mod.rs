//! Tests of the whole model: golden numbers, batch invariance, training.

mod checkpoint;
mod golden;

use std::path::PathBuf;

use crate::{Device, Policy};

/// The fixture set: `AGENTGYM_FIXTURES`, else the workspace's own.
pub(crate) fn fixtures() -> PathBuf {
    match std::env::var_os("AGENTGYM_FIXTURES") {
        Some(path) => path.into(),
        None => concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures").into(),
    }
}

/// The golden model.
pub(crate) fn tiny_policy() -> Policy {
    Policy::load(&fixtures().join("qwen2-tiny"), &Device::cpu()).unwrap()
}
