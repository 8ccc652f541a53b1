//! A model's network on its device: the CPU, or a GPU that holds its parameters.
//! Code that depends on the kind of device belongs here.

pub(crate) mod decode;
pub(crate) mod device;
pub(crate) mod fit;
pub(crate) mod footprint;
pub(crate) mod gradient_tree;
pub(crate) mod teacher_forced;

use std::sync::Arc;

use crate::cpu::network;
use crate::cpu::network::Numbers;
use crate::kernels::pointwise::RopeTable;
use crate::{Adapter, Device, ModelConfig, Result, Weights, gpu};

/// A model's network; a clone shares its parameters.
#[derive(Debug, Clone)]
pub(crate) struct Network {
    /// On the CPU: sizes, names and all numbers. In training a GPU's numbers are newer.
    pub(crate) host: network::Network,
    /// The same on the GPU, where one computes instead.
    pub(crate) gpu: Option<Arc<gpu::Network>>,
}

impl Network {
    /// Arranges `weights`, into which `adapter` is merged, on `device`; their shapes are those
    /// of `config`.
    pub(crate) fn new(
        config: &ModelConfig,
        rope: Arc<RopeTable>,
        weights: &Weights,
        adapter: Option<&Adapter>,
        device: &Device,
    ) -> Result<Self> {
        let host = network::Network::new(config, rope, weights, adapter)?;
        let gpu = match device.gpu() {
            Some(gpu) => Some(Arc::new(gpu::Network::upload(gpu, &host)?)),
            None => None,
        };
        Ok(Network { host, gpu })
    }

    /// An empty cache for one sequence.
    pub(crate) fn cache(&self) -> Cache {
        match &self.gpu {
            Some(network) => Cache::Gpu(network.cache()),
            None => Cache::Host(self.host.cache()),
        }
    }

    /// The head in the layout that generation reads; empty where a GPU generates.
    pub(crate) fn generating_head(&self) -> Numbers {
        match &self.gpu {
            Some(_) => Arc::default(),
            None => self.host.generating_head(),
        }
    }

    /// Longest sequence the rotary table covers.
    pub(crate) fn positions_max(&self) -> usize {
        self.host.positions_max()
    }

    /// Rows of the vocabulary.
    pub(crate) fn vocabulary(&self) -> usize {
        self.host.vocabulary()
    }
}

/// Keys and values of one sequence in every layer.
#[derive(Debug, Clone)]
pub(crate) enum Cache {
    Host(network::Cache),
    Gpu(gpu::Cache),
}

impl Cache {
    /// Tokens held.
    pub(crate) fn length(&self) -> usize {
        match self {
            Self::Host(cache) => cache.length(),
            Self::Gpu(cache) => cache.length(),
        }
    }

    /// Its first `tokens`, shared with it until either changes.
    pub(crate) fn first(&self, tokens: usize) -> Self {
        match self {
            Self::Host(cache) => Self::Host(cache.first(tokens)),
            Self::Gpu(cache) => Self::Gpu(cache.first(tokens)),
        }
    }
}
