//! A model's network on its device: the CPU, or a GPU that holds its parameters.
//! Code that depends on the kind of device belongs here.

pub(crate) mod decode;
pub(crate) mod device;
pub(crate) mod device_footprint;
pub(crate) mod fit;
pub(crate) mod footprint;
pub(crate) mod gradient_tree;
mod on_gpu;
pub(crate) mod teacher_forced;

use std::sync::Arc;

use self::on_gpu::OnGpu;
use crate::cpu::layer::Numbers;
use crate::cpu::network;
use crate::gpu::Gpu;
use crate::kernels::pointwise::RopeTable;
use crate::{Adapter, Device, ModelConfig, Result, Weights, gpu};

/// A model's network; a clone shares its parameters.
#[derive(Debug, Clone)]
pub(crate) struct Network {
    /// On the CPU: sizes, names and all numbers. In training a GPU's numbers are newer.
    pub(crate) host: network::Network,
    /// The same on the GPU, where one computes instead.
    gpu: Option<OnGpu>,
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
        let host = network::Network::new(config, rope, weights, adapter, device.host_bf16())?;
        let gpu = match device.gpu() {
            Some(gpu) => Some(OnGpu::upload(gpu, &host)?),
            None => None,
        };
        Ok(Network { host, gpu })
    }

    /// The network in the GPU's memory, if a GPU computes; it stays there while this is held.
    ///
    /// # Errors
    /// There is no room for it.
    pub(crate) fn on_gpu(&self) -> Result<Option<Arc<gpu::Network>>> {
        let found = self.gpu.as_ref().map(|own| own.network(&self.host));
        found.transpose()
    }

    /// Makes the network on the GPU take over what was trained there.
    pub(crate) fn renew_on_gpu(&mut self, trained: &gpu::Trained) -> Result<()> {
        match &mut self.gpu {
            Some(own) => own.renewed(&self.host, trained),
            None => Ok(()),
        }
    }

    /// Takes over the network on the GPU of `other`, whose numbers this one has in host memory.
    pub(crate) fn take_from_gpu(&mut self, other: &Network) {
        self.gpu = other.gpu.as_ref().map(OnGpu::fetched);
    }

    /// Bytes that keys and values of a token take on a GPU, in all layers.
    pub(crate) fn cache_token_bytes(&self, gpu: &Gpu) -> usize {
        let host = &self.host;
        gpu::Cache::token_bytes(gpu, host.layers.len(), host.kv_heads * host.width)
    }

    /// An empty cache for one sequence.
    pub(crate) fn cache(&self) -> Cache {
        let host = &self.host;
        match &self.gpu {
            Some(_) => Cache::Gpu(gpu::Cache::new(
                host.layers.len(),
                host.kv_heads * host.width,
            )),
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
