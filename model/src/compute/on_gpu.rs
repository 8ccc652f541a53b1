//! A network in a GPU's memory, which it leaves where others need that and nothing computes with it.

use std::sync::{Arc, Mutex};

use crate::Result;
use crate::cpu::network;
use crate::gpu::{self, Gpu, Idle};

/// A network's place in a GPU's memory; a clone shares it.
#[derive(Debug, Clone)]
pub(crate) struct OnGpu {
    gpu: Gpu,
    place: Arc<Place>,
}

/// `None` while the network is in host memory alone.
#[derive(Debug)]
struct Place(Mutex<Option<Arc<gpu::Network>>>);

impl Idle for Place {
    fn leave(&self) -> bool {
        let Ok(mut held) = self.0.try_lock() else {
            // Its network is being uploaded.
            return false;
        };
        let is_idle = held.as_ref().is_some_and(|n| Arc::strong_count(n) == 1);
        is_idle && held.take().is_some()
    }
}

impl Place {
    fn holding(network: Arc<gpu::Network>) -> Arc<Self> {
        Arc::new(Place(Mutex::new(Some(network))))
    }
}

impl OnGpu {
    /// Copies the parameters of `host`.
    ///
    /// # Errors
    /// As [`gpu::Network::upload`].
    pub(crate) fn upload(gpu: &Gpu, host: &network::Network) -> Result<Self> {
        let network = gpu::Network::upload(gpu, host)?;
        Ok(Self::copied(gpu, Arc::new(network)))
    }

    /// A network whose numbers are in host memory too.
    fn copied(gpu: &Gpu, network: Arc<gpu::Network>) -> Self {
        let place = Place::holding(network);
        gpu.may_leave(&place);
        OnGpu {
            gpu: gpu.clone(),
            place,
        }
    }

    /// The network, uploaded again from `host` if it has left.
    ///
    /// # Errors
    /// There is no room for it.
    pub(crate) fn network(&self, host: &network::Network) -> Result<Arc<gpu::Network>> {
        let mut held = self.place.0.lock().expect("no thread panics holding this");
        let network = match held.take() {
            Some(network) => network,
            None => Arc::new(gpu::Network::upload(&self.gpu, host)?),
        };
        Ok(Arc::clone(held.insert(network)))
    }

    /// The network with what `trained` has changed, which host memory does not have yet: so it stays.
    /// Memory that nobody else shares is overwritten.
    ///
    /// # Errors
    /// There is no room for it.
    pub(crate) fn renewed(
        &mut self,
        host: &network::Network,
        trained: &gpu::Trained,
    ) -> Result<()> {
        let own = Arc::get_mut(&mut self.place).and_then(|place| place.0.get_mut().ok()?.take());
        let mut network = match own {
            Some(network) => network,
            None => self.network(host)?,
        };
        Arc::make_mut(&mut network).renew(trained)?;
        self.place = Place::holding(network);
        Ok(())
    }

    /// The same network once host memory has its numbers.
    pub(crate) fn fetched(&self) -> Self {
        let held = self.place.0.lock().expect("no thread panics holding this");
        match &*held {
            Some(network) => Self::copied(&self.gpu, Arc::clone(network)),
            None => self.clone(),
        }
    }
}
