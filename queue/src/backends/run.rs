//! The apalis worker that both backends share.

/// Runs an apalis worker over any backend. A macro, because a function would repeat a dozen of
/// apalis' associated types in its bounds.
macro_rules! run_apalis {
    ($backend:expr, $worker:expr) => {{
        use apalis::prelude::WorkerBuilder;
        let worker: $crate::driver::Worker = $worker;
        let end = worker.end.clone();
        WorkerBuilder::new(worker.name.as_str())
            .backend($crate::gate::Gated::new($backend, worker.turn()))
            .build(worker.handler())
            .run_until(async move {
                end.cancelled().await;
                Ok::<(), std::io::Error>(())
            })
            .await
    }};
}
pub(crate) use run_apalis;
